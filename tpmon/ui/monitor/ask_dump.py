"""Ask for looks at the stacks of the job: what each key asks for, and what it says instead. Pure.

Only two keys stop anything, a look with a stop and one at C frames, after their price stood on the
screen. Nothing here waits: a request goes to the session, and what comes of it arrives as DumpUpdates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.dump import Asker, DumpError, DumpRequest, DumpState, ErrorKind
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.units import count_of
from tpmon.ui.monitor.actions import NO_ROW
from tpmon.ui.monitor.controls import Asked
from tpmon.ui.monitor.panes.stack_rows import has_unseen, is_priced, shown_dump
from tpmon.ui.monitor.state import Overlay, Price, ViewState

LOOKS = 3
LOOKS_EVERY_S = 5.0


def ask_job(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Show the stacks of the whole job: those of now, or what the hang watch found while nobody looked."""
    running = is_known(view.dump) and view.dump.state.running
    if view.overlay is not Overlay.STACKS and (running or has_unseen(view)):
        return open_stacks(view), NOT_APPLICABLE
    return _ask(view, DumpRequest(Asker.KEY))


def ask_row(view: ViewState, rows: Sequence[int]) -> Asked:
    """Show the stacks of the process under the cursor; those of a rank with its loader workers."""
    pid = view.cursor_pid if is_known(view.cursor_pid) else rows[0] if rows else NOT_APPLICABLE
    if not is_known(pid) or not is_known(view.frame):
        return replace(view, message=NO_ROW), NOT_APPLICABLE
    family = [one.pid for one in view.frame.processes if pid in (one.pid, one.rank_pid)]
    return _ask(view, DumpRequest(Asker.KEY, pids=tuple(sorted({pid, *family}))))


def ask_looks(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Look three times at what is shown, to tell what moves from what is frozen."""
    request = DumpRequest(Asker.KEY, rounds=LOOKS, every_s=LOOKS_EVERY_S, pids=_pids_shown(view))
    return _ask(view, request)


def ask_stop(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Say what a look with a stop costs; pressed again, pay it."""
    those = tuple(sorted(error.pid for error in list_stoppable(view)))
    return _pay(
        view, Price.STOP, DumpRequest(Asker.KEY, pids=_pids_shown(view), block=True, block_pids=those)
    )


def ask_native(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Say what the C frames of what is shown cost; pressed again, pay it."""
    return _pay(view, Price.NATIVE, DumpRequest(Asker.KEY, pids=_pids_shown(view), native=True))


def ask_variables(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Say what the variables of the user's frames cost; pressed again, pay it."""
    return _pay(view, Price.VARIABLES, DumpRequest(Asker.KEY, pids=_pids_shown(view), variables=True))


def _pay(view: ViewState, price: Price, request: DumpRequest) -> Asked:
    if not is_priced(view, price):
        stacks = replace(view.stacks, priced_ns=view.now_ns, priced=price)
        return replace(view, stacks=stacks), NOT_APPLICABLE
    return _ask(view, request)


def say_price(view: ViewState) -> str:
    """Say what the look costs whose key was pressed once; "" where none was."""
    price = view.stacks.priced
    if not is_priced(view, price):
        return ""
    if price is Price.STOP:
        who = count_of(len(list_stoppable(view)), "process", "processes")
        return (
            f"! R again reads {who} with a stop: each stands still for it, mostly for less than 5 ms. "
            "Any other key: no stop."
        )
    who = count_of(_count_shown(view), "process", "processes")
    if price is Price.NATIVE:
        return (
            f"! N again reads the C frames of {who} with a stop: a loader worker stands still for 0.03 to "
            "0.1 s, a rank for up to 1 s; py-spy takes 0.1 to 1 s of CPU and up to 0.6 GB for each, two at a "
            "time. D, then N, takes one process. Any other key: no stop."
        )
    return (
        f"! L again reads the variables of {who}: nothing is stopped, py-spy takes up to twice the CPU. "
        "Values are cut and what looks like a secret is hidden, but read them before you pass them on."
    )


def _count_shown(view: ViewState) -> int:
    """Count the processes that a look at what is shown would read."""
    if is_known(view.dump) and view.dump.state.asked:
        return view.dump.state.asked
    return len(view.frame.processes) if is_known(view.frame) else 0


def open_stacks(view: ViewState) -> ViewState:
    """Show the stacks over the panes."""
    return replace(view, overlay=Overlay.STACKS, behind=Overlay.NONE, scroll=0)


def forget_price(view: ViewState) -> ViewState:
    """Take prices and offers off the screen: another key was pressed."""
    if not is_known(view.stacks.priced_ns) and not is_known(view.offered_ns):
        return view
    stacks = replace(view.stacks, priced_ns=NOT_APPLICABLE)
    return replace(view, stacks=stacks, offered_ns=NOT_APPLICABLE)


def keep_own_price(before: ViewState, view: ViewState) -> ViewState:
    """Take each price and offer that stood there ``before`` off the screen: this key has one of its own."""
    was, now = before.stacks, view.stacks
    if (now.priced_ns, now.priced) == (was.priced_ns, was.priced):
        view = replace(view, stacks=replace(now, priced_ns=NOT_APPLICABLE))
    if view.offered_ns == before.offered_ns:
        view = replace(view, offered_ns=NOT_APPLICABLE)
    return view


def list_stoppable(view: ViewState) -> tuple[DumpError, ...]:
    """List the processes that a look with a stop may read: py-spy met them while their stacks changed."""
    dump = shown_dump(view)
    if not is_known(dump) or not is_known(view.dump) or view.dump.state.running or view.readonly:
        return ()
    if view.dump.state.request.block:
        return ()
    return tuple(error for error in dump.errors if error.kind is ErrorKind.FAILED)


def _pids_shown(view: ViewState) -> tuple[int, ...]:
    return view.dump.state.request.pids if is_known(view.dump) else ()


def _ask(view: ViewState, request: DumpRequest) -> Asked:
    opened = open_stacks(forget_price(view))
    if is_known(view.frame) and has_ended(view.frame):
        return replace(opened, message="the job has ended: no stack is left to read"), NOT_APPLICABLE
    state = view.dump.state if is_known(view.dump) else NOT_APPLICABLE
    if isinstance(state, DumpState) and state.running:
        return replace(opened, message="a dump is read already: wait for its end"), NOT_APPLICABLE
    stacks = replace(opened.stacks, asked_ns=view.now_ns)
    return replace(opened, stacks=stacks, dump=NOT_APPLICABLE), request


def has_ended(frame: Frame) -> bool:
    """Tell whether the job is over."""
    return frame.target.state is TargetState.ENDED
