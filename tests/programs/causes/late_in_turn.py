"""Train four ranks of which each is late in its turn: all wait in collectives, and nobody is to blame.

Run by torchrun with four processes.
"""

import itertools
import time

import torch.distributed as dist
from loop import Network, Program, same_batch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((4, 8))
late_s = program.draw.uniform(0.14, 0.28)
model = DistributedDataParallel(Network(0, batch, depth=program.draw.randint(2, 4)))
turns = itertools.cycle(range(dist.get_world_size()))


def rest_in_turn(_images: Tensor, _loss: Tensor) -> None:
    """Take longer than the others in every fourth step, as for a long sample."""
    if next(turns) == program.rank:
        time.sleep(late_s)


program.train(same_batch(batch), model, rest_in_turn)
