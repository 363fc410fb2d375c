"""What a profiler itself adds to the times of a trace, by what a capture of tpmon wrote into it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.trace import STEP_AFTER, STEP_BEFORE, STEP_DURING, Overview, TraceVerdict
from tpmon.model.verdict import Kind
from tpmon.trace.compare import read_told
from tpmon.trace.reading.read import Trace, clean_name

_HOST_BOUND = (Kind.LAUNCH_BOUND, Kind.PYTHON_BOUND)
MUCH_INFLATED = 2.0
_APART = 1.2
"""Steps before and after that differ by this much are both said: something else changed too."""


def weigh_profiler(trace: Trace, overview: Overview, verdict: TraceVerdict) -> TraceVerdict:
    """Say what the profiler adds to the times of the host, and trust verdicts about them no more than that.

    Of 60 small layers a step of 4.3 to 5.0 ms takes 9.4 to 12.6 ms while it is recorded, 11 to 18 with shapes
    and memory, 15 to 25 with stacks.
    """
    switches = {"stacks": trace.header.with_stack, "memory": trace.header.profile_memory}
    heavy = [name for name, value in switches.items() if str(value).lower() in ("1", "true")]
    told = read_told(trace)
    before, during, after = (_read_ms(told.get(name)) for name in (STEP_BEFORE, STEP_DURING, STEP_AFTER))
    if not is_known(during) and overview.steps:
        during = float(np.median([row.host_ms for row in overview.step_table]))
    bare = before if is_known(before) else after
    inflated = during / bare if is_known(bare) and is_known(during) else math.nan
    if is_known(bare) and is_known(during):
        weight = f"host times are inflated {inflated:.1f} x ({_say_steps(before, during, after)})"
    elif heavy or STEP_BEFORE in told or verdict.kind in _HOST_BOUND:
        what = f": recorded with {' and '.join(heavy)}" if heavy else ""
        weight = f"host times are inflated{what}; {_say_unknown(before, told)}"
    else:
        return verdict
    unknown = math.isnan(inflated) and (bool(heavy) or STEP_BEFORE in told)
    doubtful = unknown or inflated >= MUCH_INFLATED
    capped = verdict.kind in _HOST_BOUND and doubtful
    return replace(verdict, weight=weight, confidence="low" if capped else verdict.confidence)


def _say_steps(before: Known[float], during: float, after: Known[float]) -> str:
    words = [(before, "before"), (during, "during"), (after, "after")]
    if is_known(before) and is_known(after) and 1 / _APART < after / before < _APART:
        words.pop()
    (first, when), *rest = [(_say(ms), when) for ms, when in words if is_known(ms)]
    return ", ".join([f"{first} ms a step {when}", *(f"{ms} {when}" for ms, when in rest)])


def _say_unknown(before: Known[float], told: dict[str, Any]) -> str:
    if STEP_BEFORE in told and not is_known(before):
        return f"by how much is not known: {before.reason}"
    return "by how much is not in the trace"


def _say(ms: float) -> str:
    return f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _read_ms(value: object) -> Known[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    reason = value.get("missing") if isinstance(value, dict) else None
    return Missing(clean_name(reason, 120) if isinstance(reason, str) else "the trace does not say it")
