"""Take batches from a prefetch thread or a pool of the program's own that is too slow. Fixed: four of them."""

import queue
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context

import torch
from loop import SIDE, Network, Program
from torch import Tensor

Batch = tuple[Tensor, Tensor]


def make(task: tuple[int, float]) -> Batch:
    """Make a batch after a wait, as for a store that answers late."""
    size, wait_s = task
    time.sleep(wait_s)
    return torch.rand(size, 3, SIDE, SIDE), torch.randint(0, 10, (size,))


class Prefetched:
    def __init__(self, threads: int, size: int, wait_s: float) -> None:
        self.queue: queue.Queue[Batch] = queue.Queue(maxsize=2)
        for _ in range(threads):
            threading.Thread(target=self.fill, args=((size, wait_s),), name="prefetch", daemon=True).start()

    def fill(self, task: tuple[int, float]) -> None:
        while True:
            self.queue.put(make(task))

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.queue.get()


class Pooled:
    def __init__(self, processes: int, size: int, wait_s: float) -> None:
        self.pool = get_context("fork").Pool(processes)
        self.tasks = [(size, wait_s)] * 200

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.pool.imap(make, self.tasks)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(15, 40)
wait_s = step_ms * program.draw.uniform(2, 4) / 1000
makes = program.draw.choice((Prefetched, Pooled))
network = Network(step_ms, batch)
program.train(makes(4 if program.fix else 1, batch, wait_s), network)
