"""What is known, what could not be read, and what does not apply.

Every number on the screen passes through here: a value that was not read is ``Missing`` with
its reason, never 0 and never None. Knows nothing of where values come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, Union

from tpmon.model.frozen import dataclass

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Why(str, Enum):
    """Tell apart the reasons of values that were not read."""

    UNREAD = "unread"
    ABSENT = "absent"
    """There is nothing that could be read: no hook, no card."""
    PENDING = "pending"
    """It was asked for, and did not answer so far."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Stand for a value that was not read, with the reason in a few words, and its kind."""

    reason: str
    why: Why = Why.UNREAD

    def __bool__(self) -> bool:
        """Refuse truth tests: 0 and Missing are different answers; TypeError always."""
        raise TypeError("test a reading with is_known(), not with its truth value")


class NotApplicable(Enum):
    """Stand for a value that the thing described does not have, such as the rank of a launcher."""

    NOT_APPLICABLE = "not applicable"


NOT_APPLICABLE = NotApplicable.NOT_APPLICABLE

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

Known = Union[T, Missing]
"""A value, or the reason why it was not read."""

Applicable = Union[T, Missing, NotApplicable]
"""A value, the reason why it was not read, or nothing because the question does not arise."""


_UNREAD = frozenset((Missing, NotApplicable))  # without subclasses: isinstance() takes three times as long


def is_known(value: T | Missing | NotApplicable) -> TypeIs[T]:
    """Tell whether ``value`` was read."""
    return value.__class__ not in _UNREAD


def known_or(value: T | Missing | NotApplicable, default: U) -> T | U:
    """Return ``value`` if it was read, else ``default``."""
    return default if value.__class__ in _UNREAD else value  # type: ignore[return-value]  # as is_known


def map_known(change: Callable[[T], U], value: T | Missing) -> U | Missing:
    """Apply ``change`` to a value that was read and keep the reason of one that was not."""
    return value if isinstance(value, Missing) else change(value)


def join_known(change: Callable[[T, V], U], one: T | Missing, other: V | Missing) -> U | Missing:
    """Apply ``change`` to two values that were read; keep the first reason where one was not."""
    if isinstance(one, Missing):
        return one
    return other if isinstance(other, Missing) else change(one, other)


def sum_known(values: Iterable[float | Missing]) -> float:
    """Return the sum of the values that were read."""
    return sum(value for value in values if is_known(value))
