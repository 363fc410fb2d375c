"""What to do about a verdict of a trace: remedies whose cost it shows, lines of the program, a ceiling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.judge.advice.choose import CATALOGUE, Chosen, choose, fill_remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import write_gain
from tpmon.judge.answers.needs import Need
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.results.trace import CardUse, TraceVerdict
from tpmon.model.results.trace_tables import IdleLine, PatternRow, ProductRow, StepWork
from tpmon.model.verdict import Kind, pick_code
from tpmon.trace.compare import MATMULS, does_train
from tpmon.trace.figures.breakdown import find_loader, name_calls
from tpmon.trace.figures.categories import lie_inside
from tpmon.trace.figures.gaps import name_computing, sum_causes
from tpmon.trace.figures.operators import is_graph_launch
from tpmon.trace.figures.patterns import Parts, PatternSeen
from tpmon.trace.figures.program import find_beside, find_idle_lines, find_idle_range
from tpmon.trace.reading.columns import distinct
from tpmon.trace.reading.schema import MULTI_LOADER, SINGLE_LOADER, Category, begins, runs_compiled
from tpmon.trace.reading.spans import NOTHING, Spans, find_cuts, invert, unite_all
from tpmon.trace.verdict import COPIES, SHARES, comes_back, name_first

MOST_ADVICE = 3
IDLE_TENSOR_PCT = 1.0
CONV_PCT = 30.0
"""Of the kernels' time in convolutions: from here on they are what the model is made of."""
_LOW_PRECISION = re.compile(rb'"(?:c10::)?(?:bfloat16|bf16|half|float[48])', re.IGNORECASE)
_FOR_HIGH_PRECISION = frozenset(("bf16", "tf32", "fp16-amp"))
_FOR_TRAINING = frozenset(("bigger-micro-batch", "sync-rarely"))
_FOR_SERVING = frozenset(("more-at-once",))
_ROUNDED = ("tf32", "fp16", "bf16")
"""Number types of tensor cores, which alone want the channels last."""
_FOR_CONVOLUTIONS = ("channels-last", "cudnn-benchmark")
_FOR_EAGER = frozenset(("compile-reduce-overhead", "torch-compile", "compile-fullgraph"))
_FOR_MASKS = frozenset(("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::argwhere"))
"""What waits for the device for the size of its result: indexing by a mask asks ``nonzero``."""
_frees = begins(r"(?:cuda|hip)(?:Mem)?Free")
LEAST_COST_PCT = 2.0
"""Of the window: a remedy is for what costs this much, not for what is merely there."""
_SEEN: dict[str, tuple[str, tuple[Need, ...]]] = {
    "copy-heavy": ("", ()),
    "launch-heavy": ("compile-reduce-overhead torch-compile bigger-micro-batch", ()),
    "tiny-operators": ("torch-compile", ()),
    "unfused-optimizer": ("fused-optimizer", (Need.UNFUSED_OPTIMIZER,)),
    "sync-per-step": ("find-hidden-syncs where-not-mask", (Need.SYNC_IN_STACK,)),
    "math-attention": ("sdpa-forced", (Need.ATTENTION_SLOW_PATH,)),
    "hand-attention": ("sdpa-forced", (Need.ATTENTION_SLOW_PATH,)),
    "few-blocks": ("bigger-micro-batch more-at-once", ()),
    "elementwise-heavy": ("torch-compile", ()),
    "tf32-products": ("bf16", (Need.FP32_MATMUL_SEEN, Need.TF32_ALLOWED)),
    "half-off-tensor-cores": ("align-shapes", (Need.MISALIGNED_PRODUCTS,)),
    "thin": ("bigger-micro-batch more-at-once", ()),
    "fp32-products": ("tf32 bf16 fp16-amp", (Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE)),
    "recompiles": ("recompilation-trap", (Need.RECOMPILES_SEEN,)),
    "recompute": ("checkpointing-off", (Need.RECOMPUTE_IN_STACK,)),
    "misaligned-products": ("align-shapes", (Need.MISALIGNED_PRODUCTS,)),
    "pageable": ("pin-memory", (Need.PAGEABLE_COPIES,)),
    "item": ("sync-rarely", (Need.SYNC_IN_STACK,)),
    "updates alone": ("", ()),
    "host alone": ("", ()),
    "fp16 alone": ("", (Need.FP16_CORES_ALONE,)),
    "memory free": ("", (Need.GPU_MEMORY_FREE,)),
}
"""What helps against a pattern, of the catalogue, and what it proves; below what may be seen beside one."""


_COSTS = {
    Need.TORCH_LOADER: "data",
    Need.NO_WORKERS: "data",
    Need.WORKERS_PRESENT: "data",
    Need.SYNC_IN_STACK: "sync_explicit",
    Need.PAGEABLE_COPIES: "sync_implicit",
    Need.ALLOCATOR_IN_STACK: "alloc",
    Need.ALLOCATOR_RETRIES: "alloc",
}
"""What the waits are called that these tell of, in whatever the verdict is about."""

TRY_RANKS = (
    "give the traces of all ranks (tpmon trace FOLDER): one alone does not tell waiting for a late rank from "
    "moving data"
)
TRY_WORKERS = (
    "look at the workers while it runs (tpmon attach PID): whether more of them, other storage or a cheaper "
    "transform helps is not in a trace"
)
TRY_STACKS = (
    "record a few steps with stacks (tpmon capture --stacks, with_stack=True): the lines that stand in this "
    "time are named then"
)
_MOVES = (
    (
        re.compile(
            r"aten::(?:normal|uniform|rand\w*|bernoulli|random|exponential|multinomial|arange|linspace|full\w*"
            r"|fill|zeros?\w*|ones\w*|eye)_?$"
        ),
        'make the tensor on the device (device="cuda"): {} fills it on the host',
    ),
    (
        re.compile(r"aten::(?:copy_|to|_to_copy|contiguous|clone|cat|stack)$"),
        "move the batch to the device as it is, and convert it on the device: {} works on the host",
    ),
    (re.compile(""), "move it to the device, or into the workers of the loader: {} computes on the host"),
)
"""What to do about an operator of the host, by what it does."""
TRY_LARGER = (
    "give each operator more to do: a larger batch, one call in place of a loop (nn.LSTM, not cells), or "
    "torch.compile"
)
TRY_BESIDE = (
    "see whether another thread holds the GIL (tpmon attach PID): one stood in {} as the recording began; "
    "where it computes in Python, the main thread waits for it"
)
TRY_AHEAD = (
    "copy the next batch while the device computes: from pinned memory, on a stream of its own, a step ahead"
)
TRY_FEWER_BACK = (
    "bring less back to the host, less often, or read it a step later (pinned, non_blocking=True)"
)
_CAUSES = {**SHARES, "copies": ("sync_implicit",)}
"""What a remedy is against that helps a share of the verdict."""
_UPDATES = (
    "keep parameters and states of the optimizer on the device where they fit: its {} computes on the host"
)


def advise(
    parts: Parts,
    verdict: TraceVerdict,
    cards: tuple[CardUse, ...],
    patterns: Sequence[PatternSeen],
    longest: str,
) -> tuple[TraceVerdict, tuple[PatternRow, ...]]:
    """Return the verdict with the remedies that the trace shows to fit, and what helps against patterns.

    ``longest`` names what computes longest, "" where nothing does.
    """
    observed = observe(parts, cards, patterns)
    unfit = _find_unfit(parts)
    if any("updates alone" in one.also for one in patterns):
        unfit |= _FOR_EAGER
    rows = _explain(patterns, observed, unfit)
    if verdict.kind in (Kind.NOT_ENOUGH_EVIDENCE, Kind.STARTING):
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
    first = name_first(verdict)
    lines = (
        () if parts.stacks is None else find_idle_lines(parts.trace, parts.stacks, _find_time(parts, first))
    )
    # A busy device is no cost of its own: there a remedy has one where a pattern has.
    whole: Applicable[float] = NOT_APPLICABLE if verdict.kind is Kind.COMPUTE_BOUND else verdict.share_pct
    own = [(text, whole) for text in _propose(parts, verdict, first, lines)]
    small = [seen for seen in patterns if "host alone" in seen.also and first == "compute"]
    own += [(TRY_LARGER, seen.share_pct) for seen in small]
    computes = say_work(parts.work, parts.products)
    longest = ", ".join(filter(None, (computes, longest)))
    fall_back = [(text, whole) for text in _fall_back(verdict, longest)]
    if verdict.kind is Kind.COMPUTE_BOUND and parts.devices:
        told = [*own, *_advise_busy(parts, rows, fitting)] or fall_back
    else:
        costs = _find_costs(parts, verdict, patterns, fitting)
        least = verdict.share_pct / 2
        against_it = ("", *_CAUSES.get(first, ()))
        direct = [
            one
            for one in fitting
            if _name_cause(one) in against_it and costs.get(one.remedy.id, least) >= least
        ]
        against = [(one.text, costs.get(one.remedy.id, whole)) for one in direct]
        # Launches go away with fewer of them: the line they are in is often that of the whole model.
        told = ([*against, *own] if first == "launch" else [*own, *against]) or fall_back
        told += [(one.text, costs[one.remedy.id]) for one in fitting if one not in direct]
        told = [one for one in told if known_or(one[1], LEAST_COST_PCT) >= LEAST_COST_PCT]
    told = told[:MOST_ADVICE]
    texts = tuple(text for text, _pct in told)
    if first == "host" and is_known(operator := _name_computing(parts)):
        name, pct, _updates = operator
        verdict = replace(verdict, summary=f"{verdict.summary}; longest {name}, {pct:.0f} % of it")
    if verdict.kind is Kind.COMPUTE_BOUND and (told_too := computes or "; ".join(one.words for one in small)):
        verdict = replace(verdict, summary=f"{verdict.summary}; {told_too}")
    return replace(
        verdict,
        try_=texts[0] if texts else NOT_APPLICABLE,
        advice=texts,
        advice_pct=tuple(pct for _text, pct in told),
        lines=lines,
        ceiling=_write_ceiling(verdict),
    ), rows


def _find_costs(
    parts: Parts, verdict: TraceVerdict, patterns: Sequence[PatternSeen], fitting: Sequence[Chosen]
) -> dict[str, float]:
    """Return what it is that a remedy is against costs, in percent of the window, by the remedy.

    It is the share of a pattern, or of the waits that the remedy needs to have been seen.
    """
    named = ((seen, said) for seen in patterns for said in (seen.name, *seen.also))
    found = {name: seen.share_pct for seen, said in named for name in _SEEN[said][0].split()}
    for one in fitting:
        cause = _name_cause(one)
        if cause and one.remedy.id not in found:
            waits = sum(share.pct for share in verdict.shares if share.name == cause)
            found[one.remedy.id] = waits if cause == "data" else _cost_pct(parts, cause)
    return found


def _name_cause(one: Chosen) -> str:
    """Name the cause of idle time that a remedy is against; "" where it does not say one."""
    return next((_COSTS[need] for need in one.remedy.needs if need in _COSTS), "")


def _find_unfit(parts: Parts) -> frozenset[str]:
    """Return the remedies that do not fit the program, whatever holds it."""
    unfit = _FOR_HIGH_PRECISION if uses_low_precision(parts) else frozenset[str]()
    unfit |= _FOR_SERVING if does_train(parts.trace) else _FOR_TRAINING
    unfit |= _FOR_EAGER if has_graphs(parts) else frozenset[str]()
    unfit |= frozenset[str]() if parts.trace.collectives else {"limit-all-gathers"}
    unfit |= frozenset[str]() if _FOR_MASKS.intersection(parts.trace.names) else {"where-not-mask"}
    rounded = any(row.kind == "convolution" and row.dtype in _ROUNDED for row in parts.products)
    return unfit if rounded or not parts.devices else unfit | {"channels-last"}


def _advise_busy(
    parts: Parts, rows: Sequence[PatternRow], fitting: Sequence[Chosen]
) -> list[tuple[str, Applicable[float]]]:
    """Say what helps against each pattern of a busy device, by its cost, then what fits its convolutions.

    A compiler helps such a device only where one of the patterns says so.
    """
    told: dict[str, Applicable[float]] = {}
    for row in rows:
        if is_known(row.share_pct) and row.share_pct >= LEAST_COST_PCT:
            told |= {text: row.share_pct for text in row.advice[:1] if text not in told}
    convolved = [row.us for row in parts.work.categories if row.category == "convolution"]
    share = 100 * sum(convolved) / parts.work.step_us
    for one in fitting:
        convolves = one.remedy.id in _FOR_CONVOLUTIONS
        if one.text in told or one.remedy.id in _FOR_EAGER or (convolves and share < LEAST_COST_PCT):
            continue
        told[one.text] = share if convolves else NOT_APPLICABLE
    return list(told.items())


def _find_window(parts: Parts) -> tuple[int, int]:
    return parts.steps.window if parts.devices else parts.steps.host_window


def _find_time(parts: Parts, first: str) -> Spans:
    """Return the time that a verdict is about: idle time of the devices, or of the host without one."""
    window = _find_window(parts)
    cuts = unite_all([find_cuts(parts.trace.header, window), parts.steady.cuts])
    if parts.devices:
        causes = SHARES.get(first, ())
        return unite_all([one.find_idle(name, window, cuts) for one in parts.devices for name in causes])
    if first == "other":
        return invert(unite_all([*parts.causes.layers, parts.activity.communication, cuts]), *window)
    return parts.activity.data_loader if first == "data" else NOTHING


def _name_computing(parts: Parts) -> Applicable[tuple[str, float, bool]]:
    return name_computing(parts.trace, parts.causes, parts.ops, _find_time(parts, "host"))


def _propose(parts: Parts, verdict: TraceVerdict, first: str, lines: Sequence[IdleLine]) -> list[str]:
    """Say what this trace itself shows to do, with what it costs: before all that the catalogue has."""
    found = []
    if first in COPIES:
        work, trace = parts.trace.work, parts.trace
        copies = trace.named(work, COPIES[first]) & (work.category == Category.MEMCPY)
        back = int(work.duration[copies & trace.named(work, comes_back)].sum())
        most_back = 2 * back > int(work.duration[copies].sum())
        found += [TRY_FEWER_BACK] if most_back else [TRY_AHEAD] if first == "transfers" else []
    if first == "host" and is_known(operator := _name_computing(parts)):
        name, pct, updates = operator
        words = next(words for named, words in _MOVES if named.match(name))
        words = _UPDATES if updates else words
        found.append(f"{words.format(name)}, for {pct / 100 * verdict.share_pct:.0f} % of the window")
    if first in ("other", "host", "launch") and lines:
        where = f"{lines[0].name}: {lines[0].share_pct:.0f} % of that time is there"
        found.append(f"shorten, or do less often, what is in {where}")
    elif first == "other" and is_known(
        row := find_idle_range(parts.trace, _find_time(parts, first), _find_window(parts))
    ):
        where = f"the range {row.name}: {row.share_pct:.0f} % of that time is there"
        found += [f"shorten, or do less often, what is in {where}", TRY_STACKS]
    if first == "other" and parts.stacks is not None:
        beside = find_beside(parts.trace, parts.stacks.program)
        found += [TRY_BESIDE.format(beside)] if is_known(beside) else []
    return found


_ELSE = {
    Kind.PYTHON_BOUND: TRY_STACKS,
    Kind.LAUNCH_BOUND: TRY_STACKS,
    Kind.SYNC_BOUND: TRY_STACKS,
    Kind.COMMS_BOUND: TRY_RANKS,
    Kind.DATA_BOUND: TRY_WORKERS,
}


def _fall_back(verdict: TraceVerdict, longest: str) -> tuple[str, ...]:
    """Say what would show more, or what computes longest, where nothing that is known fits."""
    if verdict.kind is Kind.COMPUTE_BOUND and longest:
        return (f"begin with what computes longest: {longest}",)
    return (_ELSE[verdict.kind],) if verdict.kind in _ELSE else ()


_MOST_NAMED = 2
_PRODUCTS = {"GEMM": "matmul", "convolution": "convolution", "attention": "attention"}


def say_work(work: StepWork, products: Sequence[ProductRow]) -> str:
    """Say what a device computes longest: "GEMM 64 % at 45 % of peak"; "" without a device."""
    parts: list[str] = []
    for row in [one for one in work.categories if one.share_pct >= LEAST_COST_PCT][:_MOST_NAMED]:
        same = (one for one in products if one.kind == _PRODUCTS.get(row.category))
        product = max(same, key=lambda one: one.total_us, default=None)
        rate = ""
        if product is not None and is_known(product.dtype):
            if is_known(product.peak_pct):
                rate = f" at {product.peak_pct:.0f} % of peak in {product.dtype}"
            elif is_known(product.tflop_s):
                rate = f" at {product.tflop_s:.1f} TFLOP/s in {product.dtype}"
            else:
                rate = f" in {product.dtype}"
        of = " of the busy time" if not parts else ""
        parts.append(f"{row.category} {row.share_pct:.0f} %{of}{rate}")
    return ", ".join(parts)


def _write_ceiling(verdict: TraceVerdict) -> Applicable[str]:
    """Say what the run gains at most: "2.4x if all of it goes away"."""
    cause = verdict.cause if is_known(verdict.cause) else NOT_APPLICABLE
    if pick_code(verdict.kind, cause):
        return f"{write_gain(verdict.share_pct / 100)} if all of it goes away"
    computes = sum(share.pct for share in verdict.shares if share.name == "compute")
    lost = max(100 - computes, 0) / 100
    return f"{write_gain(lost)} if nothing else took time; more only with less or faster computation"


EVEN_WORK = CATALOGUE["even-work"].title
FEWER_MESSAGES = CATALOGUE["fewer-messages"].title


def look_at(rank: int | str) -> str:
    """Say to look at the rank that others wait for."""
    return CATALOGUE["look-at-late-rank"].title.format(rank=rank)


def advise_transfer(*, on_device: bool, fast: bool, rounded: bool) -> tuple[str, ...]:
    """Return what helps ranks that all move data.

    ``fast``: the path that they take is none by mistake; ``rounded``: they exchange 16 bit already.
    """
    seen = frozenset({Need.TRANSFER_SEEN, *([Need.GPU_PRESENT] if on_device else [])})
    chosen = choose(Kind.COMMS_BOUND, "transfer", seen, RunFacts())
    done = {"check-network-path": fast, "bf16-gradients": rounded}
    fitting = [one for one in chosen if not done.get(one.remedy.id, False)]
    return tuple(one.text for one in fitting[:MOST_ADVICE])


def say_gain(share: float) -> str:
    """Say what a run gains at most where a share of its time (0-1, more is all) goes away."""
    return write_gain(min(share, 1.0))


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
    convolved = sum(row.share_pct for row in parts.products if row.kind == "convolution")
    tensor = [
        known_or(pct, 100.0) for one in cards for pct in (one.tensor_core_pct, one.tensor_core_unknown_pct)
    ]
    copied = distinct(parts.trace.work.name).tolist()
    pageable = any("Pageable ->" in parts.trace.names[name] for name in copied)
    waits_for_memory = _cost_pct(parts, "alloc") >= LEAST_COST_PCT
    gives_back = waits_for_memory and _gives_back(parts)
    proofs = (
        (Need.GPU_PRESENT, bool(cards)),
        (Need.PAGEABLE_COPIES, pageable and _cost_pct(parts, "sync_implicit") >= LEAST_COST_PCT),
        (Need.TENSOR_CORES_IDLE, max(tensor, default=100.0) < IDLE_TENSOR_PCT),
        (Need.TORCH_LOADER, bool(loader)),
        (Need.NO_WORKERS, loader == SINGLE_LOADER),
        (Need.WORKERS_PRESENT, loader == MULTI_LOADER),
        (Need.SYNC_IN_STACK, _cost_pct(parts, "sync_explicit") >= LEAST_COST_PCT),
        (Need.ALLOCATOR_IN_STACK, waits_for_memory and gives_back),
        (Need.ALLOCATOR_RETRIES, waits_for_memory and not gives_back),
        (Need.CONV_MODEL, convolved >= CONV_PCT),
        (Need.EAGER_MODEL, bool(cards) and len(parts.ops.row) > 0 and not runs_compiled(parts.trace.names)),
    )
    seen = (need for one in patterns for said in (one.name, *one.also) for need in _SEEN[said][1])
    return frozenset(need for need, holds in proofs if holds).union(seen)


def _gives_back(parts: Parts) -> bool:
    """Tell whether the program gives memory back (empty_cache): within operators the allocator does."""
    trace, (start, end) = parts.trace, _find_window(parts)
    calls = trace.calls
    rows = np.flatnonzero(name_calls(trace, _frees) & (calls.start >= start) & (calls.start < end))
    operators = np.flatnonzero(trace.host.category == Category.OP)
    inside = lie_inside(trace, operators, calls.track[rows], calls.start[rows])
    return 2 * int(calls.duration[rows[~inside]].sum()) > int(calls.duration[rows].sum())


def _cost_pct(parts: Parts, *causes: str) -> float:
    """Return what causes of idle time cost, in percent of the window."""
    return 100 * sum_causes(parts.gaps, *causes) / max(sum(gap.window for gap in parts.gaps), 1.0)


def has_graphs(parts: Parts) -> bool:
    """Tell whether the program captures or launches CUDA graphs."""
    return parts.steady.captures or bool(name_calls(parts.trace, is_graph_launch).any())


def uses_low_precision(parts: Parts) -> bool:
    """Tell whether matrix products take 16 bit or smaller inputs, where shapes are recorded."""
    trace = parts.trace
    rows = parts.ops.row[trace.named(trace.host, lambda name: name in MATMULS)[parts.ops.row]]
    numbers = distinct(trace.host.shape[rows]).tolist()
    return any(number >= 0 and _LOW_PRECISION.search(trace.shapes[number][1]) for number in numbers)
