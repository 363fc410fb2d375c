"""Train two ranks with hundreds of small gradients, each sent by itself within backward.

Fixed: they go in one large bucket. Run by torchrun with two processes.
"""

import torch.distributed as dist
from loop import Program, same_batch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Deep(nn.Module):
    """Classify small images with many layers of few weights: little to compute, many gradients."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 32 * 32, width)
        self.body = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.first(images.flatten(1)))


program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((4, 8))
network = Deep(program.draw.choice((40, 60)), program.draw.choice((16, 32)))
cap_mb = 25.0 if program.fix else 1e-6
program.train(same_batch(batch), DistributedDataParallel(network, bucket_cap_mb=cap_mb))
