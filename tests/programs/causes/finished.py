"""Train for some seconds, save the result and end."""

import tempfile

import torch
from loop import Images, Network, Program, make_loader

program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(20, 60), batch)
program.truth.ready()
program.train(make_loader(Images(), batch, 1), network, steps=program.draw.randint(100, 150))
with tempfile.TemporaryFile() as file:
    torch.save(network.state_dict(), file)
