"""Put decoded events into the tables of ``columns``, piece by piece. Knows no files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass
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
    Tiny,
    WorkTable,
    shorten_name,
)
from tpmon.trace.reading.schema import (
    KIND_CHARS,
    MOST_KINDS,
    ROWS,
    AnyArgs,
    Args,
    Category,
    Classes,
    Id,
    Instant,
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
_HEX = re.compile(r"0x[0-9a-fA-F]{1,15}")
_NO_ARGS = AnyArgs()
_OTHERS = "(others)"
_BETWEEN = b"\0"
"""Between texts of JSON, which have no such byte: joining them takes a third of a tuple of ``bytes``."""
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
    if _HEX.fullmatch(plain):
        return int(plain, 16)
    found = _LAST_NUMBER.search(plain)
    return int(found[1]) if found and len(found[1]) < 10 else 0


def _place(told: int | str, beside: Id) -> int:
    """Return the number of a device or stream: ROCm writes some as text; else that of the event itself."""
    number = told if isinstance(told, int) else _last_number(told)
    return number if number >= 0 else _last_number(beside)


def _moved(told: float | str) -> int:
    number = _real(told)
    return int(number) if 0 <= number < MOST_US else 0


def _whole(raw: bytes) -> int:
    number = _real(raw)
    return int(number) if math.isfinite(number) and abs(number) < 2**62 else -1


def _real(told: bytes | Id) -> float:
    try:
        return float(told.strip(b'" ') if isinstance(told, bytes) else math.nan if told is None else told)
    except (ValueError, OverflowError):
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


def parse_shape(key: bytes) -> tuple[bytes, bytes]:
    """Return the raw texts of "Input Dims" and "Input type"."""
    dims, _between, types = key.partition(_BETWEEN)
    return dims, types


def parse_launch(key: tuple[Any, ...]) -> Launch:
    """Read how a kernel was started from the values of its arguments."""
    texts, registers, shared, blocks, occupancy = key
    grid, block, limits = texts.split(_BETWEEN, 2)
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
_NUMBERED = {
    "name": "names",
    "track": "tracks",
    "shape": "shapes",
    "launch": "launches",
    "collective": "collectives",
}
"""By column the list that its numbers are of."""
_TABLES = {
    "_host": HostTable,
    "_calls": CallTable,
    "_python": PythonTable,
    "_work": WorkTable,
    "_memory": MemoryTable,
}
_UNTOLD = ("allocated", "reserved", "device_type", "device")
"""Columns of the memory table in which -1 stands for what does not fit."""
_TIMES = ("start", "duration", "time")
"""Columns that are microseconds until the tables are finished."""
_MEANINGS = {kind: [meaning for row, meaning, _names in ROWS if row == kind] for kind in RowKind}
_HOST = (*_MEANINGS[RowKind.HOST], Category.OTHER)  # what no row names is kept as of the host
_CALLS, _WORK = _MEANINGS[RowKind.CALL], _MEANINGS[RowKind.WORK]


def _grow(table: type) -> list[Growing]:
    memory = table is MemoryTable
    return [
        Growing(
            np.float64 if one.name in _TIMES else _KINDS[str(one.type)],
            -1 if memory and one.name in _UNTOLD else 0,
        )
        for one in fields(table)
    ]


@dataclass(frozen=True, slots=True)
class PackedTables:
    """Hold what ``Tables`` collected of a part of a file, to be sent from process to process."""

    kept: dict[str, list[Any]]
    columns: dict[str, list[npt.NDArray[Any]]]
    phases: Counter[str]
    odd_values: int
    rank: int
    guessed: int


class _Threads(dict[Id, int]):
    """Give the number of each thread of one process."""

    def __init__(self, process: int, tracks: Numbers[tuple[Id, Id]]) -> None:
        super().__init__()
        self.process = process
        self._tracks = tracks

    def __missing__(self, thread: Id) -> int:
        key = (self.process, thread)
        number = self._tracks[key]
        if key in self._tracks:  # what it does not keep is not kept here
            self[thread] = number
        return number


class _Buckets(dict[Any, Callable[[Any], None]]):
    """Sort the events of a piece by meaning; gives for each category, or phase, what puts an event there."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[list[Any]] = [[] for _one in Category]
        self.others: dict[int, list[Any]] = {}
        self._classes = Classes()
        self.guessed = 0

    def __missing__(self, category: str | int) -> Callable[[Any], None]:
        if isinstance(category, int):
            bucket = self.others.setdefault(category, [])
        elif category:
            bucket = self.whole[self._classes[category][1]]
        else:
            return self._guess
        if len(self) < MOST_KINDS:
            self[category] = bucket.append
        return bucket.append

    def _guess(self, event: Any) -> None:
        self.guessed += 1
        self[guess_category(event)](event)

    def clear_events(self) -> None:
        """Let the events go."""
        for bucket in (*self.whole, *self.others.values()):
            bucket.clear()


class Tables:
    """Collect events; ``finish`` gives the tables, once."""

    def __init__(self) -> None:
        room = Room()
        self.names: Numbers[str] = Numbers(room, shorten_name, "")
        self.tracks: Numbers[tuple[Id, Id]] = Numbers(
            room, lambda key: (_plain_id(key[0]), _plain_id(key[1])), (0, "")
        )
        self.shapes: Numbers[bytes] = Numbers(room, most=RAW_BYTES)
        self.launches: Numbers[tuple[Any, ...]] = Numbers(room, most=RAW_BYTES)
        self.collectives: Numbers[tuple[Any, ...]] = Numbers(room, most=RAW_BYTES)
        self.phases: Counter[str] = Counter()
        self.odd_times = 0
        self._odd_values = 0
        self.rank = -1
        self._threads = _Threads(0, self.tracks)
        self._buckets = _Buckets()
        self._host, self._calls, self._python = map(_grow, (HostTable, CallTable, PythonTable))
        self._work, self._memory = _grow(WorkTable)[:-1], _grow(MemoryTable)  # its calls are found at the end

    @property
    def odd_values(self) -> int:
        """Return how many values no column can hold, or were not kept as there was no room."""
        numbers = (self.names, self.tracks, self.shapes, self.launches, self.collectives)
        return self._odd_values + sum(one.over for one in numbers)

    @property
    def guessed(self) -> int:
        """Return how many whole events had no category."""
        return self._buckets.guessed

    def pack(self) -> PackedTables:
        """Return everything that was collected, once."""
        kept = {name: getattr(self, name).kept for name in _NUMBERED.values()}
        columns = {name: [growing.join() for growing in getattr(self, name)] for name in _TABLES}
        return PackedTables(kept, columns, self.phases, self.odd_values, self.rank, self.guessed)

    def absorb(self, packed: PackedTables) -> None:
        """Add what was collected of the part of the file behind this one."""
        self._count(packed.phases)
        self._odd_values += packed.odd_values
        self._buckets.guessed += packed.guessed
        self.rank = packed.rank if self.rank < 0 else self.rank
        numbers = {}
        for name, values in packed.kept.items():
            own = getattr(self, name)
            numbers[name] = np.array([*(own[value] for value in values), -1], np.int32)
        for name, kind in _TABLES.items():
            for growing, one, column in zip(
                getattr(self, name), fields(kind), packed.columns[name], strict=False
            ):
                numbered = _NUMBERED.get(one.name)
                growing.add(numbers[numbered][column] if numbered else column)

    def _count(self, phases: Counter[str]) -> None:
        for phase, times in phases.items():
            known = phase in self.phases or len(self.phases) < MOST_KINDS
            self.phases[phase if known and len(phase) <= KIND_CHARS else _OTHERS] += times

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take the events of a piece."""
        buckets = self._buckets
        memory: list[TraceEvent] = []
        whole: Iterable[TraceEvent] = events
        if events and type(events[0]) is TraceEvent:  # read with all of its arguments, or event by event
            self._count(Counter(event.ph for event in events if event.ph != "X"))
            whole = [event for event in events if event.ph == "X"]
            memory = [event for event in events if event.ph != "X" and _tells_memory(event)]
        for event in whole:
            buckets[event.cat](event)
        memory += filter(_tells_memory, buckets.others.get(Instant.cat, ()))
        found = Counter({chr(phase): len(bucket) for phase, bucket in buckets.others.items() if bucket})
        self._count(found + Counter(X=sum(map(len, buckets.whole))))
        self._fill(self._host, self._read_host, _HOST)
        self._fill(self._calls, self._read_calls, _CALLS)
        self._fill(self._work, self._read_work, _WORK)
        if python := buckets.whole[Category.PYTHON]:
            self._extend(self._python, self._read_python(python))
        if memory:
            self._extend(self._memory, self._read_memory(memory))
        buckets.clear_events()

    def _fill(
        self,
        table: list[Growing],
        read: Callable[[list[TraceEvent], Tiny], tuple[Any, ...]],
        meanings: Sequence[Category],
    ) -> None:
        """Read the events of some meanings into their table."""
        sorts = [(meaning, bucket) for meaning in meanings if (bucket := self._buckets.whole[meaning])]
        if sorts:
            events = sorts[0][1] if len(sorts) == 1 else [*chain(*(bucket for _meaning, bucket in sorts))]
            numbers, counts = zip(*((int(meaning), len(bucket)) for meaning, bucket in sorts), strict=True)
            self._extend(table, read(events, np.repeat(np.array(numbers, dtype=np.int8), counts)))

    def _extend(self, table: list[Growing], columns: tuple[Any, ...]) -> None:
        for growing, column in zip(table, columns, strict=True):
            self._odd_values += growing.add(column)

    def _begin(self, events: list[TraceEvent]) -> tuple[list[Any], ...]:
        """Return the first three columns of every table of events."""
        return (
            [event.ts for event in events],
            [event.dur for event in events],
            [*map(self.names.__getitem__, [event.name for event in events])],
        )

    def _list_tracks(self, events: list[TraceEvent]) -> list[int]:
        processes = [event.pid for event in events]
        threads = [event.tid for event in events]
        first = processes[0]
        if type(first) is int and processes.count(first) == len(processes):
            if self._threads.process != first:
                self._threads = _Threads(first, self.tracks)
            return [*map(self._threads.__getitem__, threads)]
        return [*map(self.tracks.__getitem__, zip(processes, threads, strict=True))]

    def _read_host(self, events: list[TraceEvent], categories: Tiny) -> tuple[Any, ...]:
        shapes, join = self.shapes, _BETWEEN.join
        args = [event.args or _NO_ARGS for event in events]
        if self.rank < 0:
            ranks = [one.rank for one in args if one.collective and one.rank and _tells_rank(one)]
            self.rank = max(_whole(bytes(ranks[0])), -1) if ranks else -1
        return (
            *self._begin(events),
            categories,
            self._list_tracks(events),
            [shapes[join((one.dims, one.types))] if one.dims else -1 for one in args],
            [one.sequence_number for one in args],
        )

    def _read_calls(self, events: list[TraceEvent], categories: Tiny) -> tuple[Any, ...]:
        links = [event.args.correlation if event.args else 0 for event in events]
        return (*self._begin(events), categories, self._list_tracks(events), links)

    def _read_work(self, events: list[TraceEvent], categories: Tiny) -> tuple[Any, ...]:
        args = [event.args or _NO_ARGS for event in events]
        pairs = list(zip(args, events, strict=True))
        return (
            *self._begin(events),
            categories,
            [
                at if type(at := one.device) is int and at >= 0 else _place(at, event.pid)
                for one, event in pairs
            ],
            [
                at if type(at := one.stream) is int and at >= 0 else _place(at, event.tid)
                for one, event in pairs
            ],
            [one.correlation for one in args],
            [_moved(one.bytes) if one.bytes else 0 for one in args],
            [self.launches[_key_launch(one)] if one.grid else -1 for one in args],
            [self.collectives[_key_collective(one)] if one.collective else -1 for one in args],
        )

    def _read_python(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        return (*self._begin(events), self._list_tracks(events))

    def _read_memory(self, events: list[TraceEvent]) -> tuple[Any, ...]:
        args = [event.args or _NO_ARGS for event in events]
        return (
            [event.ts for event in events],
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
        host, python = self._settle(self._host, HostTable), self._settle(self._python, PythonTable)
        tracks, marked = (host.track[host.category == one] for one in (Category.OP, Category.ANNOTATION))
        main = marked if len(marked) else tracks
        if len(python.track) and len(main) and not np.isin(python.track, tracks).any():
            python.track[python.track == int(np.bincount(python.track).argmax())] = np.bincount(main).argmax()
        calls = self._settle(self._calls, CallTable)
        work = self._settle(self._work, lambda *columns: WorkTable(*(*columns, _match(calls, columns[6]))))
        return host, calls, work, python, self._settle(self._memory, MemoryTable, moments=True)

    def _settle(self, table: list[Growing], make: Callable[..., T], *, moments: bool = False) -> T:
        """Join the columns one after the other, so that little is held twice, and order them by their start.

        Events whose times make no sense are left out: what is no moment needs a duration, and 0 is one, a
        negative one or none at all is not.
        """
        start = table[0].join()
        length = np.zeros(len(start)) if moments else table[1].join()
        good = (np.abs(start) + length < MOST_US) & (length >= 0)
        rows = None
        if not good.all():
            rows = np.flatnonzero(good)
            self.odd_times += len(good) - len(rows)
            start, length = start[rows], length[rows]
        start = count_ns(start)
        if not bool(np.all(start[1:] >= start[:-1])):
            order = np.argsort(start, kind="stable")
            start, length = start[order], length[order]
            rows = order if rows is None else rows[order]
        columns = [start] if moments else [start, np.rint(length * 1000).astype(np.int64)]
        del good, length
        for growing in table[len(columns) :]:
            column = growing.join()
            columns.append(column if rows is None else column[rows])
        return make(*columns)


def _tells_memory(event: TraceEvent) -> bool:
    return event.name == "[memory]" and event.args is not None


def _key_launch(one: Args) -> tuple[Any, ...]:
    texts = _BETWEEN.join((one.grid, one.block, one.limits))
    return (texts, one.registers, one.shared, one.blocks_per_sm, one.occupancy)


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
