"""Turn counters that only grow into rates per second between two looks."""

from __future__ import annotations

from tpmon.model.known import Known, Missing

NEEDS_SECOND = Missing("needs a second reading")
"""Why a rate is not known at the first look."""


class Rates:
    """Remember the last value of every counter by its name."""

    def __init__(self) -> None:
        """Start without any reading."""
        self._last: dict[str, tuple[float, int]] = {}

    def rate(self, name: str, value: Known[float], now_ns: int) -> Known[float]:
        """Return the growth of counter ``name`` per second since its last reading.

        ``now_ns`` is CLOCK_MONOTONIC at the read. Missing at the first reading, when the value
        is Missing, and when the counter went back (a group, interface or port made anew).
        """
        if isinstance(value, Missing):
            self._last.pop(name, None)
            return value
        last = self._last.get(name)
        self._last[name] = (value, now_ns)
        if last is None or now_ns <= last[1]:
            return NEEDS_SECOND
        grown = value - last[0]
        if grown < 0:
            return Missing("counter was reset")
        return grown * 1e9 / (now_ns - last[1])

    def keep_only(self, names: set[str]) -> None:
        """Forget every counter that is not in ``names``, such as those of a removed interface."""
        self._last = {name: last for name, last in self._last.items() if name in names}
