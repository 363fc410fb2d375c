"""Judge a recording again from its Frames, and say where the verdict differs from the recorded one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import judge
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import FRAME_SPAN_S, Frame, Window
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.results.recording import Moment, Subject
from tpmon.model.verdict import Finding
from tpmon.record.recording import RecordedFrame, Recording


@dataclass(frozen=True, slots=True)
class Rejudged:
    """Hold one Frame with the verdict that was recorded and the one of this tpmon.

    ``again`` does not count where the Frames or the memory before it are missing: ``counts`` is False then.
    """

    moment: Moment
    recorded: Known[Finding]
    again: Frame
    counts: bool

    @property
    def is_equal(self) -> bool:
        """Tell whether the verdict is the same in every word and digit."""
        one, other = self.recorded, self.again.verdict
        if is_known(one) and is_known(other) and not is_known(one.try_code):
            other = replace(other, try_code=one.try_code)  # not told apart from ``try_`` in older recordings
        return other == one

    @property
    def is_same_verdict(self) -> bool:
        """Tell whether kind, cause and confidence are the same."""
        one, other = self.recorded, self.again.verdict
        if not (is_known(one) and is_known(other)):
            return is_known(one) == is_known(other)
        return (one.kind, one.cause, one.confidence) == (other.kind, other.cause, other.confidence)


def begin_standing(subject: Subject) -> Standing:
    """Return what the judge remembers before the first Frame of a session."""
    return Standing(watch=WatchedTime(asked_s=known_or(subject.hang_after_s, None), may_ask=subject.may_look))


def rejudge(recording: Recording) -> Iterator[Rejudged]:
    """Judge every Frame again, oldest first.

    A recording that began in the middle of a session has the memory of the judge at the beginning of each
    stream: its first minute fills the Window, and judging begins at the first stream after that.
    """
    window, standing = Window(), begin_standing(recording.subject)
    judging, begun_ns, before_n = False, 0, -1
    whole = not recording.subject.every_s
    for one in recording.recorded():
        if one.moment.n != before_n + 1 or _is_new_session(one):
            window, judging, begun_ns = Window(), False, one.moment.taken_ns
        before_n = one.moment.n
        window.append(one.read)
        if one.begins and not judging:
            if _is_new_session(one):
                judging, standing = whole, begin_standing(recording.subject)
            elif one.memory is not None and one.moment.taken_ns - begun_ns >= FRAME_SPAN_S * 1e9:
                judging, standing = whole, one.memory
        if not judging:
            yield Rejudged(one.moment, one.judged.verdict, one.judged, counts=False)
            continue
        judged = judge(tuple(window), standing)
        standing = judged.standing
        yield Rejudged(one.moment, one.judged.verdict, judged.frame, counts=one.judged is not one.read)


def _is_new_session(one: RecordedFrame) -> bool:
    return one.begins and one.memory is None


def list_changes(judged: Iterator[Rejudged]) -> Iterator[Rejudged]:
    """Yield where the difference changes: at most one a time through which both verdicts stay the same."""
    before: tuple[object, ...] | None = None
    for one in judged:
        if not one.counts:
            continue
        now = tuple(map(_name, (one.recorded, one.again.verdict)))
        if not one.is_same_verdict and now != before:
            yield one
        before = now


def _name(finding: Known[Finding]) -> object:
    return (finding.kind, finding.cause, finding.confidence) if is_known(finding) else None
