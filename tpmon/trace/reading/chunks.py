"""Cut the bytes of a trace file into pieces that hold whole events. Knows no JSON beyond the cuts.

Plain and gzip files are told apart by their first bytes. A gzip file that breaks off or is damaged gives
what there was until then. At most one piece, one event of ``EVENT_BYTES``, or the bytes beside the events
are held.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice

from tpmon.errors import UsageError
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
        data = self._read_packed() if self._packed else self._read_plain()
        self.unpacked_bytes += len(data)
        return data

    def _read_plain(self) -> bytes:
        data, self._input = self._input, b""
        return data or self._fill()

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
    """Give pieces of whole events, without the comma between two pieces; ``head`` is what stood before.

    Raises:
        UsageError: where the bytes are no trace.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.dropped_bytes = 0
        self._was_cut = False
        self.head, self._rest = self._find_start()

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
                raise UsageError(self._refuse(bool(seen)), _NOT_A_TRACE)

    def _refuse(self, seen: bool) -> str:
        if self._source.broken:
            return f"{self._source.broken} before the first event"
        return f"the file is {'no trace of torch.profiler: it has no traceEvents' if seen else 'empty'}"

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
                self._drop()
                enough = PIECE_BYTES
            else:  # twice as much before the next search, so that all searches together are no square
                enough = min(2 * len(self._rest), EVENT_BYTES)
        piece = bytes(self._rest)
        self._rest.clear()
        self._was_cut = False
        if piece.strip():
            yield piece

    def _drop(self) -> None:
        """Give up what no boundary was found in; a boundary may begin in the last bytes of it."""
        if not self._rest.isspace():
            self.dropped_bytes += len(self._rest) - _LEFT_BYTES
        del self._rest[:-_LEFT_BYTES]

    def drain(self) -> bytes:
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


def find_loose_ends(text: bytes, most: int = 40) -> Iterator[int]:
    """Give the places where the list may be closed behind an item that is no object; most are not it."""
    for found in islice(_LOOSE_END.finditer(text), most):
        yield found.start()


def find_ends(text: bytes, most: int = 40) -> Iterator[int]:
    """Give the places, at most ``most``, where the list of events may be closed: each at its bracket."""
    for number, found in enumerate(_END.finditer(text)):
        if number >= most:
            return
        yield found.start(1) if found.group(1) else found.start(2)
