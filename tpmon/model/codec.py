"""Encode the dataclasses of ``model`` as JSON and decode them again. The one place that does.

Rules of docs/json.md: ``Missing`` becomes ``{"missing": reason}``, with its kind as ``why`` if it has one,
``NotApplicable`` drops the key, datetimes are ISO 8601 with offset, floats keep four decimals, a trailing
underscore of a field name is dropped, a ``Wait`` is its words with ``wait_reason`` beside them. Unknown keys
are ignored when decoding, so newer files can be read.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import count
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tpmon.model.known import NOT_APPLICABLE, Known, Missing, NotApplicable, Why
from tpmon.model.waits import Wait, describe_wait, parse_wait

T = TypeVar("T")

DECIMALS = 4
WAIT_REASON = "wait_reason"
"""Key beside that of a ``Wait``, which is its words: the reason."""
COMPILE_AFTER = 300
"""More values than a single Frame of most jobs has of any dataclass: only a stream compiles."""
_HUGE = 1e300
_PLAIN = 1e15
"""Below it msgspec writes the digits that ``json`` writes."""


class CodecError(ValueError):
    """Say where a JSON value does not fit the type that the schema asks for."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self._reason = reason
        self._path = path

    def below(self, key: str) -> CodecError:
        """Return the same error one level further out."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        return CodecError(self._reason, f"{key}{dot}{self._path}")


Encoder = Callable[[Any], Any]


def _encode_missing(value: Missing) -> dict[str, str]:
    plain = {"missing": value.reason}
    return plain if value.why is Why.UNREAD else {**plain, "why": value.why.value}


class OddFloat(float):
    """Mark a float that msgspec writes in another way than ``json``, or not at all: then ``json`` writes."""

    __slots__ = ()


class EncoderTable(dict[type, Encoder]):
    """Hold what turns a value of each type into what JSON holds; ``exact`` keeps every digit.

    The encoder of a dataclass is compiled once it was asked for ``COMPILE_AFTER`` values: that takes as
    long as encoding a hundred of them, and makes the others three times as fast.
    """

    def __init__(self, *, exact: bool) -> None:
        super().__init__()
        self._exact = exact

    def __missing__(self, kind: type) -> Encoder:
        """Make the encoder of a type when it is first met; CodecError for one that ``model`` does not use."""
        self[kind] = made = self._make(kind)
        return made

    def encode(self, value: object) -> Any:
        """Turn a value into what JSON holds."""
        return self[type(value)](value)

    def _make(self, kind: type) -> Encoder:
        if kind is Missing:
            return _encode_missing
        if dataclasses.is_dataclass(kind):
            return self._make_fields(kind)
        if issubclass(kind, Enum):
            return lambda value: value.value
        if issubclass(kind, datetime):
            unit = "auto" if self._exact else "milliseconds"
            return lambda value: value.isoformat(timespec=unit)
        if issubclass(kind, (tuple, list)):
            return lambda value: [self[type(item)](item) for item in value]
        if issubclass(kind, float):
            return self._encode_float
        if issubclass(kind, (int, str, bool)):
            return lambda value: value
        raise CodecError(f"cannot encode a {kind.__name__}")

    def _encode_float(self, value: float) -> float:
        kept = float(value) if self._exact else round(float(value), DECIMALS)
        return kept if -_PLAIN < kept < _PLAIN else OddFloat(kept)

    def _make_fields(self, kind: type) -> Encoder:
        names = [(f.name, f.name.rstrip("_")) for f in dataclasses.fields(kind)]
        asked = count(1)

        def encode_fields(value: Any) -> dict[str, Any]:
            if next(asked) == COMPILE_AFTER:
                self[kind] = self._compile(kind)
            out: dict[str, Any] = {}
            for name, key in names:
                field = getattr(value, name)
                if type(field) is Wait:
                    out[key], out[WAIT_REASON] = describe_wait(field), field.reason.value
                elif field is not NOT_APPLICABLE:
                    out[key] = self[type(field)](field)
            return out

        return encode_fields

    def _compile(self, kind: type) -> Encoder:
        """Compile one dict display; what does not fit its type annotation goes through the table."""
        known: dict[str, Any] = {
            "table": self,
            "describe_wait": describe_wait,
            "Wait": Wait,
            "NOT_APPLICABLE": NOT_APPLICABLE,
            "encode_float": self._encode_float,
        }
        hints = get_type_hints(kind)
        pairs, left_out = [], []
        for field in dataclasses.fields(kind):
            hint, key, place = hints[field.name], field.name.rstrip("_"), f"value.{field.name}"
            written = self._write(hint, f"x := {place}", "x", known)
            if Wait in (hint, *get_args(hint)):
                written = f"describe_wait(x) if type(x := {place}) is Wait else table[type(x)](x)"
                pairs.append(f"{key!r}: {written}")
                pairs.append(f"{WAIT_REASON!r}: x.reason._value_ if type(x) is Wait else NOT_APPLICABLE")
                left_out.append(f"  if type({place}) is not Wait: del out[{WAIT_REASON!r}]")
            else:
                pairs.append(f"{key!r}: {written}")
            if NotApplicable in get_args(hint):
                left_out.append(f"  if {place} is NOT_APPLICABLE: del out[{key!r}]")
        lines = ["def encode_fields(value):", f"  out = {{{', '.join(pairs)}}}", *left_out, "  return out"]
        # Of the class's own field names, as the standard library does.
        exec("\n".join(lines), known)  # noqa: S102
        compiled: Encoder = known["encode_fields"]
        return compiled

    def _write(self, hint: Any, first: str, name: str, known: dict[str, Any]) -> str:
        """Write the expression for a value; ``first`` reads it, and ``name`` holds it from then on."""
        parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        kinds = [part for part in parts if part not in (Missing, NotApplicable)]
        kind = kinds[0] if len(kinds) == 1 else Missing
        other = f"table[type({name})]({name})"
        if kind is float:
            kept = name if self._exact else f"({name} and round({name}, {DECIMALS}))"
            plain = f"({kept} if -{_PLAIN} < {name} < {_PLAIN} else encode_float({name}))"
            return f"{plain} if type({first}) is float else {other}"
        if kind in (int, str, bool):
            return f"{name} if type({first}) is {kind.__name__} else {other}"
        if get_origin(kind) is tuple:
            one = f"{name}_"
            item = self._write(get_args(kind)[0], one, one, known)
            return f"[{item} for {one} in {name}] if type({first}) is tuple else {other}"
        if isinstance(kind, type) and issubclass(kind, Enum):
            known[f"{kind.__name__}_"] = kind
            return f"{name}._value_ if type({first}) is {kind.__name__}_ else {other}"
        return f"table[type({first})]({name})"


_ROUNDED = EncoderTable(exact=False)
_EXACT = EncoderTable(exact=True)


def to_plain(value: object) -> Any:
    """Turn a value of ``model`` into what JSON holds; CodecError for a type that ``model`` does not use."""
    return _ROUNDED.encode(value)


_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_dump_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode(value: object) -> str:
    """Encode a value of ``model`` as a line of JSON; ValueError for NaN and infinity, which JSON has not."""
    return _dump(to_plain(value))


def encode_fast(value: object) -> bytes:
    """Encode the same line as ``encode``, in UTF-8 and, with msgspec, in a third of the time."""
    return _dump_fast(to_plain(value), _dump)


def encode_exact(value: object) -> bytes:
    """Encode a line that ``decode`` makes an equal value of: all digits, times to the microsecond."""
    return _dump_fast(_EXACT.encode(value), _dump_ascii)


@cache
def _find_fast() -> Any:
    """Return the JSON of msgspec, which a single Frame does without; None where it is not installed."""
    try:
        from msgspec import json as fast  # noqa: PLC0415
    except ImportError:
        return None
    return fast


def _dump_fast(plain: object, dump: Callable[[object], str]) -> bytes:
    fast = _find_fast()
    if fast is None:
        return dump(plain).encode("utf-8", "replace")
    try:
        return bytes(fast.encode(plain))  # which copies no bytes
    except (TypeError, ValueError, OverflowError):  # an OddFloat, half of a surrogate pair
        return dump(plain).encode("utf-8", "replace")


Decoder = Callable[[Any], Any]


def _refuse(wanted: str, raw: object) -> CodecError:
    found = "nothing" if raw is NOT_APPLICABLE else type(raw).__name__
    return CodecError(f"expected {wanted}, found {found}")


def _decode_dataclass(kind: type) -> Decoder:
    hints = get_type_hints(kind)
    fields = [(f.name.rstrip("_"), _decoder(hints[f.name])) for f in dataclasses.fields(kind)]
    waits = {f.name for f in dataclasses.fields(kind) if Wait in get_args(hints[f.name])}

    def decode_fields(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _refuse("an object", raw)
        values = []
        for key, decode_one in fields:
            value = raw.get(key, NOT_APPLICABLE)
            try:
                values.append(decode_one((value, raw.get(WAIT_REASON, "")) if key in waits else value))
            except CodecError as error:
                # The path is put together on the way out: a good line costs nothing for it.
                raise error.below(key) from None
        return kind(*values)

    return decode_fields


def _decode_union(options: tuple[Any, ...]) -> Decoder:
    may_miss = Missing in options
    may_not_apply = NotApplicable in options
    rest = [o for o in options if o not in (Missing, NotApplicable)]
    if len(rest) != 1:
        raise CodecError(f"cannot decode a union of {len(rest)} types")
    inner = _decoder(rest[0])

    def decode_option(raw: Any) -> Any:
        if raw is NOT_APPLICABLE:
            if may_not_apply:
                return NOT_APPLICABLE
            raise CodecError("the key is absent")
        return _decode_missing(raw) if may_miss and _is_missing(raw) else inner(raw)

    return decode_option


def _decode_scalar(kind: type) -> Decoder:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def decode_value(raw: Any) -> Any:
        if not isinstance(raw, accepted) or (isinstance(raw, bool) and kind is not bool):
            raise _refuse(kind.__name__, raw)
        if kind is not float:
            return raw
        number: Any = raw
        if not -_HUGE < number < _HUGE:  # 1e999 is read as an infinity, which cannot be written again
            raise CodecError("expected a finite number")
        return float(number)

    return decode_value


def _decode_wait(raw: tuple[Any, Any]) -> Known[Wait]:
    words, reason = raw
    if isinstance(words, dict):
        return _decode_missing(words)
    if not isinstance(words, str) or not isinstance(reason, str):
        raise _refuse("str", words)
    try:
        return parse_wait(words, reason)
    except ValueError as error:
        raise CodecError(str(error)) from error


def _is_missing(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.keys() - {"why"} == {"missing"}


def _decode_missing(raw: Any) -> Missing:
    if _is_missing(raw):
        return Missing(str(raw["missing"]), _decoder(Why)(raw.get("why", Why.UNREAD)))
    raise _refuse("a missing value", raw)


def _decode_tuple(hint: Any) -> Decoder:
    item = _decoder(get_args(hint)[0])

    def decode_items(raw: Any) -> Any:
        if not isinstance(raw, list):
            raise _refuse("a list", raw)
        values = []
        for i, one in enumerate(raw):
            try:
                values.append(item(one))
            except CodecError as error:
                raise error.below(f"[{i}]") from None
        return tuple(values)

    return decode_items


def _decode_text(hint: type) -> Decoder:
    parse: Callable[[Any], Any] = hint.fromisoformat if issubclass(hint, datetime) else hint

    def decode_parsed(raw: Any) -> Any:
        try:
            value = parse(raw)
        except (TypeError, ValueError) as error:
            raise CodecError(str(error)) from error
        if isinstance(value, datetime) and value.tzinfo is None:
            raise CodecError(f"a time without its offset from UTC: {raw}")
        return value

    return decode_parsed


@cache
def _decoder(hint: Any) -> Decoder:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_wait if Wait in get_args(hint) else _decode_union(get_args(hint))
    if origin is tuple:
        return _decode_tuple(hint)
    if hint is Missing:
        return _decode_missing
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, (Enum, datetime)):
        return _decode_text(hint)
    if hint in (int, float, str, bool):
        return _decode_scalar(hint)
    raise CodecError(f"cannot decode a {hint}")


def from_plain(kind: type[T], raw: object) -> T:
    """Build a ``kind`` from what ``json.loads`` returned; CodecError with the path of a wrong key."""
    decoder: Decoder = _decoder(cast("Any", kind))
    try:
        return cast("T", decoder(raw))
    except CodecError as error:
        raise error.below(kind.__name__) from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def decode(kind: type[T], line: str) -> T:
    """Build a ``kind`` from one line of JSON; CodecError where it is none or does not fit, with its path."""
    return from_plain(kind, _load(line))


def decode_fast(kind: type[T], line: bytes) -> T:
    """Build a ``kind`` of bytes as ``decode`` does, with msgspec in a fifth less time."""
    return from_plain(kind, parse_plain(line))


def parse_plain(line: bytes) -> Any:
    """Parse a line of JSON for ``from_plain``; CodecError where it is none."""
    fast = _find_fast()
    if fast is None:
        return _load(line)
    try:
        return fast.decode(line)
    except (ValueError, RecursionError):  # hostile, or what only json reads: that tells
        return _load(line)


def _load(line: str | bytes) -> Any:
    try:
        text = line if isinstance(line, str) else line.decode()
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error
