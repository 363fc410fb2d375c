"""Train one model on all ranks until one rank reads a FIFO for its next image: the others wait in backward.

Run by torchrun with two to four processes.
"""

import os
import tempfile
from pathlib import Path

import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Piped(Images):
    """Serve images of which one comes through a FIFO into which nobody writes."""

    def __init__(self, healthy: int) -> None:
        super().__init__()
        self.healthy = healthy
        self.made = 0

    def read(self, index: int) -> Tensor:
        """Make image ``index``, or hang."""
        self.made += 1
        if self.made > self.healthy and program.rank == culprit:
            fifo = Path(tempfile.mkdtemp(), "images")
            os.mkfifo(fifo)
            program.tell()
            fifo.read_bytes()
        return super().read(index)


program = Hang(__doc__)
dist.init_process_group("gloo")
culprit = program.draw.randrange(dist.get_world_size())
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
data = Piped(batch * program.draw.randint(10, 30))
program.train(make_loader(data, batch, 0), DistributedDataParallel(network))
