"""The job is over: it ended well, it failed, or nobody saw how; what it said last. Pure."""

from __future__ import annotations

import re

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.hang_ends import list_ends
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import OutputSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Outcome, Role
from tpmon.model.text.job_words import NO_RANK_LEFT
from tpmon.model.verdict import END_CAUSES, IN_WORDS, Evidence, Kind

REBIRTH_S = 20.0
"""How long no rank lives before they are said to have ended: torchrun starts them anew after a failure,
once it has met the other machines."""
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b|\b(?:Killed|Segmentation fault|Aborted)\b")


def _rankless_s(scene: Scene) -> Known[float]:
    """Return for how long no rank has lived; Missing when none was ever seen."""
    for frame in reversed(scene.history):
        if any(one.role is Role.RANK and one.state not in ("Z", "X") for one in frame.processes):
            return (scene.frame.taken_ns - frame.taken_ns) / 1e9
    if scene.ranks or scene.frame.facts.startswith(NO_RANK_LEFT):
        return scene.history_s
    return Missing("no rank yet")


def find_last_words(frame: Frame) -> tuple[OutputSample, str] | None:
    """Return the line that the job's log ends with, and its log: one that names an error goes first."""
    told = [(log, [line.strip() for line in log.lines if line.strip()]) for log in frame.output if log.lines]
    told = [(log, lines) for log, lines in told if lines]
    for log, lines in told:
        error = next((line for line in reversed(lines) if _ERROR.search(line)), None)
        if error is not None:
            return log, error
    dated = [(log.last_write, log, lines) for log, lines in told if is_known(log.last_write)]
    if dated:
        _, log, lines = max(dated, key=lambda one: one[0])
        return log, lines[-1]
    return (told[0][0], told[0][1][-1]) if told else None


def _evidence(scene: Scene, words: str) -> tuple[Evidence, ...]:
    rows = [Evidence("ranks alive", 0.0, "", words, "/proc", scene.frame.ages_s.cpu)]
    last = find_last_words(scene.frame)
    if last is not None:
        log, line = last
        rows.append(Evidence("the log ends with", IN_WORDS, "", line, log.path, log.last_write_age_s))
    return tuple(rows)


def _say_ranks(scene: Scene, outcome: Outcome) -> str:
    """Say how the ranks of a job that goes on without them ended: by name where the history has it."""
    bad = [end for _, end in list_ends(scene) if end.role is Role.RANK and end.outcome is not Outcome.WELL]
    if outcome is Outcome.WELL:
        return "every rank has ended: exit 0"
    if not bad:
        return "every rank has ended" + (
            ", not all of them well" if outcome is Outcome.FAILED else "; how is not known"
        )
    name = f"rank {bad[0].rank}" if is_known(bad[0].rank) else "a rank"
    return f"every rank has ended; {name} ({bad[0].pid}): {bad[0].how}"


def judge_finished(scene: Scene) -> Answer:
    """Suspect that the job is over: it ended, or its ranks did and only the rest remains."""
    target = scene.frame.target
    ended = target.state is TargetState.ENDED
    gone_s = _rankless_s(scene)
    if not ended and not is_known(gone_s):
        return Cleared(f"finished ({gone_s.reason})")
    if not ended and is_known(gone_s) and gone_s <= 0:
        return Cleared("finished (its ranks live)")
    if not ended and not scene.ranks and is_known(gone_s) and gone_s < REBIRTH_S:
        return Unsure(f"finished (no rank for {gone_s:.0f} s; its launcher may start them anew)")
    outcome = known_or(target.outcome, Outcome.UNKNOWN)
    how = target.ended if is_known(target.ended) else "how is not known"
    words = f"the job has ended: {how}" if ended else _say_ranks(scene, outcome)
    killed = any(is_known(end.signal) for _, end in list_ends(scene)) or (ended and "SIG" in how)
    return Suspicion(
        kind=Kind.IDLE,
        cause=END_CAUSES[outcome],
        weight=1.0,
        margin=2.0,
        sources=frozenset(("process end",) if outcome is Outcome.UNKNOWN else ("process end", "exit status")),
        summary=words,
        evidence=_evidence(scene, words),
        observed=frozenset((Need.KILLED,)) if killed else frozenset(),
        seen=ended,
    )
