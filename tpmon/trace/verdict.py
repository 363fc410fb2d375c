"""What holds the run, from one trace, and whether the trace can tell.

Kinds and causes are those of the live verdict. The share of 30 % was chosen on sample traces and has no
independent test, so the shares and the second cause are always said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.trace import HostTime, TraceVerdict
from tpmon.model.results.trace_tables import CauseShare
from tpmon.model.verdict import Kind
from tpmon.trace.figures.breakdown import Activity, find_loader, host_rows, subtract
from tpmon.trace.figures.gaps import DeviceCauses
from tpmon.trace.figures.memory import name_kind
from tpmon.trace.figures.patterns import TINY_KERNEL_US
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Small
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import SINGLE_LOADER, Category, begins, is_compiling, is_step
from tpmon.trace.reading.spans import Spans, find_cuts, unite_all, unite_rows

_GIVES_WORK = re.compile(r"^(?:cuda|hip|cu|xpu|ze|ur)\w*(?:Launch|Memcpy|Memset|Enqueue|AppendMemory)")
"""A profiler itself calls cudaDeviceSynchronize when it ends: that alone proves nothing."""
_OF_DEVICES = re.compile(
    r"^(?:nccl|xccl):\w|^aten::(?:_*(?:cudnn|miopen|mps)_(?!is_acceptable)|record_stream$)"
    r"|^aten::_(?:scaled_dot_product_)?(?:flash|efficient|cudnn)_attention(?!\w*for_cpu)"
    r"|^flash_attn(?:_\w+)?::|^triton_(?:poi|red|per|tem|mm)_"
)
"""Collectives and operators that only devices have; the CPU asks ``cudnn_is_acceptable``, too."""


def find_proof(trace: Trace) -> str:
    """Name what proves that the program gave work to a device; "" where nothing does.

    Descriptions of cards are no proof: they stand in the traces of a machine, not of a program.
    """
    called = _first(trace, trace.calls.name, _GIVES_WORK)
    if name := called or _first(trace, trace.host.name[host_rows(trace)], _OF_DEVICES):
        return clean_name(name, 80)
    memory = trace.memory
    taken = memory.device_type[(memory.device_type > 0) & (memory.changed_bytes > 0)]
    return f"an allocation on {name_kind(int(taken[0]))}" if len(taken) else ""


def _first(trace: Trace, numbers: Small, wanted: re.Pattern[str]) -> str:
    names = (trace.names[number] for number in dict.fromkeys(numbers.tolist()))
    return next((name for name in names if wanted.search(name)), "")


LEAST_LOST_PCT = 30.0
"""Idle and exposed communication below this share of the window: the device is busy enough."""
SURE_PCT = 50.0
LEAST_WINDOW_US = 1000.0
"""Less of unmarked work is no training step."""
TRY_CPU = "record with ProfilerActivity.CPU beside that of the device"
TRY_DEVICE = (
    "record with ProfilerActivity.CUDA (or XPU) too; where that was so, look for errors of CUPTI or "
    "roctracer in the log of the program"
)
TRY_WHOLE = "give the whole file: this one breaks off, and torch writes device work last"

TRY_SCHEDULE = (
    "record after some warm steps: profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=5)), "
    "and its step() after each step"
)
TRY_CYCLE = (
    "export in on_trace_ready, or with schedule(..., repeat=1): behind the last step of a schedule the next "
    "cycle begins, and export_chrome_trace writes that one"
)
TRY_QUEUED = (
    "record what is not in it: the traces of all ranks (tpmon trace FOLDER), ProfilerActivity.CUDA in each "
    "process that uses the card; where kernels were sampled, all of them"
)

_QUEUED = (
    "idle time with the next work already launched: the device waits for another stream, rank or process, "
    "or what it did was not recorded"
)
HOLDS = {
    "data": (Kind.DATA_BOUND, "waiting for the next batch"),
    "comms": (Kind.COMMS_BOUND, "communication that no computation hides"),
    "copies": (Kind.SYNC_BOUND, "copies of pageable memory, which hold up the host, and no kernel runs"),
    "transfers": (Kind.SYNC_BOUND, "copies between host and device, which kernels wait for"),
    "sync": (Kind.SYNC_BOUND, "waits of the host for the device or the allocator, and what they hold up"),
    "launch": (Kind.LAUNCH_BOUND, "operators and launches on the host, slower than the device"),
    "host": (Kind.PYTHON_BOUND, "operators that compute on the host while the device waits"),
    "other": (Kind.PYTHON_BOUND, "Python or other code outside of operators"),
    "compute": (Kind.COMPUTE_BOUND, "computation"),
    "compile": (Kind.STARTING, "torch.compile at work"),
    "graph": (
        Kind.COMPUTE_BOUND,
        "idle time between kernels of one CUDA graph, which the host does not hold",
    ),
    "queued": (Kind.NOT_ENOUGH_EVIDENCE, _QUEUED),
    "idle": (Kind.NOT_ENOUGH_EVIDENCE, "idle time that no host events explain"),
}
"""The kind of a verdict by its largest share, and that share in words."""
comes_back = begins(r".*(?:DtoH|Device\s?To\s?Host)")
COPIES = {
    "copies": begins(r".*Pageable"),
    "transfers": begins(r"(?!.*Pageable).*(?:HtoD|Host\s?To\s?Device|DtoH|Device\s?To\s?Host)"),
}
"""Which copies make a share of the verdict where no kernel hides them."""
_SYNCS = {"explicit": "sync_explicit", "implicit": "sync_implicit", "allocator": "alloc"}
SHARES = {
    "data": ("data",),
    "sync": tuple(_SYNCS.values()),
    "launch": ("launch", "cpu_op"),
    "host": ("host",),
    "other": ("other",),
    "graph": ("graph",),
    "queued": ("queued",),
}
"""Which causes of idle time make a share of the verdict."""
_OF_CALLS = ("copies", "transfers", "sync", "launch", "graph", "queued")
_NOT_BY_HOST = ("graph", "queued", "other")
_SEEN_ITSELF = ("compile", "data")
"""What a trace names itself: in a few steps as in all of them it is that."""
_NAMED_WHERE_SEEN = ("host", "graph", "queued")


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what a verdict is made from: shares and the whole in ns, and what the trace tells beside them."""

    shares: dict[str, int]
    total: int
    waits: dict[str, int]


def judge_device(
    trace: Trace, activity: Activity, devices: Sequence[DeviceCauses], steady: SteadyPart
) -> TraceVerdict:
    """Judge a trace with device work: times of its devices add up, and so do their windows.

    When the host's last step ends, what a device still does was launched before: nothing holds it then.
    """
    window = steady.steps.window
    cuts = unite_all([find_cuts(trace.header, window), steady.cuts])
    total = len(devices) * (window[1] - window[0] - cuts.total)
    starts = steady.left_pct >= SURE_PCT and not steady.loops
    if total <= 0:
        empty = _undecided("the window of the steps is empty")
        return _say_starting(steady, empty) if starts else empty
    if compiling := _find_compiling(trace, window, steady):
        return compiling
    late = min(max(steady.steps.host_window[1], window[0]), window[1]), window[1]
    spent: Counter[str] = Counter()
    for one in devices:
        spent.update(one.split_one(window, cuts))
        drained = one.split_one(late, cuts)
        spent.subtract({name: drained[name] for name in _NOT_BY_HOST})
    shares = {name: sum(spent[one] for one in parts) for name, parts in SHARES.items()}
    exposed = sum(_expose(one, window, cuts) for one in activity.each())
    shares = {name: ns for name, ns in shares.items() if ns > 0 or name not in _NAMED_WHERE_SEEN}
    for name, test in COPIES.items():
        copied = _expose_copies(trace, devices, window, cuts, test)
        if 100 * copied >= LEAST_LOST_PCT * total:
            shares[name] = copied
    if activity.on_host:
        shares = {"comms": exposed + spent["comms"], **shares}
    else:
        told = {name: ns for name, ns in shares.items() if name in _OF_CALLS and activity.in_calls}
        idle = sum(shares.values()) - sum(told.values())
        shares = {"comms": exposed, **told, "idle": idle}
    waits = {name: spent[cause] for name, cause in _SYNCS.items()}
    verdict = _judge(trace, Measured(shares, total, waits), steady)
    return _say_starting(steady, verdict) if starts else verdict


def _say_starting(steady: SteadyPart, rest: TraceVerdict) -> TraceVerdict:
    """Say that most of a trace is start-up, with no loop behind it; ``rest`` is of what is left."""
    left = steady.left_pct
    summary = f"{steady.say_left()}, and no steps or repeats are behind it"
    if rest.shares:
        summary += f"; of the rest {rest.shares[0].pct:.0f} % is {HOLDS[rest.shares[0].name][1]}"
    shares = [CauseShare(one.name, one.pct * (100 - left) / 100) for one in rest.shares]
    return replace(
        _undecided(summary, TRY_SCHEDULE),
        kind=Kind.STARTING,
        cause="first-steps",
        confidence="medium",
        share_pct=left,
        shares=(CauseShare("start-up", left), *(shares or [CauseShare("other", 100 - left)])),
    )


def _judge(trace: Trace, measured: Measured, steady: SteadyPart) -> TraceVerdict:
    """Write the verdict of the largest share.

    Without operators, idle time that calls do not explain may be the loader, or anything else.
    """
    shares, total = measured.shares, measured.total
    lost = 100 * sum(shares.values()) / total
    first = max(shares, key=lambda name: shares[name]) if lost >= LEAST_LOST_PCT else "compute"
    verdict = _write(first, _find_cause(trace, first, measured, steady.steps.window), measured, steady)
    if first == "idle":
        why = f"the device idles {100 * shares['idle'] / total:.0f} % of the window"
        if "sync" in shares:
            why += " outside of calls, and operators and loader, which may say why, were not recorded"
        else:
            why += ", and no host events say why"
        return _undecided(why, TRY_CPU)
    if first == "queued":
        return replace(verdict, try_=TRY_QUEUED, advice=(TRY_QUEUED,))
    return verdict


def name_first(verdict: TraceVerdict) -> str:
    """Name the share that a verdict is about, "" where it is about none."""
    return next((one.name for one in verdict.shares if HOLDS[one.name][0] is verdict.kind), "")


def _find_cause(trace: Trace, first: str, measured: Measured, window: tuple[int, int]) -> Applicable[str]:
    if first in COPIES:
        return "implicit"
    if first == "sync":
        return max(measured.waits, key=lambda name: measured.waits[name])
    if first == "launch":
        work = trace.work
        rows = trace.select(Category.KERNEL) & (work.start >= window[0]) & (work.start < window[1])
        kernels = work.duration[rows]
        tiny = len(kernels) > 0 and float(np.median(kernels)) < TINY_KERNEL_US * 1000
        return "tiny-kernels" if tiny else "main-thread"
    if first == "data":
        return "no-workers" if find_loader(trace, window) == SINGLE_LOADER else NOT_APPLICABLE
    computes_on = "gpu" if len(trace.work.start) else "cpu"
    causes = {"comms": "unknown", "other": "single-thread", "host": "single-thread"}
    return causes.get(first, computes_on if first in ("compute", "graph") else NOT_APPLICABLE)


def _find_compiling(trace: Trace, window: tuple[int, int], steady: SteadyPart) -> TraceVerdict | None:
    """Say that a trace is of torch.compile at work, where that takes enough of it to hold the run."""
    spans = unite_rows(trace.host, trace.named(trace.host, is_compiling))
    length = max(window[1] - window[0], 1)
    spent = spans.within_one(*window)
    if 100 * spent / length < LEAST_LOST_PCT:
        return None
    return _write("compile", "compile", Measured({"compile": spent}, length, {}), steady, rest="other")


def _expose(activity: Activity, window: tuple[int, int], cuts: Spans) -> int:
    """Return the communication of one device that no other work of it hides."""
    compute = unite_all([activity.kernel, activity.memcpy, activity.memset, cuts])
    both = unite_all([compute, activity.communication])
    return both.within_one(*window) - compute.within_one(*window)


def _expose_copies(
    trace: Trace,
    devices: Sequence[DeviceCauses],
    window: tuple[int, int],
    cuts: Spans,
    test: Callable[[str], bool],
) -> int:
    """Return how long devices do some copies while no kernel of them runs."""
    work = trace.work
    rows = trace.named(work, test) & (work.category == Category.MEMCPY)
    exposed = 0
    for one in devices:
        kernels = unite_rows(work, trace.select(Category.KERNEL, one.device))
        copies = subtract(unite_rows(work, rows & (work.device == one.device)), unite_all([kernels, cuts]))
        exposed += copies.within_one(*window)
    return exposed


def judge_host(trace: Trace, host: Applicable[HostTime], steady: SteadyPart) -> TraceVerdict:
    """Judge a trace without device work by the time of its host in the window of its steps."""
    window = steady.steps.host_window
    if not is_known(host):
        return _undecided("the trace holds neither device work nor host events")
    if not steady.steps.marked and window[1] - window[0] < LEAST_WINDOW_US * 1000:
        return _undecided(f"the trace holds {(window[1] - window[0]) / 1000:.0f} us without marked steps")
    if compiling := _find_compiling(trace, window, steady):
        return compiling
    if proof := find_proof(trace):
        remedy = TRY_WHOLE if trace.lost.broken_off else TRY_DEVICE
        return _undecided(f"the work of a device was not recorded, though {proof} shows some", remedy)
    if _is_empty(trace, steady.steps):
        return _undecided("no operator and no range ran in what is marked as steps", TRY_CYCLE)
    parts = {"data": host.data, "comms": host.comms, "sync": host.sync + host.alloc, "other": host.other}
    shares = {name: round(1000 * us) for name, us in parts.items()}
    total = sum(shares.values()) + round(1000 * host.compute)
    if total <= 0:
        return _undecided("the trace holds no time")
    return _judge(trace, Measured(shares, total, {"explicit": shares["sync"]}), steady)


def _is_empty(trace: Trace, steps: TraceSteps) -> bool:
    """Tell whether nothing ran in the one step that is marked, or in all of them that are no longer than one.

    Steps of Python alone are many; the one that a new cycle of the profiler begins is not.
    """
    start, end = steps.host_window
    host = trace.host
    inside = (host.start >= start) & (host.start < end)
    if not steps.marked or bool((host_rows(trace) & ~trace.named(host, is_step) & inside).any()):
        return False
    short = end - start < LEAST_WINDOW_US * 1000
    return short or (len(steps.names) == 1 and not len(trace.python.start))


def _write(
    first: str, cause: Applicable[str], measured: Measured, steady: SteadyPart, rest: str = "compute"
) -> TraceVerdict:
    shares = measured.shares
    every = {**shares, rest: max(measured.total - sum(shares.values()), 0)}
    pct = {name: 100 * value / measured.total for name, value in every.items()}
    others = [name for name in sorted(shares, key=lambda name: -shares[name]) if name != first]
    second = others[0] if others and pct[others[0]] >= 1 else ""
    left = steady.say_left()
    summary = f"{left}; " if left else ""
    summary += f"{pct[first]:.0f} % of {steady.say_window()} is {HOLDS[first][1]}"
    if second:
        summary += f"; next {HOLDS[second][1]}, {pct[second]:.0f} %"
    odd = steady.say_odd() or steady.apart
    cold = steady.say_cold()
    doubtful = (steady.is_of_few or bool(cold)) and first not in _SEEN_ITSELF
    summary += "".join(f"; {said}" for said in (odd, cold) if said)
    return TraceVerdict(
        kind=HOLDS[first][0],
        cause=cause,
        confidence="medium" if pct[first] >= SURE_PCT and not doubtful else "low",
        share_pct=pct[first],
        second=HOLDS[second][0].value if second else NOT_APPLICABLE,
        summary=summary,
        shares=tuple(CauseShare(name, value) for name, value in sorted(pct.items(), key=lambda one: -one[1])),
    )


def _undecided(why: str, remedy: str = "") -> TraceVerdict:
    return TraceVerdict(
        kind=Kind.NOT_ENOUGH_EVIDENCE,
        cause=NOT_APPLICABLE,
        confidence="low",
        share_pct=0.0,
        second=NOT_APPLICABLE,
        summary=why,
        try_=remedy or NOT_APPLICABLE,
        advice=(remedy,) if remedy else (),
    )
