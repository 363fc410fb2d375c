"""Wait after some steps for a lock that nobody releases."""

import threading

from loop import Images, Network, Program, make_loader
from torch import Tensor

lock = threading.Lock()


def hold(_images: Tensor, _loss: Tensor) -> None:
    """Take the lock, twice in the last step."""
    with lock:
        if program.truth.steps >= last:
            program.truth.ready()
            lock.acquire()


program = Program(__doc__)
last = program.draw.randint(20, 60)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
program.train(make_loader(Images(), batch, workers), Network(program.draw.uniform(20, 60), batch), hold, 10**9)
