"""The evidence of one job for a ticket: looks at it, and the parts of a bundle made of them.

Every part fails alone and is then named in README.txt. A bundle is made with a session of its own
(``OwnLook``), or in the background with one that runs already, as that of a screen (``SharedLook``).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from tempfile import TemporaryDirectory

from tpmon.errors import TpmonError, UsageError, exclude
from tpmon.judge.dumps.collectives import add_collectives
from tpmon.judge.dumps.describe import shorten_stack
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.judge.folds.hot import date_log
from tpmon.model.codec import encode
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpRound
from tpmon.model.frame import Pulse, TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import Checkup, DumpUpdate, Update
from tpmon.model.results.recording import Subject
from tpmon.model.units import format_seconds
from tpmon.probe.base.worker import read_within
from tpmon.probe.collect.bundle import (
    describe_processes,
    list_versions,
    read_cards,
    read_kernel_lines,
    read_logs,
)
from tpmon.probe.collect.collector import Collector
from tpmon.probe.doctor.checks import make_subject, read_checkup
from tpmon.probe.job.job import Job
from tpmon.record.step import JudgedFrame
from tpmon.report.bundle import (
    PART_S,
    Contents,
    FolderSink,
    Sink,
    TarSink,
    add_part,
    check_written,
    close_bundle,
    describe_pulses,
    describe_steps,
    say_result,
    say_verdict,
    write_versions,
)
from tpmon.report.doctor import write_checkup
from tpmon.report.once import write_once, write_verdict
from tpmon.report.own_log import read_own_log
from tpmon.report.stacks import write_dump
from tpmon.session import Session, collect_rarely

ROUNDS = 3
ROUND_LIMIT_S = 40.0
"""A round of looks is given up after 30 s."""
_WAIT_S = 0.1
OPEN_S = 10.0
CARDS_S = 25.0
RECORDING = "recording.tpmon"
_LEFT = "tpmon was left before it was written"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class SharedLook:
    """Use the Frames of a session that runs already, as that of a screen, and look: a sink of its dumps."""

    failed = ""
    """Why the session ended, where it is of its own and failed."""

    def __init__(self, session: Session, subject: Subject, every_s: float, *, stacks: bool = True) -> None:
        """Ask for ``ROUNDS`` looks, ``every_s`` apart, without a stop; without ``stacks`` for none."""
        self._session = session
        self.subject = subject
        """What the session watches, and how."""
        self.steps: Callable[[], tuple[JudgedFrame, ...]] = session.recall
        """Return the judged Frames that are at hand, of ten minutes at most, oldest first."""
        self.pulses: Callable[[], Sequence[Pulse]] = session.pulses
        """Return the main figures of the last ten minutes, oldest first."""
        self.stacks = stacks
        self._request = DumpRequest(Asker.KEY, rounds=ROUNDS, every_s=every_s)
        self._update: DumpUpdate | None = None
        self._free = threading.Event()
        self.done = threading.Event()

    def __call__(self, update: DumpUpdate) -> None:
        """Take what a session says of a dump; of somebody else's, only that it began or ended."""
        if update.state.request is self._request:
            self._update = update
            if not update.state.running and not update.awaits_records:
                self.done.set()
        elif self._update is not None:
            self.done.set()  # what was still read for ours does not come any more
        elif not update.state.running:
            self._free.set()

    def start(self) -> None:
        """Begin to look: it runs already."""

    def wait(self) -> None:
        """Ask for looks, again when another dump had to end first, and wait for them in bounded time."""
        if not self.stacks:
            return
        end_s = time.monotonic() + ROUNDS * ROUND_LIMIT_S
        self._session.ask_dump(self._request)
        while time.monotonic() < end_s and not self.done.wait(_WAIT_S):
            if self._free.is_set() and self._update is None:
                self._free.clear()
                self._session.ask_dump(self._request)

    def stop(self) -> None:
        """End what was begun, without waiting: others look at it."""

    def dumps(self) -> Sequence[DumpUpdate]:
        """Return what the looks that are done show, as a screen gets it: one, or none."""
        return (self._update,) if self._update is not None and is_known(self._update.dump) else ()

    def rounds(self) -> Known[Sequence[DumpRound]]:
        """Return the looks that are done, or why there are none."""
        if not self.stacks:
            return Missing("not read: --no-stacks")
        state = self._update.state if self._update is not None else None
        if state is None or not state.rounds:
            return Missing((state and state.refused) or "no dump of the stacks was done in time")
        return state.rounds

    def records(self) -> Applicable[CollectivesReading]:
        """Return what the job recorded of its collectives, read after these looks."""
        if self._update is None or not is_known(self._update.dump):
            return NOT_APPLICABLE
        found = self._update.dump.collectives
        return (
            CollectivesReading(found.records, found.ras, found.notes) if is_known(found) else NOT_APPLICABLE
        )


class OwnLook(SharedLook):
    """Watch a job for some seconds with a session of one's own."""

    def __init__(
        self,
        job: Job,
        subject: Subject,
        seconds: float,
        interval_s: float,
        *,
        stacks: bool,
        hang_after_s: float | None,
    ) -> None:
        """Watch nothing until ``start``."""
        self._seconds = seconds
        self._ended = threading.Event()
        self._end_s = 0.0
        collect_rarely()
        collector = Collector(job, interval_s, stacks=stacks)
        session = Session(collector, (self._take,), interval_s, (self,), hang_after_s=hang_after_s)
        super().__init__(session, subject, min(5.0, seconds / ROUNDS), stacks=stacks)

    def start(self) -> None:
        """Start the session in a thread of its own."""
        self._end_s = time.monotonic() + self._seconds
        self._session.start(self._fail)

    def wait(self) -> None:
        """Wait until the seconds are over and the looks are done."""
        super().wait()
        self._ended.wait(max(0.0, self._end_s - time.monotonic()))

    def stop(self) -> None:
        """End the session."""
        self._session.stop()

    def _take(self, update: Update) -> None:
        if update.frame.target.state is TargetState.ENDED:
            self._finish()

    def _fail(self, error: BaseException) -> None:
        self.failed = f"{type(error).__name__}: {error}"
        self._finish()

    def _finish(self) -> None:
        self._ended.set()
        self.done.set()


class Bundler:
    """Write the parts of one bundle into a sink, each for itself."""

    def __init__(
        self,
        job: Job,
        sink: Sink,
        look: SharedLook,
        hurries: Callable[[], bool] = lambda: False,
        *,
        own_log: str = "",
    ) -> None:
        """Write nothing until ``run``; once it ``hurries``, only what is short. ``own_log`` goes along."""
        self._own_log = own_log
        self._job = job
        self._sink = sink
        self._look = look
        self._hurries = hurries
        self._begun = datetime.now().astimezone()
        self._head: list[tuple[str, str]] = []
        self.contents = Contents()

    def run(self) -> Contents:
        """Write every part; what is written stays, also when a signal or an error ends this early."""
        end = "it was interrupted before the rest was written"
        try:
            self._look.start()
            self._write_surroundings()
            self._look.wait()
            self._write_looks()
            end = ""
        finally:
            self._look.stop()
            if end:
                self.contents.failures.append(("the rest", end))
            self._close()
        return self.contents

    def _write_surroundings(self) -> None:
        job = self._job
        pids = [member.identity.pid for member in job.members]
        versions = "versions of tpmon, Python, torch, kernel and driver"
        self._add("versions.txt", versions, lambda: write_versions(list_versions(job)))
        self._add("processes.txt", "processes of the job, redacted", lambda: list(describe_processes(job)))
        self._add("log.txt", "last lines that the job wrote, redacted", lambda: list(read_logs(pids)))
        self._add("kernel.txt", "what the kernel's log says of GPUs, memory, storage", read_kernel_lines)
        self._add("nvidia-smi.txt", "nvidia-smi -q", read_cards, CARDS_S)
        if self._own_log:
            self._add("tpmon.log", "what tpmon itself did", lambda: read_own_log(self._own_log))
        found: list[Checkup] = []

        def check() -> list[str]:
            found.append(read_checkup([make_subject(job)], stacks=self._look.stacks))
            return write_checkup(found[0])

        self._add("doctor.txt", "what may be read and what not", check, CARDS_S)
        if found:
            self._add("doctor.json", "the same", lambda: [encode(found[0])])

    def _write_looks(self) -> None:
        steps = self._look.steps()
        if steps:
            last = steps[-1].judged
            self._add(RECORDING, describe_steps(steps), lambda: self._pack(steps))
            self._add("verdict.txt", "the verdict, in full", lambda: write_verdict(last), short=True)
            self._add("verdict.json", "the same", lambda: [encode(last.verdict)], short=True)
            self._add("once.txt", "the last Frame in words", lambda: write_once(last), short=True)
            self._add("once.json", "the same, with all that was read", lambda: [encode(last)], short=True)
            self._head.append(("verdict", say_verdict(last.verdict)))
        else:
            self.contents.failures.append((RECORDING, self._look.failed or "no Frame came in time"))
        pulses = self._look.pulses()
        if pulses:
            self._add("pulses.jsonl", describe_pulses(pulses), lambda: [encode(one) for one in pulses])
        rounds = self._look.rounds()
        if isinstance(rounds, Missing):
            self.contents.failures.append(("dumps", rounds.reason))
            return
        records = self._look.records()
        for number, one in enumerate(rounds, 1):
            there = records if number == len(rounds) else NOT_APPLICABLE  # read after the last look
            self._add_dump(f"dump-{number}", f"dump {number} of the stacks", (one,), there)
        if len(rounds) < ROUNDS:
            self.contents.failures.append(
                ("more dumps", f"{len(rounds)} of {ROUNDS} dumps were done in time")
            )
        folded = self._add_dump("fold", "all dumps joined: who moves and who does not", rounds, records)
        if folded:
            paused = f"{folded.paused_ms:.1f} ms" if folded.paused_ms else "never"
            self._head.append(("stacks", folded.summary))
            if is_known(folded.collectives):
                self._head.append(("calls", folded.collectives.summary))
            self._head.append(("stopped", f"the job, by tpmon: {paused}"))

    def _pack(self, steps: tuple[JudgedFrame, ...]) -> bytes:
        """Return a recording of these steps and of the looks."""
        from tpmon.record.writer import copy_recording  # noqa: PLC0415  # a Python without SQLite costs this part

        with TemporaryDirectory(prefix="tpmon-") as folder:
            path = os.path.join(folder, RECORDING)
            copy_recording(path, self._look.subject, steps, self._look.dumps())
            with open(path, "rb") as file:
                return file.read()

    def _add_dump(
        self, name: str, what: str, rounds: Sequence[DumpRound], records: Applicable[CollectivesReading]
    ) -> Dump | None:
        job = self._job
        found: list[Dump] = []

        def fold() -> list[str]:
            dump = fold_rounds(rounds, DumpOrigin(job.root.pid, job.script, job.world_size))
            dump = replace(dump, last_write=self._date_log(dump.taken))
            found.append(add_collectives(dump, records) if is_known(records) else dump)
            return write_dump(found[0], shorten_stack)

        self._add(f"{name}.txt", what, fold)
        if not found:
            return None
        self._add(f"{name}.json", "the same", lambda: [encode(found[0])])
        return found[0]

    def _date_log(self, taken: datetime) -> Applicable[datetime]:
        """Return the last write into the log as the newest Frame knew it that is no newer than a look."""
        frames = [one.judged for one in self._look.steps()]
        before = [one for one in frames if one.taken <= taken] or frames[:1]
        return date_log(before[-1].output) if before else NOT_APPLICABLE

    def _add(
        self,
        name: str,
        what: str,
        write: Callable[[], Sequence[str] | bytes],
        limit_s: float = PART_S,
        *,
        short: bool = False,
    ) -> None:
        """Write one file; one that fails, or takes too long, is named with its reason."""
        if self._hurries() and not short:
            self.contents.failures.append((name, _LEFT))
            return
        add_part(self._sink, self.contents, name, what, write, limit_s=limit_s)

    def _close(self) -> None:
        job = self._job
        took_s = (datetime.now().astimezone() - self._begun).total_seconds()
        head = [
            ("bundle", "evidence of one training job, made by tpmon bundle for a ticket"),
            ("job", f"{job.root.pid} {job.script} of {job.user} on {os.uname().nodename}"),
            *([("note", job.remark)] if job.remark else []),
            ("made", f"{self._begun.isoformat(timespec='seconds')}, over {format_seconds(took_s)}"),
            *self._head,
        ]
        close_bundle(self._sink, self.contents, head)


def default_name(job: Job, now: datetime) -> str:
    """Name a folder after host, job and time, in the working directory."""
    host = _UNSAFE.sub("_", os.uname().nodename)[:60]
    return f"tpmon-bundle-{host}-{job.root.pid}-{now.strftime('%Y%m%dT%H%M%S')}"


def open_sink(job: Job, out: str = "", tar: str = "") -> Sink:
    """Make the folder or tar file of a bundle; "" for both names the folder after the job.

    Raises:
        UsageError: when both are named, when it is there already, or cannot be made, or not in time: a dead
            mount would hold it for ever.
    """
    if out and tar:
        raise exclude("--out and --tar")
    folder = out or default_name(job, datetime.now().astimezone())
    sink = read_within(OPEN_S, lambda: TarSink(tar) if tar else FolderSink(folder))
    if isinstance(sink, Missing):
        raise UsageError(f"{sink.reason} from the folder for the bundle", "--out /tmp/NAME")
    return sink


def start_bundle(
    find: Callable[[], Job],
    place: Callable[[Job], Sink],
    look: SharedLook,
    told: Callable[[str], None],
    hurries: Callable[[], bool] = lambda: False,
    *,
    own_log: str = "",
) -> None:
    """Write a bundle in a daemon thread and tell in a line where it is, or why there is none.

    ``find`` reads the job anew, off the caller's thread; ``place`` makes the folder or tar file. Once it
    ``hurries``, because the screen is left, only what is short is still written.
    """

    def work() -> None:
        try:
            job = find()
            sink = place(job)
            contents = Bundler(job, sink, look, hurries, own_log=own_log).run()
            check_written(sink.path, contents)
        except TpmonError as error:
            other = "; tpmon bundle PID --out FOLDER takes another" if isinstance(error, UsageError) else ""
            told(f"no bundle: {error.what}{other}")
        except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
            told(f"the bundle failed: {type(error).__name__}: {error}")
        else:
            told(" ".join(line.strip() for line in say_result(sink.path, contents)))

    threading.Thread(target=work, name="tpmon-bundle", daemon=True).start()
