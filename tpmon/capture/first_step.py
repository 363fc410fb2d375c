"""Tell a loop that is in its first step from one that ends none, by looks at its hook's page."""

from __future__ import annotations

from tpmon.capture.bus import Bus
from tpmon.capture.plan import parse_pace
from tpmon.hook.bus import wire
from tpmon.model.known import is_known

_LEAST_BACKWARDS = 3
"""A loop ends no step where so many backwards were seen; else it compiles or loads within its first one."""


class FirstStep:
    """Hold what was seen of one loop until its first step ended."""

    def __init__(self, bus: Bus) -> None:
        """See nothing yet."""
        self._bus = bus
        self._backwards: set[int] = set()

    def look(self) -> None:
        """Note the backward that ended last."""
        self._backwards.add(wire.parse_live(self._bus.page)[wire.LIVE_BACKWARD_ENDED])

    def has_ended(self) -> bool:
        """Tell whether a step ended."""
        return is_known(parse_pace(self._bus.read_records()))

    def ends_none(self) -> bool:
        """Tell whether backwards follow each other that are no parts of a step.

        Those of a DataLoader's batches may be, as long as the hook ends no step by them alone. Of other loops
        no batch is seen, so that parts of a step look as steps that nothing ends.
        """
        records = self._bus.read_records(1)
        most = wire.BACKWARDS_WITHOUT_UPDATE
        adds_up = bool(records and records[-1][wire.REC_BATCHES] and records[-1][wire.REC_BACKWARDS] < most)
        return len(self._backwards - {0}) >= _LEAST_BACKWARDS and not adds_up
