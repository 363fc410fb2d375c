"""Compile the model for shape after shape before the first step, as a warm-up with many shapes does."""

import torch
from loop import Network, Program, same_batch

program = Program(__doc__)
batch = program.draw.choice((2, 4))
network = Network(0, batch, depth=program.draw.randint(8, 16))
torch._inductor.config.force_disable_caches = True
torch._inductor.config.compile_threads = program.draw.choice((1, 2))
model = torch.compile(network, dynamic=False)
side = 16
program.truth.ready()
while not program.is_over:
    torch._dynamo.reset()
    model(torch.rand(batch, 3, side, side)).sum().backward()
    side += 2
program.train(same_batch(batch), network, steps=1)
