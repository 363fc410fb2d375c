"""Take two locks here in one order and in a thread in the other: each waits for what the other has."""

import threading

from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor

totals, log = threading.Lock(), threading.Lock()
thread_has_log, loop_has_totals = threading.Event(), threading.Event()


def flush_log() -> None:
    """Take the log, then the totals."""
    with log:
        thread_has_log.set()
        loop_has_totals.wait()
        program.tell()
        with totals:
            return


def add_up(_images: Tensor, _loss: Tensor) -> None:
    """Take the totals, then the log."""
    if program.truth.steps < last:
        return
    thread_has_log.wait()
    with totals:
        loop_has_totals.set()
        program.tell()
        with log:
            return


program = Hang(__doc__)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
network = Network(program.draw.uniform(10, 40), batch)
threading.Thread(target=flush_log, name="log-flusher", daemon=True).start()
program.train(make_loader(Images(), batch, workers), network, add_up)
