"""Write judged Frames into the file of a recording, one transaction a Frame, and keep it within its bounds.

Nothing here waits for a job or owns a thread: ``recorder`` does.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

from tpmon.errors import UsageError
from tpmon.judge.answers.result import FigureReading
from tpmon.model.codec import decode, encode, encode_exact
from tpmon.model.figures import Figure
from tpmon.model.frame import Event, EventKind, Frame
from tpmon.model.frozen import dataclass
from tpmon.model.host import LogPace
from tpmon.model.known import Applicable, Known, is_known
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.recording import Subject
from tpmon.model.units import format_bytes
from tpmon.model.verdict import Evidence, Finding
from tpmon.record.line import LinePacker, pack_once, write_line
from tpmon.record.pulses import COLUMNS, read_cells
from tpmon.record.schema import (
    add_columns,
    connect_reader,
    connect_writer,
    create_file,
    is_full,
    make_tables,
    naming,
    refuse_file,
    write_ahead,
)
from tpmon.record.step import JudgedFrame

STREAM_S = 60.0
"""A stream, and with it the way to any of its Frames, is so long."""
LATE_INTERVALS = 2.0
SLEPT_S = 2.0
"""The clock that goes on while the machine sleeps is then ahead by more."""
HOUR_NS = 3_600 * 10**9
YOUNG_NS = 600 * 10**9
"""The last minutes are never thinned."""
MINUTE_BYTES = 1 << 20
"""A minute of a large job fits into so many free bytes of the file."""
_PULSE = ("n", "mono_ns", "wall_ns", "verdict_id", *COLUMNS)
_ADD_PULSE = f"INSERT INTO pulse ({', '.join(_PULSE)}) VALUES ({', '.join('?' * len(_PULSE))})"  # noqa: S608  # our own
_ADD_VERDICT = (
    "INSERT INTO verdict (from_n, to_n, from_ns, to_ns, kind, cause, confidence, summary)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
Shown = TypeVar("Shown", Evidence, FigureReading)
HIDDEN_LINE = "(not recorded)"
MOST_COPIED_BYTES = 64 << 20
"""Of the steps that are at hand: some MB at most, unless something is wrong."""


@dataclass(frozen=True, slots=True)
class RecordingBounds:
    """Hold how much is kept: whole Frames for ``whole_s``, then one a minute, of the file ``most_bytes``.

    Writing stops where less than ``least_free_bytes`` of the disk would be left.
    """

    most_bytes: int = 256 << 20
    whole_s: float = 6 * 3600.0
    least_free_bytes: int = 1 << 30


class StoppedError(Exception):
    """Say why nothing more is written into a recording, which stays readable."""


def wall_ns(frame: Frame) -> int:
    """Return when a Frame was closed as UNIX time in nanoseconds, to the microsecond."""
    since = frame.taken - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1000


class RecordingWriter:
    """Write one recording. Not for two threads at once."""

    def __init__(self, path: str, subject: Subject, bounds: RecordingBounds = RecordingBounds()) -> None:  # noqa: B008  # frozen
        """Make the file, or go on in one of the same job.

        Raises:
            UsageError: for a file that is something else, of another job, or being written by somebody else.
        """
        self.path = path
        self.frames = 0
        """Written and committed by this writer."""
        self.size_bytes = 0
        """Of the whole recording, as far as it is used."""
        self._subject = subject
        self._bounds = bounds
        self._packer = LinePacker()
        self._stream_ns: int | None = None
        self._kept_ns: int | None = None
        self._last: Frame | None = None
        self._last_n = 0
        self._last_slept_s = _read_slept_s()
        self._verdict_id: int | None = None
        self._verdict: tuple[str | None, str | None] | None = None
        self._resumes = os.path.lexists(path)
        self._lock = self._open_own() if self._resumes else create_file(path)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"{path} is being recorded by another tpmon", "another name for --out"
            ) from error
        try:
            with naming(path):
                self._base = connect_writer(path)
                try:
                    self._begin()
                except BaseException:
                    self._base.close()
                    raise
        except BaseException:
            os.close(self._lock)
            if not self._resumes:
                os.unlink(path)
            raise

    def _open_own(self) -> int:
        base, descriptor = connect_reader(self.path)
        base.close()
        os.close(descriptor)
        with naming(self.path):
            return os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _begin(self) -> None:
        base = self._base
        if not self._resumes:
            make_tables(base)
            base.execute("INSERT INTO meta VALUES ('subject', ?)", (encode(self._subject),))
        else:
            self._resume()
        write_ahead(base)
        base.execute("INSERT OR REPLACE INTO meta VALUES ('writer', ?)", (str(os.getpid()),))

    def _resume(self) -> None:
        base = self._base
        found = base.execute("SELECT value FROM meta WHERE key = 'subject'").fetchone()
        before = decode(Subject, str(found[0]))
        mine = (before.pid, before.start_ticks, before.boot, before.host)
        if mine != (self._subject.pid, self._subject.start_ticks, self._subject.boot, self._subject.host):
            what = f"is of another job: {before.pid} {before.script} on {before.host}"
            raise refuse_file(self.path, what, "another name for --out")
        add_columns(base)
        self._last_n = base.execute("SELECT coalesce(max(n), 0) FROM pulse").fetchone()[0]

    def write(self, step: JudgedFrame) -> None:
        """Write one Frame, acknowledged when this returns.

        Raises:
            StoppedError: when the bounds, the disk or SQLite let nothing more in.
        """
        if not self._subject.log_lines:
            step = _hide_log(step)
        try:
            self._write(step)
        except sqlite3.Error as error:
            self._stream_ns = None  # the packer is ahead of the file
            self._undo()
            raise StoppedError(
                "the disk is full" if is_full(error) else f"the file fails: {error}"
            ) from error
        except Exception:
            self._undo()  # else what is written last, as the reason, would go with this Frame
            raise
        self.frames += 1
        self.size_bytes = self._measure()[0]

    def keep(self, reading: DumpUpdate | SampleUpdate) -> None:
        """Keep a dump or samples that somebody asked for, beside the Frame written last."""
        kind = "dump" if isinstance(reading, DumpUpdate) else "sample"
        row = (self._last_n, kind, pack_once(encode_exact(reading)))
        try:
            self._base.execute("INSERT INTO artifact (n, kind, body) VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            raise StoppedError(f"the file fails: {error}") from error

    def note(self, text: str) -> None:
        """Write an event of the recorder itself, if the file takes it."""
        now = datetime.now().astimezone()
        try:
            self._add_event(self._last_n, time.time_ns(), Event(now, EventKind.PROBE, text))
        except sqlite3.Error:
            self._undo()  # what stopped the writing is told by whoever runs it

    def close(self) -> None:
        """Close the file; what is left is one plain file where nobody reads it."""
        try:
            self._base.execute("DELETE FROM meta WHERE key = 'writer'")
            self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._base.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error:
            self._undo()  # a reader is there, or the disk is full: the log stays beside the file, whole
        finally:
            self._base.close()
            os.close(self._lock)

    def _undo(self) -> None:
        if self._base.in_transaction:
            self._base.execute("ROLLBACK")

    def _write(self, step: JudgedFrame) -> None:
        frame, base = step.judged, self._base
        n, at_ns = self._last_n + 1, wall_ns(frame)
        begins = self._stream_ns is None or (step.standing is None and not is_known(self._subject.node))
        begins = begins or frame.taken_ns - (self._stream_ns or 0) >= STREAM_S * 1e9
        every_ns = self._subject.every_s * 1e9
        kept = self._kept_ns is None or frame.taken_ns - self._kept_ns >= every_ns - frame.interval_s * 5e8
        base.execute("BEGIN IMMEDIATE")
        if begins and kept:
            self._make_room(frame.taken_ns)
            self._begin_stream(n, step)
        self._note_hole(n, frame, at_ns)
        if kept:
            row = (n, frame.taken_ns, at_ns, int(begins), self._packer.pack(write_line(step)))
            base.execute("INSERT INTO frame VALUES (?, ?, ?, ?, ?)", row)
        self._follow_verdict(n, at_ns, frame.verdict)
        cells = (n, frame.taken_ns, at_ns, self._verdict_id, *read_cells(frame))
        base.execute(_ADD_PULSE, cells)
        for event in frame.events:
            self._add_event(n, at_ns, event)
        base.execute("COMMIT")
        self._last, self._last_n, self._last_slept_s = frame, n, _read_slept_s()
        if kept:
            self._kept_ns = frame.taken_ns
            self._stream_ns = frame.taken_ns if begins else self._stream_ns

    def _begin_stream(self, n: int, step: JudgedFrame) -> None:
        from tpmon.record.memory import write_memory  # noqa: PLC0415  # with the judge, which a first picture does without

        self._packer = LinePacker()
        memory = b"" if step.standing is None else pack_once(write_memory(step.standing))
        self._base.execute("INSERT INTO memory VALUES (?, ?)", (n, memory))

    def _add_event(self, n: int, at_ns: int, event: Event) -> None:
        row = (n, at_ns, event.time.isoformat(), event.kind.value, event.text)
        self._base.execute("INSERT INTO event (n, wall_ns, time, kind, text) VALUES (?, ?, ?, ?, ?)", row)

    def _note_hole(self, n: int, frame: Frame, at_ns: int) -> None:
        """Note why time is missing before this Frame, where more is than reading late now and then costs."""
        last = self._last
        if last is None:
            if not self._resumes:
                return
            row = self._base.execute("SELECT wall_ns, mono_ns FROM pulse ORDER BY n DESC LIMIT 1").fetchone()
            self._add_event(n, at_ns, Event(frame.taken, EventKind.PROBE, "recording resumed"))
            if row is not None and at_ns > row[0]:
                self._add_hole(row[0], at_ns, "nothing was recorded")
            return
        gap_s = (frame.taken_ns - last.taken_ns) / 1e9
        slept_s = _read_slept_s() - self._last_slept_s
        if slept_s > SLEPT_S:
            self._add_hole(wall_ns(last), at_ns, f"the machine slept for {slept_s:.0f} s")
        elif gap_s > LATE_INTERVALS * max(frame.interval_s, last.interval_s):
            self._add_hole(wall_ns(last), at_ns, f"tpmon was late by {gap_s - frame.interval_s:.1f} s")

    def _add_hole(self, from_ns: int, to_ns: int, reason: str) -> None:
        self._base.execute(
            "INSERT INTO hole (from_ns, to_ns, reason) VALUES (?, ?, ?)", (from_ns, to_ns, reason)
        )

    def _follow_verdict(self, n: int, at_ns: int, finding: Known[Finding]) -> None:
        """Lengthen the span of the verdict that stands, or begin the next one."""
        kind: str | None = None
        cause: str | None = None
        told: tuple[str | None, str] = (None, "")
        if is_known(finding):
            kind, cause = finding.kind.value, finding.cause if is_known(finding.cause) else None
            told = (finding.confidence.value, finding.summary)
        if (kind, cause) == self._verdict and self._verdict_id is not None:
            change = "UPDATE verdict SET to_n = ?, to_ns = ?, confidence = ?, summary = ? WHERE id = ?"
            self._base.execute(change, (n, at_ns, *told, self._verdict_id))
            return
        row = (n, n, at_ns, at_ns, kind, cause, *told)
        added = self._base.execute(_ADD_VERDICT, row)
        self._verdict_id, self._verdict = added.lastrowid, (kind, cause)

    # The bounds

    def _make_room(self, now_ns: int) -> None:
        """Thin what is old, and what there is no room for; StoppedError where nothing is left to thin."""
        self._thin(now_ns - int(self._bounds.whole_s * 1e9))
        if not self._lacks_room():
            return
        self._thin(now_ns - YOUNG_NS)
        while reason := self._lacks_room():
            if not self._drop_oldest_hour(now_ns - YOUNG_NS):
                self._undo()
                raise StoppedError(reason)

    def _measure(self) -> tuple[int, int]:
        """Return the bytes of the pages that are used, and of those that are free to be used again."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._base.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return (pages - free) * size, free * size

    def _lacks_room(self) -> str:
        """Say why no further minute fits; "" where one does."""
        bounds = self._bounds
        used, free = self._measure()
        if used > bounds.most_bytes:
            return f"it holds {format_bytes(bounds.most_bytes)}, as much as --max-size lets it"
        disk = os.statvfs(os.path.dirname(os.path.abspath(self.path)))
        left = disk.f_bavail * disk.f_frsize
        if left < bounds.least_free_bytes and free < MINUTE_BYTES:
            least = format_bytes(bounds.least_free_bytes)
            return f"the disk has {format_bytes(left)} left, and {least} are to stay free"
        return ""

    def _thin(self, before_ns: int) -> None:
        """Keep of each stream that ended before a time its first Frame alone."""
        limit = self._base.execute(
            "SELECT coalesce(max(n), 0) FROM frame WHERE key = 1 AND mono_ns <= ?", (before_ns,)
        ).fetchone()[0]
        self._base.execute("DELETE FROM frame WHERE key = 0 AND n < ?", (limit,))

    def _drop_oldest_hour(self, before_ns: int) -> bool:
        """Drop Frames and figures of the oldest hour that is not young; verdicts and events stay."""
        oldest = self._base.execute("SELECT min(mono_ns) FROM pulse").fetchone()[0]
        if oldest is None or oldest >= before_ns:
            return False
        limit_ns = min(oldest + HOUR_NS, before_ns)
        # Up to the beginning of a stream: what follows could not be read without it.
        n = self._base.execute(
            "SELECT min(n) FROM frame WHERE key = 1 AND mono_ns >= ?", (limit_ns,)
        ).fetchone()[0]
        if n is None:
            return False
        for table in ("frame", "memory", "pulse"):
            self._base.execute(f"DELETE FROM {table} WHERE n < ?", (n,))  # noqa: S608  # a name from above
        return True


def _read_slept_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _hide_log(step: JudgedFrame) -> JudgedFrame:
    """Leave the lines of logs out, wherever the Frame or the memory of the judge repeats them."""
    read = _hide_in_frame(step.read)
    judged = read if step.judged is step.read else _hide_in_frame(step.judged)
    standing = step.standing
    if standing is not None:
        tracks = tuple(
            replace(
                one,
                suspicion=replace(
                    one.suspicion,
                    evidence=_hide_words(one.suspicion.evidence),
                    shows=_hide_words(one.suspicion.shows),
                ),
            )
            for one in standing.tracks
        )
        before = standing.finding
        finding = replace(before, evidence=_hide_words(before.evidence)) if before is not None else None
        standing = replace(standing, tracks=tracks, finding=finding)
    return JudgedFrame(read, judged, standing)


def _hide_in_frame(frame: Frame) -> Frame:
    output = tuple(
        replace(one, lines=tuple(HIDDEN_LINE for _ in one.lines), pace=_hide_shape(one.pace))
        for one in frame.output
    )
    finding = frame.verdict
    if is_known(finding):
        finding = replace(finding, evidence=_hide_words(finding.evidence))
    return replace(frame, output=output, verdict=finding, pace=_hide_shape(frame.pace))


def _hide_shape(pace: Applicable[LogPace]) -> Applicable[LogPace]:
    return replace(pace, shape=HIDDEN_LINE) if is_known(pace) else pace


def _hide_words(evidence: tuple[Shown, ...]) -> tuple[Shown, ...]:
    words = Figure.LAST_WORDS.label
    return tuple(replace(one, text=HIDDEN_LINE) if one.name == words else one for one in evidence)


def copy_recording(
    path: str, subject: Subject, steps: Sequence[JudgedFrame], asked: Sequence[DumpUpdate | SampleUpdate] = ()
) -> None:
    """Write steps that are at hand, and what was asked for meanwhile, into a new recording.

    Raises:
        UsageError: when the file cannot be made.
        StoppedError: when it cannot be written.
    """
    writer = RecordingWriter(path, subject, RecordingBounds(MOST_COPIED_BYTES, least_free_bytes=0))
    try:
        for step in steps:
            writer.write(step)
        for reading in asked:
            writer.keep(reading)
    finally:
        writer.close()
