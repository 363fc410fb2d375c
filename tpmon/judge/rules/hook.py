"""Add to the rules what hooks say of each suspicion, and what only hooks see; no hook, no change. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, FigureReading, Suspicion, reading
from tpmon.judge.features.comms import BEHIND_RATIO
from tpmon.judge.features.data_wait import exact_wait
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, once
from tpmon.judge.features.standstill import name_rank
from tpmon.judge.stacks.phases import COMPUTING_RATIO, HELD_RATIO, LIVELY_RATIO
from tpmon.judge.watch.tracker import event_age_s, find_pace, hook_unread, last_stepped, list_hooks
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.hook import HookSample, StepPace
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.text.job_words import EVALUATES_PCT, format_ms, is_evaluating, is_stalled, say_rate
from tpmon.model.units import format_pct, format_seconds
from tpmon.model.verdict import Kind

FIRST_STEPS = 3
"""A loop with fewer still warms up: compilers, caches and allocators work in the first steps."""
FIRST_STEPS_AGE_S = 600.0
"""A rank older than this is slow, not new, however few steps it took."""
UNCOUNTED_TURNS = 30
"""A loop with so many turns and no step has steps that its hook does not count."""
SAME_RATE = 0.2
"""Difference of the step rates up to which ranks run in step."""
WAITS_FOR_IT = 0.5
"""Part of a late rank's extra time by which the backward of the others must be longer than its own."""
AGREES_HALF = 0.5
"""The hook confirms a wait of which it measured half."""
STANDS_S = 4.0
"""How long no hook may have reported an event before it confirms a hang."""


@dataclass(frozen=True, slots=True)
class _Word:
    """Hold what the hook says of a suspicion: for it, or against it."""

    agrees: bool
    row: FigureReading


def _ranks_of(suspicion: Suspicion, scene: Scene) -> list[RankScene]:
    """Return the rank that a suspicion points at, or all ranks."""
    named = [
        rank
        for rank in scene.ranks
        if rank.process.pid == suspicion.pid
        or (is_known(suspicion.rank) and rank.process.rank == suspicion.rank)
    ]
    return named or list(scene.ranks)


def _paces(ranks: Sequence[RankScene], scene: Scene) -> list[tuple[RankScene, StepPace]]:
    found = ((rank, find_pace(scene.frame, rank.process.pid)) for rank in ranks)
    return [(rank, pace) for rank, pace in found if is_known(pace)]


def _on_data(suspicion: Suspicion, scene: Scene) -> _Word | None:
    waits = [
        (wait, pace)
        for _, pace in _paces(_ranks_of(suspicion, scene), scene)
        if is_known(wait := exact_wait(pace))
    ]
    if not waits:
        return None
    wait, pace = max(waits, key=lambda one: one[0])
    share = suspicion.share if is_known(suspicion.share) else HELD_RATIO
    text = f"{format_pct(100 * wait)} % of {pace.rate_hz * pace.span_s:.0f} steps, exact"
    row = reading(Figure.HOST_DATA_WAIT, 100 * wait, scene.frame, text=text)
    return _Word(wait >= AGREES_HALF * share, row)


def _on_health(suspicion: Suspicion, scene: Scene) -> _Word | None:
    """Say whether every rank's host time goes into the model; a data wait of a fifth speaks against it."""
    worst, lowest = None, 1.0
    least = COMPUTING_RATIO if suspicion.kind is Kind.COMPUTE_BOUND else LIVELY_RATIO
    paces = _paces(scene.ranks, scene)
    if len(paces) < len(scene.ranks):
        return None
    for _, pace in paces:
        parts = (pace.forward_pct, pace.backward_pct, pace.optimizer_pct)
        wait = exact_wait(pace)
        model = sum(part for part in parts if is_known(part)) / 100
        if is_stalled(pace) or is_evaluating(pace) or pace.rate_hz <= 0:
            return None
        if is_known(wait) and wait >= HELD_RATIO and not scene.cards:
            return _Word(False, reading(Figure.HOST_DATA_WAIT, 100 * wait, scene.frame))
        if worst is None or model < lowest:
            lowest = model
            row = reading(Figure.HOST_IN_MODEL, 100 * model, scene.frame, text=say_rate(pace))
            worst = _Word(model >= least, row)
    return worst if worst is not None and worst.agrees else None


def _on_hang(_: Suspicion, scene: Scene) -> _Word | None:
    age_s, last = event_age_s(scene.frame), last_stepped(scene.frame)
    if age_s is None:
        return None
    step_s = last.step_age_s if last is not None else age_s
    step = f"step {last.count}, " if last is not None else ""
    phases = {one.phase.value for one in list_hooks(scene.frame) if is_known(one.phase)}
    text = f"{step}in {' and '.join(sorted(phases))} for {format_seconds(age_s)}"
    return _Word(age_s >= STANDS_S, reading(Figure.LAST_STEP, step_s, scene.frame, text=text))


def _on_start(suspicion: Suspicion, scene: Scene) -> _Word | None:
    for _, pace in _paces(_ranks_of(suspicion, scene), scene):
        if pace.count >= FIRST_STEPS and not is_stalled(pace) and pace.rate_hz > 0:
            return _Word(False, reading(Figure.STEPS_GO_ON, pace.rate_hz, scene.frame, text=say_rate(pace)))
    return None


def _on_pause(suspicion: Suspicion, scene: Scene) -> _Word | None:
    for _, pace in _paces(_ranks_of(suspicion, scene), scene):
        if suspicion.cause == "validation" and is_evaluating(pace):
            text = f"{pace.eval_count} batches so far"
            return _Word(True, reading(Figure.HOST_IN_EVALUATION, pace.eval_pct, scene.frame, text=text))
        mean_s = 1 / pace.rate_hz if pace.rate_hz > 0 else 0.0
        if pace.step_age_s > max(1.0, 2 * mean_s):
            text = f"step {pace.count}"
            return _Word(True, reading(Figure.LAST_STEP, pace.step_age_s, scene.frame, text=text))
    return None


def _on_straggler(suspicion: Suspicion, scene: Scene) -> _Word | None:
    late = find_late(scene)
    if late is None:
        return None
    own, others = format_ms(late.own_ms), format_ms(late.others_ms)
    text = f"{name_rank(late.rank)}: {own} of data and forward a step, the others {others}"
    row = reading(Figure.LATE_RANK, late.own_ms, scene.frame, text=text)
    same = late.rank.process.pid == suspicion.pid or (
        is_known(suspicion.rank) and late.rank.process.rank == suspicion.rank
    )
    return _Word(same, row)


_WORDS: dict[Kind, Callable[[Suspicion, Scene], _Word | None]] = {
    Kind.DATA_BOUND: _on_data,
    Kind.COMPUTE_BOUND: _on_health,
    Kind.BALANCED: _on_health,
    Kind.HUNG: _on_hang,
    Kind.STARTING: _on_start,
    Kind.PAUSED: _on_pause,
}


def _ask_of(suspicion: Suspicion) -> Callable[[Suspicion, Scene], _Word | None] | None:
    """Return what asks the hooks about a suspicion, None where they have nothing to say."""
    if (suspicion.kind, suspicion.cause) == (Kind.COMMS_BOUND, "straggler"):
        return _on_straggler
    return _WORDS.get(suspicion.kind)


def weigh_in(suspicion: Suspicion, scene: Scene) -> Suspicion:
    """Add the hook's word: an origin and evidence where it agrees, else a row against it."""
    if suspicion.is_exact:
        return replace(suspicion, share_low=NOT_APPLICABLE, share_high=NOT_APPLICABLE)
    ask = _ask_of(suspicion)
    word = ask(suspicion, scene) if ask is not None else None
    if word is None:
        return suspicion
    if not word.agrees:
        return replace(suspicion, against=(*suspicion.against, word.row))
    since_ns = suspicion.since_ns
    age_s = event_age_s(scene.frame)
    if suspicion.kind is Kind.HUNG and age_s is not None:
        # The last event of the loop is the onset of a hang, also before tpmon came.
        since_ns = scene.frame.taken_ns - round(age_s * 1e9)
    return replace(
        suspicion,
        origins=suspicion.origins | word.row.origins,
        evidence=(*suspicion.evidence, word.row),
        since_ns=since_ns,
    )


@dataclass(frozen=True, slots=True)
class LateRank:
    """Hold the rank whose data and forward take longest, the median of the others, and the gap's share."""

    rank: RankScene
    own_ms: float
    others_ms: float
    ratio: float


def find_late(scene: Scene) -> LateRank | None:
    """Return the rank that the others wait for in each step, None where there is none, or it is not known.

    Ranks that exchange gradients run in step: a late one has a short backward, and the others wait for it in
    theirs. What follows the backward tells nothing: it fills up the step on any rank.
    """
    found = [
        (rank, pace, pace.own_ms)
        for rank, pace in _paces(scene.ranks, scene)
        if is_known(pace.own_ms) and pace.rate_hz > 0 and not is_stalled(pace)
    ]
    if len(found) < 2 or len(found) < len(scene.ranks):
        return None
    rates = [pace.rate_hz for _, pace, _ in found]
    if max(rates) - min(rates) > SAME_RATE * max(rates):
        return None
    late, late_pace, late_ms = max(found, key=lambda one: one[2])
    others = [one for one in found if one[0] is not late]
    others_ms = statistics.median(own_ms for _, _, own_ms in others)
    step_ms = 1000 / late_pace.rate_hz
    backwards_ms = [
        10 * pace.backward_pct / pace.rate_hz for _, pace, _ in others if is_known(pace.backward_pct)
    ]
    if not is_known(late_pace.backward_pct) or len(backwards_ms) < len(others):
        return None
    gap_ms = late_ms - others_ms
    waited_ms = statistics.median(backwards_ms) - 10 * late_pace.backward_pct / late_pace.rate_hz
    if gap_ms < BEHIND_RATIO * step_ms or waited_ms < WAITS_FOR_IT * gap_ms:
        return None
    return LateRank(late, late_ms, others_ms, gap_ms / step_ms)


def suspect_straggler(scene: Scene) -> Suspicion | None:
    """Suspect the rank that is late by the hooks' times; with cards that may be a wait for its own."""
    if scene.cards:
        return None
    late = find_late(scene)
    if late is None:
        return None
    name = name_rank(late.rank)
    return Suspicion(
        kind=Kind.COMMS_BOUND,
        cause="straggler",
        weight=late.ratio,
        margin=late.ratio / BEHIND_RATIO,
        summary=f"{name} takes {format_ms(late.own_ms)} for data and forward of a step, the others "
        f"{format_ms(late.others_ms)}: they wait for it in their backward",
        evidence=(
            reading(Figure.LATE_RANK_HOST, late.own_ms, scene.frame, of=name),
            reading(Figure.OTHERS_HOST, late.others_ms, scene.frame),
        ),
        share=late.ratio,
        observed=frozenset((Need.RANK_BEHIND,)),
        pid=late.rank.process.pid,
        rank=late.rank.process.rank,
    )


def suspect_first_steps(scene: Scene) -> Suspicion | None:
    """Suspect a start by loops that have hardly taken a step."""
    hooks = list_hooks(scene.frame)
    ages = [(scene.now - rank.process.started).total_seconds() for rank in scene.ranks]
    if (
        not hooks
        or len(hooks) < len(scene.ranks)
        or min(ages, default=FIRST_STEPS_AGE_S) >= FIRST_STEPS_AGE_S
    ):
        return None
    fewest = min(one.counts.steps for one in hooks)
    if fewest >= FIRST_STEPS or any(one.counts.eval_steps for one in hooks):
        return None
    if any(one.counts.steps == 0 and not is_known(one.phase) for one in hooks):
        return None  # no loop was seen yet, and it may never come to one
    counts = [one.counts for one in hooks]
    turns = [max(one.batches, one.backwards, one.optimizer_calls, one.elsewhere) for one in counts]
    if fewest == 0 and max(turns) >= UNCOUNTED_TURNS:
        return None  # it goes round, whatever counts as a step
    count = ("no step yet", "1 step", f"{fewest} steps")[min(fewest, 2)]
    return Suspicion(
        kind=Kind.STARTING,
        cause="first-steps",
        weight=0.1,
        margin=1.0,
        summary=f"the loop runs and has taken {count}",
        evidence=(reading(Figure.STEPS, float(fewest), scene.frame, text=count),),
        shows=(reading(Figure.YOUNGEST_RANK_AGE, min(ages), scene.frame),),
    )


def suspect_validation(scene: Scene) -> Suspicion | None:
    """Suspect a validation by its evaluation steps; a program that never trained only evaluates."""
    found = [
        (rank, pace)
        for rank, pace in _paces(scene.ranks, scene)
        if pace.count > 0 and is_evaluating(pace) and not is_stalled(pace)
    ]
    if not found:
        return None
    rank, pace = found[0]
    text = f"{pace.eval_count} batches so far"
    return Suspicion(
        kind=Kind.PAUSED,
        cause="validation",
        weight=min(1.0, pace.eval_pct / 100),
        margin=max(1.0, pace.eval_pct / EVALUATES_PCT),
        summary=f"{name_rank(rank)} evaluates, {pace.eval_hz:.1f} batches/s, after step {pace.count}",
        evidence=(reading(Figure.HOST_IN_EVALUATION, pace.eval_pct, scene.frame, text=text),),
        share=min(1.0, pace.eval_pct / 100),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


Alone = Callable[[Scene], Union[Suspicion, None]]
"""What the hook suspects by itself where a rule does not."""


@once
def _list_all(scene: Scene) -> tuple[HookSample, ...]:
    return list_hooks(scene.frame)


def _ask_hooks(rule: Rule, alone: Alone, scene: Scene) -> Answer:
    """Return the rule's answer with the hooks' word, or their own suspicion where the rule has none."""
    answer = rule(scene)
    if not _list_all(scene):
        unread = hook_unread(scene.frame)
        if unread and isinstance(answer, Suspicion) and _ask_of(answer) is not None:
            return replace(answer, unread=(*answer.unread, *unread))
        return answer
    return weigh_in(answer, scene) if isinstance(answer, Suspicion) else alone(scene) or answer


def with_hooks(rules: Sequence[Rule], alone: Mapping[Rule, Alone]) -> tuple[Rule, ...]:
    """Wrap the rules so that each asks the hooks, too; ``alone`` is what these suspect by themselves."""
    return tuple(partial(_ask_hooks, rule, alone.get(rule, lambda _: None)) for rule in rules)
