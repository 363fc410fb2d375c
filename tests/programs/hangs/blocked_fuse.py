"""Let a loader worker open or read a file of a network file system that does not answer any more."""

import os

from hang import Hang, Sticky
from limits import RefusedError
from loop import Network, make_loader
from slow_fs import mount_slow_fs

NEVER_MS = 1e9
NEVER_MB_S = 1e-9


class Mounted(Sticky):
    """Read one image from the mount."""

    def stick(self) -> None:
        """Open and read the image."""
        program.tell(2)
        with open(os.path.join(place, "7"), "rb", buffering=0) as file:
            file.read(3072)


program = Hang(__doc__)
in_open = program.draw.random() < 0.5
workers = program.draw.randint(1, 3)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
try:
    place = mount_slow_fs(3072, NEVER_MS if in_open else 0.0, 500.0 if in_open else NEVER_MB_S)
except (RefusedError, OSError) as error:
    program.cannot(str(error))
program.train(make_loader(Mounted(program, workers), batch, workers), network)
