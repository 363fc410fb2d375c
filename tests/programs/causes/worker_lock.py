"""Read in workers that share one lock, so that one of them reads at a time. Fixed: no lock."""

import multiprocessing
import time
from contextlib import nullcontext

from loop import Images, Network, Program, make_loader
from torch import Tensor


class Locked(Images):
    """Hold the lock while an image is read, as one file handle for all workers asks for."""

    def __init__(self, wait_s: float, *, locked: bool) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.lock = multiprocessing.get_context("fork").Lock() if locked else nullcontext()

    def read(self, index: int) -> Tensor:
        """Make image ``index`` after a wait, alone."""
        with self.lock:
            time.sleep(self.wait_s)
        return super().read(index)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((3, 4, 6))
step_ms = program.draw.uniform(15, 40)
wait_s = step_ms * program.draw.uniform(2, 4) / batch / 1000
program.train(make_loader(Locked(wait_s, locked=not program.fix), batch, workers), Network(step_ms, batch))
