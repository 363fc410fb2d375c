"""Let a thread call a C library that waits and does not give the interpreter's lock back meanwhile."""

import ctypes
import threading

from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor

libc = ctypes.PyDLL(None)  # its calls keep the lock


def decode() -> None:
    """Call the library."""
    is_wanted.wait()
    program.tell()
    libc.sleep(1_000_000)


def ask(_images: Tensor, _loss: Tensor) -> None:
    """Have the thread decode after the last step."""
    if program.truth.steps >= last:
        is_wanted.set()


program = Hang(__doc__)
is_wanted = threading.Event()
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
network = Network(program.draw.uniform(10, 40), batch)
threading.Thread(target=decode, name="decoder", daemon=True).start()
program.train(make_loader(Images(), batch, workers), network, ask)
