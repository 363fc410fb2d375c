"""Say what a session says of the looks that a bundle asks it for, and stand for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.collectives import make_group, make_record
from tests.frames import NOW, NOW_NS, make_frame
from tests.recordings import SUBJECT, judge_steps, run_seconds
from tpmon.evidence import SharedLook
from tpmon.model.dump import DumpRequest, DumpRound, DumpState
from tpmon.model.frame import Frame, Pulse, pulse_of
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import DumpUpdate
from tpmon.record.step import JudgedFrame

RECORDS = CollectivesReading((make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3))), (), ())


def update(request: DumpRequest, *, running: bool, rounds: int = 0, refused: str = "") -> DumpUpdate:
    """Tell how far the dump that ``request`` asked for is."""
    one = DumpRound("node-07", NOW, 0, (), (), 0.0, 1.0)
    return DumpUpdate(DumpState(request, (one,) * rounds, 0, 1, running, refused), Missing("not folded"))


class Look(SharedLook):
    """Stand for a session: two Frames, ten minutes of pulses and what came of the looks."""

    subject = SUBJECT

    def __init__(
        self, rounds: Known[Sequence[DumpRound]], records: Applicable[CollectivesReading] = NOT_APPLICABLE
    ) -> None:
        self.stacks = self.stopped = False
        self.rounds = lambda: rounds
        self.records = lambda: records
        self.dumps = tuple

    def stop(self) -> None:
        self.stopped = True

    def frames(self) -> Sequence[Frame]:
        return (make_frame(), make_frame())

    def steps(self) -> tuple[JudgedFrame, ...]:
        return tuple(judge_steps(run_seconds(2)))

    def pulses(self) -> Sequence[Pulse]:
        pulse = pulse_of(make_frame())
        return [replace(pulse, taken_ns=NOW_NS - ago_s * 10**9) for ago_s in range(600, -1, -1)]
