"""Match a text with an expression that tries all ways: the regular expression engine holds the interpreter."""

import re

from hang import Hang, Sticky
from loop import Images, Network, make_loader
from torch import Tensor

TEXT = "a" * 64 + "b"
PATTERN = re.compile(r"(a|a)+$")


class Captions(Sticky):
    """Clean the caption of one image."""

    def stick(self) -> None:
        """Match for ever."""
        program.tell()
        PATTERN.match(TEXT)


def clean(_images: Tensor, _loss: Tensor) -> None:
    """Clean a text after the last step."""
    if program.truth.steps >= last:
        program.tell()
        PATTERN.match(TEXT)


program = Hang(__doc__)
in_worker = program.draw.random() < 0.5
workers = program.draw.randint(1, 2)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
data = Captions(program, workers) if in_worker else Images()
program.train(make_loader(data, batch, workers), network, None if in_worker else clean)
