"""Read a loaded ELF file from the memory of a process: its symbols and the unused bytes behind its data.

The memory and not the file: that may have been replaced, or lie in another mount namespace. The table of
dynamic symbols is in the memory of every build, also of a stripped one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

from tpmon.inject.memory import MappedRange, TargetMemory, UnmappedError
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC

_HEADER = "<4sBBBxxxxxxxxxHHIQQQIHHHHHH"
_HEADER_BYTES = struct.calcsize(_HEADER)
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PAGE = 4096
_CLASS_64, _LITTLE = 2, 1
_FIXED, _SHARED = 2, 3  # e_type
_X86_64 = 62
_LOAD, _DYNAMIC = 1, 2
_WRITABLE = 2
_STRINGS, _SYMBOLS, _GNU_HASH = 5, 6, 0x6FFFFEF5
_MOST_DYNAMIC = 128
_MOST_CHAIN = 4096


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """Hold a program header."""

    kind: int
    flags: int
    address: int
    bytes_in_memory: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """Hold where a symbol is in memory, and its size."""

    at: int
    size: int


class Image:
    """Hold the tables of one loaded file."""

    def __init__(self, memory: TargetMemory, base: int) -> None:
        """Read them at ``base``, where its first page lies.

        Raises:
            RefusedError: for another architecture.
            UnmappedError: for what is no ELF file with dynamic symbols.
        """
        self._memory = memory
        magic, bits, order, *_ = head = struct.unpack(_HEADER, memory.read(base, _HEADER_BYTES))
        if magic != b"\x7fELF":
            raise UnmappedError("no ELF file")
        kind, machine, headers, many = head[4], head[5], head[8], head[13]
        if (bits, order, machine) != (_CLASS_64, _LITTLE, _X86_64) or kind not in (_FIXED, _SHARED):
            raise RefusedError(RefusalReason.ARCHITECTURE, f"ELF machine {machine}")
        data = memory.read(base + headers, many * _SEGMENT.size)
        self.segments = tuple(
            ProgramHeader(kind, flags, address, size)
            for kind, flags, _, address, _, _, size, _ in _SEGMENT.iter_unpack(data)
        )
        first = min((one.address for one in self.segments if one.kind == _LOAD), default=0)
        self.bias = 0 if kind == _FIXED else base - first // _PAGE * _PAGE
        self._tables = self._read_dynamic()

    def _read_dynamic(self) -> dict[int, int]:
        for one in self.segments:
            if one.kind == _DYNAMIC:
                data = self._memory.read(
                    self.bias + one.address, min(one.bytes_in_memory, 16 * _MOST_DYNAMIC)
                )
                found = dict(struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]))
                # glibc's loader has made these addresses absolute, musl's has not.
                wanted = {tag: found[tag] for tag in (_STRINGS, _SYMBOLS, _GNU_HASH) if tag in found}
                if len(wanted) == 3:
                    return {tag: at if at >= self.bias else at + self.bias for tag, at in wanted.items()}
        raise UnmappedError("no dynamic symbols")

    def find(self, name: str) -> Symbol | None:
        """Return where a symbol that this file defines is, by the hash table of its dynamic symbols."""
        memory, wanted = self._memory, hash_name(name)
        table, symbols = self._tables[_GNU_HASH], self._tables[_SYMBOLS]
        buckets, first, bloom, _ = memory.unpack("<IIII", table)
        at_buckets = table + 16 + 8 * bloom
        if not buckets:
            return None
        (index,) = memory.unpack("<I", at_buckets + 4 * (wanted % buckets))
        for _ in range(_MOST_CHAIN if index >= first else 0):
            (found,) = memory.unpack("<I", at_buckets + 4 * buckets + 4 * (index - first))
            if found | 1 == wanted | 1:
                word, _, _, section, value, size = _SYMBOL.unpack(
                    memory.read(symbols + index * _SYMBOL.size, _SYMBOL.size)
                )
                encoded = name.encode() + b"\0"
                if section and memory.read(self._tables[_STRINGS] + word, len(encoded)) == encoded:
                    return Symbol(self.bias + value, size)
            if found & 1:
                return None
            index += 1
        return None

    def find_slack(self, mappings: Sequence[MappedRange]) -> tuple[int, int]:
        """Return where the bytes begin that no variable of this file uses, and how many they are.

        They lie behind the last writable segment, up to the end of its page, which is mapped as a whole.
        """
        ends = [self.bias + one.address + one.bytes_in_memory for one in self.segments if one.kind == _LOAD]
        writable = [
            self.bias + one.address + one.bytes_in_memory
            for one in self.segments
            if one.kind == _LOAD and one.flags & _WRITABLE
        ]
        if not writable or max(ends) != max(writable):
            raise RefusedError(RefusalReason.SLACK, "its data are not at its end")
        at = max(writable)
        size = -at % _PAGE
        inside = [one for one in mappings if one.start <= at - 1 < one.end and one.end >= at + size]
        if not inside or inside[0].permissions[:2] != "rw":
            raise RefusedError(RefusalReason.SLACK, "its data are not mapped as expected")
        return at, size


def hash_name(name: str) -> int:
    """Return the hash of a symbol's name in the table that GNU tools write."""
    found = 5381
    for char in name.encode():
        found = (found * 33 + char) & 0xFFFFFFFF
    return found


def find_images(memory: TargetMemory, mappings: Sequence[MappedRange], proc: str = PROC) -> Iterator[Image]:
    """Yield the program and every libpython of a process that can be read."""
    try:
        program = os.readlink(f"{proc}/{memory.pid}/exe")
    except PermissionError as error:
        raise RefusedError(RefusalReason.NOT_PERMITTED, "its program") from error
    except OSError as error:
        raise RefusedError(RefusalReason.GONE) from error
    for one in mappings:
        library = os.path.basename(one.path).startswith("libpython3.")
        if one.offset == 0 and (one.path == program or library):
            try:
                yield Image(memory, one.start)
            except UnmappedError:
                continue
