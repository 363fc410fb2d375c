"""Say when something was, as seen from the moment at which the screen is painted.

A job that has ended and a session that stalls give no more Frames, and the last one is looked at days later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from tpmon.model.known import is_known
from tpmon.model.units import format_moment, format_seconds
from tpmon.ui.monitor.alerts import age_of
from tpmon.ui.monitor.state import ViewState

_TELLING_S = 3600.0
"""From this age on a time of day leaves something to work out."""


def say_moment(view: ViewState, when: datetime) -> str:
    """Write the time of day, or where that was another day than now the date and the minute."""
    return format_moment(when, _now_of(view, when))


def say_moment_and_age(view: ViewState, when: datetime) -> str:
    """Write the same, and from an hour on how long ago: "Mar 13 23:55 (2d05h ago)"."""
    now = _now_of(view, when)
    age_s = (now - when).total_seconds()
    age = f" ({format_seconds(age_s)} ago)" if age_s >= _TELLING_S else ""
    return f"{format_moment(when, now)}{age}"


def say_moments(view: ViewState, whens: Iterable[datetime]) -> list[str]:
    """Write moments that stand below each other, all equally wide."""
    times = list(whens)
    if not times:
        return []
    now = _now_of(view, max(times))
    said = [format_moment(when, now) for when in times]
    room = max(map(len, said))
    return [one.ljust(room) for one in said]


def _now_of(view: ViewState, otherwise: datetime) -> datetime:
    """Return the wall-clock time at painting; ``otherwise`` before the first Frame."""
    if not is_known(view.frame):
        return otherwise
    return view.frame.taken + timedelta(seconds=age_of(view, 0.0))
