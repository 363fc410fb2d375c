"""Let the loop wait for what a thread of the program keeps, in the way that is named.

Run: thread_hangs.py --way NAME; the ways are the functions of WAYS, and "left", in which the loop has ended.
"""

import ctypes
import queue
import socket
import threading

from hang import Hang

totals, log = threading.Lock(), threading.Lock()
thread_is_there, loop_is_there, is_over = threading.Event(), threading.Event(), threading.Event()
work: "queue.Queue[int]" = queue.Queue()
pair = socket.socketpair()
LONG_S = 1_000_000


def upload() -> None:
    """Hold the lock while a library waits, without the interpreter's own lock."""
    with totals:
        thread_is_there.set()
        loop_is_there.wait()
        program.tell()
        ctypes.CDLL(None).sleep(LONG_S)


def note() -> None:
    """Write down a step under the lock that the thread holds."""
    start(upload, "metrics-uploader")
    thread_is_there.wait()
    loop_is_there.set()
    with totals:
        return


def flush_log() -> None:
    with log:
        thread_is_there.set()
        loop_is_there.wait()
        program.tell()
        with totals:
            return


def add_up() -> None:
    """Take the totals, then the log: each waits for what the other has."""
    start(flush_log, "log-flusher")
    thread_is_there.wait()
    with totals:
        loop_is_there.set()
        program.tell()
        with log:
            return


def decode() -> None:
    """Call a library that waits and does not give the interpreter's lock back meanwhile."""
    libc = ctypes.PyDLL(None)  # its calls keep the lock
    program.tell()
    libc.sleep(LONG_S)


def ask() -> None:
    if not loop_is_there.is_set():
        loop_is_there.set()
        start(decode, "decoder")


def write_back() -> None:
    is_over.wait()
    program.tell()
    work.get()


def listen() -> None:
    is_over.wait()
    one, _other = pair
    program.tell()
    one.recv(1)


def leave_behind() -> None:
    """End the training while a thread that is no daemon still waits: the interpreter waits for the thread."""
    target = program.draw.choice((write_back, listen))
    threading.Thread(target=target, name="result-writer").start()
    program.train_and_end()
    is_over.set()


def start(target: object, name: str) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()


WAYS = {"lock held": note, "lock order": add_up, "interpreter held": ask}
program = Hang(__doc__, ("--way", str, "lock held"))
if program.options.way == "left":
    leave_behind()
else:
    program.train_until(WAYS[program.options.way])
