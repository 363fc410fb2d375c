"""Wait for a lock that a thread holds during a call of a C library that does not come back."""

import ctypes
import threading

from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor

lock = threading.Lock()
is_held, is_wanted = threading.Event(), threading.Event()
libc = ctypes.CDLL(None)


def upload() -> None:
    """Hold the lock while a library waits, without the interpreter's own lock."""
    with lock:
        is_held.set()
        is_wanted.wait()
        program.tell()
        libc.sleep(1_000_000)


def note(_images: Tensor, _loss: Tensor) -> None:
    """Write down a step under the lock."""
    if program.truth.steps >= last:
        uploader.start()
        is_held.wait()
        is_wanted.set()
    with lock:
        return


program = Hang(__doc__)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
network = Network(program.draw.uniform(10, 40), batch)
uploader = threading.Thread(target=upload, name="metrics-uploader", daemon=True)
program.train(make_loader(Images(), batch, workers), network, note)
