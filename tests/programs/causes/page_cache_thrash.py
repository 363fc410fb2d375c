"""Read a mapped file that is larger than the memory limit leaves room for. Fixed: a higher limit."""

import mmap
import os
import tempfile

import torch
from limits import enter_memory_limit
from loop import SIDE, Images, Network, Program, make_loader

MB = 1 << 20
PAGE = 4096


class Mapped(Images):
    """Look through a stretch of a mapped table for each image, as token files and tables are read."""

    def __init__(self, path: str, stretch: int) -> None:
        super().__init__()
        self.path, self.stretch = path, stretch
        self.map: mmap.mmap | None = None

    def read(self, index: int) -> torch.Tensor:
        if self.map is None:
            with open(self.path, "rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = index * self.stretch % (len(self.map) - self.stretch)
        seen = self.map[start : start + self.stretch : PAGE]
        return torch.full((3, SIDE, SIDE), sum(seen) / len(seen) / 255)


program = Program(__doc__)
file_mb = program.draw.choice((1024, 1280))
program.make(enter_memory_limit, (3 * file_mb if program.fix else file_mb * 5 // 8) * MB)
batch = program.draw.choice((8, 16))
with tempfile.NamedTemporaryFile(prefix="tpmon-cause-") as table:
    for _ in range(file_mb):
        table.write(os.urandom(MB))
    table.flush()
    os.fsync(table.fileno())
    data = Mapped(table.name, program.draw.choice((8, 16)) * MB)
    program.train(make_loader(data, batch, 2), Network(program.draw.uniform(8, 16), batch))
