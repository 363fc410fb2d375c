"""Read in the job's own records of collectives how long ranks have waited, and show what they say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tpmon.judge.answers.result import FigureReading, reading_aged
from tpmon.judge.dumps.collective_words import (
    JUST_NOW_S,
    Waits,
    find_backend,
    find_framework,
    name_call,
    say_abort,
    say_assumed_abort,
    say_why,
    write_report,
)
from tpmon.judge.dumps.collectives import DEFAULT_TIMEOUTS_S
from tpmon.judge.watch.picture import Picture, find_wait
from tpmon.model.figures import Figure
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.collectives import CollectiveFinding, Collectives
from tpmon.model.waits import WaitReason

CAUSES = frozenset(("missing-rank", "remote-rank", "no-progress", "gpu-wait"))
"""Causes in which ranks wait for others, or may."""
BEFORE_S = 5.0
"""How long before the standstill a record may have been written and still be of this hang."""


def show_calls(
    calls: Collectives | None, picture: Picture, frame: Frame, still_s: float, *, on_cards: bool = False
) -> list[FigureReading]:
    """Return the evidence of a hang in which ranks wait for others; ``still_s``: how long nothing moved.

    ``on_cards``: they may wait in collectives of their cards, and the host only for the card.
    """
    mains = picture.scene.ranks
    in_ranks = any(find_wait(seen, picture) is WaitReason.COLLECTIVE for seen in mains)
    if not in_ranks and not (on_cards and (len(mains) > 1 or picture.scene.remote)):
        return []
    rows = list(_show_finding(calls, frame.taken, still_s)) if calls is not None else []
    if calls is not None:
        words = ", ".join(said for report in calls.ras if (said := write_report(report)))
        rows += [reading_aged(Figure.NCCL_RAS, 0.0, 0.0, text=words)] if words else []
    if calls is None or not calls.records:
        rows += _show_assumed(picture, still_s, (frame.taken_ns - picture.last_ns) / 1e9)
    return rows


def _find_open(
    calls: Collectives, now: datetime, still_s: float
) -> tuple[CollectiveFinding, str, float] | None:
    """Return the first open collective of this hang, where it was read and how long ago; None for none."""
    finding = next((one for one in calls.findings if one.waited_s >= JUST_NOW_S), None)
    if finding is None:
        return None
    taken, source = _find_record(calls, finding)
    age_s = (now - taken).total_seconds()
    return (finding, source, max(0.0, age_s)) if age_s <= still_s + BEFORE_S else None


def find_waited_s(calls: Collectives | None, now: datetime, still_s: float) -> float:
    """Return how long ranks have waited in a collective by the job's own records; 0 where none tells."""
    found = _find_open(calls, now, still_s) if calls is not None else None
    return found[0].waited_s + found[2] if found is not None else 0.0


def _show_finding(calls: Collectives, now: datetime, still_s: float) -> Iterator[FigureReading]:
    found = _find_open(calls, now, still_s)
    if found is None:
        return
    finding, source, age_s = found
    name, why = name_call(finding), say_why(finding)
    yield reading_aged(Figure.COLLECTIVE, float(finding.sequence), age_s, of=name, text=why, source=source)
    left_s = finding.abort_s - age_s if is_known(finding.abort_s) else 0.0
    if left_s > 0:
        text = say_abort(finding, left_s)
        yield reading_aged(Figure.COLLECTIVE_LIMIT, left_s, age_s, text=text, source=source)


def _find_record(calls: Collectives, finding: CollectiveFinding) -> tuple[datetime, str]:
    """Return when the oldest record of a waiting rank was written, and where it was read."""
    those = [one for one in calls.records if is_known(one.rank) and one.rank in finding.waiting]
    first = min(those, key=lambda one: one.taken)
    return first.taken, first.source.value


def _show_assumed(picture: Picture, still_s: float, age_s: float) -> list[FigureReading]:
    names = (one.thread.name for one in picture.threads if one.thread.kind is ThreadKind.COMM)
    framework = find_framework(one.frames for one in picture.scene.ranks)
    words = say_assumed_abort(Waits(find_backend(names), still_s, framework), DEFAULT_TIMEOUTS_S)
    row = reading_aged(Figure.COLLECTIVE_LIMIT, still_s, age_s, text=words, source="stacks")
    return [row] if words else []
