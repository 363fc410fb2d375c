"""Write a slice of a trace as a small trace: the events as they stand in the file, byte for byte.

The file is read a second time, piece by piece, so that a slice of a gigabyte needs no more memory than
its analysis. An event that is no clean JSON, which Perfetto would not open, is left out and counted.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tpmon.errors import NotPermittedError, UsageError
from tpmon.model.frozen import dataclass
from tpmon.trace.reading.chunks import BESIDE_BYTES, Pieces, Source, split_events
from tpmon.trace.reading.classes import is_step
from tpmon.trace.reading.read import Progress, decode_piece
from tpmon.trace.reading.repair import Tally, read_event
from tpmon.trace.reading.schema import Category, Event, Kind, classify, guess_category
from tpmon.trace.reading.slice import Choice, overlaps
from tpmon.trace.reading.sources import open_bytes

_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_MOST_US = 4.6e15
_LEVEL = 5
_MOST_KINDS = 1000
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Written:
    """Say what was written: events kept of how many, those left out as no clean JSON, bytes of the file."""

    kept: int
    events: int
    left_out: int
    bytes: int


def write_slice(path: str, out: str, choice: Choice, progress: Progress | None = None) -> Written:
    """Write what ``choice`` keeps of the trace at ``path`` to the new file ``out`` (packed: .gz).

    Raises:
        UsageError: where ``out`` is there already or cannot be written, or ``path`` is no trace.
        NotPermittedError: where one of them may not be opened.
    """
    with open_bytes(path) as (file, size), _open_new(out) as target:
        source = Source(file)
        sifter = _Sifter(choice)
        pieces = Pieces(source)
        target.write(b'{\n"traceEvents": [\n')
        tail = b""
        comma = b""
        for piece in pieces:
            tally = Tally()
            events, end = decode_piece(piece, tally)
            text = piece if end is None else piece[:end]
            for raw in sifter.sift(text, events):
                target.write(comma + raw)
                comma = b",\n"
            sifter.left_out += tally.events
            if progress is not None:
                progress(min(source.read_bytes, size), size)
            if end is not None:
                tail = piece[end + 1 :] + pieces.drain()
                break
        target.write(b"\n]" + _write_header(path, pieces.head, tail, choice) + b"}\n")
    return Written(sifter.kept, sifter.events, sifter.left_out, os.path.getsize(out))


@contextmanager
def _open_new(out: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file that is not there yet; it goes again where something fails."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise UsageError(f"{out} is there already", "name a file that is not there yet") from error
    except PermissionError as error:
        raise NotPermittedError(f"{out} may not be written", "name a file elsewhere") from error
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}", "name a file elsewhere") from error
    try:
        with os.fdopen(descriptor, "wb") as plain:
            if out.endswith(".gz"):
                with gzip.GzipFile("", "wb", _LEVEL, plain, mtime=0) as packed:
                    yield packed
            else:
                yield plain
    except OSError as error:
        _remove(out)
        raise UsageError(
            f"{out} is not written: {error.strerror or error}", "name a file elsewhere"
        ) from error
    except BaseException:
        _remove(out)
        raise


def _remove(out: str) -> None:
    with suppress(OSError):
        os.unlink(out)


class _Sifter:
    """Pick the events that a choice keeps, and count."""

    def __init__(self, choice: Choice) -> None:
        self.kept = self.events = self.left_out = 0
        self._choice = choice
        self._linked = frozenset(choice.correlations.tolist())
        self._kinds: dict[str, tuple[Kind, Category]] = {}

    def sift(self, text: bytes, events: list[Event]) -> Iterator[bytes]:
        """Give the text of each event of a piece that is kept."""
        raws: list[Any]
        try:
            raws = _RAWS.decode(b"[" + text + b"]")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            raws = []
        if len(raws) != len(events):
            events, raws = self._split(text)
        self.events += len(events)
        host, device = self._find(events)
        for event, raw, in_host, in_device in zip(events, raws, host.tolist(), device.tolist(), strict=True):
            if self._keeps(event, in_host, in_device):
                self.kept += 1
                yield bytes(raw).strip()

    def _split(self, text: bytes) -> tuple[list[Event], list[bytes]]:
        """Read the events of a damaged piece one by one; what Perfetto could not read is left out."""
        events, raws = [], []
        for start, stop in split_events(text):
            part = text[start:stop].strip()
            event = read_event(part, Tally()) if part else None
            if event is None:
                continue
            try:
                msgspec.json.decode(part)
            except (msgspec.MsgspecError, RecursionError, ValueError):
                self.left_out += 1
                continue
            events.append(event)
            raws.append(part)
        return events, raws

    def _find(self, events: list[Event]) -> tuple[Mask, Mask]:
        """Tell which events lie in the times that are kept of the host, and of devices."""
        start = np.array([event.ts for event in events], dtype=np.float64)
        length = np.array([event.dur for event in events], dtype=np.float64)
        length = np.where(length > 0, length, 0.0)
        good = np.abs(start) + length < _MOST_US
        start, length = np.where(good, start, 0.0), np.where(good, length, 0.0)
        whole = np.floor(start)
        first = whole.astype(np.int64) * 1000 + np.rint((start - whole) * 1000).astype(np.int64)
        duration = np.rint(length * 1000).astype(np.int64)
        return (
            overlaps(self._choice.host, first, duration) & good,
            overlaps(self._choice.device, first, duration) & good,
        )

    def _keeps(self, event: Event, in_host: bool, in_device: bool) -> bool:
        if event.ph == "M":
            return True
        if event.ph != "X":
            return in_host or in_device
        category = event.cat or guess_category(event)
        known = self._kinds.get(category)
        if known is None:
            known = classify(category)
            if len(self._kinds) < _MOST_KINDS:
                self._kinds[category] = known
        kind, meaning = known
        link = event.args.correlation if event.args else 0
        if kind is Kind.WORK:
            return link in self._linked or (link <= 0 and in_device)
        if kind is Kind.CALL:
            return in_host or link in self._linked
        if kind is Kind.SKIPPED:
            return False
        inside = in_device if meaning is Category.GPU_ANNOTATION else in_host
        steps = self._choice.steps
        return inside and (steps is None or not is_step(event.name) or event.name in steps)


def _write_header(path: str, head: bytes, tail: bytes, choice: Choice) -> bytes:
    """Write what stood beside the events, and of what this is a slice."""
    beside: dict[str, Any] = {}
    before = head.strip().removeprefix(b"{").rstrip().removesuffix(b",")
    after = tail.strip().removesuffix(b"}").strip().removeprefix(b",")
    for text in (before, after):
        if not text.strip() or len(text) > BESIDE_BYTES:
            continue
        with suppress(ValueError, RecursionError):  # a slice without it is a trace all the same
            beside.update(json.loads(b"{" + text + b"}", strict=False, parse_constant=lambda _name: None))
    beside.pop("traceEvents", None)
    windows = zip(choice.host.start.tolist(), choice.host.end.tolist(), strict=True)
    beside["tpmon_slice"] = {
        "of": os.path.basename(path),
        "by": choice.by,
        "kept": choice.what,
        "windows_ns": [*windows],
    }
    return b",\n" + json.dumps(beside).encode()[1:-1]
