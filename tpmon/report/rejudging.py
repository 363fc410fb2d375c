"""A recording judged again: a line or an object for each change of the verdict, and a line for all."""

from __future__ import annotations

from datetime import datetime

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known
from tpmon.model.text.job_words import name_verdict, say_confidence
from tpmon.model.units import count_of
from tpmon.model.verdict import Finding

REJUDGED_SCHEMA = "tpmon.rejudged/1"


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """Hold the Frame from which on the verdict of this tpmon differs in another way, and both verdicts."""

    schema: str
    n: int
    taken: datetime
    recorded: Known[Finding]
    again: Known[Finding]


@dataclass(slots=True)
class RejudgedCount:
    """Count the Frames of a recording, those that could be judged again, and those with another verdict."""

    frames: int = 0
    judged: int = 0
    differ: int = 0


def write_change(change: VerdictChange) -> str:
    """Write a change in a line."""
    return f"{change.taken:%H:%M:%S}  {_name(change.recorded)}  ->  {_name(change.again)}"


def _name(finding: Known[Finding]) -> str:
    if not is_known(finding):
        return f"none: {finding.reason}"
    return ", ".join(filter(None, (name_verdict(finding), say_confidence(finding))))


def write_count(count: RejudgedCount, recorded_by: str, version: str) -> str:
    """Write in a line what came of it."""
    what = f"{count_of(count.judged, 'Frame')} of tpmon {recorded_by} judged again by {version}"
    differ = f"{count.differ} with another verdict" if count.differ else "no verdict differs"
    left = count.frames - count.judged
    rest = f"; {left} could not be judged: thinned out, or too near to the start" if left else ""
    return f"{what}: {differ}{rest}"
