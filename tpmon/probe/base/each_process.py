"""Read many processes one after the other: what fails for one is that one's reason, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tpmon.model.known import Known, Missing
from tpmon.model.text.clean import name_failure

K = TypeVar("K")
T = TypeVar("T")


def read_apart(read: Callable[[], T]) -> Known[T]:
    """Call ``read``; any exception of it is the reason why there is no answer."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001  # text of others can be anything
        return Missing(name_failure(error))


def each_process(processes: Iterable[K], read: Callable[[K], T]) -> dict[K, Known[T]]:
    """Call ``read`` for each process, or each other thing that may be odd by itself (a thread, a file).

    One for which it raises OSError is left out: it is gone. Any other exception is its reason.
    """
    found: dict[K, Known[T]] = {}
    for one in processes:
        try:
            found[one] = read(one)
        except OSError:
            continue
        except Exception as error:  # noqa: BLE001  # text of others can be anything
            found[one] = Missing(name_failure(error))
    return found
