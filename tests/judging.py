"""Build Windows for the rules: a Frame held for some seconds, phases of a rank, looks at a main thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.frames import later, make_process
from tpmon.judge.advice.choose import Chosen, choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import Judgement, judge
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, add_up_phases, read_slices, share_of
from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known
from tpmon.model.process import MainThreadSample, ProcessSample, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackSlice
from tpmon.model.verdict import Finding, Kind

SECOND = 1_000_000_000


def line_up(seconds: Sequence[Frame]) -> list[Frame]:
    """Put Frames one second apart, the last of them when it was taken."""
    return [later(one, i + 1 - len(seconds)) for i, one in enumerate(seconds)]


def hold(frame: Frame, seconds: int = 12) -> list[Frame]:
    return line_up([frame] * (seconds + 1))


def follow(frames: Sequence[Frame], standing: Standing | None = None, begin: int = 0) -> Iterator[Judgement]:
    """Judge the Frames from ``begin`` on one by one, each with the minute before it, as the session does."""
    standing = standing or Standing()
    for count in range(begin + 1, len(frames) + 1):
        judged = judge(frames[max(0, count - 60) : count], standing)
        standing = judged.standing
        yield judged


def conclude(frames: Sequence[Frame]) -> Finding:
    (*_, last) = follow(frames)
    finding = last.frame.verdict
    assert is_known(finding)
    return finding


def make_phases(ratios: Mapping[Phase, float], pid: int = 4211, **fields: Any) -> RankPhases:
    """Build the phases of one rank from 100 samples; the newest place is in the largest phase.

    A ``where`` that begins with the word of a phase that was met is in that one, any other in none.
    """
    samples = fields.get("samples", 100)
    largest = max(ratios, key=lambda phase: ratios[phase])
    parts: Mapping[DataPart, float] = fields.pop("parts", {})
    plain = RankPhases(
        pid=pid,
        rank=0,
        samples=100,
        span_s=30.0,
        newest_age_s=1.0,
        shares={phase: share_of(round(ratio * samples), samples) for phase, ratio in ratios.items()},
        parts={part: share_of(round(ratio * samples), samples) for part, ratio in parts.items()},
        where=f"{largest.value} train.py:88",
        newest=_phase_at(fields["where"], ratios) if "where" in fields else largest,
        needs=frozenset(),
        distinct=9,
    )
    return replace(plain, **fields)


def _phase_at(where: str, ratios: Mapping[Phase, float]) -> Phase:
    return next((phase for phase in ratios if where.startswith((f"{phase.value} ", f"{phase.value}: "))), Phase.OTHER)


def make_looks(pid: int = 4211, looks: int = 10, **parts: int) -> MainThreadSample:
    """Build one second of looks at a main thread; what is not named was found running."""
    names = ("batch_wait", "io", "timed_lock", "lock", "other")
    counts = {name: parts.get(name, 0) for name in names}
    return MainThreadSample(pid=pid, rank=0, looks=looks, running=looks - sum(counts.values()), **counts)


def read_phases(slices: Iterable[StackSlice], now_ns: int) -> dict[int, RankPhases]:
    """Say by rank PID how the main thread spent the last minute of ``slices``, in any order."""
    return add_up_phases(read_slices(slices), now_ns)


def scene_of(frame: Frame, phases: Sequence[RankPhases] = (), seconds: int = 12) -> Scene:
    return see(hold(frame, seconds), {one.pid: one for one in phases})


def advise(scene: Scene, found: Suspicion) -> tuple[Chosen, ...]:
    """Choose the remedies for what was found in a scene, as the judge does."""
    return choose(found.kind, found.cause, observe(scene, found), gather_facts(scene, found))


def doubts(answer: Answer, words: str) -> bool:
    """Tell whether a rule could not tell, and says so in these words."""
    return type(answer) is Unsure and words in answer.text


def clears(answer: Answer, words: str) -> bool:
    """Tell whether a rule found that its cause is not there, and says so in these words."""
    return type(answer) is Cleared and words in answer.text


def said(answer: Answer) -> tuple[Kind, Applicable[str]] | type[Answer]:
    return (answer.kind, answer.cause) if isinstance(answer, Suspicion) else type(answer)


LOCK = "lock or queue (futex)"
UNREAD = Missing("not permitted")


def quiet_rank(**fields: Any) -> ProcessSample:
    """Build a rank that has waited for 90 s: longer than a wait of which no stack tells may last."""
    plain = {
        "state": "S",
        "cpu_pct": 0.0,
        "runnable": 0.01,
        "waiting": 0.0,
        "busy_threads": 0,
        "waits_for": LOCK,
        "waits_unchanged_s": 90.0,
        "asked_read_bytes_s": 0.0,
        "asked_write_bytes_s": 0.0,
        "thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, 3, 0.01)),
    }
    return make_process(**{**plain, **fields})
