"""Jobs with a verdict: data-bound, hung, compute-bound, undecided, starting."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.frames import (
    NOW,
    make_ages,
    make_cpu,
    make_event,
    make_evidence,
    make_finding,
    make_loader,
    make_output,
)
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.small_jobs import two_ranks, with_facts
from tpmon.model.frame import Event, EventKind, Frame
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import Confidence, Kind, SinceIs

_NO_SHARE = {
    "share_pct": NOT_APPLICABLE,
    "share_low_pct": NOT_APPLICABLE,
    "share_high_pct": NOT_APPLICABLE,
}


def data_bound() -> Frame:
    """Two ranks wait for transforms that four workers compute on two CPUs; every part is there."""
    plain = two_ranks()
    rows = tuple(
        replace(row, where=where, where_unchanged_s=0.0)
        for row, where in zip(
            plain.ranks, ("data wait dataloader.py:1458", "forward model.py:88"), strict=True
        )
    )
    finding = make_finding(
        summary="the ranks wait for a batch 58 % of the time while 4 workers compute transforms on 2 CPUs "
        "that are full",
        try_="cap the threads of each worker: torch.set_num_threads(1); cv2.setNumThreads(0)  # in "
        "worker_init_fn",
        evidence=(
            make_evidence(
                "waiting for a batch", value=58.0, source="stacks of 2 ranks, 310 samples", age_s=0.8
            ),
            make_evidence("queue empty", value=82.0, source="loader pipes, 200 looks"),
            make_evidence(
                "workers in transforms",
                value=Missing(""),
                text="14 of 16 samples",
                source="stacks of 4 workers",
                age_s=4.0,
            ),
            make_evidence("CPUs used", value=1.94, unit="CPUs", source="/proc stat"),
            make_evidence("runnable", value=2.2, unit="threads", source="/proc schedstat"),
        ),
        against=(make_evidence("workers without work", value=4.0, source="wchan"),),
        ruled_out=(
            "CPU quota (0 % of periods throttled)",
            "thread pools (0.0x the budget, waiting 14 %)",
            "storage (0 B/s from disks)",
            "swap (0 B)",
            "/dev/shm (3 % full)",
            "one slow worker (4 alike)",
        ),
        unknown=("copy to the device (no hook in the training process)", "steps (no hook)"),
    )
    return replace(
        plain,
        ranks=rows,
        ages_s=make_ages(stacks=0.8),
        loader=(
            make_loader(4211, ready_batches=0.2, empty_ratio=0.82),
            make_loader(4212, rank=1, ready_batches=0.3, empty_ratio=0.74),
        ),
        verdict=finding,
        notes=("workers-beyond-budget: 4 workers want 3.6 CPUs; more will not help",),
    )


def data_bound_events() -> tuple[Event, ...]:
    """How the verdict came about."""
    return (
        make_event("attached to pid 4200: 2 ranks, 4 loader workers", 660, EventKind.ATTACH),
        make_event("verdict: balanced", 650, EventKind.VERDICT),
        make_event("4 workers ended, 4 started (4300 4301 4310 4311)", 331),
        make_event("verdict: data-bound (cpu-transform), was balanced", 330, EventKind.VERDICT),
    )


def hung() -> Frame:
    """Seven ranks of a node wait in an all-reduce for rank 11, which sits in a lock."""
    plain = eight_gpus()
    rows = tuple(
        replace(
            row,
            where="lock checkpoint.py:212" if row.rank == 11 else "all-reduce distributed_c10d.py:2806",
            where_unchanged_s=1571.0,
        )
        for row in plain.ranks
    )
    finding = make_finding(
        kind=Kind.HUNG,
        cause="missing-rank",
        confidence=Confidence.MEDIUM,
        since=NOW - timedelta(minutes=26, seconds=14),
        since_is=SinceIs.LOWER_BOUND,
        since_source="last log write 02:41:27",
        summary="7 ranks wait in all-reduce; rank 11 (51203) is not there: it waits for a lock in "
        "save_shard, checkpoint.py:212",
        try_="dump the stacks of rank 11, then continue or restart from the last checkpoint:\n"
        "tpmon dump 51203 --rank 11 --locals\n"
        "kill -CONT 51203  # if it is stopped",
        ceiling=Missing("the share of time that it costs is not known"),
        evidence=(
            make_evidence(
                "ranks in all-reduce", value=7.0, unit="of 8", source="stacks of 8 ranks", age_s=3.0
            ),
            make_evidence(
                "rank 11 unchanged", value=1571.0, unit="s", source="stacks and /proc schedstat", age_s=3.0
            ),
            make_evidence("GPU busy", value=100.0, source="NVML, 8 cards", age_s=0.4),
            make_evidence("last log write", value=1574.0, unit="s", source="rank_8.out"),
        ),
        against=(),
        ruled_out=("stopped process", "dead worker (128 of 128 alive)", "blocked I/O", "lost card"),
        unknown=("56 ranks on other hosts", "device side of the wait (no hook)"),
        **_NO_SHARE,
    )
    output = make_output(
        51_200,
        path="/lustre/home/usr/runs/2026-03-12_vitl/log/rank_8.out",
        lines=("[02:41:27] step 91220 | loss 2.8102 | lr 4.1e-04 | 1.71 s/it",),
        last_write=NOW - timedelta(minutes=26, seconds=14),
        last_write_age_s=1574.0,
    )
    return replace(
        plain, ranks=rows, verdict=finding, output=(output,), ages_s=make_ages(gpu=0.4, stacks=3.0)
    )


def hung_events() -> tuple[Event, ...]:
    """What tpmon saw after it was attached to the hang."""
    return (
        make_event("attached to pid 51100: 8 ranks, 128 loader workers", 34, EventKind.ATTACH),
        make_event("verdict: hung (missing-rank)", 30, EventKind.VERDICT),
    )


def compute_bound() -> Frame:
    """Eight cards at work: the healthy end."""
    finding = make_finding(
        kind=Kind.COMPUTE_BOUND,
        cause="gpu-compute",
        confidence=Confidence.HIGH,
        since=NOW - timedelta(minutes=31),
        since_is=SinceIs.LOWER_BOUND,
        since_source="it was there at the first reading",
        summary="8 cards are busy 96 % of the time with tensor cores at 47 %: nothing holds them back",
        try_=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=(
            make_evidence("GPU busy", value=96.0, source="NVML, 8 cards", age_s=0.4),
            make_evidence("tensor cores", value=47.0, source="NVML GPM", age_s=0.4),
            make_evidence("batches ready", value=28.0, unit="batches", source="loader pipes"),
        ),
        ruled_out=("data wait (28 batches ready)", "straggler card (3 % slower)", "swap (0 B)"),
        unknown=("steps (no hook in the training process)",),
        **_NO_SHARE,
    )
    return replace(eight_gpus(), verdict=finding)


def undecided() -> Frame:
    """Two ranks of which no stack may be read, after a while."""
    finding = make_finding(
        kind=Kind.NOT_ENOUGH_EVIDENCE,
        cause=NOT_APPLICABLE,
        confidence=Confidence.LOW,
        since=NOW - timedelta(seconds=44),
        since_is=SinceIs.LOWER_BOUND,
        since_source="first reading",
        summary="what could be read does not decide what holds the run",
        try_="let tpmon see stacks (ptrace refused: yama ptrace_scope=1)",
        ceiling=NOT_APPLICABLE,
        evidence=(
            make_evidence("CPUs used", value=1.94, unit="CPUs", source="/proc stat"),
            make_evidence("runnable", value=2.2, unit="threads", source="/proc schedstat"),
        ),
        ruled_out=("CPU quota (0 % of periods throttled)", "thread pools (0.0x the budget, waiting 14 %)"),
        unknown=("step phases (ptrace refused: yama ptrace_scope=1)", "data wait (no loader queue seen)"),
        **_NO_SHARE,
    )
    return replace(two_ranks(), verdict=finding)


def starting() -> Frame:
    """Two ranks that still import and compile."""
    finding = make_finding(
        kind=Kind.STARTING,
        cause="compile",
        confidence=Confidence.MEDIUM,
        since=NOW - timedelta(seconds=40),
        summary="torch.compile builds kernels: no steady steps yet",
        try_=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=(make_evidence("compile workers", value=6.0, unit="processes", source="/proc"),),
        ruled_out=(),
        unknown=(),
        **_NO_SHARE,
    )
    cpu = make_cpu(budget_cores=2.0, budget_reason="affinity 0-1", used_cores=1.9, runnable=1.95)
    return with_facts(replace(two_ranks(), verdict=finding, cpu=cpu))
