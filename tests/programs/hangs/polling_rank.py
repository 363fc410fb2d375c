"""Sum a number over all ranks after each step, until one rank looks for a file now and then that nobody makes.

Run by torchrun with two to four processes.
"""

import os
import time

import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor


def wait_for_file() -> None:
    """Look for the file."""
    program.tell(2)
    while not os.path.exists("/nonexistent/ready"):
        time.sleep(pause_s)


def reduce_loss(_images: Tensor, loss: Tensor) -> None:
    """Take the mean of the loss over the ranks; one rank does something else first."""
    if program.truth.steps >= last and program.rank == culprit:
        wait_for_file()
    total = loss.detach().clone()
    dist.all_reduce(total)


program = Hang(__doc__)
dist.init_process_group("gloo")
culprit = program.draw.randrange(dist.get_world_size())
pause_s = program.draw.choice((0.1, 1.0, 10.0))
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
program.train(make_loader(Images(), batch, program.draw.choice((0, 1))), network, reduce_loss)
