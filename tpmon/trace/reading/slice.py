"""Write a slice of a trace: some steps, or the time around the longest gaps.

The file is read a second time, piece by piece: a slice of a gigabyte needs no more memory than its analysis.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec
import numpy as np

from tpmon.errors import NotPermittedError, UsageError
from tpmon.model.frozen import dataclass
from tpmon.trace.figures.steps import NEVER, TraceSteps, find_steps
from tpmon.trace.reading.chunks import ByteSource, FilePieces, LossTally, read_event, split_events
from tpmon.trace.reading.columns import Ints, Mask, distinct
from tpmon.trace.reading.read import Progress, Trace
from tpmon.trace.reading.schema import (
    BY_GAPS,
    BY_STEPS,
    UNREADABLE,
    Category,
    Classes,
    RowKind,
    TraceEvent,
    TraceHeader,
    guess_category,
    is_step,
)
from tpmon.trace.reading.sources import open_bytes
from tpmon.trace.reading.spans import Spans, invert, unite, unite_rows
from tpmon.trace.reading.tables import MOST_US, count_ns

AROUND_NS = 200_000
"""What is kept before and after a gap, and a tenth of the gap where that is more."""
_AROUND_SHARE = 0.1
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")
_NUMBER = re.compile(r"#(\d{1,18})")


@dataclass(frozen=True, slots=True)
class SliceChoice:
    """Say what is kept: events of the host in ``host``, work of devices in ``device`` or by correlation.

    ``steps`` are the marks that are kept, None for all that overlap; ``by`` says what was chosen.
    """

    host: Spans
    device: Spans
    correlations: Ints
    steps: frozenset[str] | None
    by: str
    what: str


def choose_steps(trace: Trace, wanted: str) -> SliceChoice:
    """Choose steps by the numbers of their marks, ``7`` or ``3-5``; UsageError where there are none such."""
    parsed = _RANGE.match(wanted)
    if parsed is None:
        raise UsageError(f"--steps takes a number or two, found {wanted!r}", "--steps 3-5")
    first, last = int(parsed[1]), int(parsed[2] or parsed[1])
    steps = find_steps(trace)
    if not steps.marked:
        raise UsageError("the trace marks no steps", "--top-gaps 3")
    numbers = [_number(name) for name in steps.names]
    rows = [row for row, number in enumerate(numbers) if first <= number <= last]
    if not rows:
        there = ", ".join(map(str, numbers[:20])) + (" ..." if len(numbers) > 20 else "")
        raise UsageError(f"there is no step {wanted}; there are {there}", f"--steps {numbers[0]}")
    return _choose_rows(trace, steps, rows[0], rows[-1])


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else -1


def _choose_rows(trace: Trace, steps: TraceSteps, first: int, last: int) -> SliceChoice:
    start, stop = int(steps.host_start[first]), int(steps.host_end[last])
    host = unite(np.array([start]), np.array([stop - start]))
    device = unite(np.array([start]), np.array([int(steps.end[last]) - start]))
    calls, work = trace.calls, trace.work
    inside = (calls.start < stop) & (calls.end > start)
    # What an earlier step launched and this one waits for is kept with its launch, so that the steps
    # of the slice begin and end as they did.
    still_runs = (work.start < int(steps.end[last])) & (work.end > start)
    launch = np.where(work.call >= 0, calls.start[work.call] if len(calls.start) else NEVER, NEVER)
    earlier = still_runs & (launch < start)
    kept = np.concatenate((calls.correlation[inside], work.correlation[earlier]))
    names = steps.names[first : last + 1]
    what = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    return SliceChoice(host, device, _positive(kept), frozenset(names), BY_STEPS, what)


def choose_gaps(trace: Trace, count: int) -> SliceChoice:
    """Choose what is around the ``count`` longest gaps of all devices; UsageError where there is none."""
    work, calls = trace.work, trace.calls
    if not len(work.start):
        raise UsageError("the trace has no device work, and so no gaps", "--steps 3")
    window = find_steps(trace).window
    starts, ends = [], []
    for device in trace.list_devices():
        idle = invert(unite_rows(work, work.device == device), *window)
        starts.append(idle.start)
        ends.append(idle.end)
    start, end = np.concatenate(starts), np.concatenate(ends)
    if not len(start):
        raise UsageError("no device is idle in the window of the steps", "--steps 3")
    longest = np.argsort(start - end, kind="stable")[:count]
    start, end = start[longest], end[longest]
    around = np.maximum(((end - start) * _AROUND_SHARE).astype(np.int64), AROUND_NS)
    kept = unite(start - around, end - start + 2 * around)
    called, ran = overlaps(kept, calls.start, calls.duration), overlaps(kept, work.start, work.duration)
    both = np.concatenate((calls.correlation[called], work.correlation[ran]))
    noun = "gap" if len(longest) == 1 else f"{len(longest)} gaps"
    return SliceChoice(kept, kept, _positive(both), None, BY_GAPS, f"the longest {noun}")


def describe_slice(header: TraceHeader) -> Iterator[str]:
    """Say what a trace that is a slice was taken from, and what its figures then leave out."""
    taken = header.slice
    if taken is None:
        return
    note = f"a slice of {taken.of}: {taken.kept}"
    if len(taken.windows_ns) > 1:
        long = max(end for _start, end in taken.windows_ns) - min(start for start, _end in taken.windows_ns)
        kept = sum(end - start for start, end in taken.windows_ns)
        note += (
            f"; {kept / 1e6:,.3f} of {long / 1e6:,.3f} ms are in it, in {len(taken.windows_ns)} parts, "
            "and what was cut out between them counts for nothing"
        )
    yield note


def overlaps(spans: Spans, start: Ints, duration: Ints) -> Mask:
    """Tell which intervals, or moments where ``duration`` is 0, lie in part in ``spans``."""
    if not len(spans.start):
        return np.zeros(len(start), dtype=np.bool_)
    at = np.searchsorted(spans.end, start, side="right")
    begins: Ints = spans.start[np.minimum(at, len(spans.start) - 1)]
    return (at < len(spans.start)) & (begins < start + np.maximum(duration, 1))


def _positive(correlations: Ints) -> Ints:
    return distinct(correlations[correlations > 0])


_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_LEVEL = 5
_ELSEWHERE = "name a file elsewhere"


@dataclass(frozen=True, slots=True)
class Written:
    """Say what was written: events kept of how many, those left out as no clean JSON, bytes of the file."""

    kept: int
    events: int
    left_out: int
    bytes: int


def write_slice(path: str, out: str, choice: SliceChoice, progress: Progress | None = None) -> Written:
    """Write what ``choice`` keeps of the trace at ``path`` to the new file ``out`` (packed: .gz).

    UsageError where ``out`` is there already or cannot be written, or ``path`` is no trace; NotPermittedError
    where one of them may not be opened.
    """
    with open_bytes(path) as (file, size), _open_new(out) as target:
        source = ByteSource(file)
        sifter = _Sifter(choice)
        pieces = FilePieces(source)
        target.write(b'{\n"traceEvents": [\n')
        comma = b""
        tally = LossTally()
        for text, events in pieces.decode(tally):
            for raw in sifter.sift(text, events):
                target.write(comma + raw)
                comma = b",\n"
            if progress is not None:
                progress(min(source.read_bytes, size), size)
        target.write(b"\n]" + _write_header(path, pieces, choice) + b"}\n")
    left_out = sifter.left_out + tally.events
    return Written(sifter.kept, sifter.events, left_out, os.path.getsize(out))


@contextmanager
def _open_new(out: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file that is not there yet; it goes again where something fails."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise UsageError(f"{out} is there already", "name a file that is not there yet") from error
    except PermissionError as error:
        raise NotPermittedError(f"{out} may not be written", _ELSEWHERE) from error
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}", _ELSEWHERE) from error
    try:
        with os.fdopen(descriptor, "wb") as plain:
            if out.endswith(".gz"):
                with gzip.GzipFile("", "wb", _LEVEL, plain, mtime=0) as packed:
                    yield packed
            else:
                yield plain
    except BaseException as error:
        with suppress(OSError):
            os.unlink(out)
        if not isinstance(error, OSError):
            raise
        raise UsageError(f"{out} is not written: {error.strerror or error}", _ELSEWHERE) from error


class _Sifter:
    """Pick the events that a choice keeps, and count."""

    def __init__(self, choice: SliceChoice) -> None:
        self.kept = self.events = self.left_out = 0
        self._choice = choice
        self._linked = frozenset(choice.correlations.tolist())
        self._classes = Classes()

    def sift(self, text: bytes, events: list[TraceEvent]) -> Iterator[bytes]:
        """Give the text of each event of a piece that is kept."""
        raws: list[Any]
        try:
            raws = _RAWS.decode(b"[" + text + b"]")
        except UNREADABLE:
            raws = []
        if len(raws) != len(events):
            events, raws = self._split(text)
        self.events += len(events)
        host, device = self._find(events)
        for event, raw, in_host, in_device in zip(events, raws, host.tolist(), device.tolist(), strict=True):
            if self._keeps(event, in_host, in_device):
                self.kept += 1
                yield bytes(raw).strip()

    def _split(self, text: bytes) -> tuple[list[TraceEvent], list[bytes]]:
        """Read the events of a damaged piece one by one; what Perfetto could not read is left out."""
        events, raws = [], []
        for start, stop in split_events(text):
            part = text[start:stop].strip()
            event = read_event(part, LossTally()) if part else None
            if event is None:
                continue
            try:
                msgspec.json.decode(part)
            except UNREADABLE:
                self.left_out += 1
                continue
            events.append(event)
            raws.append(part)
        return events, raws

    def _find(self, events: list[TraceEvent]) -> tuple[Mask, Mask]:
        """Tell which events lie in the times that are kept of the host, and of devices."""
        start = np.array([event.ts for event in events], dtype=np.float64)
        length = np.array([event.dur for event in events], dtype=np.float64)
        length = np.where(length > 0, length, 0.0)
        good = np.abs(start) + length < MOST_US
        start, length = np.where(good, start, 0.0), np.where(good, length, 0.0)
        first = count_ns(start)
        duration = np.rint(length * 1000).astype(np.int64)
        host, device = (overlaps(one, first, duration) for one in (self._choice.host, self._choice.device))
        return host & good, device & good

    def _keeps(self, event: TraceEvent, in_host: bool, in_device: bool) -> bool:
        if event.ph == "M":
            return True
        if event.ph != "X":
            return in_host or in_device
        kind, meaning = self._classes[event.cat or guess_category(event)]
        link = event.args.correlation if event.args else 0
        if kind == RowKind.WORK:
            return link in self._linked or (link <= 0 and in_device)
        if kind == RowKind.CALL:
            return in_host or link in self._linked
        if kind == RowKind.SKIPPED:
            return False
        inside = in_device if meaning == Category.GPU_ANNOTATION else in_host
        steps = self._choice.steps
        return inside and (steps is None or not is_step(event.name) or event.name in steps)


def _write_header(path: str, pieces: FilePieces, choice: SliceChoice) -> bytes:
    """Write what stood beside the events, and of what this is a slice."""
    beside: dict[str, Any] = {}
    for text in pieces.list_beside():
        with suppress(ValueError, RecursionError):  # a slice without it is a trace all the same
            beside.update(json.loads(b"{" + text + b"}", strict=False, parse_constant=lambda _name: None))
    beside.pop("traceEvents", None)
    windows = [*zip(choice.host.start.tolist(), choice.host.end.tolist(), strict=True)]
    name = os.path.basename(path)
    beside["tpmon_slice"] = {"of": name, "by": choice.by, "kept": choice.what, "windows_ns": windows}
    return b",\n" + json.dumps(beside).encode()[1:-1]
