"""Save a checkpoint for more than a minute: the place takes it in slowly. Of several ranks the first one saves."""

import io
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader

MB = 1 << 20
TAKER = "import os, sys, time\nwhile os.read(0, 65536): time.sleep(float(sys.argv[1]))"


class Upload(io.RawIOBase):
    """Hand everything to a program that takes a piece at a time, as an uploader does."""

    def __init__(self, piece_s: float) -> None:
        super().__init__()
        self.taker = subprocess.Popen([sys.executable, "-c", TAKER, str(piece_s)], stdin=subprocess.PIPE)

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += os.write(self.taker.stdin.fileno(), view[done:])
        return done


program = Hang(__doc__)
is_alone = "WORLD_SIZE" not in os.environ
if not is_alone:
    dist.init_process_group("gloo")
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
size_mb = program.draw.randint(8, 32)
seconds = program.draw.uniform(100, 150)
state = {"model": network.state_dict(), "moments": torch.rand(size_mb * MB // 4)}
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, network, steps=program.draw.randint(10, 40))
place = Upload(seconds / (size_mb * 16))
while not program.is_over:
    if program.rank == 0:
        begun = time.monotonic()
        program.tell()
        torch.save(state, place)
        print(f"saved in {time.monotonic() - begun:.0f} s", flush=True)
    if not is_alone:
        dist.barrier()
