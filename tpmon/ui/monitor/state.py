"""The state of the live screen, and what keys do to it: functions from ViewState to ViewState. Pure.

Rows are named by PID, those of the stacks by the mark of their group, so that the cursor keeps its place
while a dump grows. Knows nothing of textual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from tpmon.model.dump import Asker, Dump, DumpState, ShownFrame, StackGroup
from tpmon.model.frame import Event, Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.capture import CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, GroupStack, SampleUpdate, TreeLine, Update
from tpmon.model.results.sample import SampleRequest
from tpmon.ui.kit.keys import Move, Overlay, ScreenState, action_overlay, moved, next_of

if TYPE_CHECKING:  # a live screen does without it
    from tpmon.model.results.replay import Playback


class Pane(IntEnum):
    """Name the panes by the digit that zooms them."""

    RANKS = 1
    CPU = 2
    WORKERS = 3
    GPUS = 4
    EVENTS = 5


PANES_SHOWN = (Pane.GPUS, Pane.RANKS, Pane.CPU, Pane.WORKERS, Pane.EVENTS)
"""From the top of the screen."""


class SortBy(Enum):
    """Name the columns to sort the workers pane by."""

    CPU = "cpu"
    MEMORY = "memory"
    TIME = "time"
    """Age, oldest first."""
    PID = "pid"


WHOLE_GROUP = -1
OTHER_THREADS = 0
"""The mark of the row that folds all threads but the main ones."""


@dataclass(frozen=True, slots=True)
class StackRow:
    """Name one row of the stacks: a group by its mark, or a line of its stack by number."""

    mark: int
    line: int = WHOLE_GROUP


class Price(str, Enum):
    """Name the kind of a dump that needs its key pressed twice; the value is that key."""

    STOP = "R"
    NATIVE = "N"
    VARIABLES = "L"


@dataclass(frozen=True, slots=True)
class StacksView:
    """Hold what keys have done to the stacks; times are CLOCK_MONOTONIC.

    The outlier's group is open unless in ``closed``, the others are closed unless in ``opened``. ``asked_ns``
    is set until the session answers, ``priced_ns`` while the price of ``priced`` is shown, and ``seen_ns``
    names the dump that was seen.
    """

    cursor: Applicable[StackRow] = NOT_APPLICABLE
    opened: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    asked_ns: Applicable[int] = NOT_APPLICABLE
    priced_ns: Applicable[int] = NOT_APPLICABLE
    priced: Price = Price.STOP
    seen_ns: Applicable[int] = NOT_APPLICABLE
    as_tree: bool = False
    """Merge the stacks of main threads into a tree, instead of listing groups."""
    whole: bool = False
    """Show every frame, also those of libraries."""


@dataclass(frozen=True, slots=True)
class ViewState(ScreenState):
    """Hold everything that the picture depends on.

    Ages are counted from ``now_ns``, CLOCK_MONOTONIC at painting, so that a stalled session is seen. While
    ``paused_ns`` is set, ``frame`` stays and sampling goes on.
    """

    now_ns: int
    interval_s: float
    frame: Known[Frame] = Missing("waiting for the first reading")
    pulses: tuple[Pulse, ...] = ()
    events: tuple[Event, ...] = ()
    """The events since attaching, oldest first, at most 500, of which everyday ones go first."""
    paused_ns: Applicable[int] = NOT_APPLICABLE
    zoom: Applicable[Pane] = NOT_APPLICABLE
    focus: Pane = Pane.WORKERS
    cursor_pid: Applicable[int] = NOT_APPLICABLE
    """The PID of the row under the cursor, which stays when rows move."""
    sort: SortBy = SortBy.CPU
    readonly: bool = False
    """Offer nothing that stops a process of the job."""
    no_stacks: bool = False
    """Offer no sampling of stacks; a key may still ask for a dump."""
    dump: Applicable[DumpUpdate] = NOT_APPLICABLE
    """The newest dump of the job's stacks, also while it is read."""
    stacks: StacksView = StacksView()
    offered_ns: Applicable[int] = NOT_APPLICABLE
    """When the bundle key explained itself: the next press writes one."""
    capture: Applicable[CaptureUpdate] = NOT_APPLICABLE
    """The last capture: its price, its progress, its result."""
    sample: Applicable[SampleUpdate] = NOT_APPLICABLE
    """The newest samples of the job's stacks, also while they grow."""
    to_sample: Applicable[SampleRequest] = NOT_APPLICABLE
    """What the sampling key asks for next; its price is on the screen."""
    captured: Applicable[str] = NOT_APPLICABLE
    """The trace that was captured last."""
    records: bool = False
    """The job is recorded into a file."""
    from_list: bool = False
    """Whether esc goes back to what the screen was opened from."""
    node: str = ""
    """The node of a fleet that the job runs on, "" for this machine."""
    playback: Applicable[Playback] = NOT_APPLICABLE
    """Of a recording: then ``now_ns`` is the moment that is shown."""
    time_text: str = ""
    """The time that is being typed."""
    following: str = ""
    """The bottleneck of the demo that comes after this one; "" outside of the demo."""

    @property
    def typed(self) -> str:
        """Return the line while it is typed, else ""."""
        if self.overlay is Overlay.TIME:
            return f":{self.time_text}_"
        return super(ViewState, self).typed  # noqa: UP008  # the slotted class is made anew


def with_update(view: ViewState, update: Update, events: tuple[Event, ...], now_ns: int) -> ViewState:
    """Return the view of another second; that of a recording counts ages by the clock of its Frame."""
    view = replace(view, frame=update.frame, pulses=update.pulses, events=events, now_ns=now_ns)
    if not is_known(update.playback):
        return view
    frame = update.frame
    return replace(view, playback=update.playback, now_ns=frame.taken_ns, interval_s=frame.interval_s)


INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)
PANES_WITH_ROWS = (Pane.RANKS, Pane.WORKERS)


def action_pause(view: ViewState) -> ViewState:
    """Freeze the picture, or let it go on."""
    return replace(view, paused_ns=NOT_APPLICABLE if is_known(view.paused_ns) else view.now_ns)


NO_ROW = "no process in this pane, tab goes to the next one"


def action_zoom(view: ViewState, pane: Pane) -> ViewState:
    """Give one pane the whole screen, or show all panes again."""
    if view.zoom == pane:
        return replace(view, zoom=NOT_APPLICABLE, scroll=0)
    return replace(_focused(view, pane), zoom=pane)


def action_focus(view: ViewState, step: int) -> ViewState:
    """Focus the next or the previous pane; it takes the place of a zoomed one."""
    shown = [pane for pane in PANES_SHOWN if pane is not Pane.GPUS or _has_cards(view) or pane is view.focus]
    pane = next_of(shown, view.focus, step)
    moved = _focused(view, pane)
    return replace(moved, zoom=pane) if is_known(view.zoom) else moved


def _has_cards(view: ViewState) -> bool:
    return is_known(view.frame) and is_known(view.frame.gpus) and bool(view.frame.gpus)


def action_row_overlay(view: ViewState, overlay: Overlay, rows: Sequence[int]) -> ViewState:
    """Open the details or the environment of the row under the cursor, else of the first."""
    if view.overlay is overlay:
        return action_overlay(view, overlay)
    if is_known(view.cursor_pid):
        return replace(view, overlay=overlay, scroll=0)
    if not rows:
        return replace(view, message=NO_ROW)
    return replace(view, overlay=overlay, scroll=0, cursor_pid=rows[0])


def action_sort(view: ViewState, sort: SortBy) -> ViewState:
    """Sort the workers by one column, largest first."""
    return replace(view, sort=sort, sort_reversed=False)


def action_sort_next(view: ViewState) -> ViewState:
    """Sort the workers by the next column."""
    return action_sort(view, next_of(tuple(SortBy), view.sort))


def action_filter(view: ViewState) -> ViewState:
    """Open the filter line and focus the pane that it filters."""
    return replace(_focused(view, Pane.WORKERS), overlay=Overlay.FILTER)


def action_slower(view: ViewState) -> ViewState:
    """Read less often: the next longer interval, at most 10 s."""
    longer = [seconds for seconds in INTERVALS_S if seconds > view.interval_s]
    return replace(view, interval_s=longer[0]) if longer else view


def action_faster(view: ViewState) -> ViewState:
    """Read more often: the next shorter interval, at least 0.5 s."""
    shorter = [seconds for seconds in INTERVALS_S if seconds < view.interval_s]
    return replace(view, interval_s=shorter[-1]) if shorter else view


def action_move(
    view: ViewState, move: Move, rows: tuple[int, ...], page: int, scroll_limit: int
) -> ViewState:
    """Move the cursor through ``rows``, or scroll where there are none or under an overlay."""
    if view.overlay is not Overlay.NONE or not rows:
        return replace(view, scroll=moved(view.scroll, move, page, scroll_limit))
    if not is_known(view.cursor_pid) or view.cursor_pid not in rows:
        return replace(view, cursor_pid=rows[-1] if move is Move.LAST else rows[0])
    return replace(view, cursor_pid=rows[moved(rows.index(view.cursor_pid), move, page, len(rows) - 1)])


def keep_cursor(view: ViewState, rows: tuple[int, ...], before: tuple[int, ...]) -> ViewState:
    """Move the cursor to the row that replaced one that is gone; an overlay keeps its process, to say so."""
    if not is_known(view.cursor_pid) or view.cursor_pid in rows or view.overlay is not Overlay.NONE:
        return view
    if not rows or view.cursor_pid not in before:
        return replace(view, cursor_pid=NOT_APPLICABLE)
    return replace(view, cursor_pid=rows[min(before.index(view.cursor_pid), len(rows) - 1)])


def _focused(view: ViewState, pane: Pane) -> ViewState:
    if view.focus is pane:
        return replace(view, scroll=0)
    return replace(view, focus=pane, cursor_pid=NOT_APPLICABLE, scroll=0)


PRICE_SECONDS = 15.0
"""How long the price of a dump is shown, waiting for the second key press."""


@dataclass(frozen=True, slots=True)
class RowMember:
    """Hold a group with its collapsed stack, and whether it is open now."""

    group: StackGroup
    stack: GroupStack
    is_open: bool
    is_odd: bool


def shown_dump(view: ViewState) -> Applicable[Dump]:
    """Return the dump on the screen, if any thread was read."""
    return view.dump.dump if is_known(view.dump) else NOT_APPLICABLE


def is_partial(state: DumpState) -> bool:
    """Tell whether some processes of the first look are unread, so that the outlier is unknown yet."""
    return state.running and len(state.rounds) == 1 and state.answered < state.asked


def list_members(view: ViewState, *, main: bool | None = None) -> list[RowMember]:
    """List the groups in the order shown, of main threads, of all others, or both."""
    if not is_known(view.dump) or not is_known(view.dump.dump):
        return []
    dump, stacks = view.dump.dump, view.stacks
    odd = NOT_APPLICABLE if is_partial(view.dump.state) else dump.odd_one_out
    found = []
    for group, stack in zip(dump.groups, view.dump.stacks, strict=True):
        is_main = group.threads[0].kind is ThreadKind.MAIN
        if main is (not is_main):
            continue
        is_odd = is_main and is_known(odd) and any(one.pid == odd.pid for one in group.threads)
        is_open = stack.mark in stacks.opened or (is_odd and stack.mark not in stacks.closed)
        found.append(RowMember(group, _in_full(group, stack) if stacks.whole else stack, is_open, is_odd))
    return found


def _in_full(group: StackGroup, stack: GroupStack) -> GroupStack:
    """Return every frame of a group, with the user's marked as in the collapsed stack."""
    users = {line.frame for line in stack.lines if line.is_users}
    frames = group.frames if is_known(group.frames) else ()
    lines = tuple(
        ShownFrame(f"{one.function} {one.file.rpartition('/')[2]}:{one.line}", one in users, one)
        for one in frames
    )
    return GroupStack(stack.mark, lines)


def list_branches(view: ViewState) -> list[TreeLine]:
    """List the lines of the merged stacks, without those below closed ones."""
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
    """List the rows of the cursor, in the order shown."""
    if view.stacks.as_tree:
        return tuple(StackRow(line.mark) for line in list_branches(view))
    rows = [row for member in list_members(view, main=True) for row in rows_of(member)]
    others = list_members(view, main=False)
    if others:
        rows.append(StackRow(OTHER_THREADS))
        if OTHER_THREADS in view.stacks.opened:
            rows += [row for member in others for row in rows_of(member)]
    return tuple(rows)


def rows_of(member: RowMember) -> Iterator[StackRow]:
    """Yield the row of a group, and those of an open stack."""
    yield StackRow(member.stack.mark)
    if member.is_open:
        for line in range(len(member.stack.lines)):
            yield StackRow(member.stack.mark, line)


def cursor_of(view: ViewState, rows: tuple[StackRow, ...]) -> Applicable[StackRow]:
    """Return the row under the cursor: the chosen one, else its group, else the first."""
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
    return with_stacks(view, cursor=rows[moved(rows.index(cursor), move, page, len(rows) - 1)])


def action_fold(view: ViewState, *, opens: bool | None = None) -> ViewState:
    """Open or close the group under the cursor; without ``opens`` toggle it.

    Opening an open group enters it; closing from a line leads to its group first.
    """
    rows = list_rows(view)
    cursor = cursor_of(view, rows)
    if not is_known(cursor):
        return replace(view, message="no stack to open yet")
    mark, stacks = cursor.mark, view.stacks
    if stacks.as_tree:
        is_open = mark not in stacks.closed
    elif mark == OTHER_THREADS:
        is_open = mark in stacks.opened
    else:
        is_open = any(member.is_open for member in list_members(view) if member.stack.mark == mark)
    if opens is False and cursor.line != WHOLE_GROUP:
        return with_stacks(view, cursor=StackRow(mark))
    if opens is is_open:
        inner = StackRow(mark, max(0, cursor.line))
        return with_stacks(view, cursor=inner if inner in rows else StackRow(mark))
    if is_open:
        opened, closed = stacks.opened - {mark}, stacks.closed | {mark}
    else:
        opened, closed = stacks.opened | {mark}, stacks.closed - {mark}
    return with_stacks(view, opened=opened, closed=closed, cursor=StackRow(mark))


def action_tree(view: ViewState) -> ViewState:
    """Merge the stacks into a tree, or show group below group again."""
    return with_stacks(view, as_tree=not view.stacks.as_tree, cursor=NOT_APPLICABLE)


def action_whole(view: ViewState) -> ViewState:
    """Show the frames of libraries too, or one word for each run of them again."""
    return with_stacks(view, whole=not view.stacks.whole, as_tree=False)


def with_stacks(view: ViewState, **changes: Any) -> ViewState:
    """Return the view with other fields of its stacks."""
    return replace(view, stacks=replace(view.stacks, **changes))


def frame_under_cursor(view: ViewState) -> Applicable[ShownFrame]:
    """Return the frame for an editor: of the line under the cursor, of a group its innermost user's line."""
    cursor = cursor_of(view, list_rows(view))
    if not is_known(cursor):
        return NOT_APPLICABLE
    if view.stacks.as_tree:
        return next(line for line in list_branches(view) if line.mark == cursor.mark).shown
    lines = next((one.stack.lines for one in list_members(view) if one.stack.mark == cursor.mark), ())
    if not lines:
        return NOT_APPLICABLE
    if cursor.line != WHOLE_GROUP:
        return lines[min(cursor.line, len(lines) - 1)]
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
    looked_ns = first_look_ns(view)
    if not is_known(looked_ns) or looked_ns > view.now_ns:  # a recording shows also those of later
        return False
    return not view.dump.state.running and looked_ns != view.stacks.seen_ns


def note_seen(view: ViewState) -> ViewState:
    """Remember which dump was on the screen."""
    looked_ns = first_look_ns(view)
    if view.overlay is not Overlay.STACKS or view.stacks.seen_ns == looked_ns or not is_known(looked_ns):
        return view
    return with_stacks(view, seen_ns=looked_ns)
