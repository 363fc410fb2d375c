"""Ask for samples of stacks: the price first, then the samples. Pure.

Nothing is stopped for it, but it takes CPU for seconds, so the first press of the key says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.sample import SampleRequest, price_sampling, say_price
from tpmon.ui.monitor.ask_dump import has_ended
from tpmon.ui.monitor.controls import Asked, Errand
from tpmon.ui.monitor.state import Overlay, ViewState


def open_price(view: ViewState, rows: Sequence[int]) -> Asked:
    """Show what sampling the process under the cursor costs, or how far the sampling is."""
    request = view.to_sample if is_running(view) else choose_request(view, rows)
    return open_sample(replace(view, to_sample=request)), NOT_APPLICABLE


def price_whole_job(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Show what sampling the whole job costs, its processes in turns."""
    return open_sample(replace(view, to_sample=SampleRequest(everyone=True))), NOT_APPLICABLE


def start_sample(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Start what the price on the screen is of."""
    request = request_of(view)
    return replace(view, to_sample=request, sample=NOT_APPLICABLE, scroll=0), request


def end_sample(view: ViewState, _rows: Sequence[int]) -> Asked:
    """End the sampling early."""
    return replace(view, message="ends, and keeps what it has"), Errand.END_SAMPLING


def write_samples(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Write what is on the screen into files for other tools."""
    return replace(view, message="writes files for speedscope and flame graphs"), Errand.WRITE_SAMPLES


def open_sample(view: ViewState) -> ViewState:
    """Show the hot functions over the panes."""
    return replace(view, overlay=Overlay.SAMPLE, behind=Overlay.NONE, scroll=0)


def is_running(view: ViewState) -> bool:
    """Tell whether stacks are being sampled; the end of the job ends that too."""
    ended = is_known(view.frame) and has_ended(view.frame)
    return is_known(view.sample) and view.sample.state.running and not ended


def choose_request(view: ViewState, rows: Sequence[int]) -> SampleRequest:
    """Choose the process under the cursor, a rank with its workers; without a cursor the lowest rank."""
    pid = view.cursor_pid
    shown = pid in rows or view.overlay in (Overlay.DETAILS, Overlay.ENVIRONMENT)
    if is_known(pid) and shown and view.overlay is not Overlay.STACKS:
        return SampleRequest(pids=(pid,))
    return SampleRequest(pids=_lowest_rank(view.frame) if is_known(view.frame) else ())


def _lowest_rank(frame: Frame) -> tuple[int, ...]:
    numbered = sorted((row.rank, row.pid) for row in frame.ranks if is_known(row.rank))
    pid = numbered[0][1] if numbered else frame.ranks[0].pid if frame.ranks else NOT_APPLICABLE
    return (pid,) if is_known(pid) else ()


def request_of(view: ViewState) -> SampleRequest:
    """Return what the next press of the key asks for."""
    chosen: Applicable[SampleRequest] = view.to_sample
    return chosen if is_known(chosen) else choose_request(view, ())


def say_next_price(view: ViewState) -> str:
    """Say whom the next press of the key samples, and what that costs."""
    if not is_known(view.frame) or has_ended(view.frame):
        return ""
    request = request_of(view)
    sampled = [
        one
        for one in view.frame.processes
        if one.role in (Role.RANK, Role.WORKER)
        and (request.everyone or one.pid in request.pids or one.rank_pid in request.pids)
    ]
    # Which helpers run Python is not in their rows.
    number = known_or(view.frame.target.local_stacks, 0) if request.everyone else 0
    price = price_sampling(max(1, number, len(sampled)), request.seconds, request.rate_hz)
    return f"f {say_price(price)} ({_name_whom(view.frame, request)})"


def _name_whom(frame: Frame, request: SampleRequest) -> str:
    if request.everyone:
        return "the whole job; f alone takes one rank"
    for process in frame.processes:
        if process.pid in request.pids and process.role is Role.RANK:
            name = f"rank {process.rank}" if is_known(process.rank) else f"process {process.pid}"
            return f"{name} with its workers; F takes the whole job"
    return f"process {min(request.pids, default=0)}; F takes the whole job"
