"""Validate on the first rank for more than a minute, while the other ranks wait for it at a barrier.

Run by torchrun with two to four processes.
"""

import time

import torch
import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch.nn.parallel import DistributedDataParallel


def validate(seconds: float) -> None:
    network.eval()
    end = time.monotonic() + seconds
    with torch.no_grad():
        for images, _labels in held_out:
            network(images)
            if time.monotonic() > end:
                break
    network.train()


program = Hang(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
model = DistributedDataParallel(network)
seconds = program.draw.uniform(80, 120)
steps = program.draw.randint(10, 30)
held_out = make_loader(Images(), 4 * batch, 0, shuffle=False)
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
while not program.is_over:
    program.train(loader, model, steps=steps)
    if program.rank == 0:
        program.tell()
        validate(seconds)
    dist.barrier()
