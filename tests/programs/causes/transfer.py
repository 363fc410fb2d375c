"""Train two ranks whose gradients are large and whose steps are short: moving them takes most of a step.

Fixed: gradients are accumulated for eight steps between two exchanges. Run by torchrun with two
processes.
"""

import contextlib

import torch.distributed as dist
from loop import Program, same_batch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ACCUMULATED = 8
MIB = 1 << 20


class Wide(nn.Module):
    """Classify small images with one large, rarely used table: few operations, many gradients."""

    def __init__(self, mebibytes: int) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 32 * 32, 64)
        self.table = nn.Parameter(nn.init.normal_(self.first.weight.new_empty(mebibytes * MIB // 4 // 64, 64)))

    def forward(self, images: Tensor) -> Tensor:
        return self.first(images.flatten(1)) @ self.table[:64].T


program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((4, 8))
model = DistributedDataParallel(Wide(program.draw.choice((64, 96, 128))))
for step, (images, labels) in enumerate(same_batch(batch), 1):
    exchanges = not program.fix or step % ACCUMULATED == 0
    with contextlib.nullcontext() if exchanges else model.no_sync():
        functional.cross_entropy(model(images), labels).backward()
    if exchanges:
        model.zero_grad(set_to_none=False)
    program.truth.note(0)
    if step == 5:
        program.truth.ready()
    if program.is_over:
        break
