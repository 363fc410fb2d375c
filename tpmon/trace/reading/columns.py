"""The tables that events become: numpy columns in nanoseconds, with names and the like as numbers.

Times are whole nanoseconds on the clock of the trace. Knows no files.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound="np.signedinteger[Any]")
Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Tiny = npt.NDArray[np.int8]
Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

NAME_CHARS = 32 << 10
"""What is kept of a name; those of the longest kernels, of nested templates, have 10,000 characters."""
KEPT_BYTES = 256 << 20
"""What the different names and arguments of a trace may take together, as they lie in memory."""
RAW_BYTES = 64 << 10
"""What the arguments of one event may take: an update of two thousand parameters at once lists 30 KB."""
_EACH_BYTES = 600
"""What a value costs beside its own bytes: its places in two tables and a list, its row of the results."""
_HALF = 0.5
_NEAR = 4
"""Whole numbers that are at most so many times as far apart as there are of them are counted, not sorted."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


class Room:
    """Hold how many bytes more may be kept of what differs from event to event."""

    def __init__(self) -> None:
        self.left = KEPT_BYTES

    def take(self, size: int) -> bool:
        """Take the room for a value of ``size`` bytes, if it is there."""
        fits = size + _EACH_BYTES <= self.left
        if fits:
            self.left -= size + _EACH_BYTES
        return fits


class Numbers(dict[K, int], Generic[K]):
    """Give each different value the next number; ``kept`` holds the values in the order of their numbers.

    A new value is changed first. ``over`` counts how often one was asked for that is larger than ``most``
    bytes (0: no cap), or came when the room was taken: ``instead`` stands for it, else the number is -1.
    """

    def __init__(
        self, room: Room, change: Callable[[K], K] | None = None, instead: K | None = None, most: int = 0
    ) -> None:
        super().__init__()
        self.kept: list[K] = []
        self.over = 0
        self._room = room
        self._change = change
        self._instead = instead
        self._most = most
        self._numbers: dict[K, int] = {}

    def __missing__(self, key: K) -> int:
        real = self._change(key) if self._change else key
        number = self._numbers.get(real)
        if number is None:
            size = _size_of(real)
            if (self._most and size > self._most) or not self._room.take(size):
                self.over += 1
                return -1 if self._instead is None else self._number(self._instead)
            number = self._number(real)
        if real == key:  # what differs each time would only fill the memory
            self[key] = number
        return number

    def _number(self, real: K) -> int:
        number = self._numbers.setdefault(real, len(self.kept))
        if number == len(self.kept):
            self.kept.append(real)
        return number


def _size_of(value: object) -> int:
    """Return the bytes that a text, or each text of a tuple, takes."""
    return sum(map(sys.getsizeof, value)) if isinstance(value, tuple) else sys.getsizeof(value)


def distinct(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """Return the different values in order; ``np.unique`` would import ``numpy.ma`` for it."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low <= _NEAR * len(values):
        counts = np.bincount(values.astype(np.int64) - low)
        return (np.flatnonzero(counts) + low).astype(values.dtype)
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def shorten_name(name: str) -> str:
    """Take addresses of objects out of a name, which differ each time, and cap its length."""
    short = name[:NAME_CHARS]
    return _ADDRESS.sub("0x…", short) if "0x" in short else short


class Growing:
    """Collect one column in parts, which go when it is joined; ``absent`` stands for what it cannot hold."""

    def __init__(self, kind: type[np.number[Any]], absent: int = 0) -> None:
        self._kind = kind
        self._code = np.dtype(kind).char
        self._absent = absent
        self._parts: list[npt.NDArray[Any]] = []

    def add(self, values: Sequence[Any] | npt.NDArray[Any]) -> int:
        """Add the values of a piece; return how many of them the column cannot hold."""
        if isinstance(values, np.ndarray):
            self._parts.append(values.astype(self._kind, copy=False))
            return 0
        try:  # a third of what numpy takes to look at each value of a list
            packed = struct.pack(f"{len(values)}{self._code}", *values)
        except struct.error:
            return self._add_each(values)
        self._parts.append(np.frombuffer(packed, self._kind))
        return 0

    def _add_each(self, values: Sequence[Any]) -> int:
        try:
            self._parts.append(np.asarray(values, dtype=self._kind))
        except (OverflowError, ValueError):
            holds = np.iinfo(cast("type[np.signedinteger[Any]]", self._kind))
            good = [bool(holds.min <= value <= holds.max) for value in values]
            kept = [value if keep else self._absent for value, keep in zip(values, good, strict=True)]
            self._parts.append(np.asarray(kept, dtype=self._kind))
            return good.count(False)
        return 0

    def join(self) -> npt.NDArray[Any]:
        """Return the whole column."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._kind)


@dataclass(frozen=True, slots=True)
class EventTable:
    """Hold events in the order of their start; ``name`` and the like are numbers of the trace's lists."""

    start: Ints
    duration: Ints
    name: Small

    @property
    def end(self) -> Ints:
        """Return when each event ended."""
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class HostTable(EventTable):
    """Hold ops, annotations and every category that is not known; ``shape`` is -1 without one.

    ``sequence`` is what autograd counts: a node of the backward pass has that of its operator; -1 without.
    """

    category: Tiny
    track: Small
    shape: Small
    sequence: Ints


@dataclass(frozen=True, slots=True)
class CallTable(EventTable):
    """Hold calls of the runtime and the driver; ``correlation`` is 0 without one."""

    category: Tiny
    track: Small
    correlation: Ints


@dataclass(frozen=True, slots=True)
class WorkTable(EventTable):
    """Hold kernels, copies and sets of memory on devices.

    ``launch`` is the number of its ``Launch``, ``collective`` of its ``Collective``, ``call`` the row of the
    call that launched it, -1 without one.
    """

    category: Tiny
    device: Small
    stream: Small
    correlation: Ints
    moved_bytes: Ints
    launch: Small
    collective: Small
    call: Ints


@dataclass(frozen=True, slots=True)
class PythonTable(EventTable):
    """Hold Python functions."""

    track: Small


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Hold allocations (positive) and frees (negative); where untold totals are -1, ``address`` is 0."""

    time: Ints
    changed_bytes: Ints
    allocated: Ints
    reserved: Ints
    device_type: Small
    device: Small
    track: Small
    address: Ints


@dataclass(frozen=True, slots=True)
class Groups:
    """Hold the different ``keys`` of rows in order, their counts, and at which place each row's key is."""

    keys: Ints
    count: Ints
    place: Ints

    @property
    def first(self) -> Ints:
        """Return the first row of each key."""
        first = np.empty(len(self.keys), np.int64)
        first[self.place[::-1]] = np.arange(len(self.place) - 1, -1, -1)  # of several the last one stays
        return first

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Add up the values of the rows of each key."""
        return np.asarray(np.bincount(self.place, values, len(self.keys)), np.float64)


def group(keys: npt.NDArray[Any]) -> Groups:
    """Group rows by their keys; ``np.unique`` would sort them all, and import ``numpy.ma``."""
    if not len(keys):
        return Groups(keys, np.zeros(0, np.int64), np.zeros(0, np.int64))
    low, high = int(keys.min()), int(keys.max())
    if high - low <= _NEAR * len(keys):  # numbers of names and the like: counted, not sorted
        near = keys.astype(np.int64) - low
        count = np.bincount(near)
        there = np.flatnonzero(count)
        number = np.zeros(len(count), np.int64)
        number[there] = np.arange(len(there))
        return Groups((there + low).astype(keys.dtype), count[there], number[near])
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    place = np.empty(len(keys), np.int64)
    place[order] = np.cumsum(first) - 1
    return Groups(ordered[begins], np.diff(begins, append=len(keys)), place)


def find_main(keys: npt.NDArray[Any], weights: npt.NDArray[Any]) -> int:
    """Return the key that has most of the weight."""
    groups = group(keys)
    return int(groups.keys[int(np.argmax(groups.sum(weights)))])


def percentile(values: npt.NDArray[Any], pct: float) -> float:
    """Return the value below which so many percent lie, between two as ``np.percentile`` lays it.

    That one imports ``numpy.ma``.
    """
    ordered = np.sort(values)
    place = (len(ordered) - 1) * (pct / 100)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    part = place - below
    return low + (high - low) * part if part < _HALF else high - (high - low) * (1 - part)


@dataclass(frozen=True, slots=True)
class Launch:
    """Hold how a kernel was started, as it is written; a value that is not there is NaN or empty."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: float
    shared_bytes: float
    blocks_per_sm: float
    occupancy_pct: float
    limited_by: str


@dataclass(frozen=True, slots=True)
class Collective:
    """Hold what a communication kernel says of itself; -1 and "" where it does not."""

    name: str
    dtype: str
    elements_in: int
    elements_out: int
    group_size: int
    group: str
    sequence: int
