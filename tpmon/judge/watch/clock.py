"""Tell for how long nothing of a job has moved: as tpmon saw it, by older signs, by its own records. Pure.

A sign is the last moment at which the job was alive: no hang is older. Log, connections and hook give signs
again and again, so their silence counts; what is written or started now and then only makes a hang younger.
"""

from __future__ import annotations

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
from tpmon.judge.watch.tracker import WatchedTime, age_ns, event_age_s, log_age_s
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import CollectiveFinding, Collectives
from tpmon.model.waits import WaitReason

OWN_S = 4.0
OUTSIDE_S = 240.0
OLD_S = 1800.0

LAST_STEP = "last step by the hook"
LAST_WRITE = "last log write"
LAST_DATA = "last data on its connections"
LAST_FILE = "last write of an open file"
LAST_START = "start of its youngest worker"
ORIGIN_OF_SIGN = {
    LAST_WRITE: Origin.LOG,
    LAST_STEP: Origin.HOOK,
    LAST_DATA: Origin.NETWORK,
    LAST_FILE: Origin.FILES,
    LAST_START: Origin.PROC,
}


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hold how long nothing moved: as tpmon saw it, by older signs, and by connections; 0: not known."""

    own_s: float
    cornered_s: float
    outside_s: float
    sign: str
    idle_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the longest time that is known."""
        return max(self.own_s, self.outside_s if self.own_s >= OWN_S else 0.0)


def connections_age_s(frame: Frame) -> float | None:
    """Return how long ago a connection of the job last sent or received data, None where there is none."""
    sockets = frame.sockets
    if not is_known(sockets) or sockets.connections == 0:
        return None
    ages = [one for one in (sockets.last_send_s, sockets.last_receive_s) if is_known(one)]
    return min(ages) if ages else None


def see_quiet(watch: WatchedTime, frame: Frame) -> Quiet:
    """Say for how long nothing has moved."""
    written, talked = log_age_s(frame), connections_age_s(frame)
    outside_s, sign = 0.0, ""
    if written is not None:
        outside_s, sign = written, LAST_WRITE
    elif talked is not None:
        outside_s, sign = talked, LAST_DATA
    # A file alone is no sign of silence, not even a journal: many get a line an epoch, and a slow batch would
    # be a hang after seconds. It dates a hang that tpmon saw long enough by itself.
    for later_s, later in ((file_age_s(frame), LAST_FILE), (find_youngest_s(frame), LAST_START)):
        if sign and later_s is not None and later_s < outside_s:
            outside_s, sign = later_s, later
    if outside_s < OUTSIDE_S:
        outside_s, sign = 0.0, ""
    event_s = event_age_s(frame)
    # A log is written seldom; the hook reports each part of a step, so its time counts as it is.
    if event_s is not None and (written is None or event_s <= written):
        outside_s, sign = event_s, LAST_STEP
    # A job that was seen to get on since then was alive: older signs are for the time before tpmon.
    if watch.moved_ns and watch.moved_ns > frame.taken_ns - age_ns(outside_s):
        outside_s, sign = 0.0, ""
    return Quiet(watch.still_s, watch.cornered_s, outside_s, sign, talked or 0.0)


def file_age_s(frame: Frame) -> float | None:
    """Return how long ago a rank last wrote to another file that it holds open, None where none is known.

    The job was alive then. If others write the file, too (a console log, wandb), a hang seems younger than it
    is, never older. Silence since then shows nothing: many files are written once and kept open.
    """
    written = frame.written
    return max(0.0, (frame.taken - written.last_write).total_seconds()) if is_known(written) else None


def find_youngest_s(frame: Frame) -> float | None:
    """Return how long ago the youngest loader worker was started, None where there is none.

    Its rank was alive then: no hang is older. Old workers show nothing, as they live for an epoch or a whole
    run. A pool's thread may replace a dead worker in a hang, which then seems younger.
    """
    started = [one.started for one in frame.processes if one.role is Role.WORKER]
    return max(0.0, (frame.taken - max(started)).total_seconds()) if started else None


CAUSES = frozenset(("missing-rank", "remote-rank", "no-progress", "gpu-wait"))
"""Causes in which ranks wait for others, or may."""
BEFORE_S = 5.0


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
    rows: list[FigureReading] = []
    found = _find_open(calls, frame.taken, still_s)
    if found is not None:
        finding, source, age_s = found
        name, why = name_call(finding), say_why(finding)
        count = float(finding.sequence)
        rows = [reading_aged(Figure.COLLECTIVE, count, age_s, of=name, text=why, source=source)]
        left_s = finding.abort_s - age_s if is_known(finding.abort_s) else 0.0
        if left_s > 0:
            text = say_abort(finding, left_s)
            rows.append(reading_aged(Figure.COLLECTIVE_LIMIT, left_s, age_s, text=text, source=source))
    if calls is not None:
        words = ", ".join(said for report in calls.ras if (said := write_report(report)))
        rows += [reading_aged(Figure.NCCL_RAS, 0.0, 0.0, text=words)] if words else []
    if calls is None or not calls.records:
        names = (one.thread.name for one in picture.threads if one.thread.kind is ThreadKind.COMM)
        waits = Waits(find_backend(names), still_s, find_framework(one.frames for one in mains))
        age_s, words = (frame.taken_ns - picture.last_ns) / 1e9, say_assumed_abort(waits, DEFAULT_TIMEOUTS_S)
        row = reading_aged(Figure.COLLECTIVE_LIMIT, still_s, age_s, text=words, source="stacks")
        rows += [row] if words else []
    return rows


def _find_open(
    calls: Collectives | None, now: datetime, still_s: float
) -> tuple[CollectiveFinding, str, float] | None:
    """Return the first open collective of this hang, where it was read and how long ago; None for none."""
    findings = calls.findings if calls is not None else ()
    finding = next((one for one in findings if one.waited_s >= JUST_NOW_S), None)
    if finding is None or calls is None:
        return None
    those = [one for one in calls.records if is_known(one.rank) and one.rank in finding.waiting]
    first = min(those, key=lambda one: one.taken)
    age_s = (now - first.taken).total_seconds()
    return (finding, first.source.value, max(0.0, age_s)) if age_s <= still_s + BEFORE_S else None


def find_waited_s(calls: Collectives | None, now: datetime, still_s: float) -> float:
    """Return how long ranks have waited in a collective by the job's own records; 0 where none tells."""
    found = _find_open(calls, now, still_s)
    return found[0].waited_s + found[2] if found is not None else 0.0
