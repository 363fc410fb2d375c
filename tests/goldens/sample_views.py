"""Hot functions as the screen gets them: while they are sampled, at the end, and where none could be."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.dumps import HOST
from tests.frames import NOW
from tests.samples import count, make_reading, make_sampled, make_sampled_worker
from tests.stacks import ALL_REDUCE, BACKWARD, NEXT_BATCH, WORKER_READS, WORKER_WAITS
from tpmon.judge.folds.groups import DumpOrigin
from tpmon.judge.folds.hot import hot_functions
from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.model.results.doctor import SampleUpdate
from tpmon.model.results.sample import SampleReading, SampleState
from tpmon.model.stacks import StackFrame

FEEDER = (StackFrame("_feed", "/env/lib/python3.11/multiprocessing/queues.py", 231),)


def make_update(reading: SampleReading, *, running: bool = False) -> SampleUpdate:
    hot = hot_functions(reading, DumpOrigin(4200, "train.py", 2))
    return SampleUpdate(SampleState(reading.request, reading, running, ""), hot)


def sampled_job(share: int) -> SampleReading:
    """Return a rank and its two workers; ``share`` of 200 looks of each are there."""
    rank = make_sampled(
        0,
        count(4000, NEXT_BATCH, share // 2),
        count(4000, BACKWARD, share // 4),
        count(4000, ALL_REDUCE, share // 4),
        count(4999, FEEDER, share, "QueueFeederThread"),
        lost=share // 40,
        looks=share + share // 40,
        behind_s=0.4,
    )
    workers = [
        make_sampled_worker(0, n, count(4001 + n, WORKER_READS, share - 20), count(4001 + n, WORKER_WAITS, 20))
        for n in range(2)
    ]
    return make_reading(rank, *workers, elapsed_s=share / 20, taken=NOW - timedelta(seconds=3))


def running() -> SampleUpdate:
    return make_update(sampled_job(80), running=True)


def ended() -> SampleUpdate:
    return make_update(sampled_job(200))


def denied() -> SampleUpdate:
    """Nothing could be sampled: another user's job."""
    reason = "not permitted: kernel.yama.ptrace_scope is 1: only a parent may read"
    errors = [DumpError(HOST, 4211, Role.RANK, 0, NOT_APPLICABLE, ErrorKind.DENIED, reason)]
    return make_update(make_reading(errors=errors, elapsed_s=0.3, spy_cpu_ms=12.0))


def refused() -> SampleUpdate:
    """Stacks are switched off."""
    state = ended().state
    nothing = Missing("nothing was sampled yet")
    return SampleUpdate(replace(state, reading=nothing, refused="stacks are off (--no-stacks)"), nothing)
