"""Add to the rules what hooks say of each suspicion, and what only hooks see; no hook, no change. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, FigureReading, Suspicion, reading
from tpmon.judge.features.comms import BEHIND_RATIO
from tpmon.judge.features.data_wait import exact_wait
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import name_rank
from tpmon.judge.stacks.phases import COMPUTING_RATIO, HELD_RATIO, LIVELY_RATIO
from tpmon.judge.watch.tracker import event_age_s, find_pace, hook_unread, last_stepped, list_hooks
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.hook import StepPace
from tpmon.model.known import NOT_APPLICABLE, is_known, known_or, sum_known
from tpmon.model.text.job_words import EVALUATES_PCT, format_ms, is_evaluating, is_stalled, say_rate
from tpmon.model.units import format_seconds, say_ratio
from tpmon.model.verdict import Kind

FIRST_STEPS = 3  # a loop with fewer still warms up: compilers, caches and allocators work in the first steps
FIRST_STEPS_AGE_S = 600.0  # a rank older than this is slow, not new, however few steps it took
UNCOUNTED_TURNS = 30  # a loop with so many turns and no step has steps that its hook does not count
SAME_RATE = 0.2  # difference of the step rates up to which ranks run in step
WAITS_FOR_IT = 0.5  # of a late rank's extra time, by which the backward of the others must be longer
AGREES_HALF = 0.5  # the hook confirms a wait of which it measured half
STANDS_S = 4.0  # how long no hook may have reported an event before it confirms a hang

Word = Union[tuple[bool, FigureReading], None]
"""What the hook says of a suspicion: for it (True) or against it."""


def _points_at(suspicion: Suspicion, rank: RankScene) -> bool:
    process = rank.process
    return process.pid == suspicion.pid or (is_known(suspicion.rank) and process.rank == suspicion.rank)


def _paces(ranks: Sequence[RankScene], scene: Scene) -> list[tuple[RankScene, StepPace]]:
    found = ((rank, find_pace(scene.frame, rank.process.pid)) for rank in ranks)
    return [(rank, pace) for rank, pace in found if is_known(pace)]


def _paces_of(suspicion: Suspicion, scene: Scene) -> list[StepPace]:
    named = [rank for rank in scene.ranks if _points_at(suspicion, rank)]
    return [pace for _, pace in _paces(named or scene.ranks, scene)]


def _on_data(suspicion: Suspicion, scene: Scene) -> Word:
    waits = [(wait, one) for one in _paces_of(suspicion, scene) if is_known(wait := exact_wait(one))]
    if not waits:
        return None
    wait, pace = max(waits, key=lambda one: one[0])
    text = f"{say_ratio(wait)} of {pace.rate_hz * pace.span_s:.0f} steps, exact"
    row = reading(Figure.HOST_DATA_WAIT, 100 * wait, scene.frame, text=text)
    return wait >= AGREES_HALF * known_or(suspicion.share, HELD_RATIO), row


def _on_health(suspicion: Suspicion, scene: Scene) -> Word:
    """Say whether every rank's host time goes into the model; a data wait of a fifth speaks against it."""
    least = COMPUTING_RATIO if suspicion.kind is Kind.COMPUTE_BOUND else LIVELY_RATIO
    paces = [pace for _, pace in _paces(scene.ranks, scene)]
    lowest: tuple[float, FigureReading] | None = None
    if len(paces) < len(scene.ranks):
        return None
    for pace in paces:
        wait = known_or(exact_wait(pace), 0.0)
        model = sum_known((pace.forward_pct, pace.backward_pct, pace.optimizer_pct))
        if is_stalled(pace) or is_evaluating(pace) or pace.rate_hz <= 0:
            return None
        if wait >= HELD_RATIO and not scene.cards:
            return False, reading(Figure.HOST_DATA_WAIT, 100 * wait, scene.frame)
        if lowest is None or model < lowest[0]:
            lowest = model, reading(Figure.HOST_IN_MODEL, model, scene.frame, text=say_rate(pace))
    return (True, lowest[1]) if lowest is not None and lowest[0] >= 100 * least else None


def _on_hang(_: Suspicion, scene: Scene) -> Word:
    age_s, last = event_age_s(scene.frame), last_stepped(scene.frame)
    if age_s is None:
        return None
    step_s, step = (last.step_age_s, f"step {last.count}, ") if last is not None else (age_s, "")
    phases = {one.phase.value for one in list_hooks(scene.frame) if is_known(one.phase)}
    text = f"{step}in {' and '.join(sorted(phases))} for {format_seconds(age_s)}"
    return age_s >= STANDS_S, reading(Figure.LAST_STEP, step_s, scene.frame, text=text)


def _on_start(suspicion: Suspicion, scene: Scene) -> Word:
    for pace in _paces_of(suspicion, scene):
        if pace.count >= FIRST_STEPS and not is_stalled(pace) and pace.rate_hz > 0:
            return False, reading(Figure.STEPS_GO_ON, pace.rate_hz, scene.frame, text=say_rate(pace))
    return None


def _on_pause(suspicion: Suspicion, scene: Scene) -> Word:
    for pace in _paces_of(suspicion, scene):
        if suspicion.cause == "validation" and is_evaluating(pace):
            text = f"{pace.eval_count} batches so far"
            return True, reading(Figure.HOST_IN_EVALUATION, pace.eval_pct, scene.frame, text=text)
        if pace.step_age_s > max(1.0, 2 / pace.rate_hz if pace.rate_hz > 0 else 0.0):
            text = f"step {pace.count}"
            return True, reading(Figure.LAST_STEP, pace.step_age_s, scene.frame, text=text)
    return None


def _on_straggler(suspicion: Suspicion, scene: Scene) -> Word:
    late = find_late(scene)
    if late is None:
        return None
    own, others = format_ms(late.own_ms), format_ms(late.others_ms)
    text = f"{name_rank(late.rank)}: {own} of data and forward a step, the others {others}"
    row = reading(Figure.LATE_RANK, late.own_ms, scene.frame, text=text)
    return _points_at(suspicion, late.rank), row


_Ask = Callable[[Suspicion, Scene], Word]
_WORDS: dict[Kind, _Ask] = {
    Kind.DATA_BOUND: _on_data,
    Kind.COMPUTE_BOUND: _on_health,
    Kind.BALANCED: _on_health,
    Kind.HUNG: _on_hang,
    Kind.STARTING: _on_start,
    Kind.PAUSED: _on_pause,
}


def _ask_of(suspicion: Suspicion) -> _Ask | None:
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
    agrees, row = word
    if not agrees:
        return replace(suspicion, against=(*suspicion.against, row))
    since_ns, age_s = suspicion.since_ns, event_age_s(scene.frame)
    if suspicion.kind is Kind.HUNG and age_s is not None:
        # The last event of the loop is the onset of a hang, also before tpmon came.
        since_ns = scene.frame.taken_ns - round(age_s * 1e9)
    evidence, origins = (*suspicion.evidence, row), suspicion.origins | row.origins
    return replace(suspicion, origins=origins, evidence=evidence, since_ns=since_ns)


@dataclass(frozen=True, slots=True)
class LateRank:
    """Hold the rank whose data and forward take longest, the median of the others, and the gap's share."""

    rank: RankScene
    own_ms: float
    others_ms: float
    ratio: float


def find_late(scene: Scene) -> LateRank | None:
    """Return the rank that the others wait for in each step, None where there is none, or it is not known."""
    # Ranks that exchange gradients run in step: a late one has a short backward, and the others wait for it
    # in theirs. What follows the backward tells nothing: it fills up the step on any rank.
    found = [
        (pace.own_ms, pace.backward_pct, pace.rate_hz, rank)
        for rank, pace in _paces(scene.ranks, scene)
        if is_known(pace.own_ms) and is_known(pace.backward_pct) and pace.rate_hz > 0 and not is_stalled(pace)
    ]
    rates = [rate_hz for _, _, rate_hz, _ in found]
    if len(found) < max(2, len(scene.ranks)) or max(rates) - min(rates) > SAME_RATE * max(rates):
        return None
    latest = max(found, key=lambda one: one[0])
    others = [one for one in found if one is not latest]
    late_ms, late_pct, rate_hz, late = latest
    others_ms, step_ms = statistics.median(one[0] for one in others), 1000 / rate_hz
    gap_ms = late_ms - others_ms
    waited_ms = statistics.median(10 * pct / hz for _, pct, hz, _ in others) - 10 * late_pct / rate_hz
    if gap_ms < BEHIND_RATIO * step_ms or waited_ms < WAITS_FOR_IT * gap_ms:
        return None
    return LateRank(late, late_ms, others_ms, gap_ms / step_ms)


def suspect_straggler(scene: Scene) -> Suspicion | None:
    """Suspect the rank that is late by the hooks' times; with cards that may be a wait for its own."""
    late = None if scene.cards else find_late(scene)
    if late is None:
        return None
    name, proof = name_rank(late.rank), Proof("late rank", scene)
    proof.add(Figure.LATE_RANK_HOST, late.own_ms, late.ratio / BEHIND_RATIO, of=name)
    proof.add(Figure.OTHERS_HOST, late.others_ms)
    own, others = format_ms(late.own_ms), format_ms(late.others_ms)
    words = (
        f"{name} takes {own} for data and forward of a step, the others {others}: they wait for it in their "
        "backward"
    )
    told: dict[str, Any] = {"share": late.ratio, "process": late.rank.process}
    return proof.suspect(Kind.COMMS_BOUND, "straggler", late.ratio, words, Need.RANK_BEHIND, **told)


def suspect_first_steps(scene: Scene) -> Suspicion | None:
    """Suspect a start by loops that have hardly taken a step."""
    hooks = list_hooks(scene.frame)
    age_s = min((scene.age_s(rank.process) for rank in scene.ranks), default=FIRST_STEPS_AGE_S)
    if not hooks or len(hooks) < len(scene.ranks) or age_s >= FIRST_STEPS_AGE_S:
        return None
    counts = [one.counts for one in hooks]
    fewest = min(one.steps for one in counts)
    if fewest >= FIRST_STEPS or any(one.eval_steps for one in counts):
        return None
    if any(one.counts.steps == 0 and not is_known(one.phase) for one in hooks):
        return None  # no loop was seen yet, and it may never come to one
    if any(is_known(one.put_in) for one in hooks):
        return None  # the steps before it came in are not counted
    turns = [max(one.batches, one.backwards, one.optimizer_calls, one.elsewhere) for one in counts]
    if fewest == 0 and max(turns) >= UNCOUNTED_TURNS:
        return None  # it goes round, whatever counts as a step
    start, count = Proof("first steps", scene), ("no step yet", "1 step", f"{fewest} steps")[min(fewest, 2)]
    start.add(Figure.STEPS, float(fewest), text=count)
    start.show(Figure.YOUNGEST_RANK_AGE, age_s)
    return start.suspect(Kind.STARTING, "first-steps", 0.1, f"the loop runs and has taken {count}")


def suspect_validation(scene: Scene) -> Suspicion | None:
    """Suspect a validation by its evaluation steps; a program that never trained only evaluates."""
    for rank, pace in _paces(scene.ranks, scene):
        if pace.count > 0 and is_evaluating(pace) and not is_stalled(pace):
            share, proof = min(1.0, pace.eval_pct / 100), Proof("validation", scene)
            text, margin = f"{pace.eval_count} batches so far", max(1.0, pace.eval_pct / EVALUATES_PCT)
            proof.add(Figure.HOST_IN_EVALUATION, pace.eval_pct / 100, margin, text=text)
            words = f"{name_rank(rank)} evaluates, {pace.eval_hz:.1f} batches/s, after step {pace.count}"
            told: dict[str, Any] = {"share": share, "process": rank.process}
            return proof.suspect(Kind.PAUSED, "validation", share, words, **told)
    return None


Alone = Callable[[Scene], Union[Suspicion, None]]  # what the hook suspects by itself where a rule does not


def _ask_hooks(rule: Rule, alone: Alone, scene: Scene) -> Answer:
    """Return the rule's answer with the hooks' word, or their own suspicion where the rule has none."""
    answer = rule(scene)
    if not list_hooks(scene.frame):
        unread = hook_unread(scene.frame)
        if unread and isinstance(answer, Suspicion) and _ask_of(answer) is not None:
            return replace(answer, unread=(*answer.unread, *unread))
        return answer
    return weigh_in(answer, scene) if isinstance(answer, Suspicion) else alone(scene) or answer


def with_hooks(rules: Sequence[Rule], alone: Mapping[Rule, Alone]) -> tuple[Rule, ...]:
    """Wrap the rules so that each asks the hooks, too; ``alone`` is what these suspect by themselves."""
    return tuple(partial(_ask_hooks, rule, alone.get(rule, lambda _: None)) for rule in rules)
