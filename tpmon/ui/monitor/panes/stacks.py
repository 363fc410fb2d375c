"""Paint the stacks of a job: the outlier in a sentence, then the groups, then what was not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpmon.model.dump import Asker, Dump, DumpError, DumpState, Motion, StackGroup
from tpmon.model.known import is_known
from tpmon.model.results.doctor import DumpUpdate, TreeLine
from tpmon.model.text.dump_words import (
    ONCE_HINT,
    list_state,
    name_processes,
    name_threads,
    say_count,
    say_end,
    say_last_write,
    say_other,
)
from tpmon.model.units import clean_text, count_cells, format_seconds
from tpmon.ui.kit.ink import DOT
from tpmon.ui.monitor.alerts import say_moment, say_moment_and_age
from tpmon.ui.monitor.panes.stack_rows import (
    RowMember,
    cursor_of,
    has_unseen,
    is_partial,
    list_branches,
    list_members,
    list_rows,
    rows_of,
)
from tpmon.ui.monitor.requests import has_ended, list_stoppable
from tpmon.ui.monitor.requests import say_dump_price as say_price
from tpmon.ui.monitor.state import OTHER_THREADS, StackRow, ViewState
from tpmon.view.layout import Ink, Line, Size, cut, cut_front, fit_line, pad, wrap, wrap_all
from tpmon.view.stacks import Means, group_errors, locals_of, name_failed, suggest
from tpmon.view.table import Item, paint_rule

_TEXT_CHARS = 400
_LEAST_LINES = 3
"""Of one entry, so that it says what and why also on a low screen."""
_STOP = "R reads it with a short stop, and says its price first"


def paint_errors(errors: Sequence[DumpError], width: int, most: int, *, can_stop: bool) -> list[Line]:
    """Paint one entry for each reason, in at most ``most`` lines and at least one.

    ``can_stop`` tells whether the key of a look with a stop works now.
    """
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
    return [((cut(text, width), Ink.WARN),) for text in texts]


def _write_entry(errors: Sequence[DumpError], tip: str, room: int) -> list[str]:
    said = wrap_all(clean_text(f"not read: {name_failed(errors)}: {errors[0].reason}", _TEXT_CHARS), room)
    tips = wrap_all(f"Try: {tip}", room) if tip else []
    return [f" ! {said[0]}", *(f"   {text}" for text in (*said[1:], *tips))]


_WHO_LINES = 3

Block = tuple[StackRow, list[Line]]
"""A row and its lines; those after the first cannot hold the cursor."""


def paint_line(text: str, cursor: bool, width: int, ink: Ink) -> Line:
    """Paint one line that the cursor can be on."""
    if not cursor:
        return fit_line(((text, ink),), width)
    return ((pad(f">{text[1:]}", width), Ink.CURSOR),)


def paint_user_line(line: str, path: str, cursor: bool, width: int) -> Line:
    """Paint a line of the user's code; under the cursor with the path that the editor opens."""
    if cursor:
        room = width - count_cells(line) - 2
        line += f"  {cut_front(clean_text(path, _TEXT_CHARS), room)}" if room > 10 else ""
    return paint_line(line, cursor, width, Ink.STRONG)


def paint_branches(view: ViewState, cursor: object, width: int) -> Iterator[Block]:
    """Paint the lines of the tree; those of the user's code stand out."""
    threads: dict[int, int] = {}
    for line in list_branches(view):
        row = StackRow(line.mark)
        threads[line.mark] = line.threads
        is_closed = line.mark in view.stacks.closed
        # A line says how many pass it where that is not what the line above it said.
        told = "" if threads.get(line.parent) == line.threads and not is_closed else f"{line.threads}x "
        sign = "+" if is_closed else " "
        yield (
            row,
            [
                _paint_branch(line, f" {sign} {'  ' * line.depth}{told}", row == cursor, width),
                *(() if is_closed else _paint_ends(line, width)),
            ],
        )


def _paint_branch(line: TreeLine, head: str, cursor: bool, width: int) -> Line:
    if not is_known(line.shown):
        return paint_line(f"{head}{clean_text(line.ends[0].doing, _TEXT_CHARS)}", cursor, width, Ink.DIM)
    text = clean_text(line.shown.text, _TEXT_CHARS)
    if line.shown.is_users:
        return paint_user_line(f"{head}{text}", line.shown.frame.file, cursor, width)
    return paint_line(f"{head}- {text}", cursor, width, Ink.DIM)


def _paint_ends(line: TreeLine, width: int) -> list[Line]:
    """Paint who goes no further than this line."""
    start = " " * (5 + 2 * line.depth)
    room = max(8, width - len(start) - 1)
    lines: list[Line] = []
    for group in line.ends:
        texts = wrap_all(clean_text(f"= {say_end(group)}", _TEXT_CHARS), room)[:_WHO_LINES]
        lines += [fit_line(((f"{start}{text}", Ink.PLAIN),), width) for text in texts]
    return lines


_NEVER_ASKED = "no stacks read yet: d reads those of the whole job now; nothing is stopped for it"
_COMES = "the first stacks come in a second or two; nothing is stopped for them"
_HEAD_LINES = 2
_STATE_LINES = 3
_AGE_WIDTH = 100
"""From this width on the hint has room for its age beside what the stacks say."""
_AIRY_HEIGHT = 25
"""From this height on a line is left empty above the groups."""


def paint_stacks(view: ViewState, size: Size) -> list[Line]:
    """Paint the newest dump, or how far it is; the rows around the cursor are shown."""
    top = [paint_rule("6 stacks", _title_details(view), size.width, focused=True)]
    top += _paint_told(view, size)[: max(2, size.height // 2)]
    room = size.height - len(top)
    if room < 1:
        return top[: size.height]
    return [*top, *_window(_paint_rows(view, size.width), cursor_of(view, list_rows(view)), room)]


def paint_stacks_tiny(view: ViewState, size: Size) -> list[Line]:
    """Paint what fits a few short lines: how far the dump is, else who is odd."""
    summary = _summary_of(view)
    text = f"{_progress_of(view)} {summary}".strip() or _NEVER_ASKED
    lines: list[Line] = [((f" {one}", Ink.PLAIN),) for one in wrap_all(text, max(1, size.width - 1))]
    return lines[: size.height]


def paint_hint(view: ViewState, width: int) -> list[Line]:
    """Paint one line that leads to a dump of the hang watch that nobody looked at; none otherwise."""
    if not has_unseen(view) or not is_known(view.dump) or not view.dump.state.rounds:
        return []
    say = say_moment_and_age if width >= _AGE_WIDTH else say_moment
    when = say(view, view.dump.state.rounds[-1].taken)
    text = f" d: stacks of {when}, read by the hang watch: {_summary_of(view)}"
    return [((cut(clean_text(text, _TEXT_CHARS), width), Ink.STRONG),)]


def _age_s(view: ViewState, state: DumpState) -> float:
    now_ns = view.paused_ns if is_known(view.paused_ns) else view.now_ns
    return max(0.0, (max(now_ns, state.rounds[-1].taken_ns) - state.rounds[-1].taken_ns) / 1e9)


def _progress_of(view: ViewState) -> str:
    """Say how far the dump is that is being read; "" when none is."""
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
    looks = "1 dump" if len(state.rounds) == 1 else f"{len(state.rounds)} dumps"
    return [
        Item(0, f"{format_seconds(_age_s(view, state))} ago", Ink.STRONG),
        Item(1, f"{looks}, {say_moment(view, state.rounds[-1].taken)}"),
    ]


def _paint_told(view: ViewState, size: Size) -> list[Line]:
    """Paint what is said of the dump as a whole: the odd one, the price of a stop, errors, the cost."""
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
            dated = wrap(_list_times(view, update, dump), max(1, width - 2), f" {DOT} ")
            lines += [((f" {one}", Ink.PLAIN),) for one in dated]
        if is_known(dump.collectives):
            lines += _wrapped(dump.collectives.summary, Ink.PLAIN, width, max(2, most))
        lines += paint_errors(dump.errors, width, most, can_stop=bool(list_stoppable(view)))
        facts = wrap(_list_facts(update, dump), max(1, width - 2), f" {DOT} ")
        lines += [((f" {one}", Ink.DIM),) for one in facts[: 1 if width >= 80 else 2]]
        lines += [()] if size.height >= _AIRY_HEIGHT else []
    return [fit_line(line, width) for line in lines]


def _wrapped(text: str, ink: Ink, width: int, most: int) -> list[Line]:
    lines = wrap_all(clean_text(text, _TEXT_CHARS * 3), max(1, width - 2))
    if len(lines) > most:
        lines = [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), max(1, width - 2))]
    return [((f" {line}", ink),) for line in lines]


def _summary_of(view: ViewState) -> str:
    """Return the sentence of the dump: none while its first look is read."""
    if not is_known(view.dump) or not is_known(view.dump.dump):
        return ""
    state, dump = view.dump.state, view.dump.dump
    if is_partial(state):
        return ""
    hint = " (seen once: m shows whether it moves)"
    summary = dump.summary.replace(ONCE_HINT, hint if not state.running else "")
    for error in dump.errors:  # told below, with what to do about it
        summary = summary.replace(f" ({error.reason})", "")
    return summary


def _list_times(view: ViewState, update: DumpUpdate, dump: Dump) -> list[str]:
    """List how old the log was, and with which look of a dump before this one is compared."""
    earlier = update.state.earlier
    log = say_last_write(dump, say_moment(view, dump.last_write)) if is_known(dump.last_write) else ""
    since = f"CPU since the dump of {say_moment(view, earlier.taken)}" if is_known(earlier) else ""
    return [said for said in (log, since) if said]


def _list_facts(update: DumpUpdate, dump: Dump) -> list[str]:
    """List who asked, what it cost the job and us."""
    who = "by the hang watch" if update.state.request.asker is Asker.WATCH else "by key"
    part = ", some processes" if update.state.request.pids else ""
    stopped = f"stopped the job {dump.paused_ms:.1f} ms" if dump.paused_ms else "stopped nothing"
    span = f" over {format_seconds(dump.seconds)}" if dump.rounds > 1 else ""
    looks = [f"{dump.rounds} dumps{span}"] if dump.rounds > 1 else []
    return [f"asked {who}{part}", *looks, stopped, f"py-spy {dump.spy_cpu_ms / 1000:.2f} s of CPU"]


def _paint_rows(view: ViewState, width: int) -> Iterator[Block]:
    cursor = cursor_of(view, list_rows(view))
    if view.stacks.as_tree:
        yield from paint_branches(view, cursor, width)
        return
    for member in list_members(view, main=True):
        yield from _paint_member(member, cursor, width)
    others = list_members(view, main=False)
    if others:
        row = StackRow(OTHER_THREADS)
        is_open = OTHER_THREADS in view.stacks.opened
        head = f" {_sign(is_open=is_open)} {_say_others(view, others)}"
        yield row, [paint_line(head, row == cursor, width, Ink.PLAIN)]
        if is_open:
            for member in others:
                yield from _paint_member(member, cursor, width, main=False)


def _sign(*, is_open: bool, has_stack: bool = True) -> str:
    return " " if not has_stack else "-" if is_open else "+"


def _say_others(view: ViewState, others: Sequence[RowMember]) -> str:
    count = sum(len(member.group.threads) for member in others)
    idle = view.dump.dump.idle_threads if is_known(view.dump) and is_known(view.dump.dump) else 0
    more = f", {idle} native {'one' if idle == 1 else 'ones'} without a known purpose" if idle else ""
    return f"other threads: {count} in {len(others)} group{'s' if len(others) > 1 else ''}{more}"


def _paint_member(member: RowMember, cursor: object, width: int, *, main: bool = True) -> Iterator[Block]:
    """Paint who stands together and what they do, then their stack while the group is open."""
    group = member.group
    rows = rows_of(member)
    head = (
        f"{say_count(group)}{name_processes(group.threads)}: {group.doing}" if main else name_threads(group)
    )
    texts = wrap_all(clean_text(head, _TEXT_CHARS), max(1, width - 4)) or [""]
    if len(texts) > _HEAD_LINES:
        texts = [texts[0], cut(" ".join(texts[1:]), max(1, width - 4))]
    ink = Ink.BAD if member.is_odd else Ink.PLAIN
    row = next(rows)
    sign = _sign(is_open=member.is_open, has_stack=bool(member.stack.lines))
    lines = [paint_line(f" {sign} {texts[0]}", row == cursor, width, ink)]
    lines += [fit_line(((f"   {text}", ink),), width) for text in texts[1:]]
    lines += _paint_state(group, width, main=main)
    yield row, lines
    variables = locals_of(group, member.stack.lines) if member.is_open else {}
    for place, (row, shown) in enumerate(zip(rows, member.stack.lines, strict=False)):
        text = clean_text(shown.text, _TEXT_CHARS)
        if shown.is_users:
            told = [
                fit_line(((f"         {clean_text(one, _TEXT_CHARS)}", Ink.DIM),), width)
                for one in variables.get(place, ())
            ]
            yield row, [paint_user_line(f"     {text}", shown.frame.file, row == cursor, width), *told]
        else:
            yield row, [paint_line(f"     - {text}", row == cursor, width, Ink.DIM)]


def _paint_state(group: StackGroup, width: int, *, main: bool) -> list[Line]:
    """Paint state, wait, motion and CPU of a group below its name."""
    if main:
        once = [Motion.ONCE.value] if group.motion is Motion.ONCE else []
        said = ", ".join([*list_state(group), *once])
    else:
        said = say_other(group)
    blocked = "D" in group.state or "T" in group.state or "t" in group.state
    ink = Ink.WARN if blocked and main else Ink.DIM
    texts = wrap_all(clean_text(said, _TEXT_CHARS), max(1, width - 6))
    return [fit_line(((f"     {text}", ink),), width) for text in texts[:_STATE_LINES]]


def _window(blocks: Iterator[Block], cursor: object, room: int) -> list[Line]:
    """Return the ``room`` lines that hold the cursor's row; no more rows are painted than needed."""
    lines: list[Line] = []
    start = end = -1
    for row, painted in blocks:
        if row == cursor:
            start, end = len(lines), len(lines) + len(painted)
        lines += painted
        if start >= 0 and len(lines) >= max(room, end):
            break
    first = max(0, min(end - room, start))
    return lines[first : first + room]
