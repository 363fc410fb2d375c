"""Put decoded events into the tables of ``columns``, piece by piece. Knows no files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tpmon.trace.reading.columns import (
    RAW_BYTES,
    CallTable,
    Collective,
    Growing,
    HostTable,
    Ints,
    Launch,
    MemoryTable,
    Numbers,
    PythonTable,
    Room,
    WorkTable,
    shorten_name,
)
from tpmon.trace.reading.schema import (
    KIND_CHARS,
    MOST_KINDS,
    Args,
    Category,
    Classes,
    Id,
    RowKind,
    TraceEvent,
    guess_category,
)

MOST_US = 4.6e15
"""Differences of times beyond this do not fit 64 bits of nanoseconds; torch writes absurd ones at times."""
_MOST_BLOCKS = 2.0**63
"""A grid has no more than 2^31 by 2^16 by 2^16 blocks."""
_ROOTED = re.compile(r"_?(?:broadcast|reduce(?!_?scatter)|scatter|gather|i?send|i?recv|point)", re.IGNORECASE)
_WHOLE_JOB = b"0"
_LAST_NUMBER = re.compile(r"(\d+)\s*$")
_NO_ARGS = Args()
_LAUNCH = attrgetter("grid", "block", "registers", "shared", "blocks_per_sm", "occupancy", "limits")
_OTHERS = "(others)"
T = TypeVar("T")


def _plain_id(value: Id) -> int | str:
    """Return an identifier as a number where it is one, however it is written."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else 0
    text = (value or "").strip()
    return int(text) if text.isdecimal() and len(text) < 19 else text[:200]


def _last_number(value: Id) -> int:
    plain = _plain_id(value)
    if isinstance(plain, int):
        return plain
    found = _LAST_NUMBER.search(plain)
    return int(found[1]) if found and len(found[1]) < 10 else 0


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
    threads = (_triple(grid), _triple(block), _real(registers), _real(shared))
    per_sm, pct = _within(_real(blocks), _MOST_BLOCKS), _within(_real(occupancy), 100)
    return Launch(*threads, per_sm, pct, named[:100])


def parse_collective(key: tuple[Any, ...]) -> Collective:
    """Read what a communication kernel says of itself."""
    name, dtype, elements_in, elements_out, size, group, sequence = key
    called = group.decode("utf-8", "replace").strip('"')[:100]
    counts = (_whole(elements_in), _whole(elements_out), _whole(size))
    return Collective(name[:100], dtype[:40], *counts, called, _whole(sequence))


def _tells_rank(args: Args) -> bool:
    """Tell whether the ``Rank`` of a call is that of its process in the job.

    Else it is the root of a broadcast and its like, the other end of a transfer, or the rank within the
    group.
    """
    name = args.collective
    return bool(name) and _ROOTED.match(name) is None and bytes(args.group).strip(b'"') == _WHOLE_JOB


_KINDS = {"Ints": np.int64, "Small": np.int32, "Tiny": np.int8}
_UNTOLD = ("allocated", "reserved", "device_type", "device")
"""Columns of the memory table in which -1 stands for what does not fit."""


def _grow(table: type) -> list[Growing]:
    memory = table is MemoryTable
    return [
        Growing(_KINDS[str(one.type)], -1 if memory and one.name in _UNTOLD else 0) for one in fields(table)
    ]


class Tables:
    """Collect events; ``finish`` gives the tables, once."""

    def __init__(self) -> None:
        room = Room()
        self.names: Numbers[str] = Numbers(room, shorten_name, "")
        self.tracks: Numbers[tuple[Id, Id]] = Numbers(
            room, lambda key: (_plain_id(key[0]), _plain_id(key[1])), (0, "")
        )
        self.shapes: Numbers[tuple[bytes, bytes]] = Numbers(room, most=RAW_BYTES)
        self.launches: Numbers[tuple[bytes, ...]] = Numbers(room, most=RAW_BYTES)
        self.collectives: Numbers[tuple[Any, ...]] = Numbers(room, most=RAW_BYTES)
        self.phases: Counter[str] = Counter()
        self.odd_times = 0
        self._odd_values = 0
        self.rank = -1
        self._classes = Classes()
        self._host, self._calls, self._python = map(_grow, (HostTable, CallTable, PythonTable))
        self._work, self._memory = _grow(WorkTable)[:-1], _grow(MemoryTable)

    @property
    def odd_values(self) -> int:
        """Return how many values no column can hold, or were not kept as there was no room."""
        numbers = (self.names, self.tracks, self.shapes, self.launches, self.collectives)
        return self._odd_values + sum(one.over for one in numbers)

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take the events of a piece."""
        for phase, times in Counter(event.ph for event in events).items():
            known = phase in self.phases or len(self.phases) < MOST_KINDS
            self.phases[phase if known and len(phase) <= KIND_CHARS else _OTHERS] += times
        classes = self._classes
        buckets: list[list[TraceEvent]] = [[], [], [], [], []]
        appends = [bucket.append for bucket in buckets]
        memory = []
        for event in events:
            if event.ph == "X":
                if not event.cat:
                    event.cat = guess_category(event)
                appends[classes[event.cat][0]](event)
            elif event.name == "[memory]" and event.args is not None:
                memory.append(event)
        buckets[RowKind.SKIPPED] = memory
        readers = (self._read_host, self._read_calls, self._read_work, self._read_python, self._read_memory)
        tables = (self._host, self._calls, self._work, self._python, self._memory)
        for bucket, read, table in zip(buckets, readers, tables, strict=True):
            for growing, column in zip(table, read(bucket), strict=True) if bucket else ():
                self._odd_values += growing.add(column)

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
        return events, count_ns(start), np.rint(length * 1000).astype(np.int64)

    def _begin(self, events: list[TraceEvent]) -> tuple[list[TraceEvent], tuple[Any, Any, list[int]]]:
        """Return the same with the first three columns of every table of events."""
        events, start, length = self._times(events)
        names = self.names
        return events, (start, length, [names[event.name] for event in events])

    def _list_categories(self, events: list[TraceEvent]) -> list[int]:
        classes = self._classes
        return [classes[event.cat][1] for event in events]

    def _list_tracks(self, events: list[TraceEvent]) -> list[int]:
        tracks = self.tracks
        return [tracks[event.pid, event.tid] for event in events]

    def _read_host(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        events, first = self._begin(events)
        shapes = self.shapes
        args = [event.args or _NO_ARGS for event in events]
        if self.rank < 0:
            ranks = [one.rank for one in args if one.rank and _tells_rank(one)]
            self.rank = max(_whole(bytes(ranks[0])), -1) if ranks else -1
        return (
            *first,
            self._list_categories(events),
            self._list_tracks(events),
            [shapes[bytes(one.dims), bytes(one.types)] if one.dims else -1 for one in args],
            [one.sequence_number for one in args],
        )

    def _read_calls(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        events, first = self._begin(events)
        links = [event.args.correlation if event.args else 0 for event in events]
        return (*first, self._list_categories(events), self._list_tracks(events), links)

    def _read_work(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        events, first = self._begin(events)
        args = [event.args or _NO_ARGS for event in events]
        pairs = list(zip(args, events, strict=True))
        return (
            *first,
            self._list_categories(events),
            [one.device if one.device >= 0 else _last_number(event.pid) for one, event in pairs],
            [one.stream if one.stream >= 0 else _last_number(event.tid) for one, event in pairs],
            [one.correlation for one in args],
            [one.bytes if one.bytes < MOST_US else 0 for one in args],
            [self.launches[tuple(map(bytes, _LAUNCH(one)))] if one.grid else -1 for one in args],
            [self.collectives[_key_collective(one)] if one.collective else -1 for one in args],
        )

    def _read_python(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        events, first = self._begin(events)
        return (*first, self._list_tracks(events))

    def _read_memory(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        events, start, _length = self._times(events, moments=True)
        args = [event.args or _NO_ARGS for event in events]
        return (
            start,
            [one.memory_bytes for one in args],
            [one.allocated for one in args],
            [one.reserved for one in args],
            [one.device_type for one in args],
            [one.device_id for one in args],
            self._list_tracks(events),
            [one.address for one in args],
        )

    def finish(self) -> tuple[HostTable, CallTable, WorkTable, PythonTable, MemoryTable]:
        """Return the tables.

        Some versions write process and thread 0 for Python functions: where none of their threads has
        operators, the one with most functions stands for that of the annotations, else of most operators.
        """
        host, python = _order(self._host, HostTable), _order(self._python, PythonTable)
        tracks, marked = (host.track[host.category == one] for one in (Category.OP, Category.ANNOTATION))
        main = marked if len(marked) else tracks
        if len(python.track) and len(main) and not np.isin(python.track, tracks).any():
            python.track[python.track == int(np.bincount(python.track).argmax())] = np.bincount(main).argmax()
        calls = _order(self._calls, CallTable)
        work = _order(self._work, lambda *columns: WorkTable(*(*columns, _match(calls, columns[6]))))
        return host, calls, work, python, _order(self._memory, MemoryTable)


def _key_collective(one: Args) -> tuple[Any, ...]:
    told = (one.elements_in, one.elements_out, one.group_size, one.group, one.sequence)
    return (one.collective, one.dtype, *map(bytes, told))


def _match(calls: CallTable, correlation: Ints) -> Ints:
    """Return for each row of device work the call with its correlation, -1 where it is not there."""
    rows = np.flatnonzero(calls.correlation > 0)
    rows = rows[np.argsort(calls.correlation[rows], kind="stable")]
    keys = calls.correlation[rows]
    found = np.full(len(correlation), -1, dtype=np.int64)
    if len(keys):
        at = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
        good = (keys[at] == correlation) & (correlation > 0)
        found[good] = rows[at[good]]
    return found


def count_ns(start_us: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return microseconds as nanoseconds: whole and part apart, since they no longer fit a double."""
    whole = np.floor(start_us)
    return whole.astype(np.int64) * 1000 + np.rint((start_us - whole) * 1000).astype(np.int64)


def _order(table: list[Growing], make: Callable[..., T]) -> T:
    """Join the columns one after the other, ordered by the first one, so that little is held twice."""
    start = table[0].join()
    order = None if bool(np.all(start[1:] >= start[:-1])) else np.argsort(start, kind="stable")
    columns = [start if order is None else start[order]]
    for growing in table[1:]:
        column = growing.join()
        columns.append(column if order is None else column[order])
    return make(*columns)
