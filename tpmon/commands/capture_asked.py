"""Capture what was chosen on the screen: what can be chosen, its plan, its price, what came of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from tpmon.capture.dialog import ChosenAnewError, Talk
from tpmon.capture.offers import judge_offers, read_hook
from tpmon.commands.capture import SECONDS, STEPS, Asked, capture_job, choose_ranks
from tpmon.errors import TpmonError
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.capture import CaptureChoice, CaptureKind, CaptureOffers, CaptureResult
from tpmon.model.results.trace import TraceSummary
from tpmon.probe.job.job import Job
from tpmon.probe.job.wrappers import read_ancestors, uses_cuda
from tpmon.report.capture import find_place, write_capture, write_capture_line


def start_capture(find: Callable[[], Job], talk: Talk) -> None:
    """Capture what is chosen in a daemon thread, as far as whoever it talks with says yes.

    ``find`` reads the job anew, around the rank that is meant, off the caller's thread.
    """

    def work() -> None:
        try:
            result, summaries = _capture_chosen(find, talk)
            report = write_capture(result, summaries, socket.gethostname())
        except TpmonError as error:
            talk.end(f"no capture: {error.what}; try {error.try_this}")
        except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
            talk.end(f"the capture failed: {type(error).__name__}: {error}")
        else:
            talk.end(write_capture_line(result, summaries), report, find_shown(result))

    threading.Thread(target=work, name="tpmon-capture", daemon=True).start()


def find_shown(result: CaptureResult) -> str:
    """Return what a screen can show of it: the folder of all traces, the first snapshot; "" for nothing."""
    of_traces = all(file.kind is CaptureKind.TRACE for file in result.files)
    return find_place(result) if of_traces else result.files[0].host_path


def _capture_chosen(find: Callable[[], Job], talk: Talk) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Plan what is chosen, each time anew, until a plan is agreed to; lead that capture.

    Raises:
        TpmonError: where nothing can be captured, whatever is chosen.
    """
    job = find()
    talk.offer(_read_offers(job))
    while True:
        asked = _ask_for(talk.begin())
        try:
            return capture_job(job, asked, talk.tell, talk.stopped, agreed=talk.agreed)
        except ChosenAnewError:
            job = find()
        except TpmonError as error:
            if not talk.take_back(error.what):
                raise


def _ask_for(choice: CaptureChoice) -> Asked:
    """Return what the command would be given for a choice."""
    bare = Asked(
        NOT_APPLICABLE, False, STEPS, SECONDS, NOT_APPLICABLE, "", False, False, False, CaptureKind.TRACE
    )
    return replace(bare, every=choice.every, steps=choice.steps, kind=choice.kind)


def _read_offers(job: Job) -> CaptureOffers:
    """Read what can be chosen on a run, around the rank that is meant."""
    (meant,) = choose_ranks(job, _ask_for(CaptureChoice()))
    every = choose_ranks(job, _ask_for(CaptureChoice(every=True)))
    hooks = {one.identity.pid: read_hook(one.identity, one.rank) for one in every}
    pid = meant.identity.pid
    return judge_offers(hooks[pid], tuple(hooks.values()), read_ancestors(pid), uses_cuda=uses_cuda(pid))
