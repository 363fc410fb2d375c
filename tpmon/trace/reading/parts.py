"""Decode the events of a file: in one process, or parts of it in several, with the same tables at the end.

This process decodes the first part, children that fork from it the others. A part begins at the first comma
between two events in its bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from io import FileIO

from tpmon.trace.reading.chunks import ByteSource, FilePieces, LossTally
from tpmon.trace.reading.forked import Forked
from tpmon.trace.reading.sources import Readable
from tpmon.trace.reading.tables import PackedTables, Tables

Jobs = Callable[[int], int]
"""Tells in how many processes a file of so many bytes is decoded."""
MOST_EVENTS = 60_000_000
"""Beyond this the columns alone would take gigabytes; what follows is counted as lost."""


def one_job(_size: int) -> int:
    """Decode every file in this process alone."""
    return 1


@dataclass
class Decoded:
    """Hold what was decoded of a file or a part of it, what stands beside the events, what was lost."""

    tally: LossTally = field(default_factory=LossTally)
    events: int = 0
    closed: bool = False
    broken: str = ""
    unpacked_bytes: int = 0
    beside: list[bytes] = field(default_factory=list)

    def add(self, later: Decoded) -> None:
        """Add the part behind this one."""
        self.tally.add(later.tally)
        self.events += later.events
        self.closed = later.closed
        self.beside += later.beside


def decode_file(
    file: Readable, size: int, progress: Callable[[int, int], None] | None = None, jobs: Jobs = one_job
) -> tuple[Tables, Decoded]:
    """Decode a file; UsageError where it is no trace. What is packed, or of a store, one process decodes."""
    source = ByteSource(file)
    pieces = FilePieces(source)
    local = file if isinstance(file, FileIO) and not source.packed else None
    count = jobs(size) if local else 1
    most = MOST_EVENTS // count
    edges = [pieces.begin + (size - pieces.begin) * at // count for at in range(1, count)]
    with ExitStack() as stack:
        children = []
        for part in zip(edges, [*edges[1:], sys.maxsize], strict=False):
            assert local is not None  # noqa: S101  # else there are no edges
            child = Forked(partial(_decode_part, local, part, most))
            stack.callback(child.end)
            children.append(child)
        pieces.stop = edges[0] if edges else sys.maxsize
        told = None if progress is None else lambda done: progress(min(done * count, size), size)
        tables, found = _decode(source, pieces, most, told)
        for child in children:
            if found.closed:
                break  # behind the end of the list there are no events
            packed, later = child.receive()
            tables.absorb(packed)
            found.add(later)
    found.unpacked_bytes = size if children else found.unpacked_bytes
    return tables, found


def _decode(
    source: ByteSource, pieces: FilePieces, most: int, told: Callable[[int], None] | None = None
) -> tuple[Tables, Decoded]:
    tables, found = Tables(), Decoded()
    for piece, events in pieces.decode(found.tally, fast=True):
        if found.events + len(events) > most:
            found.tally.events += len(events)
            found.tally.bytes += len(piece)
            continue
        found.events += len(events)
        tables.add(events)
        del events
        if told is not None:
            told(source.read_bytes)
    found.tally.bytes += pieces.dropped_bytes
    found.closed, found.broken = pieces.closed, source.broken
    found.unpacked_bytes, found.beside = source.unpacked_bytes, pieces.list_beside()
    return tables, found


class _FilePart:
    """Read a file that others read, too, from a place on."""

    def __init__(self, file: FileIO, begin: int) -> None:
        self._descriptor = file.fileno()
        self._at = begin

    def read(self, size: int = -1, /) -> bytes:
        data = os.pread(self._descriptor, size, self._at)
        self._at += len(data)
        return data


def _decode_part(file: FileIO, part: tuple[int, int], most: int) -> tuple[PackedTables, Decoded]:
    source = ByteSource(_FilePart(file, part[0]))
    tables, found = _decode(source, FilePieces(source, part), most)
    return tables.pack(), found
