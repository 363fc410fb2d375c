"""Gather thousands of small Python objects from both ranks in each step, each pickled and unpickled by all.

Fixed: as one tensor, which is sent as it is. Run by torchrun with two processes.
"""

import torch
import torch.distributed as dist
from loop import Network, Program, same_batch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((4, 8))
found = program.draw.choice((20_000, 40_000))
model = DistributedDataParallel(Network(0, batch, depth=2))


def gather(_images: Tensor, loss: Tensor) -> None:
    """Share what was found in this step with the other rank, as for a metric."""
    if program.fix:
        mine = torch.rand(found, 2)
        dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size())], mine)
    else:
        rows = [{"image": number, "box": [number, number + 1], "score": 0.5} for number in range(found)]
        dist.all_gather_object([None] * dist.get_world_size(), rows)


program.train(same_batch(batch), model, gather)
