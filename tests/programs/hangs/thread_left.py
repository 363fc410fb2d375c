"""End the training while a thread that is no daemon still waits: the interpreter waits for the thread."""

import queue
import socket
import threading

from hang import Hang


def write_back() -> None:
    is_over.wait()
    program.tell()
    work.get()


def listen() -> None:
    is_over.wait()
    one, _other = pair
    program.tell()
    one.recv(1)


program = Hang(__doc__)
work: "queue.Queue[int]" = queue.Queue()
pair = socket.socketpair()
is_over = threading.Event()
target = program.draw.choice((write_back, listen))
threading.Thread(target=target, name="result-writer").start()
program.train_and_end()
is_over.set()
