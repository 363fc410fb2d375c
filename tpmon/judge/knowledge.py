"""Read the tables of what tpmon knows: TOML files beside the modules that use them. Knows what none means.

A table is read when it is first asked, so a command that never needs it does not pay for it. Its rows
become the frozen dataclasses of their module; a row that does not fit says where and why.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from typing import Any, NewType, TypeVar, get_args, get_type_hints

Key = TypeVar("Key")
Row = TypeVar("Row")
Verbatim = NewType("Verbatim", str)
"""Text that keeps its line breaks; in all other text a break is a space, so that long lines can be folded."""


class TableError(ValueError):
    """Say which row of a table is wrong, and why."""


class LazyTable(Mapping[Key, Row]):
    """Hold the rows of a table that is read when it is first asked."""

    def __init__(self, load: Callable[[], Mapping[Key, Row]]) -> None:
        self._load = cache(load)

    def __getitem__(self, key: Key) -> Row:
        return self._load()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def read_table(module: str, name: str) -> dict[str, Any]:
    """Return the TOML file ``name`` that lies beside a module, whose ``__file__`` is ``module``."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open(os.path.join(os.path.dirname(module), name), "rb") as file:
        table: dict[str, Any] = toml.load(file)
    return table


@cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether a row must have it."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], field.default is MISSING) for field in fields(kind)}


def make_row(kind: type[Row], where: str, row: Mapping[str, Any]) -> Row:
    """Make one row of a table: each key is a field, and each field without a default has a key.

    Raises:
        TableError: for a key that is missing or unknown, and for a value that is not of its type.
    """
    known = _fields(kind)  # type: ignore[arg-type]  # a class can be a key
    for key in row:
        if key not in known:
            raise TableError(f"{where}: {key}: no such key; the keys are {', '.join(known)}")
    missing = [key for key, (_, required) in known.items() if required and key not in row]
    if missing:
        raise TableError(f"{where}: {', '.join(missing)}: missing")
    return kind(**{key: convert(known[key][0], f"{where}: {key}", value) for key, value in row.items()})


def convert(hint: Any, where: str, value: Any) -> Any:
    """Return a value of TOML as the type that ``hint`` names: text, a flag, a member of an Enum, a tuple."""
    if hint is str and isinstance(value, str):
        return re.sub(r"\n\s*", " ", value) if "\n" in value else value
    if hint is Verbatim and isinstance(value, str):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        if value in hint.__members__:
            return hint[value]
        raise TableError(f"{where}: {value}: no {hint.__name__} of that name")
    inner = get_args(hint)
    if inner[1:] == (...,) and isinstance(value, list):
        return tuple(convert(inner[0], where, one) for one in value)
    if type(None) in inner:
        return None if value is None else convert(inner[0], where, value)
    raise TableError(f"{where}: {value!r} is no {getattr(hint, '__name__', hint)}")
