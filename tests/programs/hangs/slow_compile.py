"""Compile the model again and again: for each new shape, as a warm-up with many shapes does."""

import torch
from hang import Hang
from loop import Network

program = Hang(__doc__)
batch = program.draw.choice((2, 4))
network = Network(0, batch, depth=program.draw.randint(8, 16))
torch._inductor.config.force_disable_caches = True
torch._inductor.config.cpp.threads = 1
model = torch.compile(network, dynamic=False)
side = 16
program.tell()
while not program.is_over:
    torch._dynamo.reset()
    images = torch.rand(batch, 3, side, side)
    model(images).sum().backward()
    side += 2
