"""Say what a session says of the looks that a bundle asks it for."""

from __future__ import annotations

from tests.collectives import make_group, make_record
from tests.frames import NOW
from tpmon.model.collectives import CollectivesReading
from tpmon.model.dump import DumpRequest, DumpRound, DumpState
from tpmon.model.known import Missing
from tpmon.model.results import DumpUpdate

RECORDS = CollectivesReading((make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3))), (), ())


def update(request: DumpRequest, *, running: bool, rounds: int = 0, refused: str = "") -> DumpUpdate:
    """Tell how far the dump that ``request`` asked for is."""
    one = DumpRound("node-07", NOW, 0, (), (), 0.0, 1.0)
    return DumpUpdate(DumpState(request, (one,) * rounds, 0, 1, running, refused), Missing("not folded"))
