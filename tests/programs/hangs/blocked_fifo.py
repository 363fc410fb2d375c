"""Let a loader worker read a FIFO into which nobody writes."""

import os
import tempfile
from pathlib import Path

from hang import Hang, Sticky
from loop import Network, make_loader


class Piped(Sticky):
    """Read one image from a FIFO."""

    def stick(self) -> None:
        """Wait for somebody who opens the FIFO, or for the bytes of somebody who has."""
        fifo = Path(tempfile.mkdtemp(), "image.raw")
        os.mkfifo(fifo)
        if opened:
            descriptor = os.open(fifo, os.O_RDWR)
            program.tell()
            os.read(descriptor, 3072)
        program.tell()
        fifo.read_bytes()


program = Hang(__doc__)
opened = program.draw.random() < 0.5
workers = program.draw.randint(1, 3)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
program.train(make_loader(Piped(program, workers), batch, workers), network)
