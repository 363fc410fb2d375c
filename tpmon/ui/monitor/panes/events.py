"""Paint events, newest first, and the last lines of the job's log."""

from __future__ import annotations

from itertools import zip_longest

from tpmon.model.frame import Event, EventKind, Frame
from tpmon.model.host import OutputSample
from tpmon.model.known import is_known, known_or
from tpmon.model.units import format_bytes, format_seconds
from tpmon.ui.monitor.alerts import age_of, say_moments
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    cut,
    cut_front,
    explain,
    fit_line,
    pad_line,
    paint_rule,
    set_in,
    wrap_words,
)

SPLIT_WIDTH = 100
"""From this width on log and events are side by side."""
LATE_S, LATE_LINES = 60.0, 3
"""A log is late when it was not written for this long, and for so many of its own turns."""
_KIND_INK = {EventKind.ENDED: Ink.BAD, EventKind.PROBE: Ink.WARN, EventKind.VERDICT: Ink.STRONG}


def newest_log(frame: Frame) -> OutputSample | None:
    """Return the output file written last, None when the job writes to no regular file."""
    return min(
        frame.output,
        key=lambda one: (known_or(one.last_write_age_s, float("inf")), one.pid, one.fd),
        default=None,
    )


def say_late(view: ViewState, log: OutputSample) -> str:
    """Write how old the last line of a log is where that is late, "" else."""
    if not is_known(log.last_write_age_s):
        return f"last write ? {log.last_write_age_s.reason}"
    age_s = age_of(view, log.last_write_age_s)
    every_s = known_or(log.pace.every_s, 0.0) if is_known(log.pace) else 0.0
    late = age_s >= max(LATE_S, LATE_LINES * every_s)
    return f"! written {format_seconds(age_s)} ago" if late else ""


def paint_newest(view: ViewState, width: int, most: int) -> list[Line]:
    """Paint the newest events, each with its time."""
    events = view.events[::-1][: max(0, most)]
    lines = []
    for event, clock in zip(events, say_moments(view, (event.time for event in events)), strict=True):
        kind, text = (f"{event.kind.value:<8} ", _text_of(event)) if width >= 60 else ("", event.text)
        ink = _KIND_INK.get(event.kind, Ink.PLAIN)
        lines.append(fit_line(((f" {clock} {kind}", Ink.DIM), (text, ink)), width))
    return lines


def _text_of(event: Event) -> str:
    """Return the text of an event without the name of its kind, which is before it."""
    return event.text.removeprefix(f"{event.kind.value}: ")


def paint_log(log: OutputSample, width: int, most: int) -> list[Line]:
    """Paint the last lines of a log."""
    lines = log.lines[-most:] if most > 0 else ()
    return [fit_line(((" | ", Ink.DIM), (line, Ink.PLAIN)), width) for line in lines]


def _details(view: ViewState, frame: Frame, log: OutputSample | None, width: int) -> list[Item]:
    if log is None:
        return [Item(5, "no log: the job writes to no file", Ink.DIM)]
    more = len({one.path for one in frame.output}) - 1
    late = say_late(view, log)
    items = [Item(1, late, Ink.WARN)] if late else []
    items.append(Item(2, cut_front(log.path, max(8, width - len(late) - 24)), Ink.DIM))
    return [*items, Item(6, f"+{more} more", Ink.DIM)] if more > 0 else items


def count_events(view: ViewState, width: int) -> int:
    """Count the lines that the pane can show: a few events and the log's last lines."""
    log = newest_log(view.frame) if is_known(view.frame) else None
    logged, happened = len(log.lines) if log is not None else 0, min(12, len(view.events))
    return max(logged, happened) if width >= SPLIT_WIDTH else logged + happened


def paint_events(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: the log, and below or beside it the events, newest first."""
    frame = view.frame
    if not is_known(frame) or size.height <= 0:
        return []
    log = newest_log(frame)
    title, rows = f"{Pane.EVENTS.value} log and events", size.height - 1
    rule = paint_rule(title, _details(view, frame, log, size.width), size.width, focused=focused)
    logged = len(log.lines) if log is not None else 0
    if size.width < SPLIT_WIDTH or not logged or log is None:
        happened = paint_newest(view, size.width, rows - min(logged, (rows + 1) // 2))
        lines = paint_log(log, size.width, rows - len(happened)) if log is not None else []
        return [rule, *lines, *happened][: size.height]
    left = size.width * 45 // 100
    both = zip_longest(
        paint_log(log, left, rows), paint_newest(view, size.width - left - 2, rows), fillvalue=()
    )
    return [rule, *(join_columns(one, other, left) for one, other in both)][: size.height]


def join_columns(first: Line, second: Line, left: int) -> Line:
    """Put two lines side by side, the second two cells after column ``left``."""
    return (*pad_line(first, left), ("  ", Ink.PLAIN), *second)


def paint_events_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint the notes, every log and every event, newest first."""
    frame = view.frame
    if not is_known(frame):
        return []
    lines: list[Line] = []
    for note in frame.notes:
        wrapped = set_in(wrap_words(note, max(8, width - 4)), Ink.WARN, " ! ")
        lines += [fit_line(line, width) for line in wrapped]
    for path in dict.fromkeys(one.path for one in frame.output):
        log = next(one for one in frame.output if one.path == path)
        size = explain(log.size_bytes, format_bytes)
        when = explain(log.last_write_age_s, lambda age_s: f"{format_seconds(age_of(view, age_s))} ago")
        about = f" log {size}, written {when}  "
        about += cut_front(log.path, max(8, width - len(about)))
        lines.append(((cut(about, width), Ink.STRONG),))
        lines += paint_log(log, width, len(log.lines))
    if not frame.output:
        lines.append(((cut(" log: the job writes its output to no regular file", width), Ink.DIM),))
    lines.append(((cut(f" {len(view.events)} events, newest first", width), Ink.STRONG),))
    events = view.events[::-1]
    for event, clock in zip(events, say_moments(view, (event.time for event in events)), strict=True):
        head = f" {clock} {event.kind.value:<8} "
        ink = _KIND_INK.get(event.kind, Ink.PLAIN)
        for place, text in enumerate(wrap_words(_text_of(event), max(8, width - len(head))) or [""]):
            before = " " * len(head) if place else head
            lines.append(fit_line(((before, Ink.DIM), (text, ink)), width))
    return lines
