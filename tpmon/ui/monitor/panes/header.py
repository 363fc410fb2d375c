"""Paint the lines at the top of the screen: the job, the facts, the notes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tpmon.model.frame import EventKind, Frame, Pulse, TargetState
from tpmon.model.known import Missing, NotApplicable, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.text.job_words import format_step_rate, is_stalled, say_log_pace, say_rate
from tpmon.model.units import count_cells, count_of, format_moment, format_seconds
from tpmon.ui.kit.ink import DOT
from tpmon.ui.monitor.alerts import age_of, is_old, say_moment, say_moment_and_age
from tpmon.ui.monitor.state import ViewState
from tpmon.view.job import GROUPS
from tpmon.view.layout import Ink, Item, Line, cut, fit_line, justify, set_in, wrap, wrap_words

AGE_WIDTH = 60
"""From this width on there is room for the time since the job ended."""
USUAL_S = 1.0
"""Another interval stands beside the state word."""
FORMER_S = 60.0
LEAST_FORMER = 5
"""So many readings make the pace of a minute."""
CHANGED_RATIO = 1.25
SAME_RATIO = 0.1
"""A pace is told as changed, or as still the same, by these."""


def name_state(view: ViewState, width: int = 0) -> Item:
    """Return the state word of the picture: LIVE, PAUSED, LATE, STOPPED or ENDED; of a recording its time.

    Of that as much is told as there is room for in a line of ``width``.
    """
    if is_known(view.playback):
        from tpmon.ui.monitor.panes.strip import name_playback  # noqa: PLC0415  # of a recording alone

        return name_playback(view, view.playback, width)
    frame = view.frame
    if not is_known(frame):
        return Item(0, "WAITING", Ink.BADGE_WARN)
    if frame.target.state is TargetState.ENDED:
        return Item(0, "ENDED", Ink.BADGE)
    if is_known(view.paused_ns):
        return Item(0, f"PAUSED {format_seconds((view.now_ns - view.paused_ns) / 1e9)}", Ink.BADGE_WARN)
    age_s = age_of(view, 0.0)
    if is_old(view, age_s):
        return Item(0, f"LATE {format_seconds(age_s)}", Ink.BADGE_BAD)
    if frame.target.state is TargetState.STOPPED:
        return Item(0, "STOPPED", Ink.BADGE_WARN)
    return Item(0, "LIVE" if view.interval_s == USUAL_S else f"LIVE {view.interval_s:g} s", Ink.STRONG)


def _ages(view: ViewState, frame: Frame) -> list[Item]:
    """Name the groups of readings that are late; of a whole Frame that is late the state word says so."""
    if frame.target.state is TargetState.ENDED:
        return []
    frame_is_late = is_old(view, age_of(view, 0.0))
    items: list[Item] = []
    for group in GROUPS:
        age = getattr(frame.ages_s, group)
        if is_known(age) and is_old(view, age if frame_is_late else age_of(view, age), group):
            items.append(Item(3, f"! {group} {format_seconds(age_of(view, age))} old", Ink.WARN))
    return items


def _own_cost(frame: Frame) -> list[Item]:
    own = frame.self_
    items = []
    if any(is_known(one.put_in) for one in known_or(frame.hook, ())):
        items.append(Item(3, "hook put in by hand", Ink.WARN))
    if own.shedding:
        items.append(Item(4, "! tpmon at half rate", Ink.WARN))
    if own.target_paused_ms > 0:
        items.append(Item(4, f"! paused the job {own.target_paused_ms:.0f} ms", Ink.WARN))
    return items


def _pace(view: ViewState, frame: Frame, width: int) -> list[Item]:
    """Write the pace that a hook counts, else the one that the log tells, and the former where it changed."""
    pace, steps = frame.pace, frame.steps
    if frame.target.state is TargetState.ENDED:
        return []
    if is_known(steps):
        told = say_rate(steps)
        ink = Ink.WARN if is_stalled(steps) else Ink.STRONG
        return [Item(1, _brief(told, width), ink)]
    if not is_known(pace):
        return []
    items = [Item(1, _brief(say_log_pace(pace), width), Ink.DIM if pace.is_old else Ink.STRONG)]
    former = find_former_pace(view.pulses, pace.rate_hz)
    if former is not None and not pace.is_old:
        usual_hz, taken_ns = former
        when = frame.taken - timedelta(seconds=(frame.taken_ns - taken_ns) / 1e9)
        was = f"was {format_step_rate(usual_hz)} at {format_moment(when, frame.taken, seconds=False)}"
        items.append(Item(5, was, Ink.WARN if usual_hz > pace.rate_hz else Ink.DIM))
    return items


def _brief(told: str, width: int) -> str:
    return told if width >= AGE_WIDTH else told.replace(" steps/s", "/s")


def find_former_pace(pulses: Sequence[Pulse], now_hz: float) -> tuple[float, int] | None:
    """Return the pace of the first minute of the history and when it was last so, where it has changed."""
    known = [(one.log_hz, one.taken_ns) for one in pulses if is_known(one.log_hz)]
    first = [hz for hz, taken_ns in known if taken_ns <= known[0][1] + FORMER_S * 1e9]
    if len(first) < LEAST_FORMER:
        return None
    usual_hz = sorted(first)[len(first) // 2]
    if max(usual_hz, now_hz) < CHANGED_RATIO * min(usual_hz, now_hz):
        return None
    return usual_hz, max(taken_ns for hz, taken_ns in known if abs(hz / usual_hz - 1) <= SAME_RATIO)


def paint_header(view: ViewState, width: int) -> Line:
    """Paint the first line: the job at the left; its pace, what is late and the state at the right."""
    frame = view.frame
    if not is_known(frame):
        return justify([Item(1, "tpmon", Ink.TITLE)], [name_state(view)], width)
    target, recorded = frame.target, is_known(view.playback)
    asked = f" (asked {target.asked_pid})" if target.asked_pid != target.pid and width >= 120 else ""
    ranks, world = len(frame.ranks), known_or(target.world_size, 0)
    workers = sum(process.role is Role.WORKER for process in frame.processes)
    short = width < AGE_WIDTH
    of = f"{ranks} of {world}" if world > ranks else f"{ranks}"
    counts = [f"{of}r" if short else f"{of} {'rank' if of == '1' else 'ranks'}"]
    if workers:
        counts.append(f"{workers}w" if short else count_of(workers, "worker"))
    left = [
        Item(4, cut(target.script, max(8, width // (3 if short else 5))), Ink.STRONG),
        Item(2, f"pid {target.pid}{asked}" if width >= 100 else str(target.pid)),
        Item(7, (" " if short else "  ").join(counts)),
        Item(8, cut(target.host, max(8, width // 8))),
        Item(9, f"up {format_seconds((frame.taken - target.start).total_seconds())}"),
    ]
    right = [
        *_pace(view, frame, width),
        *_ages(view, frame),
        *_own_cost(frame),
        *([Item(1, "REC", Ink.BADGE_BAD)] if view.records else []),
        name_state(view, width),
        Item(6, f"{frame.taken:%Y-%m-%d}" if recorded else say_moment(view, frame.taken), Ink.DIM),
    ]
    return justify(left, right, width)


def paint_facts(view: ViewState, width: int, most: int) -> list[Line]:
    """Paint how the job ended, else its facts, in at most ``most`` lines."""
    frame = view.frame
    if not is_known(frame):
        said = ["waiting for the first reading:", *frame.reason.split()]
        texts = wrap(said, width - 2, " ")[:most]
        return [fit_line(line, width) for line in set_in(texts, Ink.STRONG)]
    lines: list[Line] = []
    facts_ink = Ink.STRONG
    if frame.target.state is TargetState.ENDED:
        how, ink = describe_end(view, frame, with_age=width >= AGE_WIDTH)
        lines += set_in(wrap([how], width - 2, " "), ink)
        facts_ink = Ink.DIM
    facts = [fact.strip() for fact in frame.facts.split(f" {DOT} ") if fact.strip()]
    if facts_ink is Ink.DIM and facts:
        facts[0] = f"last seen: {facts[0]}"
    lines += set_in(wrap(facts, width - 2, f" {DOT} "), facts_ink)
    return [fit_line(line, width) for line in lines[:most]]


def describe_end(view: ViewState, frame: Frame, *, with_age: bool = True) -> tuple[str, Ink]:
    """Write when and how the job ended: "ENDED 03:09:12  exit 137 (SIGKILL; OOM killer)"."""
    ends = [event.time for event in view.events if event.kind is EventKind.ENDED]
    when = (say_moment_and_age if with_age else say_moment)(view, ends[-1] if ends else frame.taken)
    how = frame.target.ended
    if isinstance(how, Missing):
        return f"ENDED {when}  how is not known: {how.reason}", Ink.WARN
    if isinstance(how, NotApplicable):
        return f"ENDED {when}", Ink.WARN
    return f"ENDED {when}  {how}", Ink.GOOD if how.startswith("exit 0") else Ink.BAD


def paint_notes(frame: Frame, width: int, most: int, label: str = "") -> list[Line]:
    """Paint the notes with a sign before each behind a label, and how many more there are, and where."""
    lines: list[Line] = []
    head, rest = label or " ", " " * max(1, count_cells(label))
    room = max(1, width - len(rest) - 3)
    shown = 0
    for note in frame.notes:
        wrapped = wrap_words(note, room)
        if len(lines) + len(wrapped) > most:
            break
        for number, text in enumerate(wrapped):
            before = (head if not lines else rest, Ink.TITLE)
            sign = (" ", Ink.PLAIN) if number else ("!", Ink.WARN)
            lines.append((before, sign, (f" {text}", Ink.PLAIN)))
        shown += 1
    hidden = len(frame.notes) - shown
    if hidden and most > 0:
        more = f"  (+{hidden} more, 5)" if lines else f"  ({hidden} to read, 5)"
        first = ((head, Ink.TITLE), ("!", Ink.WARN), (f" {frame.notes[0]}", Ink.PLAIN))
        last = lines.pop() if lines else first
        lines.append((*fit_line(last, max(0, width - count_cells(more))), (more, Ink.DIM)))
    return [fit_line(line, width) for line in lines]
