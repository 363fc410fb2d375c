"""Wait for data in a chosen share of the time: one worker is paced by what the compute was seen to take."""

import multiprocessing
import time

from loop import READY_STEPS, Images, Network, Program, make_loader
from torch import Tensor

LEARN = 0.1
"""How fast the pace follows the compute, which varies with what else the machine does."""


class Paced(Images):
    """Hand out a batch's images not before its time has come."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.batch_s = multiprocessing.get_context("fork").Value("d", 0.01)
        self.made = 0
        self.due = 0.0

    def read(self, index: int) -> Tensor:
        """Make image ``index``; the last of a batch waits until the batch is due."""
        self.made += 1
        if self.made % self.batch == 0:
            self.due = max(time.monotonic() - self.batch_s.value, self.due) + self.batch_s.value
            time.sleep(max(0.0, self.due - time.monotonic()))
        return super().read(index)


program = Program(__doc__, ("--share", float, 0.3))
batch = program.draw.choice((8, 16))
data = Paced(batch)
compute_s = 0.0
last_ns, last_waited_ns = time.monotonic_ns(), 0


def pace(_images: Tensor, _loss: Tensor) -> None:
    """Tell the worker how long a batch shall take, from how long a step takes without its wait."""
    global compute_s, last_ns, last_waited_ns  # noqa: PLW0603
    now_ns, waited_ns = time.monotonic_ns(), program.waited_ns
    step_s = (now_ns - last_ns - (waited_ns - last_waited_ns)) / 1e9
    last_ns, last_waited_ns = now_ns, waited_ns
    early = program.truth.steps < READY_STEPS  # the first steps are slow and tell nothing
    compute_s = step_s if early else compute_s + LEARN * (step_s - compute_s)
    data.batch_s.value = compute_s / (1 - program.options.share)


program.train(make_loader(data, batch, 1), Network(program.draw.uniform(25, 50), batch), pace)
