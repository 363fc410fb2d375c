"""Train on two ranks or more of which one does more work: the others wait in every reduction.

Fixed: equal work. Run by torchrun.
"""

import torch
import torch.distributed as dist
from loop import Images, Network, Program, make_loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

program = Program(__doc__)
dist.init_process_group("gloo")
late = program.draw.randrange(dist.get_world_size())
times = program.draw.randint(3, 6)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(10, 20))
model = DistributedDataParallel(network)


def evaluate_more(images: Tensor, _loss: Tensor) -> None:
    if program.rank == late and not program.fix:
        with torch.no_grad():
            for _ in range(times):
                network(images)


program.train(make_loader(Images(), batch, 1), model, evaluate_more)
