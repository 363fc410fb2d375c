"""Say beside a hang which collective does not end, who never called it, and when the backend gives up. Pure.

What tells is the job's own record, read after the looks; without one the stacks and a default timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tpmon.judge.dumps.collective_words import JUST_NOW_S, name_call, say_abort, say_why, write_report
from tpmon.judge.dumps.collectives import DEFAULT_TIMEOUTS_S
from tpmon.judge.dumps.collectives_stacks import Waits, find_backend, find_framework, say_assumed_abort
from tpmon.judge.watch.hang_stances import Stance, find_stance
from tpmon.judge.watch.picture import Picture
from tpmon.model.frame import Frame
from tpmon.model.known import is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.results.collectives import CollectiveFinding, Collectives
from tpmon.model.verdict import Evidence

CAUSES = frozenset(("missing-rank", "remote-rank", "no-progress", "gpu-wait"))
"""Those in which ranks wait for others, or may."""
LIMIT = "time limit of its collectives"
BEFORE_S = 5.0
"""How long before the stillness began a record may have been written down and still be of this hang."""


def show_calls(
    calls: Collectives | None, picture: Picture, frame: Frame, still_s: float, *, on_cards: bool = False
) -> list[Evidence]:
    """Return the rows for a hang in which ranks wait for others; ``still_s``: for how long nothing moved.

    ``on_cards``: they may wait in collectives of their cards, and the host for the card alone.
    """
    mains = picture.scene.ranks
    in_ranks = any(find_stance(seen, picture) is Stance.RANKS for seen in mains)
    if not in_ranks and not (on_cards and (len(mains) > 1 or picture.scene.remote)):
        return []
    rows = list(_show_finding(calls, frame.taken, still_s)) if calls is not None else []
    if calls is not None:
        words = ", ".join(said for report in calls.ras if (said := write_report(report)))
        rows += [_row("NCCL RAS", 0.0, words, "NCCL", 0.0)] if words else []
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
    """Return for how long ranks have waited in a collective by the job's own records; 0 where none tells."""
    found = _find_open(calls, now, still_s) if calls is not None else None
    return found[0].waited_s + found[2] if found is not None else 0.0


def _show_finding(calls: Collectives, now: datetime, still_s: float) -> Iterator[Evidence]:
    found = _find_open(calls, now, still_s)
    if found is None:
        return
    finding, source, age_s = found
    yield _row(name_call(finding), float(finding.sequence), say_why(finding), source, age_s)
    left_s = finding.abort_s - age_s if is_known(finding.abort_s) else 0.0
    if left_s > 0:
        yield _row(LIMIT, left_s, say_abort(finding, left_s), source, age_s)


def _find_record(calls: Collectives, finding: CollectiveFinding) -> tuple[datetime, str]:
    """Return when the oldest record of a rank that waits was written down, and where it was read."""
    those = [one for one in calls.records if is_known(one.rank) and one.rank in finding.waiting]
    first = min(those, key=lambda one: one.taken)
    return first.taken, first.source.value


def _show_assumed(picture: Picture, still_s: float, age_s: float) -> list[Evidence]:
    names = (one.thread.name for one in picture.threads if one.thread.kind is ThreadKind.COMM)
    framework = find_framework(known_or(one.sighting.frames, ()) for one in picture.scene.ranks)
    words = say_assumed_abort((Waits(find_backend(names), still_s, framework),), DEFAULT_TIMEOUTS_S)
    return [_row(LIMIT, still_s, words, "stacks", age_s)] if words else []


def _row(name: str, value: float, text: str, source: str, age_s: float) -> Evidence:
    return Evidence(name=name, value=value, unit="", text=text, source=source, age_s=age_s)
