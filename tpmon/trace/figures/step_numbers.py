"""Number the steps of a trace as the loop counted them, by when the ends of its steps were noted. Pure.

kineto does not know which step it records. The hook notes when each step ended; the trace says when. Both are
times of the machine, so that as many steps had ended before an update as its own has the number, from 0 on,
as the marks of the hook's own recordings have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing

UNCOUNTED = Missing("kineto does not number the steps of the run, and no hook counts them")
_NO_BASE = Missing("the trace does not say when it was recorded")
_NO_STEP = Missing("no step is marked in it")
_BEFORE = Missing("the hook's records do not go back to it")
_AFTER = Missing("the hook wrote no record of a step that ended after it")
_SHARED = Missing("its steps are too short: several share one record of the hook")
_OTHERS = Missing("its steps are not those that the hook counts")

_EARLIER_NS = 300_000
"""An update is looked up so much before its end: hook and kineto read their clocks in turn, 0.15 ms
apart. A small model is fed, computes and updates in 0.8 ms: a longer time would find the step before it."""

_EARLIER_SHARE = 0.1
"""Of a short step it is this share of it."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Hold when steps of the loop had ended (ns since the epoch, oldest first), and how many there were then.

    ``at_update``: a step ends with its update; otherwise when the next batch is asked for, or is told to.
    """

    ends_ns: Sequence[int]
    steps: Sequence[int]
    at_update: bool


def number_first(
    spans_ns: Sequence[tuple[int, int]], base_ns: int | None, counted: Counted | Missing
) -> Known[int]:
    """Return which step of the loop, from 0 on, the first span is.

    Each span ends with an update; they are in ns after ``base_ns``, which is since the epoch.
    """
    if isinstance(counted, Missing):
        return counted
    if base_ns is None:
        return _NO_BASE
    if not spans_ns:
        return _NO_STEP
    first, last = (_number(base_ns, spans_ns[at], counted) for at in (0, -1))
    if isinstance(first, Missing):
        return first
    return first if last == first + len(spans_ns) - 1 else last if isinstance(last, Missing) else _OTHERS


def _number(base_ns: int, span_ns: tuple[int, int], counted: Counted) -> Known[int]:
    start, end = span_ns
    length = end - start
    # A step that ends with its update has ended a moment before the update has.
    earlier = length // 2 if counted.at_update else min(_EARLIER_NS, int(_EARLIER_SHARE * length))
    moment = base_ns + end - earlier
    at = bisect_right(counted.ends_ns, moment)
    if at == 0:
        return _BEFORE
    before = counted.steps[at - 1]
    after = next((steps for steps in counted.steps[at:] if steps != before), None)
    if after is None:
        return _AFTER
    return before if after == before + 1 else _SHARED
