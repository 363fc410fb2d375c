"""Read a recording, also while it is written: moments, Frames, figures, verdicts, events and holes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tpmon.judge.hysteresis import Standing
from tpmon.model.codec import CodecError, decode
from tpmon.model.frame import PULSE_SPAN_S, Event, EventKind, Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.recording import Hole, Moment, RecordedEvent, Subject, VerdictSpan
from tpmon.model.verdict import Confidence, Kind
from tpmon.record.line import LineReader, parse_as_read, parse_line, unpack_once
from tpmon.record.memory import read_memory
from tpmon.record.pulses import HISTORY, parse_pulse
from tpmon.record.schema import connect_reader, limited, list_columns, naming, refuse_file

if TYPE_CHECKING:
    from typing_extensions import Self

Near = TypeVar("Near", DumpUpdate, SampleUpdate)

MOST_EVENTS = 20_000
"""The newest so many are read."""
_MOMENT = "SELECT n, mono_ns, wall_ns FROM frame"
_SPAN = "SELECT from_n, to_n, from_ns, to_ns, kind, cause, confidence, summary FROM verdict ORDER BY id"
_EVENT = "SELECT n, wall_ns, time, kind, text FROM event ORDER BY id DESC LIMIT ?"
_NO_FRAME = "it holds no Frame so far"


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """Hold a Frame as it was read and as it was judged, the same where it was not.

    ``begins`` a stream: there, ``memory`` is what the judge remembered, None at its own beginning.
    """

    moment: Moment
    read: Frame
    judged: Frame
    begins: bool
    memory: Standing | None


class Recording:
    """Read one recording. Not for two threads at once; every method raises UsageError for a damaged file."""

    def __init__(self, path: str) -> None:
        """Open the file; UsageError for what is no recording, or holds no Frame."""
        self.path = path
        self._base, self._descriptor = connect_reader(path)
        self._stream: tuple[int, int, LineReader, bytes] | None = None
        """The stream read last: its first Frame, the last one read, the reader after it, its line."""
        self._history: tuple[tuple[int, Pulse], ...] = ()
        """The figures read last, each with its number, oldest first."""
        self._near: dict[str, tuple[int, DumpUpdate | SampleUpdate]] = {}
        """What was read on demand and looked at last, by its kind, with its row."""
        try:
            with self._asking():
                found = self._one("SELECT value FROM meta WHERE key = 'subject'")
                self.subject = decode(Subject, str(found[0]) if found else "")
                found = self._one("SELECT value FROM meta WHERE key = 'label'")
                self.label = str(found[0]) if found else ""
                """What whoever made the recording for a test knows to be true of the job; "" for nothing."""
                first, last = self._end("ASC"), self._end("DESC")
            if first is None or last is None:
                raise refuse_file(path, _NO_FRAME, "again once it has one")
            self.first, self.last = first, last
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._base.close()
        os.close(self._descriptor)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with naming(self.path), limited(self._base):
            try:
                yield
            except (CodecError, ValueError, TypeError, OverflowError, MemoryError) as error:
                raise refuse_file(self.path, f"damaged: {error}", "--at with another time") from error

    def _all(self, query: str, *values: object) -> list[Any]:
        return self._base.execute(query, values).fetchall()

    def _one(self, query: str, *values: object) -> Any:
        return self._base.execute(query, values).fetchone()

    def _end(self, order: str) -> Moment | None:
        return _to_moment(self._one(f"{_MOMENT} ORDER BY n {order} LIMIT 1"))

    def refresh(self) -> bool:
        """Look for what was written since, and tell whether it is more."""
        with self._asking():
            last = self._end("DESC") or self.last
            self.first = self._end("ASC") or self.first  # the oldest hours may have gone
        moved, self.last = last.n != self.last.n, last
        return moved

    def is_live(self) -> bool:
        """Tell whether somebody records into it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def read_writer(self) -> Applicable[int]:
        """Return the PID of the tpmon that writes it, as far as it noted that."""
        with self._asking():
            found = self._one("SELECT value FROM meta WHERE key = 'writer'")
            return int(found[0]) if found else NOT_APPLICABLE

    def count_frames(self) -> int:
        """Return how many whole Frames it has."""
        with self._asking():
            return int(self._one("SELECT count(*) FROM frame")[0])

    def find(self, wall_ns: int) -> Moment:
        """Return the newest Frame at or before a time, else the first one."""
        with self._asking():
            query = f"{_MOMENT} WHERE wall_ns <= ? ORDER BY wall_ns DESC, n DESC LIMIT 1"
            return _to_moment(self._one(query, wall_ns)) or self.first

    def moment(self, n: int) -> Moment:
        """Return Frame ``n``, or the nearest before it that is kept, else the first one."""
        with self._asking():
            query = f"{_MOMENT} WHERE n <= ? ORDER BY n DESC LIMIT 1"
            return _to_moment(self._one(query, n)) or self.first

    def step(self, n: int, by: int) -> Moment:
        """Return the Frame so many further on, or back; the ends stop it."""
        way = "n > ? ORDER BY n ASC" if by > 0 else "n < ? ORDER BY n DESC"
        with self._asking():
            query = f"{_MOMENT} WHERE {way} LIMIT ?"
            found = self._all(query, n, abs(by))
            return _to_moment(found[-1] if found else None) or self.moment(n)

    def frame(self, n: int) -> Frame:
        """Return a Frame as it was shown: judged."""
        with self._asking():
            return parse_line(self._read_line(n))

    def frames(self, first_n: int, last_n: int) -> Iterator[Frame]:
        """Yield the Frames of a part as they were shown, oldest first."""
        moment = self.moment(first_n)
        while moment.n <= last_n:
            yield self.frame(moment.n)
            after = self.step(moment.n, 1)
            if after.n == moment.n:
                return
            moment = after

    def recorded(self) -> Iterator[RecordedFrame]:
        """Yield every Frame with what it takes to judge it again, oldest first."""
        with self._asking():
            rows = self._base.execute("SELECT n, mono_ns, wall_ns, key, body FROM frame ORDER BY n")
        reader = LineReader()
        while True:
            with self._asking():
                row = rows.fetchone()
                if row is None:
                    return
                n, mono_ns, at_ns, begins, body = row
                if begins:
                    reader = LineReader()
                read, judged = parse_as_read(reader.unpack(body))
                memory = self._one("SELECT body FROM memory WHERE n = ?", n) if begins else None
                before = read_memory(unpack_once(memory[0])) if memory and memory[0] else None
                one = RecordedFrame(
                    Moment(int(n), int(mono_ns), int(at_ns)), read, judged, bool(begins), before
                )
            yield one

    def pulses(self, n: int) -> tuple[Pulse, ...]:
        """Return the main figures of the ten minutes up to Frame ``n``."""
        with self._asking():
            known = self._history if self._history and self._history[-1][0] <= n else ()
            found_columns = list_columns(self._base)
            columns = ", ".join(
                name if name in found_columns else "NULL" for name in HISTORY
            )  # our own names
            query = f"SELECT n, mono_ns, {columns} FROM pulse WHERE n <= ? AND n > ? ORDER BY n DESC"  # noqa: S608
            new: list[tuple[int, Pulse]] = []
            for at, mono_ns, *cells in self._base.execute(query, (n, known[-1][0] if known else -1)):
                pulse = parse_pulse(mono_ns, cells)
                if new and pulse.taken_ns < new[0][1].taken_ns - PULSE_SPAN_S * 1e9:
                    known = ()
                    break
                new.append((at, pulse))
            found = (*known, *reversed(new))
            since_ns = found[-1][1].taken_ns - PULSE_SPAN_S * 1e9 if found else 0
            self._history = tuple(one for one in found if one[1].taken_ns >= since_ns)
            return tuple(pulse for _at, pulse in self._history)

    def verdicts(self) -> tuple[VerdictSpan, ...]:
        """Return the spans of one verdict each, oldest first."""
        with self._asking():
            return tuple(_to_span(row) for row in self._all(_SPAN))

    def events(self) -> tuple[RecordedEvent, ...]:
        """Return the events, oldest first."""
        with self._asking():
            rows = self._all(_EVENT, MOST_EVENTS)
            return tuple(
                RecordedEvent(
                    int(n), int(at_ns), Event(datetime.fromisoformat(time), EventKind(kind), str(text))
                )
                for n, at_ns, time, kind, text in reversed(rows)
            )

    def holes(self) -> tuple[Hole, ...]:
        """Return the times without Frames, oldest first."""
        with self._asking():
            rows = self._all("SELECT from_ns, to_ns, reason FROM hole ORDER BY id")
            return tuple(Hole(int(from_ns), int(to_ns), str(reason)) for from_ns, to_ns, reason in rows)

    def dump_near(self, n: int) -> Applicable[DumpUpdate]:
        """Return the dump nearest to Frame ``n`` that somebody asked for."""
        return self._find_near("dump", n, DumpUpdate)

    def sample_near(self, n: int) -> Applicable[SampleUpdate]:
        """Return the hot functions nearest to Frame ``n``."""
        return self._find_near("sample", n, SampleUpdate)

    def _find_near(self, kind: str, n: int, shape: type[Near]) -> Applicable[Near]:
        """Return what is nearest, the same object as before where it is the same row."""
        with self._asking():
            query = "SELECT id FROM artifact WHERE kind = ? ORDER BY abs(n - ?), id DESC LIMIT 1"
            found = self._one(query, kind, n)
            if found is None:
                return NOT_APPLICABLE
            row, known = found[0], self._near.get(kind)
            if known is not None and known[0] == row and isinstance(known[1], shape):
                return known[1]
            body = self._one("SELECT body FROM artifact WHERE id = ?", row)[0]
            near = decode(shape, unpack_once(body).decode("utf-8", "replace"))
            self._near[kind] = (row, near)
            return near

    def _read_line(self, n: int) -> bytes:
        """Return the line of a Frame: on in the stream read last, or from the beginning of its own."""
        found = self._one("SELECT max(n) FROM frame WHERE key = 1 AND n <= ?", n)
        begin = found[0]
        stream = self._stream
        if stream is not None and stream[0] == begin and stream[1] == n:
            return stream[3]
        if stream is not None and stream[0] == begin and stream[1] < n:
            _, at, reader, line = stream
        else:
            at, reader, line = -1, LineReader(), b""
        self._stream = None
        query = "SELECT n, body FROM frame WHERE n >= ? AND n > ? AND n <= ? ORDER BY n"
        for row_n, body in self._all(query, begin, at, n):
            at, line = row_n, reader.unpack(body)
        if at != n:
            raise CodecError(f"it has no Frame {n}")
        self._stream = (begin, n, reader, line)
        return line


def _to_moment(row: Sequence[int] | None) -> Moment | None:
    return None if row is None else Moment(*map(int, row))


def _to_span(row: Sequence[Any]) -> VerdictSpan:
    first_n, last_n, from_ns, to_ns = map(int, row[:4])
    kind, cause, confidence, summary = row[4:]
    return VerdictSpan(
        first_n,
        last_n,
        from_ns,
        to_ns,
        NOT_APPLICABLE if kind is None else Kind(kind),
        NOT_APPLICABLE if cause is None else str(cause),
        NOT_APPLICABLE if confidence is None else Confidence(confidence),
        str(summary),
    )
