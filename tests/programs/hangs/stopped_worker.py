"""Let a loader worker be stopped by SIGSTOP."""

import os
import signal

from hang import Hang, Sticky
from loop import Network, make_loader


class Stopped(Sticky):
    """Stop in the middle of an image."""

    def stick(self) -> None:
        """Stop this worker."""
        program.tell()
        os.kill(os.getpid(), signal.SIGSTOP)


program = Hang(__doc__)
workers = program.draw.randint(1, 3)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
program.train(make_loader(Stopped(program, workers), batch, workers), network)
