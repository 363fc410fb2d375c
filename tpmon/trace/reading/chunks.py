"""Cut the bytes of a trace into pieces of whole events, and read pieces that are no clean JSON.

A gzip file that breaks off or is damaged gives what there was until then. At most one piece, one event of
``EVENT_BYTES``, or the bytes beside the events are held. Known faults: quotes inside of names that nobody
escaped, control characters, bare ``inf``, ``nan`` and ``N/A``, numbers written as strings, arguments that are
no object, a file that breaks off.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec

from tpmon.errors import UsageError
from tpmon.trace.reading.foreign import name_foreign
from tpmon.trace.reading.schema import FAST_EVENT, UNREADABLE, AnyArgs, TraceEvent
from tpmon.trace.reading.sources import Readable

PIECE_BYTES = 256 << 10
"""Its events fit the caches: pieces of two megabytes took a fifth more CPU."""
READ_BYTES = 256 << 10
EVENT_BYTES = 32 << 20
"""A single event larger than this is dropped: the largest seen are kilobytes."""
BESIDE_BYTES = 32 << 20
"""What may stand before or after the events."""
_LEFT_BYTES = 64

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_WITHIN = 64 << 10
_LIST = re.compile(rb"\s*\[\s*(?:\{|\])")
_KEYS = rb"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"
BOUNDARY = re.compile(rb"\}\s*(,)\s*\{\s*\"" + _KEYS + rb"\"\s*:")
"""Between two events: group 1 is the comma. In a string the quote would be escaped."""
_END = re.compile(rb"\}\s*(\])(?:\s*,\s*\"|\s*\}\s*\Z|\s*\Z)")
_EMPTY = re.compile(rb"\s*(\])")
"""Where the list may be closed: behind an event, or at once. Together they took twenty times what two take.

No two runs of spaces touch: a megabyte of them would be tried squared.
"""
_LOOSE_END = re.compile(rb"\](?=\s*,\s*\"|\s*\}\s*\Z|\s*\Z)")
"""The same behind an item that is no object; most are not it."""
_MOST_ENDS = 40
_GZIP = b"\x1f\x8b"
_WHOLE_FILE = (0, sys.maxsize)


class ByteSource:
    """Give the bytes of a file, unpacked, with how far it is read and whether it broke off."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        first = file.read(READ_BYTES)
        self.packed = first.startswith(_GZIP)
        self._unpacker = zlib.decompressobj(31)
        self._input = first
        self._member_open = self.packed
        self.read_bytes = len(first)
        self.unpacked_bytes = 0
        self.broken = ""

    def read(self) -> bytes:
        """Return the next bytes, at most about a megabyte, or nothing at the end."""
        if self.packed:
            data = self._read_packed()
        else:
            data, self._input = self._input or self._fill(), b""
        self.unpacked_bytes += len(data)
        return data

    def _fill(self) -> bytes:
        data = self._file.read(READ_BYTES)
        self.read_bytes += len(data)
        return data

    def _read_packed(self) -> bytes:
        while not self.broken:
            if not self._input:
                self._input = self._fill()
                if not self._input:
                    if self._member_open:
                        self.broken = "the gzip file breaks off"
                    return b""
            if self._unpacker.eof:  # several members one after the other are one file
                if not self._input.startswith(_GZIP):
                    return b""
                self._unpacker = zlib.decompressobj(31)
            before = self._unpacker.copy()
            try:
                data = self._unpacker.decompress(self._input, READ_BYTES * 4)
            except zlib.error:
                self.broken = "the gzip file is damaged"
                return _salvage(before, self._input)
            finished = self._unpacker.eof
            self._input = self._unpacker.unused_data if finished else self._unpacker.unconsumed_tail
            self._member_open = not finished
            if data:
                return data
        return b""


def _salvage(unpacker: zlib._Decompress, data: bytes) -> bytes:
    """Unpack what stands before the damage in ``data``: a call that fails gives nothing of what it had."""
    parts = []
    at, size = 0, 1 << len(data).bit_length()
    while size:
        trial = unpacker.copy()
        try:
            parts.append(trial.decompress(data[at : at + size]))
        except zlib.error:
            pass
        else:
            unpacker, at = trial, at + size
        size //= 2
    return b"".join(parts)


class FilePieces:
    """Give pieces of whole events, without the comma between two pieces; UsageError where it is no trace.

    ``closed`` tells whether the end of the list of events was seen. ``part`` are bytes of the file: it gives
    the events from the first comma between two at or after its begin to the first one at or after its end.
    ``begin`` is where they begin.
    """

    def __init__(self, source: ByteSource, part: tuple[int, int] = _WHOLE_FILE) -> None:
        self._source = source
        self.dropped_bytes = 0
        self.closed = False
        self._was_cut = False
        self._tail = b""
        self._at, self.stop = part
        self._head, self._rest = self._find_start() if not self._at else (b"", self._find_comma())
        self.begin = self._at

    def _find_start(self) -> tuple[bytes, bytearray]:
        seen = bytearray()
        looked = 0
        while True:
            data = self._source.read()
            seen += data
            found = _START.search(seen, looked)
            opened = None if found else _LIST.match(seen, 0, _LIST_WITHIN)
            if found or opened:
                self._at = found.end() if found else seen.index(b"[") + 1
                return bytes(seen[: found.start()]) if found else b"", seen[self._at :]
            looked = max(len(seen) - 64, 0)
            if not data or len(seen) > BESIDE_BYTES or bytes(seen[:64].lstrip()[:1]) not in (b"{", b"[", b""):
                broken = self._source.broken
                what, try_this = name_foreign(seen)
                why = f"the file is no trace of torch.profiler but {what}" if seen else "the file is empty"
                raise UsageError(f"{broken} before the first event" if broken else why, try_this)

    def _find_comma(self) -> bytearray:
        """Read to the first comma between two events, and return what follows; nothing where there is none.

        The part before goes to it and a little beyond: it looks for the same comma.
        """
        seen = bytearray()
        while data := self._source.read():
            seen += data
            found = BOUNDARY.search(seen)
            if found is not None:
                if self._at + found.start() >= self.stop:
                    break
                self._at += found.end(1)
                return seen[found.end(1) :]
            looked = max(seen.rfind(b"}"), 0)  # a comma may follow it in what is read next
            del seen[:looked]
            self._at += looked
        self.stop = 0
        return bytearray()

    def _find_stop(self) -> re.Match[bytes] | None:
        """Find the comma at which the part ends, in what is held."""
        begin = max(self.stop - self._at, 0)
        return BOUNDARY.search(self._rest, begin) if begin < len(self._rest) else None

    def __iter__(self) -> Iterator[bytes]:
        """Give piece after piece; the last one holds what stands behind the events too."""
        if not self.stop:
            return
        enough = PIECE_BYTES
        stop = None
        while stop is None:
            data = self._source.read()
            if not data:
                break
            self._rest += data
            if len(self._rest) < enough:
                continue
            stop = self._find_stop()
            cut = stop.span(1) if stop else last_boundary(self._rest)
            if cut is not None:
                piece = bytes(memoryview(self._rest)[: cut[0]])
                self._drop(cut[1])
                enough = PIECE_BYTES
                self._was_cut = True
                yield piece
            elif len(self._rest) >= EVENT_BYTES:
                if not self._rest.isspace():
                    self.dropped_bytes += len(self._rest) - _LEFT_BYTES
                self._drop(len(self._rest) - _LEFT_BYTES)  # in which a boundary may begin
                enough = PIECE_BYTES
            else:  # twice as much before the next search, so that all searches together are no square
                enough = min(2 * len(self._rest), EVENT_BYTES)
        if stop is not None:
            return
        stop = self._find_stop()
        begin, end = stop.span(1) if stop else (len(self._rest), len(self._rest))
        piece = bytes(memoryview(self._rest)[:begin])
        self._drop(end)
        self._was_cut = stop is not None
        if piece.strip():
            yield piece

    def _drop(self, size: int) -> None:
        del self._rest[:size]
        self._at += size

    def decode(self, tally: LossTally, *, fast: bool = False) -> Iterator[tuple[bytes, list[TraceEvent]]]:
        """Give the events of each piece with its text, until the list is closed; count what is lost.

        ``fast``: only what the tables hold is decoded.
        """
        for piece in self:
            events, end = _decode_piece(piece, tally, _FAST if fast else _EVENTS)
            yield piece[:end], events
            del events  # the next piece is read without them
            if end is not None:
                self._tail = piece[end + 1 :] + self._drain()
                self.closed = True
                return

    def _drain(self) -> bytes:
        """Return what follows the piece given last, up to a cap; nothing is cut any more.

        Where cards stand behind the events, the last cut may have been between two of them: its comma is
        given back.
        """
        parts, total = [b"," if self._was_cut else b"", bytes(self._rest)], len(self._rest)
        self._rest.clear()
        while total < BESIDE_BYTES:
            data = self._source.read()
            if not data:
                break
            parts.append(data)
            total += len(data)
        return b"".join(parts)

    def list_beside(self) -> list[bytes]:
        """Return what stands before and after the list of events in its object, where there is something."""
        before = self._head.strip().removeprefix(b"{").rstrip().removesuffix(b",")
        after = self._tail.strip().removesuffix(b"}").strip().removeprefix(b",")
        return [text for text in (before, after) if text.strip() and len(text) <= BESIDE_BYTES]


def last_boundary(text: bytes | bytearray) -> tuple[int, int] | None:
    """Find the last comma between two events: its position, and the position behind it."""
    for window in (1 << 11, 1 << 14, 1 << 18, len(text)):
        found = [*BOUNDARY.finditer(text, max(len(text) - window, 0))]
        if found:
            return found[-1].start(1), found[-1].end(1)
        if window >= len(text):
            break
    return None


def split_events(text: bytes) -> Iterator[tuple[int, int]]:
    """Give where each event of ``text`` begins and ends."""
    start = 0
    for found in BOUNDARY.finditer(text):
        yield start, found.start(1)
        start = found.end(1)
    yield start, len(text)


def find_ends(text: bytes, most: int = _MOST_ENDS) -> Iterator[int]:
    """Give the places, at most ``most``, where the list of events may be closed: each at its bracket."""
    empty = _EMPTY.match(text)
    for found in islice(chain((empty,) if empty else (), _END.finditer(text)), most):
        yield found.start(1)


_BARE = re.compile(rb"(:\s*)(?:[-+]?(?:inf(?:inity)?|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)
_NAME_BEGINS = re.compile(rb"\"name\"\s*:\s*\"")
_NAME_ENDS = re.compile(rb"\"\s*(?:,\s*\"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)\"\s*:|\}\s*\Z)")
MEND_BYTES = 4 << 20
"""A larger event that is no clean JSON is lost: what Python builds of one takes a hundred times its text."""
_QUOTE = re.compile(rb"(?<!\\)\"")
_EVENTS: msgspec.json.Decoder[list[TraceEvent]] = msgspec.json.Decoder(list[TraceEvent], strict=False)
"""Also numbers that are written as texts, as ROCm has them: no reason to read event by event."""
_FAST: msgspec.json.Decoder[list[TraceEvent]] = msgspec.json.Decoder(list[FAST_EVENT], strict=False)
_LAX = msgspec.json.Decoder(TraceEvent, strict=False)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ID = (int, str, float, type(None))
_ARGS = {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(AnyArgs)}


@dataclass
class LossTally:
    """Count what could not be read: whole events, events without some of their values, bytes."""

    events: int = 0
    values: int = 0
    bytes: int = 0

    def add(self, other: LossTally) -> None:
        """Add what another one counted."""
        self.events += other.events
        self.values += other.values
        self.bytes += other.bytes


def _decode_piece(
    piece: bytes, tally: LossTally, decoder: msgspec.json.Decoder[list[TraceEvent]]
) -> tuple[list[TraceEvent], int | None]:
    """Decode a piece; the second value is where the list of events is closed, if it is in this piece."""
    ends = find_ends(piece)
    # The list is closed in the last piece alone: the others are not searched for its end.
    closes = next(find_ends(piece[-4096:], 1), None) is not None
    for end in chain(ends, (None,)) if closes else chain((None,), ends):
        try:
            return decoder.decode(b"".join((b"[", piece if end is None else piece[:end], b"]"))), end
        except UNREADABLE:
            continue
    return read_pieces(piece, tally)


def read_pieces(text: bytes, tally: LossTally) -> tuple[list[TraceEvent], int | None]:
    """Read every event of ``text`` that can be read, count the others, and find where the list is closed."""
    events: list[TraceEvent] = []
    for start, stop in split_events(text):
        part = text[start:stop]
        if not part.strip():
            continue
        event = read_event(part, tally)
        if event is not None:
            events.append(event)
            continue
        for end in find_ends(part):
            last = read_event(part[:end], tally) if part[:end].strip() else None
            if last is not None or not part[:end].strip():
                return events + ([last] if last is not None else []), start + end
        for end in (len(part), *(found.start() for found in islice(_LOOSE_END.finditer(part), _MOST_ENDS))):
            items = _read_items(part[:end], tally)
            if items is not None:
                events += items
                if end < len(part):
                    return events, start + end
                break
        else:
            tally.events += 1
            tally.bytes += len(part)
    return events, None


def _read_items(text: bytes, tally: LossTally) -> list[TraceEvent] | None:
    """Read the events of a list of which not every item is an event; None where it is no list."""
    try:
        items = _ITEMS.decode(b"[" + text + b"]")
    except UNREADABLE:
        return None
    events = []
    for item in items:
        event = read_event(bytes(item), tally)
        if event is not None:
            events.append(event)
        else:
            tally.events += 1
            tally.bytes += len(bytes(item))
    return events


def read_event(text: bytes, tally: LossTally) -> TraceEvent | None:
    """Read one event, mended where a known fault is in it; ``None`` where nothing helps."""
    try:
        return _LAX.decode(text)
    except UNREADABLE:
        pass
    if len(text) > MEND_BYTES:
        return None
    mended = _escape_names(_BARE.sub(rb"\1null", text))
    for attempt in dict.fromkeys((text, mended)):
        try:
            raw = json.loads(attempt.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        return _pick(raw, tally)
    return None


def _escape_names(text: bytes) -> bytes:
    """Escape the quotes inside of names. What begins without an end is looked for once, not at each name."""
    parts, at = [], 0
    while begins := _NAME_BEGINS.search(text, at):
        ends = _NAME_ENDS.search(text, begins.end())
        if ends is None:
            break
        parts += [text[at : begins.end()], _QUOTE.sub(rb"\"", text[begins.end() : ends.start()])]
        at = ends.start()
    return b"".join([*parts, text[at:]])


def _number(value: object) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return math.nan
    return math.nan


def _pick(raw: Any, tally: LossTally) -> TraceEvent | None:
    """Take from an object what an event needs; values of a wrong type are left out and counted."""
    if not isinstance(raw, dict) or not isinstance(raw.get("ph"), str):
        return None
    event = TraceEvent(ph=raw["ph"], ts=_number(raw.get("ts")), dur=_number(raw.get("dur")))
    lost = False
    for key, kinds in (("cat", str), ("name", str), ("pid", _ID), ("tid", _ID)):
        value = raw.get(key, getattr(event, key))
        if isinstance(value, kinds):
            setattr(event, key, value)
        else:
            lost = True
    args = raw.get("args")
    if isinstance(args, dict):
        lost = lost or None in args.values()
        event.args = AnyArgs()
        for key, value in args.items():
            if key not in _ARGS:
                continue
            name, kind = _ARGS[key]
            try:
                is_raw = kind is msgspec.Raw
                plain = msgspec.Raw(json.dumps(value, allow_nan=False).encode()) if is_raw else value
                setattr(event.args, name, msgspec.convert(plain, kind, strict=False))
            except (*UNREADABLE, TypeError):
                lost = True
    elif args is not None:
        lost = True
    tally.values += lost
    return event
