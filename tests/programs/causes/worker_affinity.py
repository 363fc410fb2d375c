"""Bind the workers to one CPU, as they inherit it from a main thread that OMP_PROC_BIND bound. Fixed: to none."""

import os

from loop import Images, Network, Program, make_loader, rounds_for


def stay_on_one_cpu(_worker: int) -> None:
    """Let this worker run where all the others run."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


program = Program(__doc__)
if len(os.sched_getaffinity(0)) < 2:
    program.cannot("it needs two CPUs, one of which the workers may not use")
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(20, 40)
workers = program.draw.choice((3, 4))
load_ms = step_ms * program.draw.uniform(5, 7)
data = Images(rounds_for(load_ms, batch))
bind = None if program.fix else stay_on_one_cpu
program.train(make_loader(data, batch, workers, worker_init_fn=bind), Network(step_ms, batch))
