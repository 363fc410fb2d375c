"""Paint the lines at the top of the screen: the job, the facts, the notes."""

from __future__ import annotations

from tpmon.model.frame import EventKind, Frame, TargetState
from tpmon.model.known import Missing, NotApplicable, is_known, map_known
from tpmon.model.units import count_cells, format_bytes, format_pct, format_seconds
from tpmon.ui.kit.ink import DOT
from tpmon.ui.monitor.alerts import age_of, is_old, say_moment, say_moment_and_age
from tpmon.ui.monitor.state import ViewState
from tpmon.view.job import GROUPS
from tpmon.view.layout import Ink, Item, Line, cut, fit_line, justify, set_in, show, wrap, wrap_words
from tpmon.view.ranks import name_ranks

HOST_GROUPS = GROUPS[:4]
"""Groups that are read together and share one age on the first line while they are fresh."""
AGE_WIDTH = 60
"""From this width on there is room for the time since the job ended."""


def name_state(view: ViewState, width: int = 0) -> Item:
    """Return the state word of the picture: LIVE, PAUSED, LATE, STOPPED or ENDED; of a recording its time.

    Of that as much is told as there is room for in a line of ``width``.
    """
    if is_known(view.playback):
        from tpmon.ui.monitor.panes.strip import name_playback  # noqa: PLC0415  # of a recording alone

        return name_playback(view, view.playback, width)
    frame = view.frame
    if not is_known(frame):
        return Item(0, "WAITING", Ink.WARN)
    if frame.target.state is TargetState.ENDED:
        return Item(0, "ENDED", Ink.BAD)
    if is_known(view.paused_ns):
        return Item(0, f"PAUSED {format_seconds((view.now_ns - view.paused_ns) / 1e9)}", Ink.WARN)
    age_s = age_of(view, 0.0)
    if is_old(view, age_s):
        return Item(0, f"LATE {format_seconds(age_s)}", Ink.BAD)
    if frame.target.state is TargetState.STOPPED:
        return Item(0, "STOPPED", Ink.WARN)
    return Item(0, f"LIVE {view.interval_s:g} s", Ink.GOOD)


def _ages(view: ViewState, frame: Frame) -> list[Item]:
    if frame.target.state is TargetState.ENDED:
        return []
    items: list[Item] = []
    fresh: dict[str, float] = {}
    frame_is_late = is_old(view, age_of(view, 0.0))  # the state word says so for all groups at once
    for group in GROUPS:
        age = getattr(frame.ages_s, group)
        if not is_known(age):
            continue
        age_s = age_of(view, age)
        if is_old(view, age if frame_is_late else age_s, group):
            items.append(Item(3, f"! {group} {format_seconds(age_s)} old", Ink.WARN))
        elif not frame_is_late:
            place = "read" if group in HOST_GROUPS else group
            fresh[place] = max(fresh.get(place, 0.0), age_s)
    items += [Item(10, f"{place} {format_seconds(age_s)} ago", Ink.DIM) for place, age_s in fresh.items()]
    return items


def _own_cost(frame: Frame) -> list[Item]:
    own = frame.self_
    items = []
    if is_known(own.cpu_pct):
        memory = show(map_known(lambda rss: rss + own.children_rss_bytes, own.rss_bytes), format_bytes)
        items.append(Item(12, f"tpmon {format_pct(own.cpu_pct)} % {memory}", Ink.DIM))
    if own.shedding:
        items.append(Item(4, "! tpmon at half rate", Ink.WARN))
    if own.target_paused_ms > 0:
        items.append(Item(4, f"! paused the job {own.target_paused_ms:.0f} ms", Ink.WARN))
    return items


def paint_header(view: ViewState, width: int) -> Line:
    """Paint the first line: the job at the left; ages, own cost and state at the right."""
    frame = view.frame
    if not is_known(frame):
        return justify([Item(1, "tpmon", Ink.TITLE)], [name_state(view)], width)
    target, recorded = frame.target, is_known(view.playback)
    asked = f" (asked {target.asked_pid})" if target.asked_pid != target.pid and width >= 120 else ""
    pid = f"pid {target.pid}{asked}" if width >= 100 else str(target.pid)
    named = name_ranks(frame)
    alone = "one process" if len(frame.ranks) == 1 else f"{len(frame.ranks)} ranks"
    ranks = f"ranks {named}" if named else alone
    left = [
        Item(6, "tpmon", Ink.TITLE),
        Item(2, pid, Ink.STRONG),
        Item(4, cut(target.script, max(8, width // 5)), Ink.STRONG),
        Item(7, ranks),
        Item(8, cut(target.host, max(8, width // 8))),
        Item(15, cut(target.user, 16)),
        Item(14, f"torch {target.torch_version}" if is_known(target.torch_version) else "torch ?"),
        Item(16, f"py {target.python_version}" if is_known(target.python_version) else "py ?"),
        Item(9, f"up {format_seconds((frame.taken - target.start).total_seconds())}"),
    ]
    right = [
        *_ages(view, frame),
        *_own_cost(frame),
        *([Item(1, "REC", Ink.BAD)] if view.records else []),
        name_state(view, width),
        Item(5, f"{frame.taken:%Y-%m-%d}" if recorded else say_moment(view, frame.taken), Ink.DIM),
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


def paint_notes(frame: Frame, width: int, most: int) -> list[Line]:
    """Paint the notes with a sign before each, and how many more there are, and where."""
    texts: list[str] = []
    shown = 0
    for note in frame.notes:
        wrapped = wrap_words(note, max(1, width - 4))
        if len(texts) + len(wrapped) > most:
            break
        texts += [f" {' ' if line else '!'} {text}" for line, text in enumerate(wrapped)]
        shown += 1
    hidden = len(frame.notes) - shown
    if hidden and most > 0:
        more = f"  (+{hidden} more, 5)" if texts else f"  ({hidden} to read, 5)"
        last = texts.pop() if texts else f" ! {frame.notes[0]}"
        texts.append(cut(last, max(0, width - count_cells(more))) + more)
    return [fit_line(((text, Ink.WARN),), width) for text in texts]
