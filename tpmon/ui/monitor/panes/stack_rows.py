"""Know the rows of the stacks: which there are, which one the cursor is on, which are open. Pure.

A row is named by the mark of its group, so that the cursor stays where it is while a dump grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tpmon.model.dump import Asker, Dump, DumpState, ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.doctor import GroupStack, TreeLine
from tpmon.ui.kit.keys import Move, Overlay, moved
from tpmon.ui.monitor.state import OTHER_THREADS, WHOLE_GROUP, Price, StackRow, StacksView, ViewState

PRICE_SECONDS = 15.0
"""How long the price of a look stands on the screen, waiting for its second key press."""


@dataclass(frozen=True, slots=True)
class RowMember:
    """Hold a group with its collapsed stack, and whether it is open now."""

    group: StackGroup
    stack: GroupStack
    is_open: bool
    is_odd: bool


def shown_dump(view: ViewState) -> Applicable[Dump]:
    """Return the folded dump that is on the screen, if any thread was read."""
    return view.dump.dump if is_known(view.dump) else NOT_APPLICABLE


def is_partial(state: DumpState) -> bool:
    """Tell whether not all processes of the first look are read: who is odd is not known yet."""
    return state.running and len(state.rounds) == 1 and state.answered < state.asked


def list_members(view: ViewState, *, main: bool) -> list[RowMember]:
    """List the groups of main threads, or those of all other threads, in the order shown."""
    if not is_known(view.dump) or not is_known(view.dump.dump):
        return []
    dump, stacks = view.dump.dump, view.stacks
    odd = NOT_APPLICABLE if is_partial(view.dump.state) else dump.odd_one_out
    found = []
    for group, stack in zip(dump.groups, view.dump.stacks, strict=True):
        is_main = group.threads[0].kind is ThreadKind.MAIN
        if is_main is not main:
            continue
        is_odd = is_main and is_known(odd) and any(one.pid == odd.pid for one in group.threads)
        is_open = stack.mark in stacks.opened or (is_odd and stack.mark not in stacks.closed)
        found.append(RowMember(group, _in_full(group, stack) if stacks.whole else stack, is_open, is_odd))
    return found


def _in_full(group: StackGroup, stack: GroupStack) -> GroupStack:
    """Return every frame of a group; those that the collapsed stack has as the user's stand out."""
    users = {line.frame for line in stack.lines if line.is_users}
    frames = group.frames if is_known(group.frames) else ()
    lines = tuple(
        ShownFrame(f"{one.function} {one.file.rpartition('/')[2]}:{one.line}", one in users, one)
        for one in frames
    )
    return GroupStack(stack.mark, lines)


def list_branches(view: ViewState) -> list[TreeLine]:
    """List the lines of the merged stacks that are not below a closed one."""
    found: list[TreeLine] = []
    hidden: set[int] = set()
    for line in view.dump.tree if is_known(view.dump) else ():
        if line.parent in hidden:
            hidden.add(line.mark)
            continue
        found.append(line)
        if line.mark in view.stacks.closed:
            hidden.add(line.mark)
    return found


def list_rows(view: ViewState) -> tuple[StackRow, ...]:
    """List the rows that the cursor walks, in the order shown."""
    if view.stacks.as_tree:
        return tuple(StackRow(line.mark) for line in list_branches(view))
    rows: list[StackRow] = []
    for member in list_members(view, main=True):
        rows += rows_of(member)
    others = list_members(view, main=False)
    if others:
        rows.append(StackRow(OTHER_THREADS))
        if OTHER_THREADS in view.stacks.opened:
            for member in others:
                rows += rows_of(member)
    return tuple(rows)


def rows_of(member: RowMember) -> Iterator[StackRow]:
    """Yield the row of a group, and those of its stack while it is open."""
    yield StackRow(member.stack.mark)
    if member.is_open:
        for line in range(len(member.stack.lines)):
            yield StackRow(member.stack.mark, line)


def cursor_of(view: ViewState, rows: tuple[StackRow, ...]) -> Applicable[StackRow]:
    """Return the row under the cursor: the one chosen, else its group, else the first."""
    chosen = view.stacks.cursor
    if is_known(chosen):
        if chosen in rows:
            return chosen
        if StackRow(chosen.mark) in rows:
            return StackRow(chosen.mark)
    return rows[0] if rows else NOT_APPLICABLE


def action_walk(view: ViewState, move: Move, page: int) -> ViewState:
    """Move the cursor through the rows of the stacks."""
    rows = list_rows(view)
    cursor = cursor_of(view, rows)
    if not is_known(cursor):
        return view
    place = moved(rows.index(cursor), move, page, len(rows) - 1)
    return _with(view, replace(view.stacks, cursor=rows[place]))


def action_fold(view: ViewState, *, opens: bool | None = None) -> ViewState:
    """Open or close the group under the cursor; without ``opens`` turn it.

    What is open already is gone into; from a line the way leads to its group first.
    """
    rows = list_rows(view)
    cursor = cursor_of(view, rows)
    if not is_known(cursor):
        return replace(view, message="no stack to open yet")
    mark, stacks = cursor.mark, view.stacks
    is_open = _is_open(view, mark)
    if opens is False and cursor.line != WHOLE_GROUP:
        return _with(view, replace(stacks, cursor=StackRow(mark)))
    if opens is is_open:
        inner = StackRow(mark, max(0, cursor.line))
        return _with(view, replace(stacks, cursor=inner if inner in rows else StackRow(mark)))
    if is_open:
        opened, closed = stacks.opened - {mark}, stacks.closed | {mark}
    else:
        opened, closed = stacks.opened | {mark}, stacks.closed - {mark}
    return _with(view, replace(stacks, opened=opened, closed=closed, cursor=StackRow(mark)))


def action_tree(view: ViewState) -> ViewState:
    """Merge the stacks into a tree, or show group below group again."""
    return _with(view, replace(view.stacks, as_tree=not view.stacks.as_tree, cursor=NOT_APPLICABLE))


def action_whole(view: ViewState) -> ViewState:
    """Show the frames of libraries too, or one word for each run of them again."""
    return _with(view, replace(view.stacks, whole=not view.stacks.whole, as_tree=False))


def _is_open(view: ViewState, mark: int) -> bool:
    if view.stacks.as_tree:
        return mark not in view.stacks.closed
    if mark == OTHER_THREADS:
        return mark in view.stacks.opened
    members = [*list_members(view, main=True), *list_members(view, main=False)]
    return any(member.is_open for member in members if member.stack.mark == mark)


def frame_under_cursor(view: ViewState) -> Applicable[ShownFrame]:
    """Return the frame that an editor shall open: the line under the cursor, or where its group is.

    Of a whole group that is the innermost line of the user's code.
    """
    cursor = cursor_of(view, list_rows(view))
    if not is_known(cursor):
        return NOT_APPLICABLE
    if view.stacks.as_tree:
        branch = next(line for line in list_branches(view) if line.mark == cursor.mark)
        return branch.shown
    members = [*list_members(view, main=True), *list_members(view, main=False)]
    lines = next((one.stack.lines for one in members if one.stack.mark == cursor.mark), ())
    if not lines:
        return NOT_APPLICABLE
    if cursor.line != WHOLE_GROUP:
        return lines[cursor.line] if cursor.line < len(lines) else lines[-1]
    return next((line for line in reversed(lines) if line.is_users), lines[-1])


def is_priced(view: ViewState, price: Price) -> bool:
    """Tell whether this price is on the screen and the next press of its key pays it."""
    priced_ns = view.stacks.priced_ns
    if view.stacks.priced is not price:
        return False
    return is_known(priced_ns) and view.now_ns - priced_ns < PRICE_SECONDS * 1e9


def first_look_ns(view: ViewState) -> Applicable[int]:
    """Return when the first look of the dump was read, which tells one dump from another."""
    if not is_known(view.dump) or not view.dump.state.rounds:
        return NOT_APPLICABLE
    return view.dump.state.rounds[0].taken_ns


def has_unseen(view: ViewState) -> bool:
    """Tell whether the hang watch has left a dump that nobody looked at."""
    if not is_known(view.dump) or view.dump.state.request.asker is not Asker.WATCH:
        return False
    return not view.dump.state.running and first_look_ns(view) not in (NOT_APPLICABLE, view.stacks.seen_ns)


def note_seen(view: ViewState) -> ViewState:
    """Remember which dump was on the screen."""
    looked_ns = first_look_ns(view)
    if view.overlay is not Overlay.STACKS or view.stacks.seen_ns == looked_ns or not is_known(looked_ns):
        return view
    return _with(view, replace(view.stacks, seen_ns=looked_ns))


def _with(view: ViewState, stacks: StacksView) -> ViewState:
    return replace(view, stacks=stacks)
