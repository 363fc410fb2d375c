"""Train for some seconds, then fail as a bad sample or a bug in a metric does."""

import time

import torch
from loop import Images, Network, Program, make_loader
from torch import Tensor

program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(20, 40), batch)
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, network, steps=20)
program.truth.ready()
fails_at = time.monotonic() + program.draw.uniform(3, 7)


def measure(images: Tensor, _loss: Tensor) -> None:
    """Compare images with others of another size, in the end."""
    if time.monotonic() > fails_at:
        torch.testing.assert_close(images, images[:, :2])


program.train(loader, network, measure)
