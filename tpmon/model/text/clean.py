"""Clean the text of a value that came from a file of somebody else."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TypeVar, cast

from tpmon.model.text.redaction import admit_text

T = TypeVar("T")

TEXT_CHARS = 400
_FAILURE_CHARS = 160

MOST_DIGITS = 6
"""Of a number of threads; what another process has in its environment may be anything."""


def name_failure(error: BaseException) -> str:
    """Name an exception and cut its words, which may quote text of others; an OSError has its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    words = admit_text(str(error), _FAILURE_CHARS)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def clean_value(value: T) -> T:
    """Return ``value`` with control characters of every text in it replaced, and long texts cut.

    Goes through the dataclasses and tuples of ``model``.
    """
    return cast("T", _clean(value))


def _clean(value: object) -> object:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return admit_text(value, TEXT_CHARS)
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _clean(getattr(value, name)) for name in names})
    return value
