"""Read large samples past the page cache, or over a narrow line. Fixed: small samples, kept in memory."""

import os
import tempfile
from mmap import mmap

import torch
from loop import SIDE, Images, Network, Program, make_loader
from slow_fs import mount_slow_fs

PIXELS = 3 * SIDE * SIDE
FILES = 64
MB = 1 << 20


class Large(Images):
    """Read a whole large file for each image, as uncompressed volumes or video are read."""

    def __init__(self, place: str, sample_bytes: int, flags: int) -> None:
        super().__init__()
        self.place, self.sample_bytes, self.flags = place, sample_bytes, flags

    def read(self, index: int) -> torch.Tensor:
        file = os.open(os.path.join(self.place, str(index % FILES)), os.O_RDONLY | self.flags)
        piece = mmap(-1, MB)  # aligned, as O_DIRECT wants it
        for offset in range(0, self.sample_bytes, MB):
            os.preadv(file, [piece], offset)
        os.close(file)
        return torch.frombuffer(piece, dtype=torch.uint8, count=PIXELS).view(3, SIDE, SIDE) / 255


program = Program(__doc__)
sample_bytes = program.draw.choice((1, 2, 4)) * MB
batch = program.draw.choice((8, 16))
kind = program.draw.choice(("disk", "line"))
if program.fix:
    data: Images = Images()
elif kind == "line":
    place = program.make(mount_slow_fs, sample_bytes, 1.0, program.draw.uniform(60, 120))
    data = Large(place, sample_bytes, 0)
else:
    # A disk of today fills 16 MB in 16 ms: the larger the sample, the longer it is what is waited for.
    sample_bytes *= 8
    folder = tempfile.TemporaryDirectory(prefix="tpmon-cause-")
    for number in range(FILES):
        with open(os.path.join(folder.name, str(number)), "wb") as file:
            file.write(os.urandom(MB) * (sample_bytes // MB))
    os.sync()
    try:
        os.close(os.open(os.path.join(folder.name, "0"), os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        program.cannot(f"no O_DIRECT ({error.strerror})")
    data = Large(folder.name, sample_bytes, os.O_DIRECT)
program.train(make_loader(data, batch, 2), Network(program.draw.uniform(20, 40), batch))
