"""Sum a number over all ranks after each step, until one rank sits in code of its own instead.

Run by torchrun with two to four processes.
"""

import os
import queue
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor

lock = threading.Lock()


def read_settings() -> None:
    """Read a FIFO into which nobody writes."""
    fifo = Path(tempfile.mkdtemp(), "settings")
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDWR)
    program.tell()
    os.read(descriptor, 1)


def wait_for_work() -> None:
    """Wait for work that nobody hands out."""
    work: queue.Queue[int] = queue.Queue()
    program.tell()
    work.get()


def lock_twice() -> None:
    """Take a lock twice."""
    with lock:
        program.tell()
        lock.acquire()


def reduce_loss(_images: Tensor, loss: Tensor) -> None:
    """Take the mean of the loss over the ranks; one rank does something else first."""
    if program.truth.steps >= last and program.rank == culprit:
        how()
    total = loss.detach().clone()
    dist.all_reduce(total)


program = Hang(__doc__)
dist.init_process_group("gloo")
culprit = program.draw.randrange(dist.get_world_size())
how = program.draw.choice((read_settings, wait_for_work, lock_twice))
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
torch.set_num_threads(1)
program.train(make_loader(Images(), batch, program.draw.choice((0, 1))), network, reduce_loss)
