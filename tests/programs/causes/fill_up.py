"""Use up open descriptors, a disk or its inodes at a steady rate. Fixed: give each back at once."""

import os
import resource
import tempfile
import time

from limits import enter_own_mounts, mount
from loop import Images, Network, Program, make_loader
from torch import Tensor

MB = 1 << 20
kept: list[int] = []
begun = time.monotonic()


def open_one(number: int) -> None:
    """Open a pipe, as a progress bar or a child of each batch does."""
    kept.extend(os.pipe())
    if program.fix:
        while kept:
            os.close(kept.pop())


def write_one(number: int) -> None:
    """Write a piece of 1 MB, as one more checkpoint does."""
    os.write(file, b"x" * MB)
    if program.fix:
        os.ftruncate(file, 0)


def make_one(number: int) -> None:
    """Make a small file, as a cache of single samples does."""
    path = f"{folder}/{number}"
    with open(path, "wb"):
        pass
    if program.fix:
        os.unlink(path)


def use_up(_images: Tensor, _loss: Tensor) -> None:
    due = min(rate_s * (time.monotonic() - begun), most)
    while done[0] < due:
        one(done[0])
        done[0] += 1


program = Program(__doc__, ("--of", str, "descriptors"))
done = [0]
if program.options.of == "descriptors":
    limit = program.draw.choice((1024, 2048))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    one, rate_s, most = open_one, limit / 2 / program.draw.uniform(80, 120), limit * 0.45
else:
    program.make(enter_own_mounts)
    folder = tempfile.mkdtemp(prefix="tpmon-cause-")
    size_mb, inodes = program.draw.randint(300, 400), program.draw.randint(4000, 6000)
    program.make(mount, "tmpfs", folder, f"size={size_mb}m,nr_inodes={inodes}")
    os.chdir(folder)
    file = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    most_s = program.draw.uniform(120, 140)  # it still fills up when the last verdict counts
    one, most = (write_one, size_mb * 0.9) if program.options.of == "disk" else (make_one, inodes * 0.9)
    rate_s = most / most_s
batch = program.draw.choice((8, 16))
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, Network(program.draw.uniform(20, 40), batch), use_up)
