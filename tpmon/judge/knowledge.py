"""Read the tables of what tpmon knows: TOML files beside the modules that use them.

A file is read when one of its rows is first asked for, and only that row is made. Rows become the frozen
dataclasses of their module; one that does not fit says where and why.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache, partial
from typing import Any, NewType, TypeVar, get_args, get_type_hints

Key = TypeVar("Key")
Row = TypeVar("Row")
Raw = Mapping[str, Any]
Verbatim = NewType("Verbatim", str)
"""Text that keeps its line breaks; elsewhere a break is a space, so that long lines can be folded."""


class TableError(ValueError):
    """Say which row of a table is wrong, and why."""


class LazyTable(Mapping[Key, Row]):
    """Hold the rows of some files: a file is read when a row is looked for in it, each row made once."""

    def __init__(
        self, reads: Iterable[Callable[[], Mapping[Key, Any]]], make: Callable[[Key, Any], Row]
    ) -> None:
        self._reads = tuple(map(cache, reads))
        self._make = make
        self._made: dict[Key, Row] = {}

    def __getitem__(self, key: Key) -> Row:
        if key not in self._made:
            table = next((table for read in self._reads if key in (table := read())), {})
            self._made[key] = self._make(key, table[key])
        return self._made[key]

    def __iter__(self) -> Iterator[Key]:
        for read in self._reads:
            yield from read()

    def __len__(self) -> int:
        return sum(len(read()) for read in self._reads)


def hold_table(kind: type[Row], module: str, name: str) -> LazyTable[str, Row]:
    """Return the rows of the TOML file ``name`` beside a module, by the names of their tables."""
    return LazyTable(
        (partial(read_table, module, name),), lambda key, row: make_row(kind, f"{name}: {key}", row)
    )


def read_table(module: str, name: str) -> dict[str, Any]:
    """Return the TOML file ``name`` beside the module whose ``__file__`` is ``module``."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open(os.path.join(os.path.dirname(module), name), "rb") as file:
        table: dict[str, Any] = toml.load(file)
    return table


_HEADER = re.compile(r"^\[([\w-]+)\]\n", re.MULTILINE)


class Sections(Mapping[str, Raw]):
    """Hold the tables of a TOML file that are its rows; each is parsed when it is asked for."""

    def __init__(self, text: str) -> None:
        parts = _HEADER.split(text)
        self._texts = dict(zip(parts[1::2], parts[2::2], strict=True))
        self._toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

    def __getitem__(self, key: str) -> Raw:
        row: Raw = self._toml.loads(self._texts[key])
        return row

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def read_sections(module: str, name: str) -> Sections:
    """Return the TOML file ``name`` beside a module, of which each table is a row: all take 5 ms."""
    with open(os.path.join(os.path.dirname(module), name), encoding="utf-8") as file:
        return Sections(file.read())


@cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether a row must have it."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], field.default is MISSING) for field in fields(kind)}


def make_row(kind: type[Row], where: str, row: Raw) -> Row:
    """Make one row, whose keys are fields of ``kind``; TableError for a missing, unknown or wrong one."""
    known = _fields(kind)  # type: ignore[arg-type]  # a class can be a key
    for key in row:
        if key not in known:
            raise TableError(f"{where}: {key}: no such key; the keys are {', '.join(known)}")
    missing = [key for key, (_, required) in known.items() if required and key not in row]
    if missing:
        raise TableError(f"{where}: {', '.join(missing)}: missing")
    made = {}
    for key, value in row.items():
        try:
            made[key] = convert(known[key][0], value)
        except TableError as error:
            raise TableError(f"{where}: {key}: {error}") from None
    return kind(**made)


def convert(hint: Any, value: Any) -> Any:
    """Return a TOML value as the type ``hint`` (text, flag, Enum, tuple); TableError for any other value."""
    if hint is str and isinstance(value, str):
        return re.sub(r"\n\s*", " ", value) if "\n" in value else value
    if hint is Verbatim and isinstance(value, str):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        if value in hint.__members__:
            return hint[value]
        raise TableError(f"{value}: no {hint.__name__} of that name")
    inner = get_args(hint)
    if inner[1:] == (...,) and isinstance(value, list):
        return tuple(convert(inner[0], one) for one in value)
    if type(None) in inner:
        return None if value is None else convert(inner[0], value)
    raise TableError(f"{value!r} is no {getattr(hint, '__name__', hint)}")
