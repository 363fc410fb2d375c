"""Train for some seconds, save the result and end."""

import tempfile
import time

import torch
from loop import Images, Network, Program, make_loader

program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(20, 40), batch)
loader = make_loader(Images(), batch, 1)
program.train(loader, network, steps=20)
program.truth.ready()
program.deadline = time.monotonic() + program.draw.uniform(4, 8)
program.train(loader, network)
with tempfile.TemporaryFile() as file:
    torch.save(network.state_dict(), file)
