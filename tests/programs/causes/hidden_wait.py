"""Fetch batches slowly, but ahead of time: the queue is never empty and the waiting costs nothing."""

import time

from loop import Images, Network, Program, make_loader
from torch import Tensor


class Late(Images):
    """Wait for each image, as for a distant store."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s

    def read(self, index: int) -> Tensor:
        """Make image ``index`` after a wait."""
        time.sleep(self.wait_s)
        return super().read(index)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(60, 120)
workers = program.draw.choice((4, 6))
wait_ms = step_ms * program.draw.uniform(1.0, 1.6)  # a batch takes longer than a step, in each worker
program.train(make_loader(Late(wait_ms / batch / 1000), batch, workers), Network(step_ms, batch))
