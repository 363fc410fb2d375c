"""Build samples of made-up processes: a rank that waits in a collective unless a field says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.dumps import HOST
from tests.frames import NOW
from tests.stacks import ALL_REDUCE, WORKER_READS
from tpmon.model.dump import DumpError
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Role
from tpmon.model.results.sample import SampledProcess, SampleReading, SampleRequest
from tpmon.model.stacks import StackCount, StackFrame


def count(tid: int, frames: tuple[StackFrame, ...], samples: int, thread: str = "MainThread") -> StackCount:
    return StackCount(tid, thread, frames, samples)


def make_sampled(rank: int, *stacks: StackCount, pid: int = 0, **fields: Any) -> SampledProcess:
    """Build rank ``rank``, seen 20 times in one second."""
    pid = pid or 4000 + 10 * rank
    stacks = stacks or (count(pid, ALL_REDUCE, 20),)
    looks = sum(one.samples for one in stacks if one.tid == pid)
    plain = SampledProcess(
        pid=pid,
        start_ticks=100,
        role=Role.RANK,
        rank=rank,
        worker=NOT_APPLICABLE,
        rank_pid=NOT_APPLICABLE,
        label="train.py",
        seconds=looks / 20,
        looks=looks,
        lost=0,
        behind_s=0.0,
        watched_s=1.0,
        cpu_s=0.4,
        delay_s=0.1,
        stacks=stacks,
    )
    return replace(plain, **fields)


def make_sampled_worker(rank: int, worker: int, *stacks: StackCount, **fields: Any) -> SampledProcess:
    pid = 4000 + 10 * rank + worker + 1
    stacks = stacks or (count(pid, WORKER_READS, 20),)
    named: dict[str, Any] = {"role": Role.WORKER, "worker": worker, "rank_pid": 4000 + 10 * rank}
    return make_sampled(rank, *stacks, pid=pid, **(named | fields))


def make_reading(*processes: SampledProcess, errors: Iterable[DumpError] = (), **fields: Any) -> SampleReading:
    """Build what was sampled of ``processes`` in ten seconds."""
    failed = tuple(errors)
    plain = SampleReading(
        request=SampleRequest(),
        host=HOST,
        taken=NOW,
        elapsed_s=10.0,
        asked=len(processes) + len(failed),
        ended=0,
        processes=processes,
        errors=failed,
        spy_cpu_ms=80.0,
    )
    return replace(plain, **fields)
