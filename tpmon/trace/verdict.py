"""What holds the run, from one trace, whether the trace can tell, and what to do.

Kinds, causes and remedies are those of the live verdict; a remedy is said only where the trace shows that it
fits. The share of 30 % was chosen on sample traces and has no independent test, so the shares and the second
cause are always said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.judge.advice.choose import CATALOGUE, choose, fill_remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.results.trace import CardUse, DeviceGaps, HostTime, TraceVerdict
from tpmon.model.results.trace_tables import CauseShare, PatternRow
from tpmon.model.verdict import Kind
from tpmon.trace.compare import MATMULS, does_train
from tpmon.trace.figures.breakdown import Activity, find_loader, host_rows, sum_causes
from tpmon.trace.figures.memory import name_kind
from tpmon.trace.figures.patterns import TINY_KERNEL_US, Parts, PatternSeen
from tpmon.trace.reading.columns import Small, distinct
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import (
    MULTI_LOADER,
    SINGLE_LOADER,
    CallClass,
    Category,
    is_compiling,
    runs_compiled,
)
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

_HOLDS = {
    "data": (Kind.DATA_BOUND, "waiting for the next batch"),
    "comms": (Kind.COMMS_BOUND, "communication that no computation hides"),
    "sync": (Kind.SYNC_BOUND, "calls in which the host waits for the device or the allocator"),
    "launch": (Kind.LAUNCH_BOUND, "operators and launches on the host, slower than the device"),
    "other": (Kind.PYTHON_BOUND, "Python or other code outside of operators"),
    "compute": (Kind.COMPUTE_BOUND, "computation"),
    "compile": (Kind.STARTING, "torch.compile at work"),
    "idle": (Kind.NOT_ENOUGH_EVIDENCE, "idle time that no host events explain"),
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
    causes = (("explicit", "sync_explicit"), ("implicit", "sync_implicit"), ("allocator", "alloc"))
    waits = {name: sum_causes(gaps, cause) for name, cause in causes}
    launch = sum_causes(gaps, "launch", "cpu_op")
    drained = sum(_drain_us(trace, gap.device, until, window) for gap in gaps)
    if activity.on_host:
        shares = {
            "data": sum_causes(gaps, "data"),
            "comms": exposed + sum_causes(gaps, "comms"),
            "sync": sum(waits.values()),
            "launch": launch,
            "other": max(0.0, sum_causes(gaps, "other") - drained),
        }
    else:
        idle = max(0.0, sum(gap.idle for gap in gaps) - drained - sum(waits.values()) - launch)
        told = {"sync": sum(waits.values()), "launch": launch} if activity.in_calls else {}
        shares = {"comms": exposed, **told, "idle": idle}
    return _judge(trace, shares, total, waits, window)


def _drain_us(trace: Trace, device: int, until: int, window: tuple[int, int]) -> float:
    """Return the idle time of a device behind the host's last step: nothing on the host holds it then."""
    begin = min(max(until, window[0]), window[1])
    busy = unite_rows(trace.work, trace.work.device == device).within_one(begin, window[1])
    return (window[1] - begin - busy) / 1000


def _judge(
    trace: Trace, shares: dict[str, float], total: float, waits: dict[str, float], window: tuple[int, int]
) -> TraceVerdict:
    """Write the verdict of the largest share, ``waits`` being those of the calls in which the host waits.

    Without operators, idle time that calls do not explain may be the loader, or anything else.
    """
    lost = 100 * sum(shares.values()) / total
    first = max(shares, key=lambda name: shares[name]) if lost >= LEAST_LOST_PCT else "compute"
    if first != "idle":
        return _write(first, _find_cause(trace, first, waits, window), shares, total)
    why = f"the device idles {100 * shares['idle'] / total:.0f} % of the window"
    if "sync" in shares:
        why += " outside of calls, and operators and loader, which may say why, were not recorded"
    else:
        why += ", and no host events say why"
    return _undecided(why, TRY_CPU)


def _find_cause(
    trace: Trace, first: str, waits: dict[str, float], window: tuple[int, int]
) -> Applicable[str]:
    if first == "sync":
        return max(waits, key=lambda name: waits[name])
    if first == "launch":
        kernels = trace.work.duration[trace.select(Category.KERNEL)]
        tiny = len(kernels) > 0 and float(np.median(kernels)) < TINY_KERNEL_US * 1000
        return "tiny-kernels" if tiny else "main-thread"
    if first == "data":
        return "no-workers" if find_loader(trace, window) == SINGLE_LOADER else NOT_APPLICABLE
    computes_on = "gpu" if len(trace.work.start) else "cpu"
    causes = {"comms": "unknown", "other": "single-thread", "compute": computes_on}
    return causes.get(first, NOT_APPLICABLE)


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
    return _judge(trace, shares, total, {"explicit": shares["sync"]}, window)


def _write(
    first: str, cause: Applicable[str], shares: dict[str, float], total: float, rest: str = "compute"
) -> TraceVerdict:
    every = {**shares, rest: max(total - sum(shares.values()), 0.0)}
    pct = {name: 100 * value / total for name, value in every.items()}
    others = [name for name in sorted(shares, key=lambda name: -shares[name]) if name != first]
    second = others[0] if others and pct[others[0]] >= 1 else ""
    summary = f"{pct[first]:.0f} % of the window is {_HOLDS[first][1]}"
    if second:
        summary += f"; next {_HOLDS[second][1]}, {pct[second]:.0f} %"
    return TraceVerdict(
        kind=_HOLDS[first][0],
        cause=cause,
        confidence="medium" if pct[first] >= SURE_PCT else "low",
        share_pct=pct[first],
        second=_HOLDS[second][0].value if second else NOT_APPLICABLE,
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


MOST_ADVICE = 3
IDLE_TENSOR_PCT = 1.0
CONV_PCT = 30.0
"""Of the kernels' time in convolutions: from here on they are what the model is made of."""
_LOW_PRECISION = re.compile(rb'"(?:c10::)?(?:bfloat16|bf16|half|float[48])', re.IGNORECASE)
_FOR_HIGH_PRECISION = frozenset(("bf16", "tf32", "fp16-amp"))
_FOR_TRAINING = frozenset(("bigger-micro-batch",))
_SEEN: dict[str, tuple[str, tuple[Need, ...]]] = {
    "copy-heavy": ("", ()),
    "launch-heavy": ("compile-reduce-overhead torch-compile bigger-micro-batch", ()),
    "tiny-operators": ("torch-compile", ()),
    "unfused-optimizer": ("fused-optimizer", (Need.UNFUSED_OPTIMIZER,)),
    "sync-per-step": ("find-hidden-syncs where-not-mask", (Need.SYNC_IN_STACK,)),
    "math-attention": ("sdpa-forced", (Need.ATTENTION_SLOW_PATH,)),
    "fp32-products": ("tf32 bf16 fp16-amp", (Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE)),
    "recompiles": ("recompilation-trap", (Need.RECOMPILES_SEEN,)),
    "recompute": ("checkpointing-off", (Need.RECOMPUTE_IN_STACK,)),
    "misaligned-products": ("align-shapes", (Need.MISALIGNED_PRODUCTS,)),
    "pageable": ("pin-memory", (Need.PAGEABLE_COPIES,)),
    "item": ("sync-rarely", (Need.SYNC_IN_STACK,)),
    "fp16 alone": ("", (Need.FP16_CORES_ALONE,)),
    "memory free": ("", (Need.GPU_MEMORY_FREE,)),
}
"""What helps against a pattern, of the catalogue, and what it proves; below what may be seen beside one."""


def advise(
    parts: Parts, verdict: TraceVerdict, cards: tuple[CardUse, ...], patterns: Sequence[PatternSeen]
) -> tuple[TraceVerdict, tuple[PatternRow, ...]]:
    """Return the verdict with the remedies that the trace shows to fit, and what helps against patterns."""
    observed = observe(parts, cards, patterns)
    unfit = _FOR_HIGH_PRECISION if uses_low_precision(parts) else frozenset[str]()
    rows = _explain(patterns, observed, unfit if does_train(parts.trace) else unfit | _FOR_TRAINING)
    if verdict.kind is Kind.NOT_ENOUGH_EVIDENCE:
        return verdict, rows
    cause = verdict.cause if is_known(verdict.cause) else NOT_APPLICABLE
    if verdict.kind is Kind.DATA_BOUND and cause is NOT_APPLICABLE:
        cause = "too-few-workers"
    # What a trace cannot tell (free cores, say) stands as an "if"; without any evidence nothing is said.
    evidence = observed - {Need.GPU_PRESENT, Need.TORCH_LOADER}
    fitting = [
        one
        for one in choose(verdict.kind, cause, observed, RunFacts())
        if (one.certain or evidence.intersection(one.remedy.needs)) and one.remedy.id not in unfit
    ]
    texts = tuple(one.text for one in fitting[:MOST_ADVICE])
    return (replace(verdict, try_=texts[0], advice=texts) if texts else verdict), rows


def _explain(
    patterns: Sequence[PatternSeen], observed: frozenset[Need], unfit: frozenset[str]
) -> tuple[PatternRow, ...]:
    """Say what helps against each pattern; what the trace does not tell stands as an "if"."""
    rows = []
    for seen in patterns:
        names = [name for said in (*sorted(seen.also), seen.name) for name in _SEEN[said][0].split()]
        remedies = [CATALOGUE[name] for name in dict.fromkeys(names) if name not in unfit]
        fitting = [one for one in remedies if not observed.intersection(one.never_with)][:MOST_ADVICE]
        texts = tuple(fill_remedy(remedy, observed, RunFacts()).text for remedy in fitting)
        rows.append(PatternRow(seen.name, seen.words, seen.share_pct, texts))
    return tuple(rows)


def observe(parts: Parts, cards: tuple[CardUse, ...], patterns: Sequence[PatternSeen]) -> frozenset[Need]:
    """Return what a trace proves of what remedies need."""
    loader = find_loader(parts.trace, parts.steps.window if parts.gaps else parts.steps.host_window)
    classes = parts.causes.call_class
    convolved = sum(row.share_pct for row in parts.products if row.kind == "convolution")
    tensor = [
        known_or(pct, 100.0) for one in cards for pct in (one.tensor_core_pct, one.tensor_core_unknown_pct)
    ]
    proofs = (
        (Need.GPU_PRESENT, bool(cards)),
        (Need.TENSOR_CORES_IDLE, max(tensor, default=100.0) < IDLE_TENSOR_PCT),
        (Need.TORCH_LOADER, bool(loader)),
        (Need.NO_WORKERS, loader == SINGLE_LOADER),
        (Need.WORKERS_PRESENT, loader == MULTI_LOADER),
        (Need.SYNC_IN_STACK, bool((classes == CallClass.EXPLICIT).any())),
        (Need.ALLOCATOR_IN_STACK, bool((classes == CallClass.ALLOCATOR).any())),
        (Need.CONV_MODEL, convolved >= CONV_PCT),
        (Need.EAGER_MODEL, bool(cards) and len(parts.ops.row) > 0 and not runs_compiled(parts.trace.names)),
    )
    seen = (need for one in patterns for said in (one.name, *one.also) for need in _SEEN[said][1])
    return frozenset(need for need, holds in proofs if holds).union(seen)


def uses_low_precision(parts: Parts) -> bool:
    """Tell whether matrix products take 16 bit or smaller inputs, where shapes are recorded."""
    trace = parts.trace
    rows = parts.ops.row[trace.named(trace.host, lambda name: name in MATMULS)[parts.ops.row]]
    numbers = distinct(trace.host.shape[rows]).tolist()
    return any(number >= 0 and _LOW_PRECISION.search(trace.shapes[number][1]) for number in numbers)
