"""What of a trace is judged: its steady part. Start-up, warm-up and captures of graphs are left out.

Most people record without a schedule. The first call of CUDA loads its context, the first use of each kernel
its module, and libraries make their handles inside of the next allocation: idle time within one call that
neither waits nor copies, longer than any in a loop that runs. What repeats stands in for steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.trace.figures.breakdown import loader_rows, name_calls, subtract
from tpmon.trace.figures.repeats import LEAST_REPEATS, WARM, find_repeats
from tpmon.trace.figures.steps import UNMARKED, TraceSteps
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import (
    CallClass,
    Category,
    begins,
    class_of_call,
    is_compiling,
    is_first_step,
    is_optimizer,
)
from tpmon.trace.reading.spans import NOTHING, Spans, find_parts, unite, unite_all, unite_rows

ONCE_NS = 1_000_000
"""Idle time in one call from which on it is start-up: in 65 traces no loop that runs had as much."""
HABIT = 0.5
"""Share (0-1) of the later half from which on such calls are no start-up, but what the loop does."""
LEAST_HABIT = 2
"""One step with such a call is none of a habit, however few the steps are."""
LEAST_STEADY = 2
ODD_TIMES = 3.0
"""A step from so many times the median on does something that the others do not."""
ODD_STEPS = 0.25
"""Share (0-1) of the steps up to which such ones are odd: more of them are what the loop does."""
ODD_PCT = 20.0
"""Of the time of all steps that odd ones take beyond the usual, from which on it counts. All three chosen."""
RARE_STEPS = 0.15
"""Share (0-1) of the steps up to which odd ones say little of the usual one, and are left out. Chosen."""
_ODD_WHY = "a validation, a checkpoint, a stall, or more data"
WARM_OF_TWO = 20.0
"""The first of two steps is warm-up from so many times the other. Chosen: one tells little of the usual."""

_copies = begins(r".*(?:Memcpy|Memset)")
_begins_capture = begins(r"(?:cuda|hip)\w*BeginCapture")
_ends_capture = begins(r"(?:cuda|hip)\w*EndCapture")
_makes_graph = begins(r"(?:cuda|hip)GraphInstantiate")


@dataclass(frozen=True, slots=True)
class SteadyPart:
    """Hold the steps that are judged, and ``cuts``: what of their window is not.

    ``left_ns`` of ``whole_ns`` lie before it or are cut out of it; ``dropped`` steps or repeats lie there.
    ``repeated`` names what stands in for steps, "" where steps are marked or nothing repeats. ``starts``
    tells whether start-up is in there beside first steps, ``captures`` of graphs, ``compiles`` whether a
    compiler takes most of it; ``updates`` of optimizers are in the trace. Else what lies before
    repeats is only a part of one, as marks stand within an iteration. ``apart`` says which few steps are
    left out among the others, ``apart_ns`` how long they are; "" and 0 without any.
    """

    steps: TraceSteps
    cuts: Spans
    left_ns: int
    whole_ns: int
    repeated: str
    captures: bool
    dropped: int = 0
    starts: bool = False
    compiles: bool = False
    updates: int = 0
    apart: str = ""
    apart_ns: int = 0

    @property
    def left_pct(self) -> float:
        """Return what is left out, in percent of the window."""
        return 100 * self.left_ns / max(self.whole_ns, 1)

    def say_left(self) -> str:
        """Say what was left out; "" where nothing was."""
        if not self.left_ns:
            return ""
        long = f"{self.left_ns / 1e9:.1f} s" if self.left_ns >= 1e8 else f"{self.left_ns / 1e6:.1f} ms"
        first = f"the first {self.unit}" if self.dropped == 1 else f"the first {self.dropped} {self.unit}s"
        parts = [first] if self.dropped and (self.steps.marked or not self.starts) else []
        parts += ["one-off start-up"] if self.starts else []
        parts += ["torch.compile at work"] if self.compiles else []
        parts += ["capture of graphs"] if self.captures else []
        what = " and ".join(parts) or "before the first repeat"
        return f"{long} ({self.left_pct:.0f} %) is {what} and left out"

    def say_window(self) -> str:
        """Say what shares are of."""
        if self.repeated:
            behind = " behind it" if self.left_ns else ""
            return f"the {len(self.steps.names)} repeats of {clean_name(self.repeated, 60)}{behind}"
        return "the other steps" if self.apart else "the window"

    def list_notes(self) -> tuple[str, ...]:
        """List what stands in for steps, and what was left out."""
        notes = self.steps.notes
        if self.repeated:
            count = f"{len(self.steps.names)} repeats of {self.repeated} stand in for them"
            notes = (f"no steps are marked ({UNMARKED}): {count}",)
        odd = self.say_odd()
        if odd:
            odd = f"{odd}: means, shares and verdict are largely of that ({_ODD_WHY})"
        apart = f"{self.apart} ({_ODD_WHY})" if self.apart else ""
        return (*notes, *filter(None, (self.say_left(), odd, apart)))

    def find_odd(self) -> Ints:
        """Return the places of the few steps that are much longer than the others; empty where none are."""
        length = self.measure(self.steps.start, self.steps.end)
        usual = float(np.median(length))
        rows = np.flatnonzero(length > ODD_TIMES * usual)
        beyond = float(length[rows].sum()) - len(rows) * usual
        few = bool(self.unit) and len(rows) <= ODD_STEPS * len(length)
        return rows if few and 100 * beyond >= ODD_PCT * float(length.sum()) else rows[:0]

    def say_cold(self) -> str:
        """Say that what is judged may be no more than a start, as little of it is there; "" where not."""
        count = len(self.steps.names)
        if self.unit and 2 * self.left_ns > self.whole_ns and count < LEAST_REPEATS:
            return f"that is of {'one' if count == 1 else count} {self.unit}{'s' * (count > 1)} alone"
        first = self.steps.marked and count == 1 and is_first_step(self.steps.names[0])
        few = first or (not self.unit and 0 < self.updates < LEAST_REPEATS)
        many = "one step" if first or self.updates == 1 else "one or two steps"
        return f"that is of {many} without warm-up" if few and not self.dropped else ""

    @property
    def is_of_few(self) -> bool:
        """Tell whether what is measured of all steps is of very few of them."""
        odd = len(self.find_odd())
        return odd == 1 or 0 < odd <= RARE_STEPS * len(self.steps.names)

    def say_odd(self) -> str:
        """Say which few steps are much longer than the others and what they take; "" where none are."""
        rows = self.find_odd()
        if not len(rows):
            return ""
        length = self.measure(self.steps.start, self.steps.end)
        pct = 100 * float(length[rows].sum()) / float(length.sum())
        times = float(length[rows].mean()) / max(float(np.median(length)), 1.0)
        named = clean_name(self.steps.names[rows[0]], 80) if self.steps.marked else "one repeat"
        one = f"{named} alone takes {pct:.0f} % of the {len(length)} {self.unit}s"
        some = f"{len(rows)} of {len(length)} {self.unit}s take {pct:.0f} % of the time of all"
        return f"{one if len(rows) == 1 else some}, {times:.1f} x the median"

    def measure(self, start: Ints, end: Ints) -> Ints:
        """Return how long each window is without what of it is cut out, in ns."""
        return end - start - self.cuts.within(start, end)

    @property
    def unit(self) -> str:
        """Return what it is made of: step, repeat, or "" for one way through the program without a mark."""
        return "step" if self.steps.marked else "repeat" if self.repeated else ""

    @property
    def loops(self) -> bool:
        """Tell whether it holds steps or repeats, not one way through the program."""
        return bool(self.repeated) or len(self.steps.names) + self.dropped > 1


def find_steady(trace: Trace, steps: TraceSteps) -> SteadyPart:
    """Find what of a trace is steady; all of it where nothing is left out."""
    on_device = len(trace.work.start) > 0
    start, stop = steps.window if on_device else steps.host_window
    if len(find_parts(trace.header).start):
        return SteadyPart(steps, NOTHING, 0, stop - start, "", captures=False)
    captures = _find_captures(trace) if on_device else NOTHING
    once = _find_once(trace, captures) if on_device else NOTHING
    kept, name = (steps, "") if steps.marked else find_repeats(trace) or (steps, "")
    seen = once.within(kept.host_start, kept.host_end)
    later = seen[min((len(seen) + 1) // 2, max(len(seen) - LEAST_HABIT, 0)) :] > 0
    if len(seen) >= LEAST_REPEATS and later.sum() >= LEAST_HABIT and float(later.mean()) >= HABIT:
        once = captures
        seen = once.within(kept.host_start, kept.host_end)
    warm = _count_warm(kept.host_end - kept.host_start, seen, marked=steps.marked)
    if steps.marked:
        warm = min(warm, len(kept.names) - 1)
    elif not name or len(kept.names) - warm < LEAST_STEADY:
        kept, name, warm = steps, "", 0
    origin = int(kept.start[0] if on_device else kept.host_start[0])
    kept = _pick(kept, slice(warm, None)) if warm else kept
    begin, end = kept.window if on_device else kept.host_window
    cuts = _clip(once, begin, end)
    left = max(begin - start, 0) + cuts.total
    captured = _clip(captures, start, stop).total > 0
    starts = _does_start(subtract(once, captures), captures, kept, (start, origin, begin, end))
    host = trace.host
    compiles = 2 * unite_rows(host, trace.named(host, is_compiling)).within_one(start, begin) > left
    updates = int((trace.named(host, is_optimizer) & (host.category != Category.GPU_ANNOTATION)).sum())
    return SteadyPart(kept, cuts, left, stop - start, name, captured, warm, starts, compiles, updates)


def leave_odd(trace: Trace, part: SteadyPart) -> SteadyPart:
    """Leave out the few steps that are much longer than the others; the usual one is what is judged.

    But for what a trace names itself: a batch that is late every few steps holds all of them.
    """
    steps, rows = part.steps, part.find_odd()
    if not part.is_of_few:
        return part
    length = part.measure(steps.start, steps.end)
    host = trace.host
    named = loader_rows(trace) | trace.named(host, is_compiling)
    told = unite_rows(host, named).within(steps.host_start, steps.host_end)
    beyond, known = (float((one[rows] - np.median(one)).sum()) for one in (length, told))
    if 2 * known > beyond:
        return part
    start, end = (steps.start, steps.end) if len(trace.work.start) else (steps.host_start, steps.host_end)
    kept = np.delete(np.arange(len(steps.names)), rows)
    begin, stop = int(start[kept[0]]), int(end[kept[-1]])
    odd = _clip(unite(start[rows], (end - start)[rows]), begin, stop)
    return replace(
        part,
        steps=_pick(steps, kept),
        cuts=_clip(unite_all([part.cuts, odd]), begin, stop),
        apart=f"{part.say_odd()}, and {'is' if len(rows) == 1 else 'are'} left out",
        apart_ns=int(length[rows].sum()),
    )


def _does_start(once: Spans, captures: Spans, kept: TraceSteps, times: tuple[int, int, int, int]) -> bool:
    """Tell whether what is left out has start-up in it: of marked steps what is cut out of those kept.

    Of repeats it is also more before the first one than an iteration, from the start of the trace on.
    """
    start, origin, begin, end = times
    if kept.marked:
        return once.within_one(begin, end) > 0
    before = origin - start - captures.within_one(start, origin)
    usual = WARM * float(np.median(kept.host_end - kept.host_start))
    return before > usual or once.within_one(start, end) > 0


def _pick(steps: TraceSteps, rows: Ints | slice) -> TraceSteps:
    """Return some of the steps."""
    names = tuple(np.array(steps.names, dtype=object)[rows].tolist())
    host = steps.host_start[rows], steps.host_end[rows]
    return TraceSteps(names, *host, steps.start[rows], steps.end[rows], steps.marked, steps.notes)


def _count_warm(length: Ints, once: Ints, *, marked: bool) -> int:
    """Count the steps in front that are long beside the later ones, or hold what happens once.

    A marked one that is merely long is left out where it is the first: what is later may vary.
    """
    slow = once > 0
    if len(length) >= (LEAST_STEADY if marked else LEAST_REPEATS):
        times = WARM if len(length) >= LEAST_REPEATS else WARM_OF_TWO
        long = length > times * float(np.median(length[len(length) // 2 :]))
        slow |= long & (np.arange(len(long)) < (1 if marked else len(long) // 2))
    return len(slow) if bool(slow.all()) else int(np.argmin(slow))


def _clip(spans: Spans, begin: int, end: int) -> Spans:
    start, stop = np.maximum(spans.start, begin), np.minimum(spans.end, end)
    return unite(start, stop - start)


def _find_once(trace: Trace, captures: Spans) -> Spans:
    """Return the idle time within long calls that neither wait nor copy, and within captures."""
    calls = trace.calls
    waits = name_calls(trace, lambda name: class_of_call(name) is CallClass.EXPLICIT or _copies(name))
    busy = unite(trace.work.start, trace.work.duration)
    rows = np.flatnonzero(~waits & (calls.duration > ONCE_NS))
    idle = calls.duration[rows] - busy.within(calls.start[rows], calls.end[rows])
    return subtract(unite_all([unite_rows(calls, rows[idle > ONCE_NS]), captures]), busy)


def _find_captures(trace: Trace) -> Spans:
    """Return when graphs are captured, from each begin to the next end, and when they are made."""
    calls = trace.calls
    begun, ended, made = (
        np.flatnonzero(name_calls(trace, test)) for test in (_begins_capture, _ends_capture, _makes_graph)
    )
    ends = np.sort(calls.end[ended])
    at = np.searchsorted(ends, calls.start[begun])
    start = calls.start[begun][at < len(ends)]
    captured = unite(start, ends[at[at < len(ends)]] - start)
    return unite_all([captured, unite_rows(calls, made)])
