"""Wait for a sample of a process of one's own that was killed, as the kernel does when memory runs out.

A DataLoader looks after its workers and raises; a queue of ``multiprocessing`` does not.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator

import torch
from hang import Hang
from loop import CLASSES, SIDE, Images, Network
from torch import Tensor

context = multiprocessing.get_context("fork")


def serve(number: int, asked: "multiprocessing.Queue[int]", made: "multiprocessing.Queue[list[float]]") -> None:
    """Make the images that are asked for; one process dies of it."""
    images = Images()
    torch.set_num_threads(1)
    while True:
        index = asked.get()
        if number == victim and index >= last:
            program.tell()
            os.kill(os.getpid(), signal.SIGKILL)
        made.put(images[index][0].flatten().tolist())


def load() -> Iterator[tuple[Tensor, Tensor]]:
    index = 0
    while True:
        for asked in asking:
            for _ in range(share):
                asked.put(index)
        rows = [made.get() for _ in range(share * processes)]
        index += 1
        yield torch.tensor(rows).view(len(rows), 3, SIDE, SIDE), torch.arange(len(rows)) % CLASSES


program = Hang(__doc__)
processes = program.draw.randint(1, 3)
share = program.draw.choice((4, 8))
victim = program.draw.randrange(processes)
last = program.draw.randint(10, 40)
network = Network(program.draw.uniform(10, 40), share * processes)
asking = [context.Queue() for _ in range(processes)]
made = context.Queue()
for number, asked in enumerate(asking):
    context.Process(target=serve, args=(number, asked, made), daemon=True).start()
program.train(load(), network)
