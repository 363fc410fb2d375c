"""Record all nodes of a fleet: an ordinary recording a node, and beside them what the nodes together showed.

A thread of its own writes all of them. The fleet's hands over and goes on, however slow or full the disk is.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tpmon.config import make_state_folder
from tpmon.errors import TpmonError, UsageError
from tpmon.foreign_file import NEW_FILE
from tpmon.judge.folds.hot import build_tree, show_stacks
from tpmon.judge.nodes import EVERY_S
from tpmon.model.codec import encode_fast
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpState
from tpmon.model.frame import Frame, Target, TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.results.doctor import DumpUpdate
from tpmon.model.results.fleet import FleetReport, NodeState
from tpmon.model.results.recording import Subject
from tpmon.model.units import clean_text, count_of, format_bytes
from tpmon.probe.base.worker import read_within
from tpmon.record import require_sqlite
from tpmon.record.line import require_zstd
from tpmon.record.step import JudgedFrame

if TYPE_CHECKING:
    from tpmon.fleet.loop import Fleet
    from tpmon.record.writer import RecordingWriter

MOST_NODES = 64
"""A node takes four descriptors here, and its whole Frames some ms of CPU a second."""
WAITING = 640
"""Frames and reports that wait for a slow disk; further ones are lost."""
OPEN_S = 10.0
FINISH_S = 5.0
REPORTS = "fleet.jsonl"
REPORT_EVERY_S = 10.0
MOST_REPORT_BYTES = 256 << 20
"""Of the file of reports; from half of it on only changes are written."""
SAME_JOB_S = 5.0
"""A clock that is set moves the start of a job by less."""
BUSY = "the recording of all nodes is being begun or ended already"
_ANOTHER = "--record DIR, a new one in a folder of your own on a local disk"
_OVER = (NodeState.GONE, NodeState.REFUSED, NodeState.NO_JOB, NodeState.OTHER_VERSION)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

Tell = Callable[[str, Applicable[bool]], None]
"""Take a line, and whether the nodes are recorded from now on where that has changed."""


def pick_name(node: str, used: set[str]) -> str:
    """Return a name for the files of a node that is safe and not ``used``, and note it there."""
    plain = _UNSAFE.sub("_", node)[:100].lstrip(".-") or "node"
    name, number = plain, 1
    while name.lower() in used:
        number += 1
        name = f"{plain}-{number}"
    used.add(name.lower())
    return name


def make_folder(path: str, try_this: str = _ANOTHER) -> str:
    """Make the private folder of a recording of all nodes, "" for a new one in the folder for recordings.

    Raises:
        UsageError: where it is there already, cannot be made, or lies on a network file system.
    """
    from tpmon.record.schema import FLEET, check_local  # noqa: PLC0415  # a Python without SQLite costs this part

    name = f"{FLEET}{time.strftime('%Y%m%dT%H%M%S')}"
    path = path or os.path.join(make_state_folder(os.environ, try_this), name)
    check_local(path, f"--record /tmp/{name}, and copy it when it has ended")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already, and nothing is written over", try_this) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", try_this) from error
    return path


class _NodeFile:
    """Hold the recording of one job of one node."""

    def __init__(self, path: str, subject: Subject, target: Target) -> None:
        self.path = path
        self.subject = subject
        self.target = target
        self.writer: RecordingWriter | None = None

    def is_of(self, target: Target) -> bool:
        """Tell whether a Frame is of the same job."""
        apart_s = abs((target.start - self.target.start).total_seconds())
        return target.pid == self.target.pid and apart_s < SAME_JOB_S

    def open(self) -> RecordingWriter:
        """Return its writer, which goes on after the agent came again, with a hole for the time between."""
        from tpmon.record.writer import RecordingWriter  # noqa: PLC0415  # see make_folder

        if self.writer is None:
            self.writer = RecordingWriter(self.path, self.subject)
        return self.writer

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()


class _ReportLines:
    """Append reports as lines: where something changes, and else every ``REPORT_EVERY_S``."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, NEW_FILE, 0o600)
        self.size_bytes = 0
        self._written: FleetReport | None = None
        self._last: FleetReport | None = None
        self._gist: object = None

    def add(self, report: FleetReport) -> None:
        """Write a report where that is worth it; OSError where it fails."""
        self._last, gist = report, _gist(report)
        before = self._written
        is_due = before is None or (report.taken - before.taken).total_seconds() >= REPORT_EVERY_S
        if gist != self._gist or (is_due and self.size_bytes < MOST_REPORT_BYTES // 2):
            self._gist = gist
            self._write(report)

    def _write(self, report: FleetReport) -> None:
        line = encode_fast(report) + b"\n"
        if self.size_bytes + len(line) > MOST_REPORT_BYTES:
            raise OSError(0, f"it holds {format_bytes(MOST_REPORT_BYTES)}")
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self.size_bytes)  # every line stays whole
            raise
        self.size_bytes += len(line)
        self._written = report

    def close(self) -> None:
        """Write the last report, if it is not there, and close the file."""
        with suppress(OSError):  # what stopped it was told
            if self._last is not None and self._last is not self._written:
                self._write(self._last)
        os.close(self._file)


def _gist(report: FleetReport) -> object:
    """Return what makes a report another one."""
    finding = report.verdict
    verdict = (
        (finding.kind, finding.cause, finding.confidence, finding.rank) if is_known(finding) else finding
    )
    states = tuple((one.node, one.state, one.reason) for one in report.nodes)
    return verdict, report.node, report.views, states, _gist_of_dump(report.dump)


def _gist_of_dump(dump: Applicable[Dump]) -> object:
    if not is_known(dump):
        return None
    verdict = dump.verdict
    return (verdict.kind, verdict.cause) if is_known(verdict) else verdict, dump.odd_one_out


class FleetRecorder:
    """Record the nodes of a fleet into a folder until ``finish``."""

    def __init__(self, fleet: Fleet, folder: str, tell: Tell) -> None:
        """Follow all nodes: one that answers later gets its file then. The folder is there and empty."""
        self.folder = folder
        self._is_given_up = False
        self._fleet = fleet
        self._tell = tell
        self._waiting: queue.Queue[tuple[str, Frame] | FleetReport | None] = queue.Queue(WAITING)
        self._lost = 0
        self._ended = threading.Event()
        self._used: set[str] = set()
        self._files: dict[str, _NodeFile] = {}
        self._stopped: dict[str, str] = {}
        """Nodes that are recorded no longer, and why."""
        self._frames = 0
        self._dump: object = None
        """Of the looks that were kept last."""
        self._reports: _ReportLines | None = None
        for node in fleet.nodes:
            fleet.follow(node, self._take_frame)
        threading.Thread(target=self._work, name="tpmon-fleet-record", daemon=True).start()

    # Of the fleet's thread

    def take(self, report: FleetReport) -> None:
        """Hand over a report; never wait."""
        with suppress(queue.Full):  # the next one says as much
            self._waiting.put_nowait(report)

    def _take_frame(self, node: str, frame: Frame) -> None:
        try:
            self._waiting.put_nowait((node, frame))
        except queue.Full:
            self._lost += 1

    def finish(self, within_s: float) -> None:
        """Write what waits, close all files and tell how it ended; wait for a dead disk no longer."""
        for node in self._fleet.nodes:
            self._fleet.unfollow(node, self._take_frame)
        with suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        if not self._ended.wait(within_s):
            self._is_given_up = True
            self._tell(f"the recording in {self.folder} is not finished: the disk gives no answer", False)

    # Of its own

    def _work(self) -> None:
        self._guard(REPORTS, self._open_reports)
        while (one := self._waiting.get()) is not None and not self._is_given_up:
            if isinstance(one, FleetReport):
                self._note_report(one)
                self._guard(REPORTS, partial(self._write_report, one))
            else:
                self._guard(one[0], partial(self._write_frame, *one))
        for file in self._files.values():
            file.close()
        if self._reports is not None:
            self._reports.close()
        if not self._is_given_up:
            self._tell(self._say_end(), False)
        self._ended.set()

    def _guard(self, name: str, write: Callable[[], None]) -> None:
        """Write for a node, or the reports; one that fails ends alone, and each reason is told once."""
        if name in self._stopped:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001  # the fleet is watched on
            reason = _explain(error)
            is_new = reason not in self._stopped.values()
            self._stopped[name] = reason
            if (file := self._files.get(name)) is not None and file.writer is not None:
                file.writer.note(f"recording stopped: {reason}")
                file.close()
            if is_new:
                self._tell(f"{clean_text(name)} is recorded no longer: {reason}", NOT_APPLICABLE)

    def _open_reports(self) -> None:
        self._reports = _ReportLines(os.path.join(self.folder, REPORTS))

    def _note_report(self, report: FleetReport) -> None:
        """Close the files of nodes that are gone; into the others goes what all stacks show together."""
        for node in report.nodes:
            if node.state in _OVER and node.node in self._files:
                self._files[node.node].close()
        dump = report.dump
        if is_known(dump) and _gist_of_dump(dump) != self._dump:
            self._dump, update = _gist_of_dump(dump), _to_update(dump)
            for name, file in self._files.items():
                if file.writer is not None:
                    self._guard(name, partial(file.writer.keep, update))

    def _write_report(self, report: FleetReport) -> None:
        if self._reports is not None:
            self._reports.add(report)

    def _write_frame(self, node: str, frame: Frame) -> None:
        file = self._files.get(node)
        if file is None or not file.is_of(frame.target):
            if file is not None:
                file.close()
            file = self._files[node] = self._make_file(node, frame)
        # The agent judged it, and what it remembered is not here: so nothing of it can be judged again.
        file.open().write(JudgedFrame(frame, frame, None))
        self._frames += 1
        if frame.target.state is TargetState.ENDED:
            file.close()

    def _make_file(self, node: str, frame: Frame) -> _NodeFile:
        from tpmon import __version__  # noqa: PLC0415
        from tpmon.record.schema import SUFFIX  # noqa: PLC0415

        target, hang_after_s = frame.target, self._fleet.hang_after_s
        ticks = [one.start_ticks for one in frame.processes if one.pid == target.pid]
        subject = Subject(
            host=target.host,
            user=target.user,
            script=target.script,
            pid=target.pid,
            start_ticks=ticks[0] if ticks else 0,
            boot="",
            version=__version__,
            interval_s=frame.interval_s,
            every_s=0.0,
            hang_after_s=NOT_APPLICABLE if hang_after_s is None else hang_after_s,
            may_look=self._fleet.may_look,
            log_lines=True,
            node=node,
        )
        name = f"{pick_name(node, self._used)}{SUFFIX}"
        return _NodeFile(os.path.join(self.folder, name), subject, target)

    def _say_end(self) -> str:
        nodes = count_of(len(self._files), "node")
        said = [f"recorded {nodes}, {count_of(self._frames, 'Frame')} in {self.folder}"]
        if self._lost:
            said.append(f"{count_of(self._lost, 'Frame')} lost to a slow disk")
        why = Counter(self._stopped.values())
        said += [f"{count} of its files stopped: {reason}" for reason, count in why.items()]
        return "; ".join(said)


def _explain(error: Exception) -> str:
    if isinstance(error, TpmonError):
        return clean_text(error.what)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    from tpmon.record.writer import StoppedError  # noqa: PLC0415  # see make_folder

    return (
        str(error) if isinstance(error, StoppedError) else f"{type(error).__name__}: {clean_text(str(error))}"
    )


def _to_update(dump: Dump) -> DumpUpdate:
    """Return what the nodes' stacks show together as a screen takes it."""
    request = DumpRequest(Asker.WATCH, rounds=dump.rounds, every_s=EVERY_S)
    state = DumpState(request, (), 0, 0, running=False, refused="")
    return DumpUpdate(state, dump, show_stacks(dump.groups), build_tree(dump.groups))


class FleetSwitch:
    """Begin and end the recording of all nodes of one fleet; what waits for a disk runs in a thread."""

    def __init__(self, fleet: Fleet, tell: Tell) -> None:
        """Record nothing so far."""
        self._fleet = fleet
        self._tell = tell
        self._recorder: FleetRecorder | None = None
        self.busy = False
        """The files are being opened or closed."""
        self.path = ""
        """What was recorded into last."""

    def open(self, path: str) -> None:
        """Begin to record into a new folder, "" for one in the folder for recordings.

        Raises:
            UsageError: where that cannot be, or not in time, and for more than ``MOST_NODES``.
        """
        require_sqlite()
        require_zstd()
        count = len(self._fleet.nodes)
        if count > MOST_NODES:
            raise UsageError(
                f"{count} nodes are too many to record: {MOST_NODES} at most",
                f"fewer nodes, as --hosts 'n[1-{MOST_NODES}]', or tpmon record --detach on each",
            )
        folder = read_within(OPEN_S, lambda: make_folder(path))
        if isinstance(folder, Missing):
            raise UsageError(f"no recording: {folder.reason}", _ANOTHER)
        self.path = folder
        self._recorder = FleetRecorder(self._fleet, folder, self._tell)
        self._tell(f"records {count_of(count, 'node')} in {folder}", True)

    def take(self, report: FleetReport) -> None:
        """Hand over a report; in the fleet's thread."""
        recorder = self._recorder
        if recorder is not None:
            recorder.take(report)

    def turn(self) -> None:
        """Begin to record, or end it; never wait."""
        if self.busy:
            self._tell(BUSY, NOT_APPLICABLE)
            return
        self.busy = True
        threading.Thread(target=self._turn, name="tpmon-record", daemon=True).start()

    def _turn(self) -> None:
        try:
            if self._recorder is None:
                self.open("")
            else:
                self.end()
        except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
            self._tell(f"not recorded: {_explain(error)}", False)
        finally:
            self.busy = False

    def end(self, within_s: float = FINISH_S) -> None:
        """End what is recorded, and tell how that ended; in bounded time."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.finish(within_s)
