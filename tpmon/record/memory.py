"""What the judge remembers between two Frames, as JSON: so that a part of a recording can be judged again.

Every dataclass is written with its name, and read back only into the classes that ``Standing`` is made of.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from tpmon.judge.hysteresis import Standing
from tpmon.model.codec import CodecError

_LEFT_OUT = "looks"
"""The judge makes these anew from the stacks in the Frames."""
_TUPLE, _SET, _MAP, _TIME = "t", "s", "m", "d"


def write_memory(standing: Standing) -> bytes:
    """Encode what the judge remembers, but for the stacks that it has read in the Frames of the Window."""
    plain = _to_tagged(dataclasses.replace(standing, looks=()))
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def read_memory(data: bytes) -> Standing:
    """Decode what the judge remembered; CodecError where it does not fit."""
    try:
        found = _from_tagged(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"memory of the judge: {type(error).__name__}: {error}") from error
    if not isinstance(found, Standing):
        raise CodecError("memory of the judge: it holds something else")
    return found


def _to_tagged(value: Any) -> Any:
    """Turn a value into JSON: scalars as they are, all else a list that begins with what it is."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value)
    if isinstance(value, Enum):
        return [kind.__name__, value.name]
    if isinstance(value, datetime):
        return [_TIME, value.isoformat()]
    if isinstance(value, Mapping):
        return [_MAP, *([_to_tagged(key), _to_tagged(one)] for key, one in value.items())]
    if isinstance(value, (frozenset, set)):
        return [_SET, *map(_to_tagged, value)]
    if dataclasses.is_dataclass(value):
        # What is not compared is derived from the rest, stands last, and is made anew.
        kept = (one.name for one in dataclasses.fields(value) if one.compare)
        return [kind.__name__, *(_to_tagged(getattr(value, name)) for name in kept)]
    if hasattr(value, "_fields"):
        return [kind.__name__, *map(_to_tagged, value)]
    if isinstance(value, (tuple, list)):
        return [_TUPLE, *map(_to_tagged, value)]
    raise CodecError(f"memory of the judge: cannot encode a {kind.__name__}")


_PLAIN: Mapping[str, Callable[[list[Any]], Any]] = {
    _TUPLE: lambda rest: tuple(map(_from_tagged, rest)),
    _SET: lambda rest: frozenset(map(_from_tagged, rest)),
    _MAP: lambda rest: {_from_tagged(key): _from_tagged(one) for key, one in rest},
    _TIME: lambda rest: datetime.fromisoformat(rest[0]),
}


def _from_tagged(raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw
    name, *rest = raw
    if name in _PLAIN:
        return _PLAIN[name](rest)
    kind = _list_classes()[name]
    if issubclass(kind, Enum):
        return kind[rest[0]]
    return kind(*map(_from_tagged, rest))


@cache
def _list_classes() -> Mapping[str, type]:
    """List the classes that a ``Standing`` is made of by name, which is unique in the package."""
    found: dict[str, type] = {}

    def walk(hint: Any) -> None:
        for inner in get_args(hint):
            walk(inner)
        kind = get_origin(hint) or hint
        if not isinstance(kind, type) or kind.__name__ in found:
            return
        if issubclass(kind, Enum) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
            found[kind.__name__] = kind
            if not issubclass(kind, Enum):
                for one in get_type_hints(kind).values():
                    walk(one)

    walk(Standing)
    return found
