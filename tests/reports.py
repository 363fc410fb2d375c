"""Build the Frames that the text outputs are tried on."""

from __future__ import annotations

from typing import Any

from tests.frames import (
    later,
    make_cpu,
    make_driver,
    make_frame,
    make_gpu,
    make_loader,
    make_process,
    make_rank,
    make_target,
    make_worker,
)
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuState
from tpmon.model.host import Pool
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.report.plain import PlainReport


def at(seconds: float, **fields: Any) -> Frame:
    """Build a Frame ``seconds`` after the first, with no event unless one is given."""
    return later(make_frame(**({"events": ()} | fields)), seconds)


def said(frames: list[Frame]) -> list[str]:
    report = PlainReport()
    return [line for frame in frames for line in report.read(frame)]


def full_frame() -> Frame:
    """Build a Frame in which every group has something to say, with long names."""
    ranks = [make_process(4211 + i, rank=i, local_rank=i, label="train.py") for i in range(2)]
    workers = [make_worker(4300 + i, i, cpu_pct=float(i)) for i in range(12)]
    pool = Pool(pid=4300, role=Role.WORKER, library="libgomp.so.1", threads=33, runnable=14.2)
    return make_frame(
        target=make_target(world_size=8, local_ranks=2, local_workers=12, asked_pid=4301, script="a_long_name_" * 12),
        processes=(make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE), *ranks, *workers),
        ranks=(make_rank(4212, rank=1, gpu=1), make_rank(4211, rank=0, gpu=0, where="w" * 150)),
        gpus=(make_gpu(0), make_gpu(1, state=GpuState.STALE, age_s=14.0, throttle=("power cap",), xids=(79,))),
        driver=make_driver(),
        cpu=make_cpu(pool=pool, oversubscription=7.1, run_delay_ratio=0.82),
        notes=("NCCL_DEBUG=INFO: NCCL logs while it runs " * 4,),
        loader=(make_loader(ready_batches=Missing("no batch seen in the loader pipe")),),
    )
