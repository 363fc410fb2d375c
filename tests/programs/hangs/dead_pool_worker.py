"""Wait for a result of a process pool of which one process was killed: the pool replaces it, its work is lost."""

import multiprocessing
import os
import signal
from collections.abc import Iterator

import torch
from hang import Hang
from loop import CLASSES, SIDE, Images, Network
from torch import Tensor


def make(index: int) -> list[float]:
    """Make an image in a process of the pool; one image kills it."""
    if index == last:
        program.tell()
        os.kill(os.getpid(), signal.SIGKILL)
    torch.set_num_threads(1)
    return Images()[index][0].flatten().tolist()


def load() -> Iterator[tuple[Tensor, Tensor]]:
    first = 0
    while True:
        rows = pool.map(make, range(first, first + batch), chunksize=1)
        first += batch
        yield torch.tensor(rows).view(batch, 3, SIDE, SIDE), torch.arange(batch) % CLASSES


program = Hang(__doc__)
batch = program.draw.choice((8, 16))
last = batch * program.draw.randint(10, 30) + program.draw.randrange(batch)
network = Network(program.draw.uniform(10, 40), batch)
pool = multiprocessing.get_context("fork").Pool(program.draw.choice((2, 3)))
program.train(load(), network)
