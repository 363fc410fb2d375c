"""Read thousands of small files over a file system that answers late. Fixed: more readers."""

import os

import torch
from loop import SIDE, Images, Network, Program, make_loader
from slow_fs import mount_slow_fs

PIXELS = 3 * SIDE * SIDE


class SmallFiles(Images):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def read(self, index: int) -> torch.Tensor:
        with open(os.path.join(self.place, str(index)), "rb", buffering=0) as file:
            pixels = bytearray(file.read(PIXELS))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, SIDE, SIDE) / 255


program = Program(__doc__)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((1, 2))
step_ms = program.draw.uniform(15, 40)
late_ms = step_ms * program.draw.uniform(3, 5) * workers / batch / 2  # the open and the read
data = SmallFiles(program.make(mount_slow_fs, PIXELS, late_ms, 500.0))
program.train(make_loader(data, batch, 4 * workers if program.fix else workers), Network(step_ms, batch))
