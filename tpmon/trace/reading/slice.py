"""Choose what of a trace goes into a slice of it: some steps, or the surroundings of the longest gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.trace.figures.steps import NEVER, Steps, find_steps, match_calls
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import BY_GAPS, BY_STEPS, Header
from tpmon.trace.reading.spans import Spans, invert, unite

AROUND_NS = 200_000
"""What is kept before and after a gap, and a tenth of the gap where that is more."""
_AROUND_SHARE = 0.1
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")
_NUMBER = re.compile(r"#(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Choice:
    """Say what is kept: events of the host in ``host``, work of devices in ``device`` or by correlation.

    Times are nanoseconds. ``steps`` are the marks that are kept, all that overlap where it is None;
    ``by`` says what was chosen.
    """

    host: Spans
    device: Spans
    correlations: Ints
    steps: frozenset[str] | None
    by: str
    what: str


def choose_steps(trace: Trace, wanted: str) -> Choice:
    """Choose steps by the numbers of their marks: ``7`` or ``3-5``.

    Raises:
        UsageError: where the trace has no such steps.
    """
    parsed = _RANGE.match(wanted)
    if parsed is None:
        raise UsageError(f"--steps takes a number or two, found {wanted!r}", "--steps 3-5")
    first, last = int(parsed[1]), int(parsed[2] or parsed[1])
    launched_by = match_calls(trace)
    steps = find_steps(trace, launched_by)
    if not steps.marked:
        raise UsageError("the trace marks no steps", "--top-gaps 3")
    numbers = [_number(name) for name in steps.names]
    rows = [row for row, number in enumerate(numbers) if first <= number <= last]
    if not rows:
        there = ", ".join(map(str, numbers[:20])) + (" ..." if len(numbers) > 20 else "")
        raise UsageError(f"there is no step {wanted}; there are {there}", f"--steps {numbers[0]}")
    return _choose_rows(trace, steps, launched_by, rows[0], rows[-1])


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else -1


def _choose_rows(trace: Trace, steps: Steps, launched_by: Ints, first: int, last: int) -> Choice:
    start, stop = int(steps.host_start[first]), int(steps.host_end[last])
    host = unite(np.array([start]), np.array([stop - start]))
    device = unite(np.array([start]), np.array([int(steps.end[last]) - start]))
    calls, work = trace.calls, trace.work
    inside = (calls.start < stop) & (calls.start + calls.duration > start)
    # What an earlier step launched and this one waits for is kept with its launch, so that the steps
    # of the slice begin and end as they did.
    still_runs = (work.start < int(steps.end[last])) & (work.start + work.duration > start)
    launch = np.where(launched_by >= 0, calls.start[launched_by] if len(calls.start) else NEVER, NEVER)
    earlier = still_runs & (launch < start)
    kept = np.concatenate((calls.correlation[inside], work.correlation[earlier]))
    names = steps.names[first : last + 1]
    what = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    return Choice(host, device, _positive(kept), frozenset(names), BY_STEPS, what)


def choose_gaps(trace: Trace, count: int) -> Choice:
    """Choose the surroundings of the ``count`` longest idle stretches of all devices.

    Raises:
        UsageError: where there is no device work, or no gap.
    """
    work, calls = trace.work, trace.calls
    if not len(work.start):
        raise UsageError("the trace has no device work, and so no gaps", "--steps 3")
    window = find_steps(trace, match_calls(trace)).window
    starts, ends = [], []
    for device in distinct(work.device).tolist():
        here = work.device == device
        idle = invert(unite(work.start[here], work.duration[here]), *window)
        starts.append(idle.start)
        ends.append(idle.end)
    start, end = np.concatenate(starts), np.concatenate(ends)
    if not len(start):
        raise UsageError("no device is idle in the window of the steps", "--steps 3")
    longest = np.argsort(start - end, kind="stable")[:count]
    start, end = start[longest], end[longest]
    around = np.maximum(((end - start) * _AROUND_SHARE).astype(np.int64), AROUND_NS)
    kept = unite(start - around, end - start + 2 * around)
    called, ran = overlaps(kept, calls.start, calls.duration), overlaps(kept, work.start, work.duration)
    both = np.concatenate((calls.correlation[called], work.correlation[ran]))
    noun = "gap" if len(longest) == 1 else f"{len(longest)} gaps"
    return Choice(kept, kept, _positive(both), None, BY_GAPS, f"the longest {noun}")


def describe_slice(header: Header) -> Iterator[str]:
    """Say what a trace that is a slice was taken from, and what its figures then leave out."""
    taken = header.slice
    if taken is None:
        return
    note = f"a slice of {taken.of}: {taken.kept}"
    if len(taken.windows_ns) > 1:
        long = max(end for _start, end in taken.windows_ns) - min(start for start, _end in taken.windows_ns)
        kept = sum(end - start for start, end in taken.windows_ns)
        note += (
            f"; {kept / 1e6:,.3f} of {long / 1e6:,.3f} ms are in it, in {len(taken.windows_ns)} parts, "
            "and what was cut out between them counts for nothing"
        )
    yield note


def overlaps(spans: Spans, start: Ints, duration: Ints) -> npt.NDArray[np.bool_]:
    """Tell which intervals, or moments where ``duration`` is 0, lie in part in ``spans``."""
    if not len(spans.start):
        return np.zeros(len(start), dtype=np.bool_)
    at = np.searchsorted(spans.end, start, side="right")
    begins: Ints = spans.start[np.minimum(at, len(spans.start) - 1)]
    found: npt.NDArray[np.bool_] = (at < len(spans.start)) & (begins < start + np.maximum(duration, 1))
    return found


def _positive(correlations: Ints) -> Ints:
    found: Ints = distinct(correlations[correlations > 0])
    return found
