"""Stop by SIGSTOP after some steps, as a job that was suspended from its terminal."""

import os
import signal

from loop import Images, Network, Program, make_loader
from torch import Tensor


def stop(_images: Tensor, _loss: Tensor) -> None:
    if program.truth.steps >= last:
        program.truth.ready()
        os.kill(os.getpid(), signal.SIGSTOP)


program = Program(__doc__)
last = program.draw.randint(20, 60)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
program.train(make_loader(Images(), batch, workers), Network(program.draw.uniform(20, 60), batch), stop, 10**9)
