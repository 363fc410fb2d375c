"""Read the times that a person types to go to in a recording, and write what it covers. Pure."""

from __future__ import annotations

import math
import re
from datetime import datetime, time, timedelta, timezone, tzinfo

from tpmon.model.known import Known, Missing
from tpmon.model.results.recording import Moment
from tpmon.model.results.replay import JumpTo, JumpToFrame, TimeJump
from tpmon.settings import parse_duration

TIMES = "03:12, 03:12:07, 2026-03-14T03:12, -10m, +30s or #120"
"""One of each form, for help and refusals."""
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECOND_NS = 1_000_000_000
_LONG_S = 1e10
"""Centuries: longer than any recording."""


def find_time(text: str, begin: Moment, end: Moment, from_ns: int, zone: tzinfo | None) -> Known[TimeJump]:
    """Read a typed time; Missing, with what is wrong, for none and for one outside of the recording.

    A time of day is that of the recording's ``zone`` which is nearest to ``from_ns``, a span is counted from
    there. A second means its end, so that the Frame is found whose clock shows it.
    """
    word = text.strip()
    if word[:1] == "#" and word[1:].isdecimal():
        n = int(word[1:19])
        return JumpToFrame(n) if begin.n <= n <= end.n else _refuse(word, begin, end, zone)
    if word[:1] in ("-", "+"):
        span_s = parse_duration(word[1:])
        if span_s is None or not 0 <= span_s < math.inf:
            return _say_unreadable(word)
        wall_ns = from_ns + round(min(span_s, _LONG_S) * _SECOND_NS) * (-1 if word[0] == "-" else 1)
        inside = begin.wall_ns <= wall_ns <= end.wall_ns
        return JumpTo(wall_ns) if inside else _refuse(word, begin, end, zone)
    whens = _read_clock(word, from_ns, zone)
    if not whens:
        return _say_unreadable(word)
    for when in sorted(whens, key=lambda one: abs(_to_ns(one) - from_ns)):
        wall_ns = _to_ns(when)
        grain_s = 1 if when.second else 60  # a minute that the recording only touches is meant, too
        if wall_ns <= end.wall_ns and wall_ns + grain_s * _SECOND_NS > begin.wall_ns:
            return JumpTo(max(begin.wall_ns, min(wall_ns + _SECOND_NS - 1, end.wall_ns)))
    return _refuse(word, begin, end, zone)


def _read_clock(word: str, from_ns: int, zone: tzinfo | None) -> tuple[datetime, ...]:
    """Return the moments that a date and time, or a time of day, may mean; none where it is neither."""
    try:
        if clock := _CLOCK.fullmatch(word):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            of_day = time(hour, minute, second)
            near = to_datetime(from_ns, zone)
            days = (near.date() + timedelta(days=shift) for shift in (-1, 0, 1))
            return tuple(datetime.combine(day, of_day, near.tzinfo) for day in days)
        when = datetime.fromisoformat(word[:-1] + "+00:00" if word[-1:] == "Z" else word)
    except (ValueError, OverflowError):
        return ()
    return (when if when.tzinfo is not None else when.replace(tzinfo=to_datetime(from_ns, zone).tzinfo),)


def to_datetime(wall_ns: int, zone: tzinfo | None) -> datetime:
    """Return a UNIX time in the zone of a recording."""
    return (_EPOCH + timedelta(microseconds=wall_ns // 1000)).astimezone(zone)


def _to_ns(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1) * 1000


def _say_unreadable(word: str) -> Missing:
    return Missing(f"{word[:40]!r} is no time: {TIMES}")


def _refuse(word: str, begin: Moment, end: Moment, zone: tzinfo | None) -> Missing:
    return Missing(f"{word[:40]} is outside of the recording: {say_reach(begin, end, zone)}")


def say_reach(begin: Moment, end: Moment, zone: tzinfo | None) -> str:
    """Write what a recording covers: from when to when, and its Frames."""
    first, last = to_datetime(begin.wall_ns, zone), to_datetime(end.wall_ns, zone)
    until = last.strftime("%H:%M:%S" if last.date() == first.date() else "%Y-%m-%d %H:%M:%S")
    return f"{first:%Y-%m-%d %H:%M:%S} to {until}, Frames #{begin.n} to #{end.n}"
