"""Decide before a recording how many steps fit, from which step on, and at what price. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, starmap

from tpmon.errors import UsageError
from tpmon.hook.bus import wire, wire_capture
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.capture import DEAR_MS, CaptureAsked, CaptureKind, CapturePrice, StepTime
from tpmon.model.units import format_seconds

MOST_EVENTS = 200_000
"""They cost a pause of about a second, and a quarter of a gigabyte of memory."""

MOST_BYTES = 512 << 20
"""Of the trace before it is packed: a viewer in a browser still opens it."""

MOST_ENTRIES = 100_000
"""Allocations in a snapshot, with the Python stack of each."""

_LEAST_AHEAD = 2
"""Steps from the furthest rank to the first recorded one: the one under way, and one to read the request."""

_AHEAD_S = 0.25
"""The same in time, for short steps. Writing four mailboxes takes 23 us; the rest is for a tpmon that waits
for a core. Where it is too short a rank is past the step, all are cancelled, and nothing is recorded."""

PROBE_NS = 200_000_000
"""The length of the probe of a loop without steps."""

LONGEST_S = 600.0
"""The longest window that a hook accepts."""

_SLOWER = 1.5
"""How much slower recorded steps may get in a window whose seconds nobody named."""

_FASTER = 2.0
"""How much faster a loop may get in a window that its seconds end; the price includes it."""

_PHASES = slice(wire.REC_DATA_NS, wire.REC_OTHER_NS + 1)
_EVAL_PHASES = slice(wire.REC_EVAL_DATA_NS, wire.REC_EVAL_OTHER_NS + 1)

_TOO_FEW = Missing("too few steps to tell")

ENOUGH_STEPS = 8
"""A median of so many steps is waited for, or looked for close to a window."""

_NEAR_NS = 5_000_000_000

_MOST_APART = 2
"""Steps by which ranks that count alike may differ: gradients keep them within one step of each other, and
their counts are read one after the other."""


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """Hold how many steps of a loop ended, of training or of inference, and how many end in a second."""

    steps: int
    rate_hz: float
    evaluates: bool


def parse_pace(records: Sequence[Sequence[int]]) -> Known[MeasuredPace]:
    """Measure the pace of a loop by its newest records; Missing where no step ever ended."""
    if not records:
        return Missing("no step ended yet")
    first, last = records[0], records[-1]
    word = wire.REC_EVAL_STEPS if last[wire.REC_RULE] == wire.RULE_BATCH else wire.REC_STEPS
    if not last[word]:
        return Missing("no step ended yet")
    spent_ns = last[wire.REC_TIME_NS] - first[wire.REC_TIME_NS]
    rate = (last[word] - first[word]) * 1e9 / spent_ns if spent_ns > 0 else 0.0
    before = records[-2] if len(records) > 1 else first
    trained = last[wire.REC_STEPS] - before[wire.REC_STEPS]
    evaluated = last[wire.REC_EVAL_STEPS] - before[wire.REC_EVAL_STEPS]
    return MeasuredPace(last[word], rate, word == wire.REC_STEPS and evaluated > 0 and trained == 0)


def choose_start(paces: Sequence[MeasuredPace]) -> int:
    """Return a step for all ranks, late enough for each to read the request before it."""
    furthest = max(pace.steps for pace in paces)
    rate = max(pace.rate_hz for pace in paces)
    return furthest + max(_LEAST_AHEAD, math.ceil(rate * _AHEAD_S))


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Hold how many steps a rank's hook counted, and how many collectives had begun at the last one's end."""

    steps: int
    collectives: int


def choose_collectives(places: Sequence[StepPlace], rate_hz: float) -> Known[StepPlace]:
    """Return a place ahead of all ranks, as ``choose_start`` does, with the step as the first rank counts it.

    The last place is the first rank's again, some steps later. Missing where nothing was counted between.
    """
    steps = places[-1].steps - places[0].steps
    begun = places[-1].collectives - places[0].collectives
    if steps <= 0 or begun <= 0:
        return Missing("no collectives of all ranks were seen in its steps")
    ahead = max(_LEAST_AHEAD, math.ceil(rate_hz * _AHEAD_S))
    start = max(one.collectives for one in places) + math.ceil(ahead * begun / steps)
    return StepPlace(places[-1].steps + round((start - places[-1].collectives) * steps / begun), start)


def check_wait(
    start: int, paces: Sequence[MeasuredPace], steps_ms: Sequence[Known[float]], most_s: float
) -> None:
    """Raise UsageError where a request would expire before its step; a validation would only delay that."""
    waits = [
        (start - pace.steps) * ms / 1000 for pace, ms in zip(paces, steps_ms, strict=True) if is_known(ms)
    ]
    wait_s = min(waits, default=0.0)
    if wait_s > most_s:
        raise UsageError(
            f"step {start:,} is about {format_seconds(wait_s)} away, the loop is at step"
            f" {max(pace.steps for pace in paces):,} of this process: a request waits {most_s / 60:.0f} min",
            f"ask within {most_s / 60:.0f} min of it",
        )


def count_alike(paces: Sequence[MeasuredPace]) -> bool:
    """Tell whether the ranks count the same steps, as they do when all were hooked from the beginning."""
    numbers = [pace.steps for pace in paces]
    slack = max(pace.rate_hz for pace in paces) * _AHEAD_S
    return max(numbers) - min(numbers) <= max(_MOST_APART, slack)


def size_window(asked: CaptureAsked, probes: Sequence[tuple[int, int, float]]) -> CapturePrice:
    """Return price and length of a window by the probes of one step: events, bytes, pause in ms.

    The most expensive rank decides, since all record the same steps. 0 steps: not one fits. A window by time
    whose seconds nobody named pauses the loop for half of what needs a yes at most.
    """
    events = max(probe[0] for probe in probes)
    size = max(probe[1] for probe in probes)
    pause_ms = max(probe[2] for probe in probes)
    times = asked.seconds * 1e9 / PROBE_NS if asked.timed else float(asked.steps)
    most = min(times, MOST_EVENTS / max(events, 1), MOST_BYTES / max(size, 1))
    if asked.timed and not asked.named_seconds:
        most = min(most, DEAR_MS / 2 / max(pause_ms, 1e-3))
    fit = most if asked.timed else math.floor(most)
    detailed = asked.stacks or asked.shapes or asked.memory
    return CapturePrice(
        steps=0 if asked.timed else int(fit),
        events=round(events * fit),
        pause_ms=pause_ms * fit,
        bytes=round(size * fit),
        memory_bytes=round(events * fit)
        * (wire_capture.EVENT_MEMORY_DETAILED if detailed else wire_capture.EVENT_MEMORY),
    )


def fit_steps(asked: CaptureAsked, steps_ms: Sequence[Known[float]], faster: float = _FASTER) -> CaptureAsked:
    """Cut the steps of a window that only its seconds end to what the fastest rank can do in them."""
    known = [ms for ms in steps_ms if is_known(ms) and ms > 0]
    if not asked.by_seconds or not known:
        return asked
    return replace(asked, steps=min(asked.steps, math.ceil(faster * asked.seconds * 1e3 / min(known))))


def stretch_seconds(asked: CaptureAsked, steps_ms: Sequence[Known[float]]) -> CaptureAsked:
    """Lengthen a window whose seconds nobody named to 1.5 times what its steps take on the slowest rank."""
    known = [ms for ms in steps_ms if is_known(ms)]
    if asked.named_seconds or asked.timed or not known:
        return asked
    needed_s = _SLOWER * asked.steps * max(known) / 1e3
    return replace(asked, seconds=min(max(asked.seconds, needed_s), LONGEST_S))


def fit_seconds(asked: CaptureAsked, price: CapturePrice, probes: Sequence[tuple[int, int, float]]) -> float:
    """Return the seconds of a window without steps: those asked for, or as many as fit."""
    events = max(probe[0] for probe in probes)
    return min(asked.seconds, price.events / max(events, 1) * PROBE_NS / 1e9)


def draw_number() -> int:
    """Draw the number of a request: 56 random bits, never 0."""
    return int.from_bytes(os.urandom(7), "little") + 1


def choose_options(asked: CaptureAsked) -> int:
    """Return the OPTION_* bits of a request."""
    wanted = (
        (asked.stacks, wire_capture.OPTION_STACKS),
        (asked.shapes, wire_capture.OPTION_SHAPES),
        (asked.memory, wire_capture.OPTION_MEMORY),
        (asked.timed, wire_capture.OPTION_TIMED),
    )
    return sum(bit for on, bit in wanted if on and asked.kind is CaptureKind.TRACE)


def mean_step(records: Sequence[Sequence[int]], since_ns: int, until_ns: int) -> Known[float]:
    """Return the mean step in ms between two times, without what ran between steps (validation, capture)."""
    return _mean([one for one in _ends_of_steps(records) if since_ns <= one[wire.REC_TIME_NS] <= until_ns])


def median_step(records: Sequence[Sequence[int]], since_ns: int, until_ns: int) -> Known[StepTime]:
    """Return the median step between two times, without what ran between steps (validation, capture)."""
    return _median([one for one in _ends_of_steps(records) if since_ns <= one[wire.REC_TIME_NS] <= until_ns])


def median_before(records: Sequence[Sequence[int]], until_ns: int) -> Known[StepTime]:
    """Return the median of the last seconds if they hold enough steps: what else a machine does changes."""
    near = median_step(records, until_ns - _NEAR_NS, until_ns)
    return near if count_steps(near) >= ENOUGH_STEPS else median_step(records, 0, until_ns)


def count_steps(step: Known[StepTime]) -> int:
    """Return of how many steps a median is, 0 where there is none."""
    return step.steps if is_known(step) else 0


def median_step_of(records: Sequence[Sequence[int]], first: int, steps: int) -> Known[StepTime]:
    """Return the median of so many steps from the ``first`` on, as far as records are left."""
    ends = _ends_of_steps(records)
    return _median([one for one in ends if first <= one[_steps_word(one)] <= first + steps])


def mean_call(records: Sequence[Sequence[int]]) -> Known[float]:
    """Return the mean ms of training per call of an optimizer, which is what kineto counts."""
    ends = _ends_of_steps(records)
    if len(ends) < 2:
        return _TOO_FEW
    first, last = ends[0], ends[-1]
    calls = last[wire.REC_OPTIMIZER_CALLS] - first[wire.REC_OPTIMIZER_CALLS]
    spent_ns = sum(last[_PHASES]) - sum(first[_PHASES])
    return spent_ns / 1e6 / calls if calls > 0 and spent_ns >= 0 else Missing("no optimizer was called")


def counts_as_kineto(asked: CaptureAsked, records: Sequence[Sequence[int]]) -> bool:
    """Tell whether kineto, which counts updates and ends by their count, would record the same steps."""
    ends = _ends_of_steps(records)
    if asked.named_seconds or len(ends) < 2:
        return False
    calls, steps = (ends[-1][word] - ends[0][word] for word in (wire.REC_OPTIMIZER_CALLS, wire.REC_STEPS))
    return bool(calls == steps > 0)


def _steps_word(record: Sequence[int]) -> int:
    return wire.REC_EVAL_STEPS if record[wire.REC_RULE] == wire.RULE_BATCH else wire.REC_STEPS


def _ends_of_steps(records: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return the records at the end of a step; others are from within one."""
    return [now for before, now in pairwise(records) if now[_steps_word(now)] > before[_steps_word(now)]]


def _mean(ends: Sequence[Sequence[int]]) -> Known[float]:
    if len(ends) < 2:
        return _TOO_FEW
    spent_ns, steps = _between(ends[0], ends[-1])
    return spent_ns / 1e6 / steps if steps > 0 and spent_ns >= 0 else _TOO_FEW


def _median(ends: Sequence[Sequence[int]]) -> Known[StepTime]:
    """Return the median of all steps between the ends; steps that share a record have its mean each."""
    told = [
        (spent_ns, steps)
        for spent_ns, steps in starmap(_between, pairwise(ends))
        if steps > 0 and spent_ns >= 0
    ]
    each = sorted((spent_ns / steps, steps) for spent_ns, steps in told)
    counted = sum(steps for _, steps in each)
    passed = 0
    for step_ns, steps in each:
        passed += steps
        if 2 * passed >= counted:
            return StepTime(step_ns / 1e6, counted)
    return _TOO_FEW


def _between(first: Sequence[int], last: Sequence[int]) -> tuple[int, int]:
    """Return the ns that steps took between two records, and how many ended."""
    word = _steps_word(last)
    phases = _EVAL_PHASES if word == wire.REC_EVAL_STEPS else _PHASES
    return sum(last[phases]) - sum(first[phases]), last[word] - first[word]


def say_price(price: CapturePrice, asked: CaptureAsked, ranks: int) -> str:
    """Return one line with the cost of a window."""
    what = say_length(asked, price.steps) if not asked.timed else f"{asked.seconds:g} s"
    why = "more would not fit" if asked.by_seconds else "fewer than asked: more would not fit"
    cut = f" ({why})" if not asked.timed and price.steps < asked.steps else ""
    each = "each rank" if ranks > 1 else "the loop"
    return (
        f"{what}{cut}: {each} pauses for about {say_ms(price.pause_ms)}, takes about "
        f"{_say_bytes(price.memory_bytes)} of memory for a while and writes about {_say_bytes(price.bytes)}"
    )


def say_dear(price: CapturePrice) -> tuple[str, ...]:
    """Return lines on a price that needs a yes of its own and how to lower it; () for others."""
    if price.pause_ms <= DEAR_MS:
        return ()
    less = "fewer steps" if price.steps else "fewer --seconds"
    return (
        f"the loop would pause for about {say_ms(price.pause_ms)}, more than {say_ms(DEAR_MS)}",
        f"{less}, and fewer of --stacks, --shapes and --memory, cost less; tpmon run --kineto costs none",
    )


def say_length(asked: CaptureAsked, steps: int) -> str:
    """Return the length of a window in words; where seconds end it, the steps are an upper bound."""
    counted = say_count(steps, "step")
    return f"{asked.seconds:g} s, {counted} at most" if asked.by_seconds else counted


def say_count(number: int, what: str) -> str:
    """Write "1 step", "5 steps"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def known_paces(paces: Sequence[Known[MeasuredPace]]) -> list[MeasuredPace]:
    """Return the paces that are known."""
    return [pace for pace in paces if is_known(pace)]


def say_ms(ms: float) -> str:
    """Write a pause or a duration in short, at least a millisecond."""
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{max(ms, 1):.0f} ms"


def _say_bytes(size: int) -> str:
    return f"{max(size / 2**20, 0.1):.1f} MiB"
