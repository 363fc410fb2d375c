"""Fetch batches slowly, but ahead of time: the queue is never empty and the waiting costs nothing."""

import time

from loop import Images, Network, Program, make_loader

program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(60, 120)
workers = program.draw.choice((4, 6))
wait_ms = step_ms * program.draw.uniform(1.0, 1.6)  # a batch takes longer than a step, in each worker
late = Images(before=lambda _index: time.sleep(wait_ms / batch / 1000))
program.train(make_loader(late, batch, workers), Network(step_ms, batch))
