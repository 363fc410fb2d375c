"""Bound a recording: by its time, and by the memory that it takes. Any thread may ask."""

from __future__ import annotations

from time import monotonic_ns

from tpmon.hook.bus import wire_capture
from tpmon.hook.bus.headroom import read_memory_left, read_resident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpmon.hook.bus.wire_capture import Request

_LOOK_NS = 500_000_000
"""How often memory is looked at: a dense loop records 170 MiB in a second."""

_LEAST_LEFT = 128 << 20
"""Bytes that must be left for the run: where others take them, it is the recording that goes."""

_GROWTH = 1 << 30
"""So far the loop's own memory may swing within a step, or by as much as it has: activations come and go."""

_MIB = 1 << 20


class Bounds:
    """Hold how long a recording may take and how far the process may grow meanwhile."""

    __slots__ = ("_began_ns", "_longest_ns", "_looked_ns", "_most", "_resident", "_spare_ns", "_step_ns")

    def __init__(self, request: Request, spare_ns: int) -> None:
        """Begin to count now; when the time is over a step that began ``spare_ns`` ago may still end."""
        words = request.words
        detailed = words[wire_capture.ASK_OPTIONS] & ~wire_capture.OPTION_TIMED
        per_event = wire_capture.EVENT_MEMORY_DETAILED if detailed else wire_capture.EVENT_MEMORY
        self._longest_ns = words[wire_capture.ASK_LONGEST_NS]
        self._spare_ns = spare_ns
        self._resident = read_resident()
        self._most = words[wire_capture.ASK_MOST_EVENTS] * per_event + max(_GROWTH, self._resident)
        self._began_ns = self._looked_ns = self._step_ns = monotonic_ns()

    def begin(self, now: int) -> None:
        """Count from here: the recording began only now."""
        self._began_ns = self._looked_ns = self._step_ns = now

    def step_ended(self, now: int) -> None:
        """Note that a step ended here, and the next one began."""
        self._step_ns = now

    def left_ns(self, now: int) -> int:
        """Return how much of the time that was asked for is left."""
        return self._began_ns + self._longest_ns - now

    def patience_ns(self, now: int) -> int:
        """Return how long the end of a step may still be waited for."""
        return max(self.left_ns(now), self._step_ns + self._spare_ns - now)

    def find_excess(self) -> str:
        """Say that it took too much memory, "" where it did not."""
        grown = read_resident() - self._resident
        if grown > self._most:
            return f"the process grew by {grown // _MIB} MiB meanwhile"
        if read_memory_left() < _LEAST_LEFT:
            return "memory ran short meanwhile"
        return ""

    def look(self, now: int) -> str:
        """Do the same, but seldom enough for each end of a step."""
        if now - self._looked_ns < _LOOK_NS:
            return ""
        self._looked_ns = now
        return self.find_excess()
