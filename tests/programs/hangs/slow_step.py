"""Take more than a minute for each step in one call of a C library: the spectrum of a large matrix."""

import torch
from hang import Hang
from loop import Images, Network, make_loader, take_cpu_ms
from torch import Tensor

SMALL = 1000


def look_at_spectrum(side: int) -> Tensor:
    """Compute eigenvalues in one call."""
    return torch.linalg.eigvals(torch.rand(side, side)).abs().amax()


def measure(_images: Tensor, _loss: Tensor) -> None:
    """Look at the curvature of the loss, say, after the first steps."""
    if program.truth.steps >= last:
        program.tell()
        look_at_spectrum(side)


program = Hang(__doc__)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
seconds = program.draw.uniform(90, 120)
small_ms = take_cpu_ms(lambda: look_at_spectrum(SMALL), tries=1)
side = round(SMALL * (seconds * 1000 / small_ms) ** (1 / 3))
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, Network(program.draw.uniform(10, 40), batch), measure)
