"""Carry messages of any length over lines of at most 1,000 bytes, and find out which came whole. Pure.

srun cuts what a task writes at 1,024 bytes and puts the pieces of all tasks into one stream: longer lines
are torn. So a message is packed, cut into parts, and each part says whose it is, which one, and its checksum.
"""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Collection
from typing import NamedTuple

MARK = "tpmon/1"
"""Begins each line, with the version of the protocol: a login message has no such lines."""
LINE_BYTES = 1000
NODE_CHARS = 128
MESSAGE_BYTES = 8 << 20
"""Of a message, unpacked. A Frame of 4,000 processes has 3 MB."""
PACKED_BYTES = 2 << 20
REST_BYTES = 64 << 10
"""What may come without the end of a line."""
_DIGITS = 9
_HEAD_BYTES = len(MARK) + 2 * _DIGITS + len("     /ffffffff\n") + _DIGITS
_LEVEL = 6
_LINE = re.compile(
    rb"([A-Za-z0-9_.@%%:-]{1,%d}) ([0-9]{1,%d}) ([0-9]{1,%d})/([0-9]{1,%d}) ([0-9a-f]{8}) ([A-Za-z0-9+/=]+)"
    % (NODE_CHARS, _DIGITS, _DIGITS, _DIGITS)
)
_START = f"{MARK} ".encode()


class Part(NamedTuple):
    """Hold one line: whose, of which message, which of how many parts, and the part itself."""

    node: str
    number: int
    part: int
    of: int
    payload: bytes


class Whole(NamedTuple):
    """Hold a message that came whole."""

    node: str
    message: bytes


def split_message(node: str, number: int, message: bytes) -> list[bytes]:
    """Return the lines of a message, each with its newline; ValueError for one that nobody would read."""
    if len(message) > MESSAGE_BYTES:
        raise ValueError(f"a message of {len(message)} bytes; the most is {MESSAGE_BYTES}")
    packed = binascii.b2a_base64(zlib.compress(message, _LEVEL), newline=False)
    if len(packed) > PACKED_BYTES:
        raise ValueError(f"a packed message of {len(packed)} bytes; the most is {PACKED_BYTES}")
    room = LINE_BYTES - _HEAD_BYTES - len(node)
    cuts = range(0, len(packed), room)
    lines = []
    for part, begin in enumerate(cuts, 1):
        said = f"{node} {number} {part}/{len(cuts)}".encode()
        payload = packed[begin : begin + room]
        lines.append(b"%s%s %08x %s\n" % (_START, said, _sum(said, payload), payload))
    return lines


def _sum(said: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(said))


def is_ours(line: bytes) -> bool:
    """Tell whether an agent meant this line, whole or torn."""
    return line.startswith(_START)


def parse_line(line: bytes) -> Part | None:
    """Parse a line without its newline; None for one that is torn, or of nobody."""
    found = _LINE.fullmatch(line, len(_START)) if is_ours(line) else None
    if found is None or len(line) >= LINE_BYTES:
        return None
    node, number, part, of, checksum, payload = found.groups()
    said = b"%s %s %s/%s" % (node, number, part, of)
    if int(checksum, 16) != _sum(said, payload) or not 1 <= int(part) <= int(of):
        return None
    return Part(node.decode("ascii"), int(number), int(part), int(of), payload)


def unpack(payload: bytes) -> bytes | None:
    """Unpack the parts of a message, put together; None for what is no message, or one too large."""
    packer = zlib.decompressobj()
    try:
        message = packer.decompress(binascii.a2b_base64(payload), MESSAGE_BYTES)
    except (binascii.Error, zlib.error):
        return None
    return message if packer.eof and not packer.unused_data else None


class _Growing:
    """Hold the parts of one message so far."""

    __slots__ = ("number", "of", "parts", "size")

    def __init__(self, number: int, of: int) -> None:
        self.number = number
        self.of = of
        self.parts: list[bytes] = []
        self.size = 0


class Joiner:
    """Join the bytes of one stream, in which several nodes may write by turns, into messages.

    ``torn`` counts messages that did not come whole, ``said`` is the last line of anybody else: a login
    message, the complaint of a shell; ``said_bytes`` how much of that came since the last whole message.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        """Take messages of ``nodes`` alone; an agent that gives another name is not heard."""
        self.torn = 0
        self.said = b""
        self.said_bytes = 0
        self._nodes = frozenset(nodes)
        self._rest = b""
        self._skips = False
        """The rest of a line that is too long is on its way."""
        self._growing: dict[str, _Growing] = {}

    def add(self, data: bytes) -> list[Whole]:
        """Add what was read, and return the messages that it ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._skips:
            del lines[0]
            self._skips = False
        if len(self._rest) > REST_BYTES:
            self._rest, self._skips = b"", True
            self.torn += 1
        whole = (self._take(line) for line in lines)
        return [one for one in whole if one is not None]

    def _take(self, line: bytes) -> Whole | None:
        if not is_ours(line):
            self.said = line[:LINE_BYTES] or self.said
            self.said_bytes += len(line)
            return None
        part = parse_line(line)
        if part is None or part.node not in self._nodes:
            self.torn += 1
            return None
        return self._grow(part)

    def _grow(self, part: Part) -> Whole | None:
        growing = self._growing.pop(part.node, None)
        if growing is not None and growing.number != part.number:
            self.torn += 1
            growing = None
        if growing is None:
            growing = _Growing(part.number, part.of)
        growing.size += len(part.payload)
        follows = part.part == len(growing.parts) + 1 and part.of == growing.of
        if not follows or growing.size > PACKED_BYTES:
            self.torn += 1
            return None
        growing.parts.append(part.payload)
        if len(growing.parts) < growing.of:
            self._growing[part.node] = growing
            return None
        message = unpack(b"".join(growing.parts))
        if message is None:
            self.torn += 1
            return None
        self.said_bytes = 0
        return Whole(part.node, message)
