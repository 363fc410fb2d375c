"""Sum a number over all ranks after each step, until one rank has no data left and ends without a fault.

Run by torchrun with two to four processes.
"""

import sys

import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor


def reduce_loss(_images: Tensor, loss: Tensor) -> None:
    """Take the mean of the loss over the ranks; one rank is done before the others."""
    if program.truth.steps >= last and program.rank == culprit:
        program.tell()
        sys.exit(0)
    total = loss.detach().clone()
    dist.all_reduce(total)


program = Hang(__doc__)
dist.init_process_group("gloo")
# The first rank keeps the store: where it ends, the others fail instead of waiting.
culprit = program.draw.randrange(1, dist.get_world_size())
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
program.train(make_loader(Images(), batch, 0), network, reduce_loss)
