"""What holds the run, from one trace, and whether the trace can tell.

Kinds and causes are those of the live verdict. The share of 30 % was chosen on sample traces and has no
independent test, so the shares and the second cause are always said.

Descriptions of cards are no proof: they stand in the traces of a machine, not of a program.
"""

from __future__ import annotations

import re

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, sum_known
from tpmon.model.results.trace import CauseShare, DeviceGaps, HostTime, TraceVerdict
from tpmon.model.verdict import Kind
from tpmon.trace.figures.breakdown import Activity, find_loader, host_rows
from tpmon.trace.figures.memory import name_kind
from tpmon.trace.reading.columns import Small
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import SINGLE_LOADER, Category, is_compiling
from tpmon.trace.reading.spans import unite_all, unite_rows

_GIVES_WORK = re.compile(r"^(?:cuda|hip|cu|xpu|ze|ur)\w*(?:Launch|Memcpy|Memset|Enqueue|AppendMemory)")
"""A profiler itself calls cudaDeviceSynchronize when it ends: that alone proves nothing."""
_OF_DEVICES = re.compile(
    r"^(?:nccl|xccl):\w|^aten::(?:_*(?:cudnn|miopen|mps)_(?!is_acceptable)|record_stream$)"
    r"|^aten::_(?:scaled_dot_product_)?(?:flash|efficient|cudnn)_attention(?!\w*for_cpu)"
    r"|^flash_attn(?:_\w+)?::|^triton_(?:poi|red|per|tem|mm)_"
)
"""Collectives and operators that only devices have; the CPU asks ``cudnn_is_acceptable``, too."""


def find_proof(trace: Trace) -> str:
    """Name what proves that the program gave work to a device; "" where nothing does."""
    named = [_first(trace, trace.calls.name, _GIVES_WORK)]
    named.append(_first(trace, trace.host.name[host_rows(trace)], _OF_DEVICES))
    for name in filter(None, named):
        return clean_name(name, 80)
    memory = trace.memory
    taken = memory.device_type[(memory.device_type > 0) & (memory.changed_bytes > 0)]
    return f"an allocation on {name_kind(int(taken[0]))}" if len(taken) else ""


def _first(trace: Trace, numbers: Small, wanted: re.Pattern[str]) -> str:
    for number in dict.fromkeys(numbers.tolist()):
        name: str = trace.names[number]
        if wanted.search(name):
            return name
    return ""


LEAST_LOST_PCT = 30.0
"""Idle and exposed communication below this share of the window: the device is busy enough."""
TINY_KERNEL_US = 10.0
"""A median kernel shorter than about one launch (cudaLaunchKernel takes 4 to 10 us on the host)."""
SURE_PCT = 50.0
LEAST_WINDOW_US = 1000.0
"""Less of unmarked work is no training step."""
TRY_CPU = "record with ProfilerActivity.CPU beside that of the device"
TRY_DEVICE = (
    "record with ProfilerActivity.CUDA (or XPU) too; where that was so, look for errors of CUPTI or "
    "roctracer in the log of the program"
)
TRY_WHOLE = "give the whole file: this one breaks off, and torch writes device work last"

_SAYS = {
    "data": "waiting for the next batch",
    "comms": "communication that no computation hides",
    "sync": "calls in which the host waits for the device or the allocator",
    "launch": "operators and launches on the host, slower than the device",
    "other": "Python or other code outside of operators",
    "compute": "computation",
    "compile": "torch.compile at work",
    "idle": "idle time that no host events explain",
}
_KINDS = {
    "data": Kind.DATA_BOUND,
    "comms": Kind.COMMS_BOUND,
    "sync": Kind.SYNC_BOUND,
    "launch": Kind.LAUNCH_BOUND,
    "other": Kind.PYTHON_BOUND,
    "compute": Kind.COMPUTE_BOUND,
    "compile": Kind.STARTING,
    "idle": Kind.NOT_ENOUGH_EVIDENCE,
}


def judge_device(
    trace: Trace, activity: Activity, gaps: tuple[DeviceGaps, ...], window: tuple[int, int], until: int
) -> TraceVerdict:
    """Judge a trace with device work: times of its devices add up, and so do their windows.

    At ``until`` the host's last step ends; what a device still does then was launched before.
    """
    total = sum(gap.window for gap in gaps)
    if total <= 0:
        return _undecided("the window of the steps is empty")
    if compiling := _find_compiling(trace, window):
        return compiling
    exposed = sum(_exposed_us(one, window) for one in activity.each())
    alloc = sum_known(gap.alloc for gap in gaps)
    explicit = sum_known(gap.sync_explicit for gap in gaps)
    implicit = sum_known(gap.sync_implicit for gap in gaps)
    waits = {"explicit": explicit, "implicit": implicit, "allocator": alloc}
    launch = sum_known(us for gap in gaps for us in (gap.launch, gap.cpu_op))
    drained = sum(_drain_us(trace, gap.device, until, window) for gap in gaps)
    if not activity.on_host:
        idle = max(0.0, sum(gap.idle for gap in gaps) - drained - sum(waits.values()) - launch)
        told = {"sync": sum(waits.values()), "launch": launch} if activity.in_calls else {}
        return _judge_without_host(trace, {"comms": exposed, **told, "idle": idle}, waits, window, total)
    shares = {
        "data": sum_known(gap.data for gap in gaps),
        "comms": exposed + sum_known(gap.comms for gap in gaps),
        "sync": sum(waits.values()),
        "launch": launch,
        "other": max(0.0, sum_known(gap.other for gap in gaps) - drained),
    }
    first = _largest(shares, total)
    return _write(first, _cause_on_device(trace, first, waits, window), shares, total)


def _drain_us(trace: Trace, device: int, until: int, window: tuple[int, int]) -> float:
    """Return the idle time of a device behind the host's last step: nothing on the host holds it then."""
    begin = min(max(until, window[0]), window[1])
    busy = unite_rows(trace.work, trace.work.device == device).within_one(begin, window[1])
    return (window[1] - begin - busy) / 1000


def _cause_on_device(
    trace: Trace, first: str, waits: dict[str, float], window: tuple[int, int]
) -> Applicable[str]:
    if first == "sync":
        return max(waits, key=lambda name: waits[name])
    if first == "launch":
        kernels = trace.work.duration[trace.select(Category.KERNEL)]
        tiny = len(kernels) > 0 and float(np.median(kernels)) < TINY_KERNEL_US * 1000
        return "tiny-kernels" if tiny else "main-thread"
    return _cause(trace, first, "gpu", window)


def _judge_without_host(
    trace: Trace, shares: dict[str, float], waits: dict[str, float], window: tuple[int, int], total: float
) -> TraceVerdict:
    """Judge a trace without operators: what calls do not explain may be the loader, or anything else."""
    first = _largest(shares, total)
    if first != "idle":
        return _write(first, _cause_on_device(trace, first, waits, window), shares, total)
    lost = f"the device idles {100 * shares['idle'] / total:.0f} % of the window"
    if "sync" in shares:
        why = f"{lost} outside of calls, and operators and loader, which may say why, were not recorded"
    else:
        why = f"{lost}, and no host events say why"
    return _undecided(why, TRY_CPU)


def _find_compiling(trace: Trace, window: tuple[int, int]) -> TraceVerdict | None:
    """Say that a trace is of torch.compile at work, where that takes enough of it to hold the run."""
    spans = unite_rows(trace.host, trace.named(trace.host, is_compiling))
    share = spans.within_one(*window) / max(window[1] - window[0], 1)
    if 100 * share < LEAST_LOST_PCT:
        return None
    return _write("compile", "compile", {"compile": share}, 1.0, rest="other")


def _exposed_us(activity: Activity, window: tuple[int, int]) -> float:
    """Return the communication of one device that no other work of it hides."""
    compute = unite_all([activity.kernel, activity.memcpy, activity.memset])
    both = unite_all([compute, activity.communication])
    return (both.within_one(*window) - compute.within_one(*window)) / 1000


def judge_host(
    trace: Trace, host: Applicable[HostTime], window: tuple[int, int], *, marked: bool
) -> TraceVerdict:
    """Judge a trace without device work by the time of its host in ``window``."""
    if not is_known(host):
        return _undecided("the trace holds neither device work nor host events")
    if not marked and window[1] - window[0] < LEAST_WINDOW_US * 1000:
        return _undecided(f"the trace holds {(window[1] - window[0]) / 1000:.0f} us without marked steps")
    if compiling := _find_compiling(trace, window):
        return compiling
    if proof := find_proof(trace):
        remedy = TRY_WHOLE if trace.lost.broken_off else TRY_DEVICE
        return _undecided(f"the work of a device was not recorded, though {proof} shows some", remedy)
    shares = {"data": host.data, "comms": host.comms, "sync": host.sync + host.alloc, "other": host.other}
    total = sum(shares.values()) + host.compute
    if total <= 0:
        return _undecided("the trace holds no time")
    first = _largest(shares, total)
    cause = "explicit" if first == "sync" else _cause(trace, first, "cpu", window)
    return _write(first, cause, shares, total)


def _cause(trace: Trace, first: str, computes_on: str, window: tuple[int, int]) -> Applicable[str]:
    if first == "data":
        return "no-workers" if find_loader(trace, window) == SINGLE_LOADER else NOT_APPLICABLE
    causes: dict[str, Applicable[str]] = {
        "comms": "unknown",
        "other": "single-thread",
        "compute": computes_on,
    }
    return causes.get(first, NOT_APPLICABLE)


def _largest(shares: dict[str, float], total: float) -> str:
    lost = 100 * sum(shares.values()) / total
    return max(shares, key=lambda name: shares[name]) if lost >= LEAST_LOST_PCT else "compute"


def _write(
    first: str, cause: Applicable[str], shares: dict[str, float], total: float, rest: str = "compute"
) -> TraceVerdict:
    every = {**shares, rest: max(total - sum(shares.values()), 0.0)}
    pct = {name: 100 * value / total for name, value in every.items()}
    others = [name for name in sorted(shares, key=lambda name: -shares[name]) if name != first]
    second = others[0] if others and pct[others[0]] >= 1 else ""
    summary = f"{pct[first]:.0f} % of the window is {_SAYS[first]}"
    if second:
        summary += f"; next {_SAYS[second]}, {pct[second]:.0f} %"
    return TraceVerdict(
        kind=_KINDS[first],
        cause=cause,
        confidence="medium" if pct[first] >= SURE_PCT else "low",
        share_pct=pct[first],
        second=_KINDS[second].value if second else NOT_APPLICABLE,
        summary=summary,
        try_=NOT_APPLICABLE,
        advice=(),
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
        shares=(),
    )
