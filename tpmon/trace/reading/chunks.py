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
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec

from tpmon.errors import UsageError
from tpmon.trace.reading.schema import UNREADABLE, Args, TraceEvent
from tpmon.trace.reading.sources import Readable

PIECE_BYTES = 2 << 20
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
_END = re.compile(rb"\}\s*(\])(?:\s*,\s*\"|\s*\}\s*\Z|\s*\Z)|\A\s*(\])")
"""Where the list may be closed. No two runs of spaces touch: a megabyte of them would be tried squared."""
_LOOSE_END = re.compile(rb"\](?=\s*,\s*\"|\s*\}\s*\Z|\s*\Z)")
"""The same behind an item that is no object; most are not it."""
_MOST_ENDS = 40
_GZIP = b"\x1f\x8b"
_NOT_A_TRACE = "give a file that torch.profiler's export_chrome_trace or tpmon wrote, plain or .gz"


class ByteSource:
    """Give the bytes of a file, unpacked, with how far it is read and whether it broke off."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        first = file.read(READ_BYTES)
        self._packed = first.startswith(_GZIP)
        self._unpacker = zlib.decompressobj(31)
        self._input = first
        self._member_open = self._packed
        self.read_bytes = len(first)
        self.unpacked_bytes = 0
        self.broken = ""

    def read(self) -> bytes:
        """Return the next bytes, at most about a megabyte, or nothing at the end."""
        if self._packed:
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

    ``closed`` tells whether the end of the list of events was seen.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.dropped_bytes = 0
        self.closed = False
        self._was_cut = False
        self._tail = b""
        self._head, self._rest = self._find_start()

    def _find_start(self) -> tuple[bytes, bytearray]:
        seen = bytearray()
        looked = 0
        while True:
            data = self._source.read()
            seen += data
            found = _START.search(seen, looked)
            if found:
                return bytes(seen[: found.start()]), seen[found.end() :]
            looked = max(len(seen) - 64, 0)
            opened = _LIST.match(seen, 0, _LIST_WITHIN)
            if opened:
                return b"", seen[seen.index(b"[") + 1 :]
            if not data or len(seen) > BESIDE_BYTES or bytes(seen[:64].lstrip()[:1]) not in (b"{", b"[", b""):
                what = "no trace of torch.profiler: it has no traceEvents" if seen else "empty"
                broken = self._source.broken
                why = f"{broken} before the first event" if broken else f"the file is {what}"
                raise UsageError(why, _NOT_A_TRACE)

    def __iter__(self) -> Iterator[bytes]:
        """Give piece after piece; the last one holds what stands behind the events too."""
        enough = PIECE_BYTES
        while True:
            data = self._source.read()
            if not data:
                break
            self._rest += data
            if len(self._rest) < enough:
                continue
            cut = last_boundary(self._rest)
            if cut is not None:
                piece = bytes(self._rest[: cut[0]])
                del self._rest[: cut[1]]
                enough = PIECE_BYTES
                self._was_cut = True
                yield piece
            elif len(self._rest) >= EVENT_BYTES:
                if not self._rest.isspace():
                    self.dropped_bytes += len(self._rest) - _LEFT_BYTES
                del self._rest[:-_LEFT_BYTES]  # in which a boundary may begin
                enough = PIECE_BYTES
            else:  # twice as much before the next search, so that all searches together are no square
                enough = min(2 * len(self._rest), EVENT_BYTES)
        piece = bytes(self._rest)
        self._rest.clear()
        self._was_cut = False
        if piece.strip():
            yield piece

    def decode(self, tally: LossTally) -> Iterator[tuple[bytes, list[TraceEvent]]]:
        """Give the events of each piece with its text, until the list is closed; count what is lost."""
        for piece in self:
            events, end = _decode_piece(piece, tally)
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
    for window in (1 << 16, 1 << 20, len(text)):
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
    for found in islice(_END.finditer(text), most):
        yield found.start(found.lastindex or 0)


_BARE = re.compile(rb"(:\s*)(?:[-+]?(?:inf(?:inity)?|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)
_NAME_BEGINS = re.compile(rb"\"name\"\s*:\s*\"")
_NAME_ENDS = re.compile(rb"\"\s*(?:,\s*\"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)\"\s*:|\}\s*\Z)")
MEND_BYTES = 4 << 20
"""A larger event that is no clean JSON is lost: what Python builds of one takes a hundred times its text."""
_QUOTE = re.compile(rb"(?<!\\)\"")
_EVENTS = msgspec.json.Decoder(list[TraceEvent])
_LAX = msgspec.json.Decoder(TraceEvent, strict=False)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ID = (int, str, float, type(None))
_ARGS = {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(Args)}


@dataclass
class LossTally:
    """Count what could not be read: whole events, events without some of their values, bytes."""

    events: int = 0
    values: int = 0
    bytes: int = 0


def _decode_piece(piece: bytes, tally: LossTally) -> tuple[list[TraceEvent], int | None]:
    """Decode a piece; the second value is where the list of events is closed, if it is in this piece."""
    ends = find_ends(piece)
    # The list is closed in the last piece alone: the others are not searched for its end.
    closes = next(find_ends(piece[-4096:], 1), None) is not None
    for end in chain(ends, (None,)) if closes else chain((None,), ends):
        try:
            text = piece + b"]" if end is None else piece[: end + 1]
            return _EVENTS.decode(b"[" + text), end
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
        event.args = Args()
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
