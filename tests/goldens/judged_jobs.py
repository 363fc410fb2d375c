"""Jobs with a verdict: hung, hooked, compute-bound, undecided, starting, oversubscribed, with a hot card, late, growing.

Each is a run of Frames that ``playing.play`` has judged, as a session does; nothing of a verdict stands here.
"""

from __future__ import annotations

import lzma
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.any_windows import make_slice
from tests.dumps import add_run
from tests.frames import (
    GIB,
    NOW_NS,
    make_ages,
    make_event,
    make_loader,
    make_log_pace,
    make_memory,
    make_output,
    make_worker,
)
from tests.goldens import dump_views
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.playing import Played, hold, place, play, replay
from tests.goldens.small_jobs import make_compiler, oversubscribed_readings, two_ranks, with_facts
from tests.hanging import LOOKS_AT_S
from tests.judging import SECOND, make_looks
from tests.paces import make_hook, make_pace, with_hooks
from tests.phase_stacks import SITE, stack
from tests.waits import wait_of
from tpmon.model.codec import decode
from tpmon.model.frame import Event, EventKind, Frame, Pulse, pulse_of
from tpmon.model.gpu import ThrottleShare
from tpmon.model.hook import HookSample
from tpmon.model.host import OutputSample
from tpmon.model.known import Missing, is_known, known_or
from tpmon.model.process import ProcessSample, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.job_words import state_facts

RECORDING = Path(__file__).parent / "recorded_job.jsonl.xz"
"""Two ranks of the demo wait for their loader, as ``tpmon attach --json`` printed them; ``record.py`` gave them other
names, hosts and times: every figure is as it was read."""
COMPUTES = {stack("main train step call linear"): 10, stack("main train backward engine"): 28}
WAITS = {stack("main train c10d all_reduce"): 24, stack("main train backward engine"): 14}
LATE = {stack("main train step call linear"): 24, stack("main train backward engine"): 14}
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
STALLED_S = 31
STALL_MS = 4_120.0
HOOKED_S = 75
SHARES = {"data_pct": 58.2, "forward_pct": 11.6, "backward_pct": 24.1, "optimizer_pct": 4.0, "other_pct": 2.1}
TIMES = {"p50_ms": 308.0, "p95_ms": 402.0, "p99_ms": STALL_MS, "longest_ms": STALL_MS, "slowest_ms": 331.0}
RATE_HZ = 3.21
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
def hung() -> Played:
    return replay(hung_frames())


@cache
def hung_frames() -> tuple[Frame, ...]:
    """Seven ranks of a node wait in an all-reduce for rank 11, which cannot write its shard."""
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
        look = dump_views.look_at([add_run(one, at_s) for one in dump_views.hung_processes()], ago_s)
        at = len(frames) - 1 - round(ago_s)
        frames[at] = replace(frames[at], rounds=(replace(look, taken_ns=NOW_NS - round(ago_s) * SECOND),))
    return tuple(place(frames))


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


def hung_events() -> tuple[Event, ...]:
    return (make_event("attached to pid 51100: 8 ranks, 128 loader workers", 34, EventKind.ATTACH), *hung().events)


def compute_bound() -> Frame:
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


def gpu_throttled() -> Frame:
    """Card 3 of eight is hot and slow; the others wait for it, which is only its shadow."""
    plain = replace(eight_gpus(), ages_s=make_ages(gpu=0.4, stacks=1.2))
    cards = tuple(
        replace(
            card,
            throttle_shares=(ThrottleShare("SW thermal", 38.0, "counter"),) if card.index == 3 else (),
            temperature_margin_c=1.0 if card.index == 3 else card.temperature_margin_c,
        )
        for card in known_or(plain.gpus, ())
    )
    slices = [make_slice(51_200 + n, 8 + n, COMPUTES) for n in range(8)]
    return play(hold(replace(plain, gpus=cards), 24, slices)).frame


def straggler() -> Frame:
    """Rank 1 of two has more to compute in its forward, and rank 0 waits for it in the all-reduce."""
    plain = two_ranks()
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.7), ThreadGroup(ThreadKind.COMM, 3, 0.02))
    processes = tuple(replace(one, thread_groups=groups) if one.pid in (4211, 4212) else one for one in plain.processes)
    cpu = replace(plain.cpu, budget_cores=4.0, budget_reason="affinity 0-3", host_cores=4)
    frame = replace(plain, processes=processes, cpu=cpu, ages_s=make_ages(stacks=0.9))
    slices = [make_slice(4211, 0, WAITS), make_slice(4212, 1, LATE)]
    return play(hold(with_facts(frame), 24, slices)).frame


def memory_growth() -> Frame:
    """A list of losses that keep their graphs: 15 MB a second towards a limit of 16 GiB."""
    plain = replace(two_ranks(), ages_s=make_ages(stacks=0.9))

    def grow(frame: Frame, at: int) -> Frame:
        grown = at * 15_000_000
        memory = make_memory(
            rss_bytes=6 * GIB + grown, anon_bytes=5 * GIB + grown, used_bytes=6 * GIB + grown, anon_growth_bytes_s=15e6
        )
        processes = tuple(
            replace(one, rss_bytes=2 * GIB + grown) if one.pid == 4211 else one for one in frame.processes
        )
        loader = (make_loader(4211, ready_batches=4.0), make_loader(4212, rank=1, ready_batches=3.0))
        return replace(frame, memory=memory, processes=processes, loader=loader)

    slices = [make_slice(4211 + n, n, COMPUTES) for n in range(2)]
    return play([grow(frame, at) for at, frame in enumerate(hold(plain, 75, slices))]).frame


def _read_hooks(at_s: int) -> tuple[HookSample, HookSample]:
    count = 12_480 - round(RATE_HZ * (HOOKED_S - 1 - at_s))
    one = make_pace(4211, rate_hz=RATE_HZ, samples_hz=102.7, count=count, own_ms=217.0, timed=186, **SHARES, **TIMES)
    other = replace(one, pid=4212, rank=1, own_ms=292.0, p50_ms=309.0)
    return make_hook(4211, pace=one), make_hook(4212, rank=1, pace=other)


@cache
def hooked() -> Played:
    """The two ranks that wait for their transforms, with a hook in each."""
    slices = [make_slice(4211 + n, n, STARVES) for n in (0, 1)]
    frames = [with_hooks(one, *_read_hooks(at)) for at, one in enumerate(hold(starved(), HOOKED_S, slices))]
    return play([replace(one, facts=_state(one)) for one in frames])


PACED_HZ, USUAL_HZ = (3.21, 3.20), 5.1
"""What the log of each rank tells, and what it told before."""


@cache
def paced() -> Played:
    """The same two ranks without a hook, each with a log of its own that tells how fast it is."""
    slices = [make_slice(4211 + n, n, STARVES) for n in (0, 1)]
    logs = tuple(
        make_output(
            4211 + rank,
            path=f"/home/usr/runs/17/rank_{rank}.log",
            pace=make_log_pace(pid=4211 + rank, rank=rank, rate_hz=rate_hz),
        )
        for rank, rate_hz in enumerate(PACED_HZ)
    )
    frame = replace(starved(), output=logs, pace=logs[0].pace)
    return play([replace(one, facts=_state(one)) for one in hold(frame, HOOKED_S, slices)])


def slow_down(pulses: tuple[Pulse, ...]) -> tuple[Pulse, ...]:
    """Let the log have told a faster pace in the first half of the history, where it tells one."""
    half = len(pulses) // 2
    return tuple(
        replace(one, log_hz=USUAL_HZ) if at < half and is_known(one.log_hz) else one for at, one in enumerate(pulses)
    )


def _state(frame: Frame) -> str:
    target = frame.target
    told = {"steps": frame.steps, "pace": frame.pace}
    return state_facts(target.local_ranks, target.local_workers, frame.cpu, frame.gpus, **told)


def hooked_events() -> tuple[Event, ...]:
    return (
        make_event("attached to pid 4200: 2 ranks, 4 loader workers", HOOKED_S - 1, EventKind.ATTACH),
        *hooked().events,
    )


def stall(pulses: tuple[Pulse, ...]) -> tuple[Pulse, ...]:
    """Let one step of the history take long."""
    if not pulses or not is_known(pulses[-1].step_ms):
        return pulses
    at = len(pulses) - 1 - STALLED_S
    return (*pulses[:at], replace(pulses[at], step_ms=STALL_MS), *pulses[at + 1 :])


@cache
def read_recording() -> tuple[Frame, ...]:
    with lzma.open(RECORDING, "rt", encoding="utf-8") as lines:
        return tuple(decode(Frame, line) for line in lines)


@cache
def data_bound() -> Played:
    return replay(read_recording())


def data_bound_history() -> tuple[Pulse, ...]:
    return tuple(map(pulse_of, read_recording()))
