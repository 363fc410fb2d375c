"""Paint the steps, by the hooks: samples, percentiles, history with stalls; and name the parts of a step."""

from __future__ import annotations

from tpmon.model.frame import PULSE_SPAN_S, EventKind
from tpmon.model.hook import LoopPhase, StepPace, list_shares
from tpmon.model.known import is_known, known_or
from tpmon.model.text.job_words import format_ms, is_stalled, say_samples, say_times, say_times_short
from tpmon.model.units import count_cells, format_pct, format_seconds
from tpmon.ui.monitor.panes.cpu import mean_of, thin
from tpmon.ui.monitor.state import ViewState
from tpmon.view.finding.pieces import flow
from tpmon.view.layout import Ink, Line, Span, fit_line, spark
from tpmon.view.ranks import FILLS

STALL_RATIO = 4.0
"""A second whose longest step takes so many medians is a stall."""
LABEL = "steps"
_HEAD = f" {LABEL} "
NARROW_WIDTH = 60
WIDE_WIDTH = 100
LEAST_SPARK = 12
MOST_SPARK = 60

_SHORT = {
    LoopPhase.DATA: "data",
    LoopPhase.FORWARD: "fwd",
    LoopPhase.BACKWARD: "bwd",
    LoopPhase.OPTIMIZER: "opt",
    LoopPhase.OTHER: "other",
}


def _say_stall(view: ViewState, pace: StepPace) -> str:
    """Write the last stall ("stall 4.1 s, 12 s ago"), "" for none, and while one goes on."""
    if not is_known(pace.p50_ms) or is_stalled(pace) or not is_known(view.frame):
        return ""
    least = STALL_RATIO * pace.p50_ms
    stalls = [one for one in view.pulses if is_known(one.step_ms) and one.step_ms >= least]
    if not stalls:
        return ""
    last = stalls[-1]
    ago_s = max(0.0, (view.frame.taken_ns - last.taken_ns) / 1e9)
    more = f", {len(stalls)} in 10 min" if len(stalls) > 1 else ""
    return f"stall {format_ms(known_or(last.step_ms, 0.0))}, {format_seconds(ago_s)} ago{more}"


def _say_compiled(view: ViewState) -> str:
    """Write when ranks last compiled again ("compiled again 12 s ago"), "" where none did lately."""
    last = next((one for one in reversed(view.events) if one.kind is EventKind.COMPILE), None)
    if last is None or not is_known(view.frame):
        return ""
    ago_s = max(0.0, (view.frame.taken - last.time).total_seconds())
    return f"compiled again {format_seconds(ago_s)} ago" if ago_s <= PULSE_SPAN_S else ""


def say_split_short(pace: StepPace) -> str:
    """Say where the host's time of a step goes, with the signs of the bars: "step: # data 58 | = fwd 12"."""
    told = [
        f"{FILLS[phase]} {_SHORT[phase]} {format_pct(share)}"
        for phase, share in list_shares(pace)
        if is_known(share) and phase is not LoopPhase.OTHER
    ]
    return f"step time in %: {' | '.join(told)}" if told else ""


def _say_figures(pace: StepPace, width: int) -> tuple[str, str]:
    """Write samples and percentiles, as long as both fit."""
    samples, times = "" if is_stalled(pace) else say_samples(pace), say_times(pace)
    short = samples.partition(" of ")[0]  # whose sum it is; "sum" stays
    if width < NARROW_WIDTH:
        return short, times  # they flow over several lines
    ways = [(samples, times)] if width >= WIDE_WIDTH else []
    ways += [(short, times), (short, say_times_short(pace))]
    room = width - count_cells(_HEAD)
    return next(
        (way for way in ways if sum(_gap_of(width) + count_cells(text) for text in way) <= room), ways[-1]
    )


def _gap_of(width: int) -> int:
    return 3 if width >= WIDE_WIDTH else 2


def _paint_rates(view: ViewState, pace: StepPace, width: int) -> list[Line]:
    samples, times = _say_figures(pace, width)
    stall = _say_stall(view, pace)
    compiled = _say_compiled(view) if width >= NARROW_WIDTH else ""
    told: list[Span] = [
        (samples, Ink.PLAIN),
        (times, Ink.PLAIN),
        (f"! {stall}" if stall else "", Ink.WARN),
        (f"! {compiled}" if compiled else "", Ink.WARN),
        (f"step {pace.count:,}", Ink.DIM),
    ]
    spans = [span for span in told if span[0]]
    if width < NARROW_WIDTH:
        return flow(spans, width, 2)[:3]
    gap = _gap_of(width)
    line: list[Span] = [(_HEAD, Ink.DIM)]
    used = count_cells(_HEAD)
    for text, ink in spans:
        if used + gap + count_cells(text) > width:
            continue
        line += [(" " * (gap if len(line) > 1 else 1), Ink.PLAIN), (text, ink)]
        used += gap + count_cells(text)
    room = min(MOST_SPARK, width - used - gap - 1)
    if room >= LEAST_SPARK:
        groups = thin(view.pulses, room)
        means = [mean_of([pulse.step_ms for pulse in group]) for group in groups]
        top = max([value for value in means if is_known(value)], default=0.0)
        line += [(" " * gap, Ink.PLAIN), (spark(means, min(room, len(means)), top), Ink.NOTICE)]
    return [fit_line(tuple(line), width)]


def paint_steps(view: ViewState, width: int, most: int) -> list[Line]:
    """Paint samples, times and stalls in at most ``most`` lines; none without a hook."""
    frame = view.frame
    if not is_known(frame) or not is_known(frame.steps):
        return []
    pace = frame.steps
    return _paint_rates(view, pace, width)[:most]
