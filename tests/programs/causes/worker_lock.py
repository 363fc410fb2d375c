"""Read in workers that share one lock, so that one of them reads at a time. Fixed: no lock."""

import multiprocessing
import time
from contextlib import nullcontext

from loop import Images, Network, Program, make_loader


def wait(_index: int) -> None:
    """Hold the lock while an image is read, as one file handle for all workers asks for."""
    with lock:
        time.sleep(wait_s)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((3, 4, 6))
step_ms = program.draw.uniform(15, 40)
wait_s = step_ms * program.draw.uniform(2, 4) / batch / 1000
lock = nullcontext() if program.fix else multiprocessing.get_context("fork").Lock()
program.train(make_loader(Images(before=wait), batch, workers), Network(step_ms, batch))
