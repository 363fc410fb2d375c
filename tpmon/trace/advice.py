"""What to do, from the catalogue of the live verdict: only what the trace shows to fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.advice.choose import CATALOGUE, choose, fill_remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.model.known import NOT_APPLICABLE, is_known, known_or
from tpmon.model.results.trace import CardUse, TraceVerdict
from tpmon.model.results.trace_tables import PatternRow
from tpmon.model.verdict import Kind
from tpmon.trace.compare import does_train
from tpmon.trace.figures.breakdown import find_loader
from tpmon.trace.figures.gaps import HostCauses
from tpmon.trace.figures.patterns import Parts, PatternSeen
from tpmon.trace.reading.columns import distinct
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import SINGLE_LOADER, CallClass, runs_compiled
from tpmon.trace.reading.spans import Nest

MOST_ADVICE = 3
IDLE_TENSOR_PCT = 1.0
_LOW_PRECISION = ("bfloat16", "half", "float8", "float4", "c10::bf16")
_FOR_HIGH_PRECISION = ("bf16", "tf32", "fp16-amp")
CONV_PCT = 30.0
"""Of the kernels' time in convolutions: from here on they are what the model is made of."""
_REMEDIES: dict[str, tuple[str, ...]] = {
    "copy-heavy": (),
    "launch-heavy": ("compile-reduce-overhead", "torch-compile", "bigger-micro-batch"),
    "tiny-operators": ("torch-compile",),
    "unfused-optimizer": ("fused-optimizer",),
    "sync-per-step": ("find-hidden-syncs", "where-not-mask"),
    "math-attention": ("sdpa-forced",),
    "fp32-products": ("tf32", "bf16", "fp16-amp"),
    "recompiles": ("recompilation-trap",),
    "recompute": ("checkpointing-off",),
    "misaligned-products": ("align-shapes",),
}
"""What helps against each pattern, of the catalogue."""
_WHEN: dict[str, tuple[str, ...]] = {"pageable": ("pin-memory",), "item": ("sync-rarely",)}
"""What comes first where something more was seen."""
_NEEDS: dict[str, tuple[Need, ...]] = {
    "pageable": (Need.PAGEABLE_COPIES,),
    "item": (Need.SYNC_IN_STACK,),
    "fp16 alone": (Need.FP16_CORES_ALONE,),
    "memory free": (Need.GPU_MEMORY_FREE,),
    "unfused-optimizer": (Need.UNFUSED_OPTIMIZER,),
    "sync-per-step": (Need.SYNC_IN_STACK,),
    "math-attention": (Need.ATTENTION_SLOW_PATH,),
    "fp32-products": (Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE),
    "recompiles": (Need.RECOMPILES_SEEN,),
    "recompute": (Need.RECOMPUTE_IN_STACK,),
    "misaligned-products": (Need.MISALIGNED_PRODUCTS,),
}
"""What a pattern proves."""
_FOR_TRAINING = ("bigger-micro-batch",)
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::convolution")


def advise(
    parts: Parts, verdict: TraceVerdict, cards: tuple[CardUse, ...], patterns: Sequence[PatternSeen]
) -> TraceVerdict:
    """Return the verdict with the remedies that the trace gives evidence for, else with none."""
    if verdict.kind is Kind.NOT_ENOUGH_EVIDENCE:
        return verdict
    cause = verdict.cause if is_known(verdict.cause) else NOT_APPLICABLE
    if verdict.kind is Kind.DATA_BOUND and cause is NOT_APPLICABLE:
        cause = "too-few-workers"
    observed = observe(parts, cards, patterns)
    low = uses_low_precision(parts.trace, parts.ops)
    # What a trace cannot tell (free cores, say) stands as an "if"; without any evidence nothing is said.
    evidence = observed - {Need.GPU_PRESENT, Need.TORCH_LOADER}
    fitting = [
        one
        for one in choose(verdict.kind, cause, observed, RunFacts())
        if (one.certain or evidence.intersection(one.remedy.needs))
        and not (low and one.remedy.id in _FOR_HIGH_PRECISION)
    ]
    texts = tuple(one.text for one in fitting[:MOST_ADVICE])
    return replace(verdict, try_=texts[0], advice=texts) if texts else verdict


def explain(
    parts: Parts, cards: tuple[CardUse, ...], patterns: Sequence[PatternSeen]
) -> tuple[PatternRow, ...]:
    """Say what helps against each pattern; what the trace does not tell stands as an "if"."""
    observed = observe(parts, cards, patterns)
    low = uses_low_precision(parts.trace, parts.ops)
    trains = does_train(parts.trace)
    rows = []
    for seen in patterns:
        first = [name for also in sorted(seen.also) for name in _WHEN.get(also, ())]
        remedies = [CATALOGUE[name] for name in dict.fromkeys([*first, *_REMEDIES[seen.name]])]
        texts = [
            fill_remedy(remedy, observed, RunFacts()).text
            for remedy in remedies
            if not observed.intersection(remedy.never_with)
            and (trains or remedy.id not in _FOR_TRAINING)
            and not (low and remedy.id in _FOR_HIGH_PRECISION)
        ]
        rows.append(PatternRow(seen.name, seen.words, seen.share_pct, tuple(texts[:MOST_ADVICE])))
    return tuple(rows)


def observe(parts: Parts, cards: tuple[CardUse, ...], patterns: Sequence[PatternSeen]) -> frozenset[Need]:
    """Return what a trace proves of what remedies need."""
    window = parts.steps.window if parts.gaps else parts.steps.host_window
    observed = _observe(cards, parts.causes, find_loader(parts.trace, window))
    for seen in patterns:
        for said in (seen.name, *seen.also):
            observed.update(_NEEDS.get(said, ()))
    convolved = sum(row.share_pct for row in parts.products if row.kind == "convolution")
    if convolved >= CONV_PCT:
        observed.add(Need.CONV_MODEL)
    if cards and len(parts.ops.row) and not runs_compiled(parts.trace.names):
        observed.add(Need.EAGER_MODEL)
    return frozenset(observed)


def _observe(cards: tuple[CardUse, ...], causes: HostCauses, loader: str) -> set[Need]:
    observed: set[Need] = set()
    if cards:
        observed.add(Need.GPU_PRESENT)
    shares = [known_or(card.tensor_core_pct, 100.0) for card in cards]
    unknown = [known_or(card.tensor_core_unknown_pct, 100.0) for card in cards]
    if cards and max(shares) < IDLE_TENSOR_PCT and max(unknown) < IDLE_TENSOR_PCT:
        observed.add(Need.TENSOR_CORES_IDLE)
    if loader:
        alone = loader == SINGLE_LOADER
        observed.update((Need.TORCH_LOADER, Need.NO_WORKERS if alone else Need.WORKERS_PRESENT))
    if bool((causes.call_class == CallClass.EXPLICIT).any()):
        observed.add(Need.SYNC_IN_STACK)
    if bool((causes.call_class == CallClass.ALLOCATOR).any()):
        observed.add(Need.ALLOCATOR_IN_STACK)
    return observed


def uses_low_precision(trace: Trace, ops: Nest) -> bool:
    """Tell whether matrix products take 16 bit or smaller inputs, where shapes are recorded."""
    rows = ops.row[trace.named(trace.host, lambda name: name in _MATMULS)[ops.row]]
    for number in distinct(trace.host.shape[rows]).tolist():
        if number < 0:
            continue
        try:
            types = json.loads(trace.shapes[number][1] or b"[]")
        except ValueError:
            continue
        if isinstance(types, list) and any(
            str(one).lower().removeprefix("c10::").startswith(_LOW_PRECISION) for one in types
        ):
            return True
    return False
