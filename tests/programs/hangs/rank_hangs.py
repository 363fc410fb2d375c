"""Let one rank of two to four do something else than the others, who wait for it, in the way that is named.

Run by torchrun: rank_hangs.py --way NAME; the ways are those of WAYS. With ``--culprit-node`` the rank is one of the
two of that node.
"""

import os
import queue
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

RANKS_OF_A_NODE = 2
lock = threading.Lock()


def read_settings() -> None:
    fifo = Path(tempfile.mkdtemp(), "settings")
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDWR)
    program.tell()
    os.read(descriptor, 1)


def wait_for_work() -> None:
    work: queue.Queue[int] = queue.Queue()
    program.tell()
    work.get()


def lock_twice() -> None:
    with lock:
        program.tell()
        lock.acquire()


def wait_for_file() -> None:
    pause_s = program.draw.choice((0.1, 1.0, 10.0))
    program.tell(2)
    while not os.path.exists("/nonexistent/ready"):
        time.sleep(pause_s)


def stop() -> None:
    program.tell()
    os.kill(os.getpid(), signal.SIGSTOP)


class Piped(Images):
    """Serve images of which one comes through a FIFO into which nobody writes."""

    def read(self, index: int) -> Tensor:
        if is_late():
            fifo = Path(tempfile.mkdtemp(), "images")
            os.mkfifo(fifo)
            program.tell()
            fifo.read_bytes()
        return super().read(index)


def is_late() -> bool:
    return program.truth.steps >= last and program.rank == culprit


def after_step(_images: Tensor, loss: Tensor) -> None:
    """Do something else on one rank; where no gradients are summed, take the mean of the loss over the ranks."""
    if way and is_late():
        way()
    if not in_backward:
        total = loss.detach().clone()
        dist.all_reduce(total)


WAYS = {
    "alone": ((read_settings, wait_for_work, lock_twice), False),
    "polling": ((wait_for_file,), False),
    "in a lock": ((lock_twice,), True),
    "stopped": ((stop,), True),
    "loading": ((None,), True),
}
"""What the rank does, one of these; and whether the others wait in backward, or in an all_reduce after each step."""

program = Hang(__doc__, ("--way", str, "alone"), ("--culprit-node", int, -1))
dist.init_process_group("gloo")
ways, in_backward = WAYS[program.options.way]
way = program.draw.choice(ways)
node = program.options.culprit_node
if node < 0:
    culprit = program.draw.randrange(dist.get_world_size())
else:
    culprit = RANKS_OF_A_NODE * node + program.draw.randrange(RANKS_OF_A_NODE)
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
torch.set_num_threads(1)
loader = make_loader(Piped() if way is None else Images(), batch, 0 if in_backward else program.draw.choice((0, 1)))
program.train(loader, DistributedDataParallel(network) if in_backward else network, after_step)
