"""Put decoded events into the tables of ``columns``, piece by piece. Knows no files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tpmon.trace.reading.columns import (
    RAW_BYTES,
    CallTable,
    Collective,
    Growing,
    HostTable,
    Launch,
    MemoryTable,
    Numbers,
    PythonTable,
    Room,
    WorkTable,
    distinct,
    shorten_name,
)
from tpmon.trace.reading.schema import Args, Category, Id, RowKind, TraceEvent, classify, guess_category

MOST_US = 4.6e15
"""Differences of times beyond this do not fit 64 bits of nanoseconds; torch writes absurd ones at times."""
_MOST_BLOCKS = 2.0**63
"""A grid has no more than 2^31 by 2^16 by 2^16 blocks."""
_ROOTED = re.compile(r"_?(?:broadcast|reduce(?!_?scatter)|scatter|gather|i?send|i?recv|point)", re.IGNORECASE)
_WHOLE_JOB = b"0"
_LAST_NUMBER = re.compile(r"(\d+)\s*$")
_NO_ARGS = Args()
_MOST_KINDS = 1000
"""Categories, or phases, that are told apart; torch knows two dozen."""
_KIND_CHARS = 100
_OTHERS = "(others)"
T = TypeVar("T")


class _Classes(dict[str, tuple[int, int]]):
    def __missing__(self, category: str) -> tuple[int, int]:
        kind, meaning = classify(category)
        found = (int(kind), int(meaning))
        if len(self) < _MOST_KINDS and len(category) <= _KIND_CHARS:
            self[category] = found
        return found


def _count(counts: Counter[str], seen: list[str]) -> None:
    """Count what was seen in a piece; hostile files have a new kind for each event."""
    for kind, times in Counter(seen).items():
        known = len(kind) <= _KIND_CHARS and (kind in counts or len(counts) < _MOST_KINDS)
        counts[kind if known else _OTHERS] += times


def _plain_id(value: Id) -> int | str:
    """Return an identifier as a number where it is one, however it is written."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else 0
    text = (value or "").strip()
    return int(text) if text.isdecimal() and len(text) < 19 else text[:200]


def _plain_track(key: tuple[Id, Id]) -> tuple[Id, Id]:
    return _plain_id(key[0]), _plain_id(key[1])


def _last_number(value: Id, default: int) -> int:
    plain = _plain_id(value)
    if isinstance(plain, int):
        return plain
    found = _LAST_NUMBER.search(plain)
    return int(found[1]) if found and len(found[1]) < 10 else default


def _whole(raw: bytes) -> int:
    number = _real(raw)
    return int(number) if math.isfinite(number) and abs(number) < 2**62 else -1


def _real(raw: bytes) -> float:
    try:
        return float(raw.strip(b'" '))
    except ValueError:
        return math.nan


def _within(number: float, most: float) -> float:
    """Return a figure that can be true, NaN for any other: some versions write -1 for what they lack."""
    return number if 0 <= number <= most else math.nan


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _triple(raw: bytes) -> tuple[int, ...]:
    value = _parse(raw)
    if isinstance(value, list) and all(isinstance(one, int) and one >= 0 for one in value[:3]):
        return tuple(value[:3])
    return ()


def parse_launch(key: tuple[bytes, ...]) -> Launch:
    """Read how a kernel was started from the raw values of its arguments."""
    grid, block, registers, shared, blocks, occupancy, limits = key
    more = _parse(limits)
    factors = more.get("limitingFactors") if isinstance(more, dict) else None
    named = " ".join(map(str, factors)) if isinstance(factors, list) else str(factors or "")
    return Launch(
        _triple(grid),
        _triple(block),
        _real(registers),
        _real(shared),
        _within(_real(blocks), _MOST_BLOCKS),
        _within(_real(occupancy), 100),
        named[:100],
    )


def parse_collective(key: tuple[str, str, bytes, bytes, bytes, bytes, bytes]) -> Collective:
    """Read what a communication kernel says of itself."""
    name, dtype, elements_in, elements_out, size, group, sequence = key
    return Collective(
        name[:100],
        dtype[:40],
        _whole(elements_in),
        _whole(elements_out),
        _whole(size),
        group.decode("utf-8", "replace").strip('"')[:100],
        _whole(sequence),
    )


def _tells_rank(args: Args) -> bool:
    """Tell whether the ``Rank`` of a call is that of its process in the job.

    It is the root of a broadcast and its like, the other end of a transfer, and else the rank within the
    group: group 0 is the whole job.
    """
    name = args.collective
    return bool(name) and _ROOTED.match(name) is None and bytes(args.group).strip(b'"') == _WHOLE_JOB


class Tables:
    """Collect events; ``finish`` methods give the tables, each once."""

    def __init__(self) -> None:
        """Start empty."""
        room = Room()
        self.names: Numbers[str] = Numbers(room, shorten_name, "")
        self.tracks: Numbers[tuple[Id, Id]] = Numbers(room, _plain_track, (0, ""))
        self.shapes: Numbers[tuple[bytes, bytes]] = Numbers(room, most=RAW_BYTES)
        self.launches: Numbers[tuple[bytes, ...]] = Numbers(room, most=RAW_BYTES)
        self.collectives: Numbers[tuple[str, str, bytes, bytes, bytes, bytes, bytes]] = Numbers(
            room, most=RAW_BYTES
        )
        self.phases: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.odd_times = 0
        self._odd_values = 0
        self.rank = -1
        self._threads: set[int] = set()
        self._main_thread = -1
        self._classes = _Classes()
        big, small, tiny = np.int64, np.int32, np.int8
        self._host = [Growing(kind) for kind in (big, big, small, tiny, small, small, big)]
        self._calls = [Growing(kind) for kind in (big, big, small, tiny, small, big)]
        self._work = [Growing(kind) for kind in (big, big, small, tiny, small, small, big, big, small, small)]
        self._python = [Growing(kind) for kind in (big, big, small, small)]
        self._memory = [
            Growing(kind, absent)
            for kind, absent in (
                (big, 0),
                (big, 0),
                (big, -1),
                (big, -1),
                (small, -1),
                (small, -1),
                (small, 0),
                (big, 0),
            )
        ]

    @property
    def odd_values(self) -> int:
        """Return how many values no column can hold, or were not kept as there was no room."""
        numbers = (self.names, self.tracks, self.shapes, self.launches, self.collectives)
        return self._odd_values + sum(one.over for one in numbers)

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take the events of a piece."""
        _count(self.phases, [event.ph for event in events])
        classes = self._classes
        buckets: list[list[TraceEvent]] = [[], [], [], [], []]
        appends = [bucket.append for bucket in buckets]
        memory = []
        seen = []
        for event in events:
            if event.ph == "X":
                if not event.cat:
                    event.cat = guess_category(event)
                seen.append(event.cat)
                appends[classes[event.cat][0]](event)
            elif event.name == "[memory]" and event.args is not None:
                memory.append(event)
        _count(self.categories, seen)
        buckets[RowKind.SKIPPED] = memory
        takers = (self._add_host, self._add_calls, self._add_work, self._add_python, self._add_memory)
        for bucket, take in zip(buckets, takers, strict=True):
            if bucket:
                take(bucket)

    def _times(
        self, events: list[TraceEvent], *, moments: bool = False
    ) -> tuple[list[TraceEvent], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the events whose times make sense, with start and duration in nanoseconds.

        What is no moment needs a duration: 0 is one, a negative one or none at all is not.
        """
        start = np.array([event.ts for event in events], dtype=np.float64)
        length = np.array([0.0 if moments else event.dur for event in events], dtype=np.float64)
        good = (np.abs(start) + length < MOST_US) & (length >= 0)
        if not good.all():
            self.odd_times += int((~good).sum())
            events = [event for event, keep in zip(events, good.tolist(), strict=True) if keep]
            start, length = start[good], length[good]
        # Absolute microseconds times 1000 no longer fit a double: whole and part go apart.
        whole = np.floor(start)
        first = whole.astype(np.int64) * 1000 + np.rint((start - whole) * 1000).astype(np.int64)
        return events, first, np.rint(length * 1000).astype(np.int64)

    def _add_host(self, events: list[TraceEvent]) -> None:
        events, start, length = self._times(events)
        names, tracks, shapes, classes = self.names, self.tracks, self.shapes, self._classes
        args = [event.args or _NO_ARGS for event in events]
        columns = (
            start,
            length,
            [names[event.name] for event in events],
            [classes[event.cat][1] for event in events],
            [tracks[event.pid, event.tid] for event in events],
            [shapes[bytes(one.dims), bytes(one.types)] if one.dims else -1 for one in args],
            [one.sequence_number for one in args],
        )
        self._fill(self._host, columns)
        if self.rank < 0:
            ranks = [one.rank for one in args if one.rank and _tells_rank(one)]
            self.rank = max(_whole(bytes(ranks[0])), -1) if ranks else -1

    def _add_calls(self, events: list[TraceEvent]) -> None:
        events, start, length = self._times(events)
        names, tracks, classes = self.names, self.tracks, self._classes
        columns = (
            start,
            length,
            [names[event.name] for event in events],
            [classes[event.cat][1] for event in events],
            [tracks[event.pid, event.tid] for event in events],
            [event.args.correlation if event.args else 0 for event in events],
        )
        self._fill(self._calls, columns)

    def _add_work(self, events: list[TraceEvent]) -> None:
        events, start, length = self._times(events)
        names, classes = self.names, self._classes
        launches, collectives = self.launches, self.collectives
        args = [event.args or _NO_ARGS for event in events]
        columns = (
            start,
            length,
            [names[event.name] for event in events],
            [classes[event.cat][1] for event in events],
            [
                one.device if one.device >= 0 else _last_number(event.pid, 0)
                for one, event in zip(args, events, strict=True)
            ],
            [
                one.stream if one.stream >= 0 else _last_number(event.tid, 0)
                for one, event in zip(args, events, strict=True)
            ],
            [one.correlation for one in args],
            [one.bytes if one.bytes < MOST_US else 0 for one in args],
            [
                launches[
                    bytes(one.grid),
                    bytes(one.block),
                    bytes(one.registers),
                    bytes(one.shared),
                    bytes(one.blocks_per_sm),
                    bytes(one.occupancy),
                    bytes(one.limits),
                ]
                if one.grid
                else -1
                for one in args
            ],
            [
                collectives[
                    one.collective,
                    one.dtype,
                    bytes(one.elements_in),
                    bytes(one.elements_out),
                    bytes(one.group_size),
                    bytes(one.group),
                    bytes(one.sequence),
                ]
                if one.collective
                else -1
                for one in args
            ],
        )
        self._fill(self._work, columns)

    def _add_python(self, events: list[TraceEvent]) -> None:
        events, start, length = self._times(events)
        self._fill(self._python, (start, length, *self._places(events)))

    def _places(self, events: list[TraceEvent]) -> tuple[list[int], list[int]]:
        """Return the numbers of the names and of the tracks."""
        names, tracks = self.names, self.tracks
        return [names[event.name] for event in events], [tracks[event.pid, event.tid] for event in events]

    def _add_memory(self, events: list[TraceEvent]) -> None:
        events, start, _length = self._times(events, moments=True)
        args = [event.args or _NO_ARGS for event in events]
        columns = (
            start,
            [one.memory_bytes for one in args],
            [one.allocated for one in args],
            [one.reserved for one in args],
            [one.device_type for one in args],
            [one.device_id for one in args],
            [self.tracks[event.pid, event.tid] for event in events],
            [one.address for one in args],
        )
        self._fill(self._memory, columns)

    def _fill(self, table: list[Growing], columns: Sequence[Any]) -> None:
        for growing, column in zip(table, columns, strict=True):
            self._odd_values += growing.add(column)

    def finish_host(self) -> HostTable:
        """Return the host table. Comes before the table of Python functions, which may need its threads."""
        table = _order(self._host, HostTable)
        tracks = table.track[table.category == Category.OP]
        marked = table.track[table.category == Category.ANNOTATION]
        self._threads = set(distinct(tracks).tolist())
        main = marked if len(marked) else tracks
        self._main_thread = int(np.bincount(main).argmax()) if len(main) else -1
        return table

    def finish_calls(self) -> CallTable:
        """Return the table of calls."""
        return _order(self._calls, CallTable)

    def finish_work(self) -> WorkTable:
        """Return the table of device work."""
        return _order(self._work, WorkTable)

    def finish_python(self) -> PythonTable:
        """Return the table of Python functions.

        Some versions write process and thread 0 for them: where none of their threads has operators, the
        one with most functions stands for the one that has the annotations, else most operators.
        """
        table = _order(self._python, PythonTable)
        found = set(distinct(table.track).tolist())
        if found and self._main_thread >= 0 and not found & self._threads:
            table.track[table.track == int(np.bincount(table.track).argmax())] = self._main_thread
        return table

    def finish_memory(self) -> MemoryTable:
        """Return the table of allocations."""
        return _order(self._memory, MemoryTable)


def _order(table: list[Growing], make: Callable[..., T]) -> T:
    """Join the columns one after the other, ordered by the first one, so that little is held twice."""
    start = table[0].join()
    order = None if bool(np.all(start[1:] >= start[:-1])) else np.argsort(start, kind="stable")
    columns = [start if order is None else start[order]]
    for growing in table[1:]:
        column = growing.join()
        columns.append(column if order is None else column[order])
    return make(*columns)
