"""Read the events of a piece that is no clean JSON, one by one, and count what is lost.

Known faults: quotes inside of names that nobody escaped, control characters, bare ``inf``, ``nan`` and
``N/A``, numbers written as strings, arguments that are no object, a file that breaks off.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from tpmon.trace.reading.chunks import find_ends, find_loose_ends, split_events
from tpmon.trace.reading.schema import Args, TraceEvent

_BARE = re.compile(rb"(:\s*)(?:[-+]?(?:inf(?:inity)?|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)
_NAME_BEGINS = re.compile(rb"\"name\"\s*:\s*\"")
_NAME_ENDS = re.compile(rb"\"\s*(?:,\s*\"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)\"\s*:|\}\s*\Z)")
MEND_BYTES = 4 << 20
"""A larger event that is no clean JSON is lost: what Python builds of one takes a hundred times its text."""
_QUOTE = re.compile(rb"(?<!\\)\"")
_LAX = msgspec.json.Decoder(TraceEvent, strict=False)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ARGS = {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(Args)}


@dataclass
class LossTally:
    """Count what could not be read: whole events, events without some of their values, bytes."""

    events: int = 0
    values: int = 0
    bytes: int = 0


def read_pieces(text: bytes, tally: LossTally) -> tuple[list[TraceEvent], int | None]:
    """Read every event of ``text`` that can be read and count the others.

    The second value is where the list of events is closed, where it is.
    """
    events: list[TraceEvent] = []
    for start, stop in split_events(text):
        part = text[start:stop]
        if not part.strip():
            continue
        event = read_event(part, tally)
        if event is not None:
            events.append(event)
            continue
        for end in find_ends(part):
            last = read_event(part[:end], tally) if part[:end].strip() else None
            if last is not None or not part[:end].strip():
                return events + ([last] if last is not None else []), start + end
        for end in (len(part), *find_loose_ends(part)):
            items = _read_items(part[:end], tally)
            if items is not None:
                events += items
                if end < len(part):
                    return events, start + end
                break
        else:
            tally.events += 1
            tally.bytes += len(part)
    return events, None


def _read_items(text: bytes, tally: LossTally) -> list[TraceEvent] | None:
    """Read the events of a list of which not every item is an event; None where it is no list."""
    try:
        items = _ITEMS.decode(b"[" + text + b"]")
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    events = []
    for item in items:
        event = read_event(bytes(item), tally)
        if event is not None:
            events.append(event)
        else:
            tally.events += 1
            tally.bytes += len(bytes(item))
    return events


def read_event(text: bytes, tally: LossTally) -> TraceEvent | None:
    """Read one event, mended where a known fault is in it; ``None`` where nothing helps."""
    try:
        return _LAX.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    if len(text) > MEND_BYTES:
        return None
    mended = _escape_names(_BARE.sub(rb"\1null", text))
    for attempt in dict.fromkeys((text, mended)):
        try:
            raw = json.loads(attempt.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        return _pick(raw, tally)
    return None


def _escape_names(text: bytes) -> bytes:
    """Escape the quotes inside of names. What begins without an end is looked for once, not at each name."""
    parts, at = [], 0
    while begins := _NAME_BEGINS.search(text, at):
        ends = _NAME_ENDS.search(text, begins.end())
        if ends is None:
            break
        parts += [text[at : begins.end()], _QUOTE.sub(rb"\"", text[begins.end() : ends.start()])]
        at = ends.start()
    return b"".join([*parts, text[at:]])


def _number(value: object) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return math.nan
    return math.nan


def _pick(raw: Any, tally: LossTally) -> TraceEvent | None:
    """Take from an object what an event needs; values of a wrong type are left out and counted."""
    if not isinstance(raw, dict) or not isinstance(raw.get("ph"), str):
        return None
    event = TraceEvent(ph=raw["ph"], ts=_number(raw.get("ts")), dur=_number(raw.get("dur")))
    lost = False
    for key in ("cat", "name"):
        value = raw.get(key, "")
        if isinstance(value, str):
            setattr(event, key, value)
        else:
            lost = True
    for key in ("pid", "tid"):
        value = raw.get(key, 0)
        if isinstance(value, (int, str, float)) or value is None:
            setattr(event, key, value)
        else:
            lost = True
    args = raw.get("args")
    if isinstance(args, dict):
        event.args = Args()
        for key, value in args.items():
            if key not in _ARGS:
                continue
            name, kind = _ARGS[key]
            try:
                setattr(event.args, name, msgspec.convert(_plain(value, kind), kind, strict=False))
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                lost = True
    elif args is not None:
        lost = True
    tally.values += lost or _has_nothing(raw)
    return event


def _plain(value: object, kind: object) -> object:
    """Give a raw field its text back."""
    return msgspec.Raw(json.dumps(value, allow_nan=False).encode()) if kind is msgspec.Raw else value


def _has_nothing(raw: dict[str, Any]) -> bool:
    args = raw.get("args")
    return isinstance(args, dict) and None in args.values()
