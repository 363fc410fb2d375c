"""Bound what came out of a pickle: its depth, its size written out in full, and no way back into itself."""

from __future__ import annotations

from collections.abc import Iterable

from tpmon.model.frozen import dataclass


class PlainError(ValueError):
    """Say why a pickle is not read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold how large a pickle may be.

    ``values`` counts what is built, ``written_out`` what there would be if every shared value were
    written wherever it is used: a few bytes can share their way to more than any memory holds.
    ``loose_keys`` counts keys and items of sets that are no text: their hashes can be chosen to collide.
    """

    file_bytes: int = 64 << 20
    values: int = 2_000_000
    written_out: int = 20_000_000
    depth: int = 64
    number_bytes: int = 512
    loose_keys: int = 10_000


_TEXT_STEP = 256
"""Characters of a text that count like one more value."""


def check_shape(value: object, limits: Limits) -> None:
    """Go through a value once, however often its parts are shared.

    Raises:
        PlainError: when it is nested too deeply, contains itself, or is too large written out.
    """
    done: dict[int, tuple[int, int]] = {}
    open_: set[int] = set()
    todo: list[tuple[object, bool]] = [(value, False)]
    while todo:
        one, is_left = todo.pop()
        key = id(one)
        if is_left:
            open_.discard(key)
            done[key] = _measure(one, done, limits)
        elif _is_container(one) and key not in done:
            if key in open_:
                raise PlainError("a value that contains itself")
            open_.add(key)
            todo.append((one, True))
            todo += [(part, False) for part in _parts(one) if _is_container(part)]


def _is_container(value: object) -> bool:
    return isinstance(value, (list, tuple, dict, set, frozenset))


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _measure(value: object, done: dict[int, tuple[int, int]], limits: Limits) -> tuple[int, int]:
    """Return depth and written-out size of a container whose parts were measured."""
    depth, size = 0, 1
    for part in _parts(value):
        if _is_container(part):
            part_depth, part_size = done[id(part)]
            depth = max(depth, part_depth)
            size += part_size
        else:
            size += _weigh(part)
    if isinstance(value, (dict, set, frozenset)):
        size += sum(map(_weigh, value))
    if depth >= limits.depth:
        raise PlainError(f"nested more than {limits.depth} deep")
    if size > limits.written_out:
        raise PlainError(f"more than {limits.written_out} values written out")
    return depth + 1, size


def _weigh(value: object) -> int:
    return 1 + len(value) // _TEXT_STEP if isinstance(value, (str, bytes)) else 1
