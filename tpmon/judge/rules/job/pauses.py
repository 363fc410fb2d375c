"""Judge how much of the time goes to validation and checkpoints, over the last ten minutes."""

from __future__ import annotations

from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, by_conditions
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.stints import Stint
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.units import count_of, format_pct, format_seconds
from tpmon.model.verdict import Kind

MUCH_RATIO = 0.2
"""Share of the time above which pauses are worth a finding."""
LEAST_PAUSES = 2
"""Pauses with training between them that make a rhythm; one may be the only one for hours."""
LEAST_TRAINED_S = 3.0
"""Of backward and optimizer: a program that only evaluates has none."""
LEAST_WATCHED_S = 30.0


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Hold how often a run paused, and how long of which time; ``since_ns`` is when the first one began."""

    pauses: int
    paused_s: float
    of_s: float
    since_ns: int


def measure_rhythm(stints: tuple[Stint, ...], pause: Phase) -> Rhythm:
    """Measure the pauses of a run from the beginning of the first to that of the last: whole turns.

    Of a single one, and of pauses that are shorter than a slice of stacks, all that was seen counts.
    """
    paused = [number for number, one in enumerate(stints) if one.pause is pause]
    short = [one for one in stints if one.pause is None and one.paused_s(pause)]
    if len(paused) >= LEAST_PAUSES:
        turns = stints[paused[0] : paused[-1]]
        of_s = (stints[paused[-1]].begun_ns - turns[0].begun_ns) / 1e9
        return Rhythm(len(paused), sum(one.paused_s(pause) for one in turns), of_s, turns[0].begun_ns)
    paused_s = sum(one.paused_s(pause) for one in stints)
    of_s = sum(one.seconds for one in stints)
    begun_ns = stints[paused[0]].begun_ns if paused else short[0].begun_ns if short else 0
    return Rhythm(len(paused) + bool(short), paused_s, of_s, begun_ns)


@by_conditions
def _judge_share(scene: Scene, pause: Phase, cause: str, words: str, need: Need) -> Answer:
    """Suspect pauses that take more than a fifth of the time.

    There are two of them at least, or one that is longer than all training seen and a fifth of the rank's
    whole life: what was before tpmon came may have been training.
    """
    claim = Proof(f"share of {pause.value}", scene)
    stints = scene.watch.stints
    claim.clear(not stints or not scene.ranks, "no stacks of a run so far")
    steps_s = sum(one.steps_s for one in stints)
    claim.clear(steps_s < LEAST_TRAINED_S, "no training seen beside it")
    rhythm = measure_rhythm(stints, pause)
    claim.clear(not rhythm.pauses, "none seen")
    claim.doubt(rhythm.of_s < LEAST_WATCHED_S, f"watched for {format_seconds(rhythm.of_s)}")
    rank = next((one for one in scene.ranks if one.process.pid == stints[-1].pid), scene.ranks[0])
    many = rhythm.pauses >= LEAST_PAUSES or not any(one.pause is pause for one in stints)
    age_s = max((scene.now - rank.process.started).total_seconds(), rhythm.of_s)
    paused_s, of_s = rhythm.paused_s, rhythm.of_s if many else age_s
    trained_s = rhythm.of_s - rhythm.paused_s
    claim.doubt(not many and paused_s <= trained_s, "one so far")
    ratio = paused_s / of_s
    claim.clear(ratio <= MUCH_RATIO, f"{format_pct(100 * ratio)} % of {format_seconds(of_s)}")
    least = "" if many else "at least "
    seen = f"{format_seconds(paused_s)} of {format_seconds(of_s)}"
    often = f", {count_of(rhythm.pauses, 'time', 'times')}" if rhythm.pauses >= LEAST_PAUSES else ""
    claim.add(Figure.PAUSED_SHARE, ratio, ratio / MUCH_RATIO, of=pause.value)
    claim.add(Figure.PAUSED_TURNS, float(rhythm.pauses), of=pause.value)
    return claim.suspect(
        Kind.PAUSED,
        cause,
        ratio,
        f"{words} takes {least}{format_pct(100 * ratio)} % of the time ({seen}{often})",
        share=ratio,
        observed=frozenset((need, *((Need.VALIDATES_OFTEN,) if pause is Phase.VALIDATION else ()))),
        pid=rank.process.pid,
        rank=rank.process.rank,
        since_ns=rhythm.since_ns if many else NOT_APPLICABLE,
    )


RULES: tuple[Rule, ...] = (
    partial(
        _judge_share,
        pause=Phase.VALIDATION,
        cause="validation-share",
        words="validation",
        need=Need.VALIDATION_IN_STACK,
    ),
    partial(
        _judge_share,
        pause=Phase.CHECKPOINT,
        cause="checkpoint-share",
        words="writing checkpoints",
        need=Need.SAVE_IN_STACK,
    ),
)
