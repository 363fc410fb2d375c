"""Ask for dumps, samples, captures and bundles: the price first, then the action.

Only captures and dumps with a stop or with C frames affect the run, each after its price was shown. Nothing
here waits: results arrive as updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.dump import Asker, DumpError, DumpRequest, DumpState, ErrorKind
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.results.capture import (
    CAPTURE_ACTS,
    CAPTURE_WAITS,
    READS,
    CaptureAnswer,
    CaptureChoice,
    CaptureRequest,
    CaptureStage,
    CaptureUpdate,
    Change,
    plan_anew,
)
from tpmon.model.results.sample import SampleRequest, say_sampling_price
from tpmon.model.units import count_of
from tpmon.ui.kit.keys import Overlay, action_close, action_overlay
from tpmon.ui.monitor.controls import Asked, Errand
from tpmon.ui.monitor.state import NO_ROW, Price, ViewState, has_unseen, is_priced, shown_dump

CANCELS = "cancels at the end of the step; no file is left"


def ask_plan(view: ViewState, rows: Sequence[int]) -> Asked:
    """Request the price of a capture, or show again what waits for an answer."""
    if _is_open(view):
        return _open(view), NOT_APPLICABLE
    asked = CaptureUpdate(CaptureStage.ASKED, READS)
    chosen = is_known(view.cursor_pid) and view.cursor_pid in rows
    rank = view.cursor_pid if chosen else _find_lowest(view)
    return _open(replace(view, capture=asked)), CaptureRequest(rank)


def ask_go(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Agree to the question on the screen."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    answer = CaptureAnswer(view.capture.stage, goes=True, choice=view.capture.choice)
    return replace(view, message="goes on ..."), answer


def ask_end(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Cancel a capture that is under way, or leave a price."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    answer = CaptureAnswer(view.capture.stage, goes=False)
    if view.capture.stage in CAPTURE_ACTS:
        return replace(view, message=CANCELS), answer
    return action_close(view), answer


def ask_change(view: ViewState, _rows: Sequence[int], change: Change) -> Asked:
    """Change the choice, show it at once and plan anew, without asking anything of the run."""
    choice = find_change(view, change)
    if not is_known(view.capture) or not is_known(choice):
        return view, NOT_APPLICABLE
    return replace(view, capture=plan_anew(view.capture, choice), scroll=0), choice


def find_change(view: ViewState, change: Change) -> Applicable[CaptureChoice]:
    """Return what a key would choose; none where that is the same, or the question is gone."""
    update = view.capture
    if not can_choose(view) or not is_known(update) or not is_known(update.offers):
        return NOT_APPLICABLE
    choice = change(update.choice, update.offers)
    return choice if choice != update.choice else NOT_APPLICABLE


def can_choose(view: ViewState) -> bool:
    """Tell whether the plan or the price on the screen can still be changed."""
    update = view.capture
    if view.overlay is not Overlay.CAPTURE or not is_known(update) or not is_known(update.offers):
        return False
    return update.stage is CaptureStage.ASKED or update.stage in CAPTURE_WAITS


def is_asking(view: ViewState) -> bool:
    """Tell whether a price on the screen waits for an answer."""
    shown = view.overlay is Overlay.CAPTURE
    return shown and is_known(view.capture) and view.capture.stage in CAPTURE_WAITS


def is_acting(view: ViewState) -> bool:
    """Tell whether the run is working for a capture."""
    return is_known(view.capture) and view.capture.stage in CAPTURE_ACTS


def can_leave(view: ViewState) -> bool:
    """Tell whether leaving the shown capture also ends it."""
    return view.overlay is Overlay.CAPTURE and _is_open(view)


def say_toast(view: ViewState, update: CaptureUpdate) -> str:
    """Write for the last line what happens to a capture that is not on the screen; "" for nothing."""
    if view.overlay is Overlay.CAPTURE or update.stage in (CaptureStage.ASKED, CaptureStage.ENDED):
        return ""
    if update.stage in CAPTURE_WAITS:
        return "the capture waits for a yes: 8 shows its price"
    return f"{update.line} (t cancels)"


def _is_open(view: ViewState) -> bool:
    return is_known(view.capture) and view.capture.stage is not CaptureStage.ENDED


def _open(view: ViewState) -> ViewState:
    return view if view.overlay is Overlay.CAPTURE else action_overlay(view, Overlay.CAPTURE)


def _find_lowest(view: ViewState) -> Applicable[int]:
    """Return the process of the lowest rank here."""
    rows = view.frame.ranks if is_known(view.frame) else ()
    numbered = sorted((row.rank, row.pid) for row in rows if is_known(row.rank))
    first = [pid for _rank, pid in numbered] or [row.pid for row in rows]
    return first[0] if first else NOT_APPLICABLE


LOOKS = 3
LOOKS_EVERY_S = 5.0


def ask_job(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Show the stacks of the whole job, of now or from an unseen dump of the hang watch."""
    running = is_known(view.dump) and view.dump.state.running
    if view.overlay is not Overlay.STACKS and (running or has_unseen(view)):
        return _open_over(view, Overlay.STACKS), NOT_APPLICABLE
    return _ask(view, DumpRequest(Asker.KEY))


def ask_row(view: ViewState, rows: Sequence[int]) -> Asked:
    """Show the stacks of the process under the cursor, a rank with its loader workers."""
    pid = view.cursor_pid if is_known(view.cursor_pid) else rows[0] if rows else NOT_APPLICABLE
    if not is_known(pid) or not is_known(view.frame):
        return replace(view, message=NO_ROW), NOT_APPLICABLE
    family = [one.pid for one in view.frame.processes if pid in (one.pid, one.rank_pid)]
    return _ask(view, DumpRequest(Asker.KEY, pids=tuple(sorted({pid, *family}))))


def ask_looks(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Read what is shown three times, to tell what moves from what is frozen."""
    pids = view.dump.state.request.pids if is_known(view.dump) else ()
    return _ask(view, DumpRequest(Asker.KEY, rounds=LOOKS, every_s=LOOKS_EVERY_S, pids=pids))


def ask_priced(view: ViewState, _rows: Sequence[int], price: Price) -> Asked:
    """Show the price of a dump that stops a process, reads C frames or variables; pressed again, read it."""
    if not is_priced(view, price):
        stacks = replace(view.stacks, priced_ns=view.now_ns, priced=price)
        return replace(view, stacks=stacks), NOT_APPLICABLE
    stops = price is Price.STOP
    those = tuple(sorted(error.pid for error in list_stoppable(view))) if stops else ()
    pids = view.dump.state.request.pids if is_known(view.dump) else ()
    request = DumpRequest(Asker.KEY, pids=pids, block=stops, block_pids=those)
    dearer = replace(request, native=price is Price.NATIVE, variables=price is Price.VARIABLES)
    return _ask(view, dearer)


def say_dump_price(view: ViewState) -> str:
    """Write the price of the dump whose key was pressed once; "" for none."""
    price = view.stacks.priced
    if not is_priced(view, price):
        return ""
    if price is Price.STOP:
        who = count_of(len(list_stoppable(view)), "process", "processes")
        return (
            f"! R again reads {who} with a stop: each pauses for it, mostly for less than 5 ms. "
            "Any other key: no stop."
        )
    every = len(view.frame.processes) if is_known(view.frame) else 0
    asked = view.dump.state.asked if is_known(view.dump) else 0
    who = count_of(asked or every, "process", "processes")
    if price is Price.NATIVE:
        return (
            f"! N again reads the C frames of {who} with a stop: a loader worker pauses for 0.03 to "
            "0.1 s, a rank for up to 1 s; py-spy takes 0.1 to 1 s of CPU and up to 0.6 GB for each, two at a "
            "time. D, then N, takes one process. Any other key: no stop."
        )
    return (
        f"! L again reads the variables of {who}: nothing is stopped, py-spy takes up to twice the CPU. "
        "Values are cut and what looks like a secret is hidden, but read them before you pass them on."
    )


def keep_own_price(before: ViewState, view: ViewState) -> ViewState:
    """Remove the prices and offers of ``before`` from the screen: another key was pressed."""
    was, now = before.stacks, view.stacks
    if (now.priced_ns, now.priced) == (was.priced_ns, was.priced):
        view = replace(view, stacks=replace(now, priced_ns=NOT_APPLICABLE))
    if view.offered_ns == before.offered_ns:
        view = replace(view, offered_ns=NOT_APPLICABLE)
    return view


def list_stoppable(view: ViewState) -> tuple[DumpError, ...]:
    """List the processes that a dump with a stop may read: their stacks changed while py-spy read them."""
    dump = shown_dump(view)
    if is_known(view.playback) or not is_known(dump) or not is_known(view.dump):
        return ()
    if view.dump.state.running or view.readonly:
        return ()
    if view.dump.state.request.block:
        return ()
    return tuple(error for error in dump.errors if error.kind is ErrorKind.FAILED)


def _open_over(view: ViewState, overlay: Overlay) -> ViewState:
    return replace(view, overlay=overlay, behind=Overlay.NONE, scroll=0)


def _ask(view: ViewState, request: DumpRequest) -> Asked:
    opened = _open_over(view, Overlay.STACKS)
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


OFFER_SECONDS = 6.0
"""How long the offer stays in the last line."""


def ask_bundle(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Explain a bundle; pressed again, have it written."""
    offered_ns = view.offered_ns
    if is_known(offered_ns) and view.now_ns - offered_ns < OFFER_SECONDS * 1e9:
        asked = replace(view, offered_ns=NOT_APPLICABLE, message="writes a bundle, some seconds ...")
        return asked, Errand.WRITE_BUNDLE
    looks = f"{LOOKS} dumps in {LOOKS * LOOKS_EVERY_S:g} s, no stop"
    offer = f"b again writes a bundle here: {'no stacks' if view.no_stacks else looks}, files for a ticket"
    return replace(view, offered_ns=view.now_ns, message=offer), NOT_APPLICABLE


def ask_recording(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Have the job recorded from what is at hand on, or end that."""
    said = "ends the recording ..." if view.records else "begins to record ..."
    return replace(view, message=said), Errand.RECORD


def open_price(view: ViewState, rows: Sequence[int]) -> Asked:
    """Show the price of sampling the process under the cursor, or the progress."""
    request = view.to_sample if is_running(view) else choose_request(view, rows)
    return _open_over(replace(view, to_sample=request), Overlay.SAMPLE), NOT_APPLICABLE


def price_whole_job(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Show the price of sampling the whole job, its processes in turns."""
    whole = replace(view, to_sample=SampleRequest(everyone=True))
    return _open_over(whole, Overlay.SAMPLE), NOT_APPLICABLE


def start_sample(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Start the sampling of the price on the screen."""
    request = view.to_sample if is_known(view.to_sample) else choose_request(view, ())
    return replace(view, to_sample=request, sample=NOT_APPLICABLE, scroll=0), request


def is_running(view: ViewState) -> bool:
    """Tell whether stacks are being sampled; the end of the job ends that too."""
    ended = is_known(view.frame) and has_ended(view.frame)
    return is_known(view.sample) and view.sample.state.running and not ended


def choose_request(view: ViewState, rows: Sequence[int]) -> SampleRequest:
    """Choose the process under the cursor, a rank with its workers, else the lowest rank."""
    pid = view.cursor_pid
    shown = pid in rows or view.overlay in (Overlay.DETAILS, Overlay.ENVIRONMENT)
    if is_known(pid) and shown and view.overlay is not Overlay.STACKS:
        return SampleRequest(pids=(pid,))
    lowest = _find_lowest(view)
    return SampleRequest(pids=(lowest,) if is_known(lowest) else ())


def say_next_price(view: ViewState) -> str:
    """Write what the next press of the key samples, and its price."""
    if not is_known(view.frame) or has_ended(view.frame):
        return ""
    request = view.to_sample if is_known(view.to_sample) else choose_request(view, ())
    sampled = [
        one
        for one in view.frame.processes
        if one.role in (Role.RANK, Role.WORKER)
        and (request.everyone or one.pid in request.pids or one.rank_pid in request.pids)
    ]
    # The rows do not tell which helpers run Python.
    number = known_or(view.frame.target.local_stacks, 0) if request.everyone else 0
    price = say_sampling_price(max(1, number, len(sampled)), request.seconds, request.rate_hz)
    return f"f {price} ({_name_whom(view, view.frame, request)})"


def _name_whom(view: ViewState, frame: Frame, request: SampleRequest) -> str:
    if request.everyone and view.node:
        return f"the whole job on {view.node}"
    if request.everyone:
        return "the whole job; f alone takes one rank"
    for process in frame.processes:
        if process.pid in request.pids and process.role is Role.RANK:
            name = f"rank {process.rank}" if is_known(process.rank) else f"process {process.pid}"
            return f"{name} with its workers; F takes the whole job"
    return f"process {min(request.pids, default=0)}; F takes the whole job"
