"""Take more than a minute for each step in one call of a C library: a network over a very long sequence."""

import torch
from hang import Hang
from loop import Images, Network, make_loader, take_cpu_ms
from torch import Tensor

WIDTH = 64


def encode(length: int) -> Tensor:
    """Run over a sequence in one call."""
    with torch.no_grad():
        return network(sequence[:1].expand(length, WIDTH).unsqueeze(1))[0]


def embed(_images: Tensor, _loss: Tensor) -> None:
    """Look back at everything that was read, after the first steps."""
    if program.truth.steps >= last:
        program.tell()
        encode(length)


program = Hang(__doc__)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
seconds = program.draw.uniform(65, 90)
network = torch.nn.LSTM(WIDTH, WIDTH)
sequence = torch.rand(1, WIDTH)
length = round(seconds * 1000 / (take_cpu_ms(lambda: encode(2000)) / 2000))
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, Network(program.draw.uniform(10, 40), batch), embed)
