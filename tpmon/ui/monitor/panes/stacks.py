"""Paint the stacks of a job: the outlier in a sentence, what was not read, then the groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpmon.model.dump import Asker, Dump, DumpError, Motion, ShownFrame
from tpmon.model.known import Applicable, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.results.doctor import DumpUpdate
from tpmon.model.text.dump_words import ONCE_HINT, say_last_write
from tpmon.model.units import clean_text, count_cells, count_of, format_seconds
from tpmon.ui.kit.ink import DOT
from tpmon.ui.monitor.alerts import say_ago, say_moment, say_moment_and_age
from tpmon.ui.monitor.requests import has_ended, list_stoppable
from tpmon.ui.monitor.requests import say_dump_price as say_price
from tpmon.ui.monitor.state import (
    OTHER_THREADS,
    RowMember,
    StackRow,
    ViewState,
    cursor_of,
    has_unseen,
    is_partial,
    list_branches,
    list_members,
    list_rows,
    rows_of,
)
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    cut,
    cut_front,
    fit_line,
    lay_text,
    pad,
    paint_rule,
    set_in,
    wrap,
    wrap_all,
)
from tpmon.view.stacks import (
    Means,
    describe_frames,
    describe_group,
    describe_tree,
    group_errors,
    name_failed,
    suggest,
)

_TEXT_CHARS = 400
_LEAST_LINES = 3
"""Of one entry, so that a low screen has room for what and why."""
_STOP = "R reads it with a short stop, and says its price first"


def paint_errors(errors: Sequence[DumpError], width: int, most: int, *, can_stop: bool) -> list[Line]:
    """Paint an entry a reason in ``most`` lines; ``can_stop``: a dump with a stop is offered."""
    means = Means("again", _STOP if can_stop else "")
    texts: list[str] = []
    shown = 0
    for those in group_errors(errors):
        entry = _write_entry(those, suggest(those, means), max(1, width - 4))
        if texts and len(texts) + len(entry) > most:
            break
        texts += entry[: max(most, _LEAST_LINES)]
        shown += len(those)
    if shown < len(errors):
        texts.append(f" ! {len(errors) - shown} more not read; y copies why")
    return set_in([cut(text, width) for text in texts], Ink.WARN, "")


def _write_entry(errors: Sequence[DumpError], tip: str, room: int) -> list[str]:
    said = wrap_all(clean_text(f"not read: {name_failed(errors)}: {errors[0].reason}", _TEXT_CHARS), room)
    tips = wrap_all(f"Try: {tip}", room) if tip else []
    return [f" ! {said[0]}", *(f"   {text}" for text in (*said[1:], *tips))]


_WHO_LINES = 3

Rows = Iterator[tuple[StackRow, list[Line]]]
"""Rows with their lines; those after the first cannot hold the cursor."""


def _paint_line(text: str, cursor: bool, width: int, ink: Ink, path: str = "") -> Line:
    """Paint one line, under the cursor with the path that the editor opens."""
    if not cursor:
        return fit_line(((text, ink),), width)
    room = width - count_cells(text) - 2
    shown = f"  {cut_front(clean_text(path, _TEXT_CHARS), room)}" if path and room > 10 else ""
    return ((pad(f">{text[1:]}{shown}", width), Ink.CURSOR),)


def _paint_frame(head: str, shown: Applicable[ShownFrame], cursor: bool, width: int) -> Line:
    if is_known(shown) and shown.is_users:
        return _paint_line(head, cursor, width, Ink.STRONG, shown.frame.file)
    return _paint_line(head, cursor, width, Ink.DIM)


def _paint_branches(view: ViewState, cursor: object, width: int) -> Rows:
    closed = view.stacks.closed
    for branch in describe_tree(list_branches(view), closed=closed):
        line = branch.line
        row = StackRow(line.mark)
        head = f" {'+' if line.mark in closed else ' '} {'  ' * line.depth}{branch.count}{branch.text}"
        start = " " * (5 + 2 * line.depth)
        room = max(8, width - len(start) - 1)
        ends = [text for end in branch.ends for text in wrap_all(end, room)[:_WHO_LINES]]
        below = [fit_line(text, width) for text in set_in(ends, head=start)]
        yield row, [_paint_frame(head, line.shown, row == cursor, width), *below]


_NEVER_ASKED = "no stacks read yet: d reads those of the whole job now; nothing is stopped for it"
_COMES = "the first stacks come in a second or two; nothing is stopped for them"
_HEAD_LINES = 2
_STATE_LINES = 3
_AGE_WIDTH = 100
"""From this width on the hint has room for the age of the stacks."""
_AIRY_HEIGHT = 25
"""From this height on there is an empty line above the groups."""


def paint_stacks(view: ViewState, size: Size) -> list[Line]:
    """Paint the newest dump, or its progress, with the rows around the cursor."""
    top = [paint_rule("6 stacks", _title_details(view), size.width, focused=True)]
    top += _paint_told(view, size)[: max(2, size.height // 2)]
    room = size.height - len(top)
    if room < 1:
        return top[: size.height]
    return [*top, *_window(_paint_rows(view, size.width), cursor_of(view, list_rows(view)), room)]


def paint_stacks_tiny(view: ViewState, size: Size) -> list[Line]:
    """Paint a few short lines: the progress of the dump, else the outlier."""
    summary = _summary_of(view)
    text = f"{_progress_of(view)} {summary}".strip() or _NEVER_ASKED
    return set_in(wrap_all(text, max(1, size.width - 1)))[: size.height]


def paint_hint(view: ViewState, width: int) -> list[Line]:
    """Paint one line that leads to an unseen dump of the hang watch; none without one."""
    if not has_unseen(view) or not is_known(view.dump) or not view.dump.state.rounds:
        return []
    say = say_moment_and_age if width >= _AGE_WIDTH else say_moment
    when = say(view, view.dump.state.rounds[-1].taken)
    text = f" d: stacks of {when}, read by the hang watch: {_summary_of(view)}"
    return [((cut(clean_text(text, _TEXT_CHARS), width), Ink.STRONG),)]


def _progress_of(view: ViewState) -> str:
    """Write the progress of the dump that is being read; "" for none."""
    if not is_known(view.dump):
        asked_ns = view.stacks.asked_ns
        return f"asked {format_seconds((view.now_ns - asked_ns) / 1e9)} ago" if is_known(asked_ns) else ""
    state = view.dump.state
    if not state.running:
        return ""
    if is_known(view.frame) and has_ended(view.frame):
        return f"the job ended after {state.answered} of {state.asked}"
    looks = state.request.rounds
    done = len(state.rounds) - (1 if 0 < state.answered < state.asked else 0)
    if looks > 1 and done and state.answered == state.asked:
        return f"dump {done} of {looks} read, the next one follows"
    look = f"dump {done + 1} of {looks}: " if looks > 1 else ""
    return f"{look}reading {state.answered} of {state.asked} ..."


def _title_details(view: ViewState) -> list[Item]:
    progress = _progress_of(view)
    if progress:
        return [Item(0, progress, Ink.WARN)]
    if not is_known(view.dump) or not view.dump.state.rounds:
        return []
    state = view.dump.state
    taken_ns, now_ns = state.rounds[-1].taken_ns, known_or(view.paused_ns, view.now_ns)
    when = say_ago(view, (now_ns - taken_ns) / 1e9)
    looks = "1 dump" if len(state.rounds) == 1 else f"{len(state.rounds)} dumps"
    return [Item(0, when, Ink.STRONG), Item(1, f"{looks}, {say_moment(view, state.rounds[-1].taken)}")]


def _paint_told(view: ViewState, size: Size) -> list[Line]:
    """Paint what concerns the whole dump: the outlier, the price of a stop, errors, the cost."""
    width, most = size.width, max(1, size.height // 4)
    if not is_known(view.dump):
        text = _COMES if is_known(view.stacks.asked_ns) else _NEVER_ASKED
        return _wrapped(text, Ink.PLAIN, width, most)
    update = view.dump
    lines: list[Line] = []
    if update.state.running and not is_known(update.dump):
        lines += _wrapped(_COMES, Ink.PLAIN, width, most)
    if update.state.refused:
        lines += _wrapped(f"! {update.state.refused}", Ink.WARN, width, 2)
    price = say_price(view)
    if price:
        lines += _wrapped(price, Ink.WARN, width, 6)
    summary = _summary_of(view)
    if summary:
        lines += _wrapped(summary, Ink.STRONG, width, max(most, 3))
    dump = update.dump
    if is_known(dump):
        if summary:
            earlier = update.state.earlier
            written = is_known(dump.last_write) and say_last_write(dump, say_moment(view, dump.last_write))
            since = is_known(earlier) and f"CPU since the dump of {say_moment(view, earlier.taken)}"
            times = [said for said in (written, since) if said]
            lines += set_in(wrap(times, max(1, width - 2), f" {DOT} "))
        if is_known(dump.collectives):
            lines += _wrapped(dump.collectives.summary, Ink.PLAIN, width, max(2, most))
        lines += paint_errors(dump.errors, width, most, can_stop=bool(list_stoppable(view)))
        facts = wrap(_list_facts(update, dump), max(1, width - 2), f" {DOT} ")
        lines += set_in(facts[: 1 if width >= 80 else 2], Ink.DIM)
        lines += [()] if size.height >= _AIRY_HEIGHT else []
    return [fit_line(line, width) for line in lines]


def _wrapped(text: str, ink: Ink, width: int, most: int) -> list[Line]:
    lines = wrap_all(clean_text(text, _TEXT_CHARS * 3), max(1, width - 2))
    if len(lines) > most:
        lines = [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), max(1, width - 2))]
    return set_in(lines, ink)


def _summary_of(view: ViewState) -> str:
    """Return the summary of the dump, none while its first look is read."""
    if not is_known(view.dump) or not is_known(view.dump.dump):
        return ""
    state, dump = view.dump.state, view.dump.dump
    if is_partial(state):
        return ""
    hint = " (seen once: m shows whether it moves)"
    is_last = state.running or is_known(view.playback)
    summary = dump.summary.replace(ONCE_HINT, "" if is_last else hint)
    for error in dump.errors:  # told below, with what to do about it
        summary = summary.replace(f" ({error.reason})", "")
    return summary


def _list_facts(update: DumpUpdate, dump: Dump) -> list[str]:
    who = "by the hang watch" if update.state.request.asker is Asker.WATCH else "by key"
    part = ", some processes" if update.state.request.pids else ""
    stopped = f"stopped the job {dump.paused_ms:.1f} ms" if dump.paused_ms else "stopped nothing"
    span = f" over {format_seconds(dump.seconds)}" if dump.rounds > 1 else ""
    looks = [f"{dump.rounds} dumps{span}"] if dump.rounds > 1 else []
    return [f"asked {who}{part}", *looks, stopped, f"py-spy {dump.spy_cpu_ms / 1000:.2f} s of CPU"]


def _paint_rows(view: ViewState, width: int) -> Rows:
    cursor = cursor_of(view, list_rows(view))
    if view.stacks.as_tree:
        yield from _paint_branches(view, cursor, width)
        return
    for member in list_members(view, main=True):
        yield from _paint_member(member, cursor, width)
    others = list_members(view, main=False)
    if others:
        row = StackRow(OTHER_THREADS)
        is_open = OTHER_THREADS in view.stacks.opened
        count = sum(len(member.group.threads) for member in others)
        idle = view.dump.dump.idle_threads if is_known(view.dump) and is_known(view.dump.dump) else 0
        more = f", {idle} native {'one' if idle == 1 else 'ones'} without a known purpose" if idle else ""
        told = f"other threads: {count} in {count_of(len(others), 'group')}{more}"
        head = f" {'-' if is_open else '+'} {told}"
        yield row, [_paint_line(head, row == cursor, width, Ink.PLAIN)]
        if is_open:
            for member in others:
                yield from _paint_member(member, cursor, width)


def write_rows(view: ViewState, width: int) -> list[str]:
    """Write each row of the stacks with the lines below it, that of a closed group with its whole stack."""
    members = [] if view.stacks.as_tree else list_members(view)
    inside = {one.stack.mark: one.stack.lines for one in members if not one.is_open}
    texts = []
    for row, lines in _paint_rows(view, width):
        shown = ["".join(text for text, _ink in line) for line in lines]
        texts.append("\n".join([*shown, *(line.text for line in inside.get(row.mark, ()))]))
    return texts


def _paint_member(member: RowMember, cursor: object, width: int) -> Rows:
    group, lines = member.group, member.stack.lines
    rows = rows_of(member)
    head, state = describe_group(group)
    texts = wrap_all(head, max(1, width - 4)) or [""]
    if len(texts) > _HEAD_LINES:
        texts = [texts[0], cut(" ".join(texts[1:]), max(1, width - 4))]
    ink = Ink.BAD if member.is_odd else Ink.PLAIN
    sign = " " if not lines else "-" if member.is_open else "+"
    row = next(rows)
    painted = [_paint_line(f" {sign} {texts[0]}", row == cursor, width, ink), *set_in(texts[1:], ink, "   ")]
    is_main = group.threads[0].kind is ThreadKind.MAIN
    once = f", {Motion.ONCE.value}" if is_main and group.motion is Motion.ONCE else ""
    blocked = is_main and any(letter in group.state for letter in "DTt")
    said = lay_text(f"{state}{once}", width, Ink.WARN if blocked else Ink.DIM, "     ")
    yield row, [*painted, *(fit_line(line, width) for line in said[:_STATE_LINES])]
    for row, line in zip(rows, describe_frames(group, lines) if member.is_open else (), strict=False):
        below = [fit_line(text, width) for text in set_in(line.below, Ink.DIM, " " * 9)]
        yield row, [_paint_frame(f"     {line.text}", line.shown, row == cursor, width), *below]


def _window(rows: Rows, cursor: object, room: int) -> list[Line]:
    """Return the ``room`` lines around the cursor's row; no more rows are painted than needed."""
    lines: list[Line] = []
    start = end = -1
    for row, painted in rows:
        if row == cursor:
            start, end = len(lines), len(lines) + len(painted)
        lines += painted
        if start >= 0 and len(lines) >= max(room, end):
            break
    first = max(0, min(end - room, start))
    return lines[first : first + room]
