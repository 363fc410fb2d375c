"""One line of a recording: the judged Frame as JSON, and beside it what the judge changed of what was read.

Lines lie in zstd streams, each flushed after its line, so that a stream can be read up to any of them.
Streams that are deflated instead, as those of the recordings in tpmon/demo, are read by every Python.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpmon.errors import UsageError
from tpmon.model.codec import CodecError, encode_exact, from_plain, parse_plain
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.own_command import find_lack
from tpmon.record.step import JudgedFrame

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment]

LEVEL = 1
WINDOW_LOG = 21
"""A line of a large job is like the last ones: it finds them within 2 MiB, a dozen lines of 170 KB (measured:
14 % smaller than with the window of level 1, in the same time)."""
MOST_LINE_BYTES = 64 << 20
NOT_JUDGED = Missing("not judged")
_DEFLATED = b"\x78"
"""The first byte of a zlib stream (RFC 1950); one of Zstandard begins with 0x28."""
_ZSTD_ERRORS = () if zstd is None else (zstd.ZstdError,)
_KEY = b',"as_read":'


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """Hold where a rank was by its kernel wait, before the judge put in what its stacks show."""

    pid: int
    where: Known[str]


@dataclass(frozen=True, slots=True)
class AsRead:
    """Hold what makes a judged Frame the one that was read: how many notes and events, which places."""

    judged: bool
    notes: int
    events: int
    places: tuple[ReadPlace, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    as_read: AsRead


def write_line(step: JudgedFrame) -> bytes:
    """Encode one line."""
    read, judged = step.read, step.judged
    places = (
        ReadPlace(row.pid, row.where)
        for row, now in zip(read.ranks, judged.ranks, strict=True)
        if row.where != now.where
    )
    beside = AsRead(judged is not read, len(read.notes), len(read.events), tuple(places))
    return encode_exact(judged)[:-1] + _KEY + encode_exact(beside) + b"}\n"


def parse_line(line: bytes) -> Frame:
    """Decode the judged Frame of a line; CodecError where it is none."""
    return from_plain(Frame, parse_plain(line))


def parse_as_read(line: bytes) -> tuple[Frame, Frame]:
    """Decode the Frame of a line as read and as judged, the same where it was not; CodecError if damaged."""
    raw = parse_plain(line)
    judged, beside = from_plain(Frame, raw), from_plain(_Line, raw).as_read
    if not beside.judged:
        return judged, judged
    if not (0 <= beside.notes <= len(judged.notes) and 0 <= beside.events <= len(judged.events)):
        raise CodecError("as_read does not fit the Frame")
    places = {one.pid: one.where for one in beside.places}
    read = replace(
        judged,
        verdict=NOT_JUDGED,
        notes=judged.notes[: beside.notes],
        events=judged.events[len(judged.events) - beside.events :],
        ranks=tuple(replace(row, where=places.get(row.pid, row.where)) for row in judged.ranks),
    )
    return read, judged


def require_zstd() -> None:
    """Raise UsageError where there is no Zstandard, in which what is recorded is kept."""
    if zstd is None:
        raise find_lack("a recording", {"backports.zstd": "backports.zstd"}) or UsageError(
            "this Python was built without Zstandard, which recordings are kept in",
            "another Python for tpmon, or libzstd-dev and this one built anew",
        )


class LinePacker:
    """Compress lines into one stream."""

    def __init__(self) -> None:
        require_zstd()
        names = zstd.CompressionParameter
        self._packer = zstd.ZstdCompressor(
            options={names.compression_level: LEVEL, names.window_log: WINDOW_LOG}
        )

    def pack(self, line: bytes) -> bytes:
        """Return the next piece of the stream, which ends with this line."""
        return bytes(self._packer.compress(line, self._packer.FLUSH_BLOCK))


class Inflater:
    """Decompress a deflated stream, piece by piece."""

    def __init__(self) -> None:
        self._reader = zlib.decompressobj()

    def decompress(self, piece: bytes, most: int) -> bytes:
        """Return what a piece holds, at most so much; ValueError where it is damaged."""
        try:
            return self._reader.decompress(piece, most)
        except zlib.error as error:
            raise ValueError(str(error)) from error


class LineReader:
    """Decompress the pieces of one stream, in their order; the first tells how they are packed."""

    def __init__(self) -> None:
        self._reader: Any = None

    def unpack(self, piece: bytes) -> bytes:
        """Return the line of a piece; CodecError where it is damaged or larger than any line."""
        if self._reader is None:
            self._reader = _open_stream(piece)
        try:
            line = bytes(self._reader.decompress(piece, MOST_LINE_BYTES))
        except (EOFError, ValueError, *_ZSTD_ERRORS) as error:
            raise CodecError(f"damaged: {error}") from error
        if len(line) >= MOST_LINE_BYTES:
            raise CodecError(f"a line larger than {MOST_LINE_BYTES >> 20} MiB")
        return line


def _open_stream(piece: bytes) -> Any:
    if piece[:1] == _DEFLATED:
        return Inflater()
    require_zstd()
    return zstd.ZstdDecompressor()


def pack_once(data: bytes) -> bytes:
    """Compress what is read as a whole."""
    return zstd.compress(data, LEVEL)


def unpack_once(packed: bytes) -> bytes:
    """Decompress what was packed as a whole; CodecError where it is damaged."""
    return LineReader().unpack(packed)


def refuse_damaged(path: str, n: int, error: CodecError) -> UsageError:
    """Return the error for a Frame of a recording that cannot be read."""
    return UsageError(f"{path}: Frame {n} is damaged: {error}", "--at with another time")


def read_stream(pieces: Sequence[bytes]) -> list[bytes]:
    """Return the lines of the pieces of one stream; CodecError where one is damaged."""
    reader = LineReader()
    return [reader.unpack(piece) for piece in pieces]
