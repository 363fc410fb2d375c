"""Hold the samples in a long list of Python objects: each worker copies what it touches.

Fixed: in one tensor.
"""

import torch
from limits import enter_memory_limit
from loop import CLASSES, Images, Network, Program, make_loader
from torch import Tensor

MB = 1 << 20


class Listed(Images):
    """Look at a stretch of the list for each image: its reference counts are written."""

    def __init__(self, count: int, stretch: int, as_tensor: bool) -> None:
        super().__init__()
        words = [f"sample-{number:012d}" for number in range(0 if as_tensor else count)]
        self.words: list[str] | Tensor = torch.arange(count) if as_tensor else words
        self.stretch = stretch

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        start = index * self.stretch % len(self.words)
        seen = [word for word in self.words[start : start + self.stretch] if word is not None]
        return super().__getitem__(index)[0], len(seen) % CLASSES


program = Program(__doc__)
program.make(enter_memory_limit, program.draw.choice((3, 4)) * 1024 * MB)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(30, 60)
workers = program.draw.choice((2, 3))
count = 8_000_000
# Each worker has seen all of the list after nearly two minutes, beside a busy neighbour after four: it must
# still copy when a watch of 90 s ends.
stretch = max(1, round(count * step_ms / 1000 / batch / 110))
data = Listed(count, stretch, program.fix)
program.train(make_loader(data, batch, workers, shuffle=False), Network(step_ms, batch))
