"""Jobs with a verdict: hung, compute-bound, undecided, starting, oversubscribed.

Each is a run of Frames that ``playing.play`` has judged, as a session does; nothing of a verdict stands here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tests.any_windows import make_slice
from tests.frames import NOW_NS, make_ages, make_event, make_loader, make_output, make_worker
from tests.goldens import dump_views
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.playing import Played, hold, play
from tests.goldens.small_jobs import make_compiler, oversubscribed_readings, two_ranks, with_facts
from tests.hanging import LOOKS_AT_S
from tests.judging import SECOND, make_looks
from tests.phase_stacks import SITE, stack
from tests.waits import wait_of
from tpmon.model.frame import Event, EventKind, Frame
from tpmon.model.host import OutputSample
from tpmon.model.known import Missing, known_or
from tpmon.model.process import ProcessSample, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame

COMPUTES = {stack("main train step call linear"): 10, stack("main train backward engine"): 28}
_MAIN = (
    StackFrame("main", "/home/usr/train/train.py", 131),
    StackFrame("train_one_epoch", "/home/usr/train/engine.py", 88),
)
_LOADER = f"{SITE}torch/utils/data/dataloader.py"
NEXT_BATCH = (
    *_MAIN,
    StackFrame("_BaseDataLoaderIter.__next__", _LOADER, 733),
    StackFrame("_next_data", _LOADER, 1482),
    StackFrame("_get_data", _LOADER, 1444),
    StackFrame("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 103),
)
FORWARD = (
    *_MAIN,
    StackFrame("Net.forward", "/home/usr/train/net.py", 52),
    StackFrame("Linear.forward", f"{SITE}torch/nn/modules/linear.py", 134),
)
BACKWARD = (
    *_MAIN,
    StackFrame("Tensor.backward", f"{SITE}torch/_tensor.py", 625),
    StackFrame("_engine_run_backward", f"{SITE}torch/autograd/graph.py", 841),
)
STARVES = {NEXT_BATCH: 23, FORWARD: 5, BACKWARD: 12}
START_TICKS = 100
"""Of every process in the looks at the node that hangs."""
LOG_AGE_S = 1574.0
"""Of the node that hangs: its log was written last before tpmon came."""
HANGS_S = 35
"""How long tpmon sees it."""
_NO_BYTES = dict.fromkeys(("pcie_tx_bytes_s", "pcie_rx_bytes_s", "nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), 0.0)
SPINS = {
    "sm_pct": 100.0,
    "sm_active_pct": 6.0,
    "tensor_pct": 0.0,
    "dram_pct": 0.0,
    "occupancy_pct": 3.0,
    "memory_busy_pct": 0.0,
    "sm_clock_mhz": 1980.0,
    "temperature_c": 46.0,
    "throttle": (),
    "throttle_shares": (),
    **_NO_BYTES,
}
"""A card on which a kernel of NCCL waits for the others."""


def starved() -> Frame:
    """Return the two ranks while four workers compute transforms that take both CPUs."""
    plain = two_ranks()
    cpu = replace(
        plain.cpu, used_cores=1.96, runnable=4.6, waiting=1.5, demand_ratio=2.3, run_delay_ratio=0.36, psi_some_pct=34.0
    )
    return with_facts(
        replace(
            plain,
            processes=tuple(_starve(one) for one in plain.processes),
            cpu=cpu,
            main_threads=tuple(replace(make_looks(4211 + n, batch_wait=6), rank=n) for n in (0, 1)),
            loader=(
                make_loader(4211, ready_batches=0.2, empty_ratio=0.82),
                make_loader(4212, rank=1, ready_batches=0.3, empty_ratio=0.74),
            ),
            ages_s=make_ages(stacks=0.8),
        )
    )


def _starve(one: ProcessSample) -> ProcessSample:
    if one.role is Role.RANK:
        groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.42), ThreadGroup(ThreadKind.POOL, 8, 0.0))
        return replace(
            one,
            state="S",
            cpu_pct=41.0 - 2 * (one.pid - 4211),
            runnable=0.45,
            waiting=0.05,
            waits_for=wait_of("a batch (loader queue)"),
            waits_unchanged_s=0.1,
            thread_groups=groups,
        )
    if one.role is Role.WORKER:
        return make_worker(
            one.pid,
            known_or(one.worker, 0),
            known_or(one.rank_pid, 0),
            rank=one.rank,
            state="R",
            cpu_pct=56.0 + known_or(one.worker, 0),
            runnable=0.92,
            waiting=0.36,
            busy_threads=1,
            waits_for=wait_of("running"),
            waits_unchanged_s=0.0,
        )
    return one


@cache
def _hung() -> Played:
    plain = eight_gpus()
    stands = with_facts(
        replace(
            plain,
            gpus=tuple(replace(card, power_w=171.0 + card.index, **SPINS) for card in known_or(plain.gpus, ())),
            loader=tuple(replace(one, ready_batches=32.0) for one in plain.loader),
            ages_s=make_ages(gpu=0.4, stacks=3.0),
            stacks=(),
        )
    )
    slices = [
        make_slice(
            51_192 + rank, rank, {dump_views.IN_SAVE if rank == dump_views.ODD else dump_views.IN_ALL_REDUCE: 38}
        )
        for rank in dump_views.RANKS
    ]
    frames = [
        replace(one, processes=tuple(_hang(each, at) for each in one.processes), output=(_old_log(at),))
        for at, one in enumerate(hold(stands, HANGS_S, slices))
    ]
    for at_s in LOOKS_AT_S:
        ago_s = LOOKS_AT_S[-1] - at_s + 3.0
        look = dump_views.look_at(dump_views.spinning(dump_views.hung_processes(), at_s), ago_s)
        at = len(frames) - 1 - round(ago_s)
        frames[at] = replace(frames[at], rounds=(replace(look, taken_ns=NOW_NS - round(ago_s) * SECOND),))
    return play(frames)


def _old_log(at_s: int) -> OutputSample:
    return make_output(
        51_200,
        path="/lustre/home/usr/runs/2026-03-12_vitl/log/rank_8.out",
        lines=("[02:41:27] step 91220 | loss 2.8102 | lr 4.1e-04 | 1.71 s/it",),
        last_write=dump_views.LAST_WRITE,
        last_write_age_s=LOG_AGE_S - HANGS_S + 1 + at_s,
    )


def _hang(one: ProcessSample, at_s: int) -> ProcessSample:
    """Let a process stand as it does in the looks at the stacks, for as long as tpmon has seen it."""
    rests = {
        "runnable": 0.0,
        "waiting": 0.0,
        "busy_threads": 0,
        "asked_read_bytes_s": 0.0,
        "waits_unchanged_s": float(at_s),
        "thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.0),),
    }
    if one.role is Role.RANK:
        known = replace(one, start_ticks=START_TICKS)
        if one.rank == dump_views.ODD:
            return replace(known, state="D", cpu_pct=0.1, waits_for=wait_of("NFS"), **rests)
        return replace(known, asked_read_bytes_s=0.0)
    if one.role is Role.WORKER:
        waits_for = wait_of("work from its rank (loader queue)")
        return replace(one, state="S", cpu_pct=0.0, waits_for=waits_for, start_ticks=START_TICKS, **rests)
    return one


def hung() -> Frame:
    """Seven ranks of a node wait in an all-reduce for rank 11, which cannot write its shard."""
    return _hung().frame


def hung_events() -> tuple[Event, ...]:
    return (make_event("attached to pid 51100: 8 ranks, 128 loader workers", 34, EventKind.ATTACH), *_hung().events)


def compute_bound() -> Frame:
    """Eight cards at work: the healthy end."""
    plain = replace(eight_gpus(), ages_s=make_ages(gpu=0.4, stacks=1.2))
    cards = tuple(
        replace(
            card,
            throttle=(),
            throttle_shares=(),
            sm_pct=96.0,
            sm_active_pct=81.0,
            power_w=596.0 + 7 * card.index,
            sm_clock_mhz=1980.0,
            temperature_c=56.0 + card.index,
        )
        for card in known_or(plain.gpus, ())
    )
    slices = [make_slice(51_200 + n, 8 + n, COMPUTES) for n in range(8)]
    return play(hold(with_facts(replace(plain, gpus=cards)), 60, slices)).frame


def undecided() -> Frame:
    """Two ranks of which no stack may be read, after a while."""
    refused = Missing("ptrace refused: yama ptrace_scope=1")
    plain = replace(two_ranks(), stacks=refused, main_threads=refused, loader=(), ages_s=make_ages(stacks=refused))
    return play([replace(plain, events=())] * 45).frame


def starting() -> Frame:
    """Two ranks that still compile."""
    compiles = {stack("main train compile_wrapper convert codecache"): 38}
    plain = two_ranks()
    cpu = replace(plain.cpu, used_cores=1.9, runnable=1.95, demand_ratio=0.98, run_delay_ratio=0.03)
    compilers = tuple(make_compiler(4400 + n, 4211 + n % 2) for n in range(6))
    frame = replace(plain, cpu=cpu, processes=plain.processes + compilers, ages_s=make_ages(stacks=0.8), output=())
    return play(hold(with_facts(frame), 40, [make_slice(4211 + n, n, compiles) for n in (0, 1)])).frame


def oversubscribed() -> Frame:
    """Two ranks, each with 16 OpenMP threads, under a quota of two CPUs."""
    slices = [make_slice(4211 + n, n, COMPUTES) for n in (0, 1)]
    return play(hold(oversubscribed_readings(), 30, slices)).frame
