"""The wiring of the screen: what the session hands to it, and what its keys ask of the session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tpmon.capture.dialog import (
    CaptureAsker,
    CaptureDialog,
    ChosenAnewError,
    RankHook,
    judge_offers,
    read_hook,
)
from tpmon.commands.capture import SECONDS, can_lend, capture_job
from tpmon.commands.command import (
    WatchOptions,
    choose_ranks,
    describe_failure,
    describe_subject,
    open_session,
    write_ending,
)
from tpmon.commands.recordings.switch import RecordingSwitch
from tpmon.errors import ExitCode, TpmonError
from tpmon.model.dump import DumpRequest
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.process import Identity, ProcessSample, Role
from tpmon.model.results.capture import (
    CaptureAnswer,
    CaptureAsked,
    CaptureChoice,
    CaptureKind,
    CaptureOffers,
    CaptureRequest,
    CaptureResult,
    CaptureStage,
    CaptureUpdate,
)
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.sample import SampleRequest
from tpmon.model.results.trace import TraceSummary
from tpmon.own_command import call_python
from tpmon.probe.base.worker import read_within
from tpmon.probe.job.discovery import read_ancestors, uses_cuda
from tpmon.probe.job.job import Job, Member
from tpmon.probe.job.resolve import find_job_again
from tpmon.report.capture import find_place, write_capture, write_capture_line
from tpmon.report.readings import write_reading
from tpmon.report.text import Output, complain
from tpmon.session import Session
from tpmon.ui.monitor.controls import Controls, Errand, Notice, Order, Result, ScreenOptions
from tpmon.ui.monitor.requests import LOOKS_EVERY_S
from tpmon.ui.monitor.start import run_screen
from tpmon.ui.terminal_io.terminal import ScreenResult

if TYPE_CHECKING:
    from tpmon.evidence import SharedLook
    from tpmon.inject.lent import LentHooks
    from tpmon.report.bundle import Sink as BundleSink


LEAVE_WITHIN_S = 0.5
"""The screen, once left, ends tpmon within a second, whatever it is doing."""
WRITE_S = 10.0
"""A folder on a dead mount is then said to give no answer."""
_LOOK_S = 0.02
BUNDLING = "a bundle is being written already"
CAPTURING = "a capture is under way already"


class Wiring:
    """Join one session to one screen."""

    def __init__(self, job: Job, options: WatchOptions) -> None:
        """Open nothing until ``start``."""
        self._job = job
        self._options = options
        self._session: Session | None = None
        self._look: SharedLook | None = None
        """Of the bundle that is being written."""
        self._results: Callable[[Result], None] = lambda _result: None
        self._sample: SampleUpdate | None = None
        self._ended = False
        self._bundles = False
        self._captures = False
        self._talk: CaptureDialog | None = None
        self._bundle_path = ""
        self._switch = RecordingSwitch(job, options, self._tell_recording)
        self._left = threading.Event()
        self._late: list[str] = []
        self.failure: Applicable[tuple[str, ExitCode]] = NOT_APPLICABLE
        """What ended the session: the lines that say so, and the exit code."""

    def start(self, sink: Callable[[Update], None], results: Callable[[Result], None]) -> None:
        """Open the session and let it run, recorded from its first Frame on if that was asked for."""

        def take(update: Update) -> None:
            sink(update)
            if update.frame.target.state is TargetState.ENDED:
                self._ended = True
                self._end_looks()  # a session that is over hands out no further one
                self._switch.end()

        self._results = results
        self._session = open_session(
            self._job, self._options, take, dump_sinks=(self._take_dump,), sample_sinks=(self._take_sample,)
        )
        self._switch.follow(self._session)
        self._session.start(self._fail)

    def record(self, path: str) -> None:
        """Record the session from its first Frame on, "" names the file; UsageError if that cannot be."""
        self._switch.open(path)

    def _tell_recording(self, line: str, records: Applicable[bool]) -> None:
        if self._left.is_set():
            self._late.append(line)
        self._results(Notice(line, passing=records is not False, records=records))

    def _take_dump(self, update: DumpUpdate) -> None:
        if self._look is not None:
            self._look(update)
        self._results(update)

    def _end_looks(self) -> None:
        """Wait for no further look at the stacks."""
        if self._look is not None:
            self._look.done.set()

    def _fail(self, error: BaseException) -> None:
        if self._left.is_set():
            return  # descriptors are closed under whoever still reads
        # Now, since the end of the screen, once it is asked for, is a matter of a second.
        self.failure = describe_failure(error)
        os.kill(os.getpid(), signal.SIGTERM)  # ends the screen in order; the failure is told below

    def stop(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.stop()

    def set_interval(self, seconds: float) -> None:
        """Read at another interval."""
        if self._session is not None:
            self._session.set_interval(seconds)

    def ask(self, order: Order) -> None:
        """Hand an order to whom it is for; never waits."""
        session = self._session
        if session is None:
            return
        if isinstance(order, DumpRequest):
            session.ask_dump(order)
        elif isinstance(order, SampleRequest):
            session.ask_sample(order)
        elif isinstance(order, CaptureRequest):
            self._capture(order)
        elif isinstance(order, CaptureAnswer):
            if self._talk is not None:
                self._talk.answer(order)
        elif isinstance(order, CaptureChoice):
            if self._talk is not None:
                self._talk.choose(order)
        elif order is Errand.END_SAMPLING:
            session.finish_sample()
        elif order is Errand.WRITE_SAMPLES:
            self._write_samples()
        elif order is Errand.RECORD:
            self._switch.turn()
        elif order is Errand.WRITE_BUNDLE:
            self._bundle(session)

    def _take_sample(self, update: SampleUpdate) -> None:
        self._sample = update
        self._results(update)

    def _write_samples(self) -> None:
        """Write what was sampled last into new files where tpmon was started, off the screen's thread."""
        from tpmon.commands.sample import save_samples  # the first picture does without it

        if (update := self._sample) is None:
            return

        def write() -> None:
            said = read_within(WRITE_S, lambda: save_samples(update))
            if isinstance(said, Missing):
                said = f"not written so far: {said.reason}"
            self._results(Notice(said))

        threading.Thread(target=write, name="tpmon-write", daemon=True).start()

    def _capture(self, order: CaptureRequest) -> None:
        """Begin the talk about a capture, beside the running session."""
        if self._captures:
            self._results(Notice(CAPTURING))
            return
        self._captures = True
        self._talk = CaptureDialog(self._take_capture, self._left.is_set)
        start_capture(lambda: self._find_job(order.pid), self._talk)

    def _find_job(self, pid: Applicable[int] = NOT_APPLICABLE) -> Job:
        """Read the job anew, around the rank that is meant, else its root and its ranks of now.

        The root may be gone while ranks live on: a launcher that was killed, and a hang that stays.
        """
        steps = self._session.recall() if self._session is not None else ()
        if is_known(pid):
            seen = (one for step in reversed(steps) for one in step.read.processes if one.pid == pid)
            return find_job_again(tuple(_identify(one) for one in islice(seen, 1)))
        newest = steps[-1].read.processes if steps else ()
        ranks = (_identify(one) for one in newest if one.role is Role.RANK)
        return find_job_again((self._job.root, *ranks))

    def _list_put_in(self) -> list[int]:
        """List the processes whose hook was put in by hand, as they were read last."""
        steps = self._session.recall() if self._session is not None else ()
        hooks = known_or(steps[-1].read.hook, ()) if steps else ()
        return [one.pid for one in hooks if is_known(one.put_in)]

    def _take_capture(self, update: CaptureUpdate) -> None:
        ended = update.stage is CaptureStage.ENDED
        if ended and update.line and self._left.is_set():
            self._late.append(update.line)
        self._captures = self._captures and not ended
        self._results(update)
        if ended and update.line:  # none of a price that was read and left
            self._results(Notice(update.line, trace=update.trace))

    def _bundle(self, session: Session) -> None:
        """Write a bundle beside the running session, into a new folder where tpmon was started."""
        # Its archives cost the first picture some ms.
        from tpmon.evidence import SharedLook, open_sink, start_bundle

        if self._bundles:
            self._results(Notice(BUNDLING))
            return
        self._bundles = True
        subject = describe_subject(self._job, self._options)
        self._look = look = SharedLook(session, subject, LOOKS_EVERY_S, stacks=not self._options.no_stacks)
        if self._ended:
            self._end_looks()

        def place(job: Job) -> BundleSink:
            sink = open_sink(job)
            self._bundle_path = os.path.abspath(sink.path)
            return sink

        own_log = self._options.log or ""
        start_bundle(self._find_job, place, look, self._tell_bundle, self._left.is_set, own_log=own_log)

    def _tell_bundle(self, line: str) -> None:
        if self._left.is_set():
            self._late.append(line)
        self._bundles = False
        self._results(Notice(line))

    def leave(self) -> Sequence[str]:
        """Bring to an end what keys began, as far as there is time, and say what becomes of it."""
        self._left.set()
        self._end_looks()
        self._switch.end()
        end_s = time.monotonic() + LEAVE_WITHIN_S
        while (self._bundles or self._captures or self._switch.busy) and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        said = list(self._late)
        if self._bundles:
            path = self._bundle_path or "the folder where tpmon was started"
            said.append(f"the bundle in {path} is not whole: tpmon was left while it was written")
        if self._switch.busy:
            path = self._switch.path or "its file"
            said.append(
                f"the recording in {path} was not finished in time: what was written can be replayed, with"
                " FILE-wal beside it"
            )
        if self._captures:
            said.append(
                "the capture is cancelled, or ends by itself as asked: tpmon was left; what it wrote is not"
                f" verified, and lies in {os.getcwd()}/tpmon-capture-*"
            )
            said += [
                f"the hook that was put in by hand may still be in pid {pid}: tpmon hook {pid} --remove takes"
                " it out"
                for pid in self._list_put_in()
            ]
        return said


def _identify(process: ProcessSample) -> Identity:
    return Identity(process.pid, process.start_ticks)


def watch_on_screen(job: Job, options: WatchOptions, output: Output, record: str | None = None) -> int:
    """Draw the screen until it ends and return its exit code; a copy of its text goes to ``output``."""
    return write_ending(show_job(job, options, record), output)


def show_job(
    job: Job,
    options: WatchOptions,
    record: str | None = None,
    *,
    following: str = "",
    from_list: bool = False,
) -> ScreenResult:
    """Draw the screen until it ends and return how it ended.

    With ``record`` the job is recorded from the first Frame on, "" names the file itself. ``following`` is
    what a key may end it for; ``from_list``: esc goes back to the list.
    """
    wiring = Wiring(job, options)
    if record is not None:
        wiring.record(record)
    try:
        result = run_screen(
            ScreenOptions(
                options.interval_s,
                options.ascii,
                options.bell,
                options.readonly,
                options.no_stacks,
                following=following,
                from_list=from_list,
                remark=job.remark,
            ),
            wiring.start,
            Controls(
                wiring.set_interval,
                wiring.stop,
                wiring.ask,
                write_reading,
                lambda path: trace_command(path, ascii_only=options.ascii),
            ),
        )
    except SystemExit:  # before the screen was loaded
        if is_known(wiring.failure):
            return _describe_end(*wiring.failure)
        raise
    said = wiring.leave()
    for line in said:
        complain(f"tpmon: {line}")
    return _describe_end(*wiring.failure) if is_known(wiring.failure) else result


def _describe_end(said: str, code: ExitCode) -> ScreenResult:
    return ScreenResult(code, "", said)


def trace_command(path: str, *, ascii_only: bool) -> tuple[str, ...]:
    """Return the command that shows a trace: a process of its own, so that numpy and the trace go again."""
    statement = "from tpmon.__main__ import main; sys.exit(main())"
    return call_python(statement, "trace", path, *(["--ascii"] if ascii_only else []))


def start_capture(find: Callable[[], Job], talk: CaptureDialog) -> None:
    """Capture what is chosen in a daemon thread, as far as whoever it talks with says yes.

    ``find`` reads the job anew, around the rank that is meant, off the caller's thread.
    """

    def work() -> None:
        from tpmon.inject.lent import LentHooks  # few screens capture

        try:
            with contextlib.closing(LentHooks(talk.tell, talk.warn)) as lent:
                result, summaries = _capture_chosen(find, talk, lent)
            how, *rest = write_capture(result, summaries, socket.gethostname())
        except TpmonError as error:
            talk.end(f"no capture: {error.what}; try {error.try_this}")
        except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
            talk.end(f"the capture failed: {type(error).__name__}: {error}")
        else:
            talk.end(write_capture_line(result, summaries), (how, *lent.out, *rest), find_shown(result))

    threading.Thread(target=work, name="tpmon-capture", daemon=True).start()


def find_shown(result: CaptureResult) -> str:
    """Return what a screen can show of it: the folder of all traces, the first snapshot; "" for nothing."""
    of_traces = all(file.kind is CaptureKind.TRACE for file in result.files)
    return find_place(result) if of_traces else result.files[0].host_path


def _capture_chosen(
    find: Callable[[], Job], talk: CaptureDialog, lent: LentHooks
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Plan what is chosen, anew until one agrees, and capture it; TpmonError where nothing can be."""
    job = find()
    talk.offer(_read_offers(job))
    while True:
        choice = talk.begin()
        asked = CaptureAsked(
            choice.kind, choice.steps, SECONDS, False, False, False, NOT_APPLICABLE, "", named_seconds=False
        )
        try:
            asker = CaptureAsker(talk.tell, talk.stopped, talk.agreed)
            return capture_job(job, asked, asker, lent, every=choice.every)
        except ChosenAnewError:
            job = find()
        except TpmonError as error:
            if not talk.take_back(error.what):
                raise


def _read_offers(job: Job) -> CaptureOffers:
    """Read what can be chosen on a run, around the rank that is meant."""
    (meant,) = choose_ranks(job, NOT_APPLICABLE, every=False)
    every = choose_ranks(job, NOT_APPLICABLE, every=True)
    hooks = {one.identity.pid: _read_hook(one) for one in every}
    pid = meant.identity.pid
    return judge_offers(hooks[pid], tuple(hooks.values()), read_ancestors(pid), uses_cuda=uses_cuda(pid))


def _read_hook(member: Member) -> RankHook:
    """Read the hook of a rank; one that can be put in lacks nothing."""
    hook = read_hook(member.identity, member.rank)
    return replace(hook, lacks="") if hook.lacks and can_lend(member.identity) else hook
