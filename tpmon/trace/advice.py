"""What to do, from the catalogue of the live verdict: only what the trace shows to fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from tpmon.judge.advice import choose
from tpmon.judge.advice_facts import Facts
from tpmon.judge.advice_needs import Need
from tpmon.model.known import NOT_APPLICABLE, is_known, known_or
from tpmon.model.trace import CardUse, TraceVerdict
from tpmon.model.verdict import Kind
from tpmon.trace.classes import CallClass, flag
from tpmon.trace.gaps import HostCauses
from tpmon.trace.nesting import Nest
from tpmon.trace.read import Trace

MOST_ADVICE = 3
IDLE_TENSOR_PCT = 1.0
_LOW_PRECISION = ("bfloat16", "half", "float8", "float4", "c10::bf16")
_FOR_HIGH_PRECISION = ("bf16", "tf32")
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::convolution")


def advise(
    trace: Trace, verdict: TraceVerdict, cards: tuple[CardUse, ...], ops: Nest, causes: HostCauses
) -> TraceVerdict:
    """Return the verdict with the remedies that the trace gives evidence for, else with none."""
    if verdict.kind is Kind.NOT_ENOUGH_EVIDENCE:
        return verdict
    cause = verdict.cause if is_known(verdict.cause) else NOT_APPLICABLE
    if verdict.kind is Kind.DATA_BOUND and cause is NOT_APPLICABLE:
        cause = "too-few-workers"
    observed = frozenset(_observe(trace, cards, causes))
    low = uses_low_precision(trace, ops)
    # What a trace cannot tell (free cores, say) stands as an "if"; without any evidence nothing is said.
    evidence = observed - {Need.GPU_PRESENT}
    fitting = [
        one
        for one in choose(verdict.kind, cause, observed, Facts())
        if (one.certain or evidence.intersection(one.remedy.needs))
        and not (low and one.remedy.id in _FOR_HIGH_PRECISION)
    ]
    texts = tuple(one.text for one in fitting[:MOST_ADVICE])
    return replace(verdict, try_=texts[0], advice=texts) if texts else verdict


def _observe(trace: Trace, cards: tuple[CardUse, ...], causes: HostCauses) -> set[Need]:
    observed: set[Need] = set()
    if cards:
        observed.add(Need.GPU_PRESENT)
    shares = [known_or(card.tensor_core_pct, 100.0) for card in cards]
    unknown = [known_or(card.tensor_core_unknown_pct, 100.0) for card in cards]
    if cards and max(shares) < IDLE_TENSOR_PCT and max(unknown) < IDLE_TENSOR_PCT:
        observed.add(Need.TENSOR_CORES_IDLE)
    if bool(flag(trace.names, lambda name: "_SingleProcessDataLoaderIter" in name).any()):
        observed.add(Need.NO_WORKERS)
    if bool(flag(trace.names, lambda name: "_MultiProcessingDataLoaderIter" in name).any()):
        observed.add(Need.WORKERS_PRESENT)
    if bool((causes.call_class == CallClass.EXPLICIT).any()):
        observed.add(Need.SYNC_IN_STACK)
    if bool((causes.call_class == CallClass.ALLOCATOR).any()):
        observed.add(Need.ALLOCATOR_IN_STACK)
    return observed


def uses_low_precision(trace: Trace, ops: Nest) -> bool:
    """Tell whether matrix products take 16 bit or smaller inputs, where shapes are recorded."""
    wanted = flag(trace.names, lambda name: name in _MATMULS)
    rows = ops.row[wanted[trace.host.name[ops.row]]]
    for number in np.unique(trace.host.shape[rows]).tolist():
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
