"""Read thousands of small files over a file system that answers late. Fixed: more readers."""

import os

import torch
from limits import RefusedError
from loop import SIDE, Images, Network, Program, make_loader
from slow_fs import mount_slow_fs

PIXELS = 3 * SIDE * SIDE


class SmallFiles(Images):
    """Open, read and close one small file for each image."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def read(self, index: int) -> torch.Tensor:
        """Read image ``index``."""
        with open(os.path.join(self.place, str(index)), "rb", buffering=0) as file:
            pixels = bytearray(file.read(PIXELS))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, SIDE, SIDE) / 255


program = Program(__doc__)
try:
    place = mount_slow_fs(PIXELS, program.draw.uniform(4, 12), 500.0)
except (RefusedError, OSError) as error:
    program.cannot(str(error))
batch = program.draw.choice((16, 32))
workers = program.draw.choice((1, 2))
data = SmallFiles(place)
program.train(
    make_loader(data, batch, 6 * workers if program.fix else workers),
    Network(program.draw.uniform(15, 40), batch),
)
