"""Encode the dataclasses of ``model`` as JSON and decode them again. The one place that does.

Rules of docs/json.md: ``Missing`` becomes ``{"missing": reason}``, ``NotApplicable`` drops the
key, datetimes are ISO 8601 with offset, floats keep four decimals, a trailing underscore of a
field name is dropped. Unknown keys are ignored when decoding, so newer files can be read.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tpmon.model.known import NOT_APPLICABLE, Missing, NotApplicable

T = TypeVar("T")

DECIMALS = 4


class CodecError(ValueError):
    """Say where a JSON value does not fit the type that the schema asks for."""


@cache
def _encoder(kind: Any) -> Callable[[Any], Any]:
    if kind is Missing:
        return lambda value: {"missing": value.reason}
    if dataclasses.is_dataclass(kind):
        names = [(f.name, f.name.rstrip("_")) for f in dataclasses.fields(kind)]

        def encode_fields(value: Any) -> dict[str, Any]:
            out: dict[str, Any] = {}
            for name, key in names:
                field = getattr(value, name)
                if field is not NOT_APPLICABLE:
                    out[key] = to_plain(field)
            return out

        return encode_fields
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, datetime):
        return lambda value: value.isoformat(timespec="milliseconds")
    if issubclass(kind, (tuple, list)):
        return lambda value: [to_plain(item) for item in value]
    if issubclass(kind, float):
        return lambda value: round(value, DECIMALS)
    if issubclass(kind, (int, str, bool)):
        return lambda value: value
    raise CodecError(f"cannot encode a {kind.__name__}")


def to_plain(value: object) -> Any:
    """Turn a value of ``model`` into lists, dicts with JSON keys, numbers and strings.

    Raises:
        CodecError: for a type that ``model`` does not use.
    """
    kind: Any = type(value)
    return _encoder(kind)(value)


def encode(value: object) -> str:
    """Encode a value of ``model`` as one line of JSON.

    Raises:
        CodecError: for a type that ``model`` does not use.
        ValueError: for NaN or an infinity, which JSON does not have.
    """
    return json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _decode_dataclass(kind: type) -> Callable[[Any, str], Any]:
    hints = get_type_hints(kind)
    fields = [(f.name, f.name.rstrip("_"), _decoder(hints[f.name])) for f in dataclasses.fields(kind)]

    def decode_fields(raw: Any, path: str) -> Any:
        if not isinstance(raw, dict):
            raise CodecError(f"{path}: expected an object, found {type(raw).__name__}")
        values = {}
        for name, key, decode_one in fields:
            values[name] = decode_one(raw.get(key, NOT_APPLICABLE), f"{path}.{key}")
        return kind(**values)

    return decode_fields


def _decode_union(options: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    may_miss = Missing in options
    may_not_apply = NotApplicable in options
    rest = [o for o in options if o not in (Missing, NotApplicable)]
    if len(rest) != 1:
        raise CodecError(f"cannot decode a union of {len(rest)} types")
    inner = _decoder(rest[0])

    def decode_option(raw: Any, path: str) -> Any:
        if raw is NOT_APPLICABLE:
            if may_not_apply:
                return NOT_APPLICABLE
            raise CodecError(f"{path}: the key is absent")
        if may_miss and isinstance(raw, dict) and raw.keys() == {"missing"}:
            return Missing(str(raw["missing"]))
        return inner(raw, path)

    return decode_option


def _decode_scalar(kind: type) -> Callable[[Any, str], Any]:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def decode_value(raw: Any, path: str) -> Any:
        if isinstance(raw, bool) and kind is not bool:
            raise CodecError(f"{path}: expected {kind.__name__}, found bool")
        if not isinstance(raw, accepted):
            found = "nothing" if raw is NOT_APPLICABLE else type(raw).__name__
            raise CodecError(f"{path}: expected {kind.__name__}, found {found}")
        number: Any = raw
        return float(number) if kind is float else raw

    return decode_value


def _decode_missing(raw: Any, path: str) -> Missing:
    if isinstance(raw, dict) and raw.keys() == {"missing"}:
        return Missing(str(raw["missing"]))
    raise CodecError(f"{path}: expected a missing value")


@cache
def _decoder(hint: Any) -> Callable[[Any, str], Any]:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint))
    if origin is tuple:
        item = _decoder(get_args(hint)[0])

        def decode_items(raw: Any, path: str) -> Any:
            if not isinstance(raw, list):
                raise CodecError(f"{path}: expected a list, found {type(raw).__name__}")
            return tuple(item(one, f"{path}[{i}]") for i, one in enumerate(raw))

        return decode_items
    if hint is Missing:
        return _decode_missing
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, (Enum, datetime)):
        parse: Callable[[Any], Any] = hint.fromisoformat if issubclass(hint, datetime) else hint

        def decode_text(raw: Any, path: str) -> Any:
            try:
                return parse(raw)
            except (TypeError, ValueError) as error:
                raise CodecError(f"{path}: {error}") from error

        return decode_text
    if hint in (int, float, str, bool):
        return _decode_scalar(hint)
    raise CodecError(f"cannot decode a {hint}")


def from_plain(kind: type[T], raw: object) -> T:
    """Build a ``kind`` from what ``json.loads`` returned.

    Raises:
        CodecError: where a key is absent or has the wrong type, with its path.
    """
    decoder: Callable[[Any, str], Any] = _decoder(cast("Any", kind))
    return cast("T", decoder(raw, kind.__name__))


def decode(kind: type[T], line: str) -> T:
    """Build a ``kind`` from one line of JSON.

    Raises:
        CodecError: where the text is not JSON or does not fit, with its path.
    """
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from error
    return from_plain(kind, raw)
