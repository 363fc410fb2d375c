"""Make steps by the clock, as with a robot or a live source: healthy, nothing is slow and nobody waits."""

import time

from loop import Network, Program, same_batch
from torch import Tensor

program = Program(__doc__)
batch = program.draw.choice((8, 16))
period_s = program.draw.uniform(0.05, 0.15)


def wait_for_turn(_images: Tensor, _loss: Tensor) -> None:
    time.sleep(period_s - time.monotonic() % period_s)


program.train(same_batch(batch), Network(program.draw.uniform(5, 15), batch), wait_for_turn)
