"""Wait for a sample of a process that was killed, as the kernel does when memory runs out, in the way that is named.

Run: dead_workers.py --way NAME; the ways are the functions of WAYS. A DataLoader looks after its workers and raises; a
queue of ``multiprocessing`` does not, and a pool of it replaces the process, and its work is lost.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator

import torch
from hang import Hang
from loop import CLASSES, SIDE, Images, Network
from torch import Tensor

Batch = tuple[Tensor, Tensor]
context = multiprocessing.get_context("fork")


def put_together(rows: list[list[float]]) -> Batch:
    return torch.tensor(rows).view(len(rows), 3, SIDE, SIDE), torch.arange(len(rows)) % CLASSES


def make(index: int, is_last: bool) -> list[float]:
    """Make an image; the last one kills the process."""
    torch.set_num_threads(1)
    if is_last:
        program.tell()
        os.kill(os.getpid(), signal.SIGKILL)
    return Images()[index][0].flatten().tolist()


def load_by_pool() -> None:
    batch = program.draw.choice((8, 16))
    last = batch * program.draw.randint(10, 30) + program.draw.randrange(batch)
    network = Network(program.draw.uniform(10, 40), batch)
    pool = context.Pool(program.draw.choice((2, 3)))

    def load() -> Iterator[Batch]:
        first = 0
        while True:
            asked = [(index, index == last) for index in range(first, first + batch)]
            first += batch
            yield put_together(pool.starmap(make, asked, chunksize=1))

    program.train(load(), network)


def load_by_own_processes() -> None:
    processes = program.draw.randint(1, 3)
    share = program.draw.choice((4, 8))
    victim = program.draw.randrange(processes)
    last = program.draw.randint(10, 40)
    network = Network(program.draw.uniform(10, 40), share * processes)
    asking = [context.Queue() for _ in range(processes)]
    made = context.Queue()

    def serve(number: int) -> None:
        while True:
            index = asking[number].get()
            made.put(make(index, number == victim and index >= last))

    def load() -> Iterator[Batch]:
        index = 0
        while True:
            for asked in asking:
                for _ in range(share):
                    asked.put(index)
            index += 1
            yield put_together([made.get() for _ in range(share * processes)])

    for number in range(processes):
        context.Process(target=serve, args=(number,), daemon=True).start()
    program.train(load(), network)


WAYS = {"pool": load_by_pool, "queue": load_by_own_processes}
program = Hang(__doc__, ("--way", str, "queue"))
WAYS[program.options.way]()
