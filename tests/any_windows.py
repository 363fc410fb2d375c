"""Draw Windows of any job, whole or with readings gone: what every rule, and the whole judge, must bear.

A drawn job is likely on the whole, so that rules suspect causes in it; ``blank`` takes readings away, one
field of one group at a time, and ``fields_to_blank`` names them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.frames import GIB, make_frame, make_gpu, make_memory, make_target
from tests.gpu_scenes import HOLLOW, NO_GPM, held
from tests.judging import make_looks
from tests.paces import make_hook, make_pace, split_of, with_hooks
from tests.phase_stacks import stack
from tests.starving import (
    COMPUTES,
    DISK,
    DISTANT,
    IDLES,
    LINE,
    SLEEPS,
    SMALL_FILES,
    SOCKET,
    THRASHES,
    line_up,
    make_second,
)
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuSample
from tpmon.model.host import CpuSample, LoaderSample, MemorySample, NetworkSample
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, ProcessSample, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackCount, StackSlice

GONE = Missing("taken away: not read")
FIRST_RANK = 4211
SLICE_EVERY_S = 4

WORKERS = (COMPUTES, IDLES, SLEEPS, DISK, SMALL_FILES, LINE, DISTANT, SOCKET, THRASHES)
_LINKS = ("pcie_tx_bytes_s", "pcie_rx_bytes_s", "nvlink_tx_bytes_s", "nvlink_rx_bytes_s")
CARDS: tuple[dict[str, Any], ...] = (
    {},
    HOLLOW,
    {"sm_active_pct": 40.0, "power_w": 300.0},
    {"sm_pct": 41.0, "power_w": 220.0, "sm_active_pct": 30.0},
    {"sm_pct": 12.0, "power_w": 130.0, "sm_active_pct": 8.0},
    {**NO_GPM, "power_w": 420.0},
    {**NO_GPM, **dict.fromkeys(_LINKS, 1e4)},
    {**held("SW thermal", 30.0), "sm_clock_mhz": 1300.0, "temperature_margin_c": 1.0},
    {**held("power brake", 60.0), "sm_clock_mhz": 900.0},
    {"power_limit_w": 400.0, "power_w": 396.0, **held("power cap", 98.0), "sm_clock_mhz": 1100.0},
    {"pcie_width": 4, "pcie_rx_bytes_s": 5e9, "sm_pct": 60.0},
    {"recovery_action": 2, "xids": (79,)},
)
STACKS = tuple(
    map(
        stack,
        (
            "main train next next_data get_data try_get queue_get",
            "main train next next_data fetch item decode",
            "main train next next_data fetch default_collate",
            "main train step call linear",
            "main train backward engine",
            "main train wrapper adam",
            "main train synchronize",
            "main train to",
            "main train empty_cache",
            "main train c10d all_reduce",
            "main train save",
            "main validate net call linear",
            "main train logging",
            "main train get_batch",
        ),
    )
)
MEMORIES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"swap_bytes": GIB, "major_faults_s": 300.0, "psi_some_pct": 20.0},
    {"refault_bytes_s": 200e6, "major_faults_s": 90.0, "psi_some_pct": 15.0, "used_bytes": 16 * GIB},
)
_SHARES = st.sampled_from((0.0, 0.05, 0.3, 0.6, 0.9, 1.0))


def _kinds(group: type) -> list[str]:
    """Name the readings of a group that a source may fail to give."""
    return [one.name for one in fields(group) if "Known[" in str(one.type)]


def fields_to_blank() -> list[tuple[str, str]]:
    """Name every (group, field) that ``blank`` can take away; "" is a field of the Frame itself."""
    top = [name for name in _kinds(Frame) if name not in ("verdict", "steps", "driver")]
    groups = {
        "cpu": CpuSample,
        "memory": MemorySample,
        "loader": LoaderSample,
        "gpus": GpuSample,
        "processes": ProcessSample,
    }
    inner = [(group, name) for group, kind in groups.items() for name in _kinds(kind)]
    return [("", name) for name in top] + inner + [("processes", "thread_groups"), ("target", "world_size")]


def blank(frame: Frame, group: str, name: str, reason: Missing = GONE) -> Frame:
    """Return the Frame without one reading: of the Frame, of one group, or of each member of a group."""
    if not group:
        gone = {"hook": {"hook": reason, "steps": reason}}.get(name, {name: reason})
        return replace(frame, **gone)
    whole = getattr(frame, group)
    if not is_known(whole):
        return frame
    if isinstance(whole, tuple):
        return replace(frame, **{group: tuple(_blank_in(one, name, reason) for one in whole)})
    return replace(frame, **{group: _blank_in(whole, name, reason)})


def _blank_in(sample: Any, name: str, reason: Missing) -> Any:
    if name == "thread_groups":
        groups = tuple(replace(one, runnable=reason) for one in sample.thread_groups)
        return replace(sample, thread_groups=groups)
    if name == "world_size" and sample.world_size is NOT_APPLICABLE:
        return sample
    return replace(sample, **{name: reason})


def values_of(thing: object) -> Iterator[object]:
    """Yield what a dataclass holds, down to the last value."""
    if is_dataclass(thing) and not isinstance(thing, type):
        if isinstance(thing, Missing):
            yield thing
            return
        for field in fields(thing):
            yield from values_of(getattr(thing, field.name))
    elif isinstance(thing, (tuple, frozenset)):
        for item in thing:
            yield from values_of(item)
    else:
        yield thing


@st.composite
def likely_seconds(draw: st.DrawFn, *, hooks: bool = True) -> Frame:
    """Draw one second of a job as there may be one: ranks, workers, cards, looks, memory, hooks."""
    count = draw(st.sampled_from((1, 1, 1, 2)))
    wait = draw(_SHARES)
    demand = draw(st.sampled_from((0.03, 1 - wait, 1.0, 2.0, 11.0)))
    taken = draw(st.sampled_from((0.02, 0.02, 0.5, 0.84)))
    budget = draw(st.sampled_from((2.0, 8.0)))
    kind = draw(st.sampled_from(WORKERS))
    workers = [kind] * draw(st.sampled_from((0, 0, 2, 4)))
    busy = 1 if demand <= 1 else round(demand + 1)
    groups = (
        ThreadGroup(ThreadKind.MAIN, 1, min(demand, 1.0)),
        ThreadGroup(ThreadKind.COMM, 3, draw(st.sampled_from((0.02, 0.6)))),
        ThreadGroup(ThreadKind.POOL, 8, max(0.0, demand - 1)),
    )
    rank = {
        "runnable": demand,
        "waiting": demand * taken,
        "busy_threads": busy,
        "thread_groups": groups,
        "environment": (EnvironmentSetting("OMP_NUM_THREADS", str(busy)),),
    }
    runnable = count * demand + sum(one["runnable"] for one in workers)
    pool = count * demand / budget if busy > 1 else 0.0
    frame = make_second(
        wait,
        workers,
        rank=rank,
        loader={"empty_ratio": draw(_SHARES), "ready_batches": draw(st.sampled_from((0.0, 3.0)))},
        cpu={
            "budget_cores": budget,
            "host_cores": draw(st.sampled_from((int(budget), 64))),
            "runnable": runnable,
            "demand_ratio": runnable / budget,
            "used_cores": min(budget, runnable * (1 - taken)),
            "oversubscription": pool,
            "run_delay_ratio": taken,
            "throttled_ratio": draw(st.sampled_from((0.0, 0.0, 0.2, 0.9))),
            "psi_some_pct": draw(st.sampled_from((1.0, 80.0))),
        },
    )
    ranks = tuple(replace(frame.processes[0], pid=FIRST_RANK + n, rank=n, local_rank=n) for n in range(count))
    lock = draw(st.integers(0, 10 - round(10 * wait)))
    looks = tuple(make_looks(FIRST_RANK + n, batch_wait=round(10 * wait), lock=lock) for n in range(count))
    gpus: Any = frame.gpus
    if draw(st.booleans()):
        card = draw(st.sampled_from(CARDS))
        gpus = tuple(make_gpu(n, **({"pids": (FIRST_RANK + n,)} | card)) for n in range(count))
    frame = replace(
        frame,
        target=make_target(world_size=draw(st.sampled_from((count, count, count + 2)))),
        processes=(*ranks, *frame.processes[1:]),
        main_threads=looks,
        gpus=gpus,
        memory=make_memory(**draw(st.sampled_from(MEMORIES))),
        network=(NetworkSample("eth0", "nic", True, *[draw(st.sampled_from((1e3, 80e6)))] * 2, 0.0, 0.0),),
        stacks=(),
    )
    if hooks and draw(st.booleans()):
        split = split_of(draw(st.sampled_from((2.0, 20.0, 70.0))))
        paces = [make_pace(one.pid, **split, rank=one.rank) for one in ranks]
        frame = with_hooks(frame, *(make_hook(one.pid, rank=one.rank, pace=one) for one in paces))
    return frame


@st.composite
def slices(draw: st.DrawFn, pid: int, rank: int) -> StackSlice:
    """Draw what one slice of samples saw of a main thread, at no time yet."""
    counts = draw(st.dictionaries(st.sampled_from(STACKS), st.integers(1, 30), min_size=1, max_size=3))
    return make_slice(pid, rank, counts)


def make_slice(pid: int, rank: int, counts: Any) -> StackSlice:
    """Build one slice of four seconds from stacks and how often each was met."""
    frame = make_frame()
    stacks = tuple(StackCount(pid, "MainThread", frames, count) for frames, count in counts.items())
    samples = sum(counts.values())
    return StackSlice(pid, rank, frame.taken, frame.taken_ns, 4.0, 10.0, samples, stacks)


def with_slices(frame: Frame, slices: Sequence[StackSlice]) -> Frame:
    """Put slices into a Frame that ended when it was taken."""
    return replace(frame, stacks=tuple(replace(one, ended=frame.taken, ended_ns=frame.taken_ns) for one in slices))


def with_slice(frames: Sequence[Frame], taken: StackSlice, at: int = -1) -> list[Frame]:
    """Put a slice of stacks that ends then into one of the Frames, by default the last."""
    put = list(frames)
    put[at] = with_slices(put[at], (taken,))
    return put


def sample_stacks(frames: Sequence[Frame], taken: Sequence[StackSlice]) -> list[Frame]:
    """Put a slice of each rank into every fourth Frame; a Frame that was not permitted stays so."""
    return [
        with_slices(one, taken if number % SLICE_EVERY_S == 1 else ()) if is_known(one.stacks) else one
        for number, one in enumerate(frames)
    ]


@st.composite
def likely_windows(
    draw: st.DrawFn, *, seconds: int = 16, hooks: bool = True, second: Callable[..., Any] = likely_seconds
) -> list[Frame]:
    """Draw a Window in which nothing changes, with stack samples in half of the cases."""
    frame = draw(second(hooks=hooks))
    frames = line_up([frame] * seconds)
    if not draw(st.sampled_from((True, True, False))):
        return frames
    ranks = [one for one in frame.processes if one.pid - FIRST_RANK in (0, 1)]
    return sample_stacks(frames, [draw(slices(one.pid, one.pid - FIRST_RANK)) for one in ranks])
