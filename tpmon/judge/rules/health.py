"""Judge healthy runs (CPUs that compute, nothing that holds) by work seen, not by absent trouble. Pure."""

from __future__ import annotations

import math

from tpmon.judge.answers.result import Answer, Cleared, FigureReading, Unsure, by_conditions, reading
from tpmon.judge.features.card_holds import answer_without_cards
from tpmon.judge.features.card_use import judge_hollow
from tpmon.judge.features.cards import BUSY_PCT, STARVED_PCT
from tpmon.judge.features.comms import ALL_WAIT_RATIO, find_waits
from tpmon.judge.features.cpu import (
    CROWDED_MARGIN,
    FREE_CORES,
    LEAST_CALLING,
    POOL_RATIO,
    POOL_THREADS,
    RUNNING,
    count_calling,
    find_cores_free,
    find_cores_had,
    find_taker,
    has_pool,
    may_be_one,
    read_waiting,
    say_got,
    taker_unread,
)
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import find_pause, name_rank
from tpmon.judge.stacks.phases import COMPUTING_RATIO, ELSEWHERE, HELD_RATIO, LIVELY_RATIO, OUTSIDE, TRAINING
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind

BUSY_BUDGET_RATIO = 0.8
"""Demand of the ranks over the budget above which the cores are the limit: 1.0 with as many threads as CPUs,
0.5 with one on two. Demand, not use: neighbours do not change it."""
WAITING_RATIO = 0.2
"""The same for samples of the main thread: waits for batches and for I/O."""
LIVELY_LOOKS = 0.5
"""Share of samples that must find the main thread running where no stack tells what it does."""
SURE_SAMPLES = 400
"""Stack samples in which fewer than LEAST_CALLING in calls of operators are below SMALL_CALLING."""
LEAST_SAMPLES = 10
"""Stack samples of a rank below which its shares say nothing."""

_HOLDING = (*ELSEWHERE, Phase.SYNC)
_PAUSES = {Phase.CHECKPOINT: "checkpoints", Phase.VALIDATION: "validations"}
"""Plural words for pauses."""


def _computing(scene: Scene) -> Known[float]:
    ratios = []
    for rank in scene.ranks:
        if not is_known(rank.phases):
            return rank.phases
        if rank.phases.samples < LEAST_SAMPLES:
            return Missing(f"{rank.phases.samples} stack samples of {name_rank(rank)} so far")
        ratios.append(rank.phases.ratio(*TRAINING))
    return min(ratios) if ratios else Missing("no rank was read")


def _samples(scene: Scene) -> int:
    return min((rank.phases.samples for rank in scene.ranks if is_known(rank.phases)), default=0)


def _find_idle(scene: Scene, computing: Known[float]) -> float:
    """Return the CPUs that idle while one thread of each rank computes all the time; else 0."""
    free = find_cores_had(find_cores_free(scene), scene)
    alone = all(
        known_or(rank.busy_threads, POOL_THREADS) < POOL_THREADS
        and is_known(rank.main)
        and rank.main.running >= RUNNING
        for rank in scene.ranks
    )
    computes = is_known(computing) and computing >= COMPUTING_RATIO
    return free if alone and computes and is_known(free) and free >= FREE_CORES else 0.0


@by_conditions
def judge_cpu_compute(scene: Scene) -> Answer:
    """Suspect, in the good sense, that the cores are full of computing: a job without GPUs."""
    full, computing = Proof("CPU compute", scene), _computing(scene)
    full.clear(bool(scene.cards), "the job computes on a GPU")
    without = answer_without_cards(scene)
    full.doubt(isinstance(without, Unsure), without.text)
    full.doubt(not scene.ranks, "no rank was read")
    demand, budget = sum(full.known(rank.demand) for rank in scene.ranks), known_or(scene.budget, 0.0)
    full.doubt(budget <= 0, "the CPU budget was not read")
    ratio = demand / budget
    idle = _find_idle(scene, computing)
    full.clear(ratio < BUSY_BUDGET_RATIO and not idle, f"the ranks want {demand:.1f} of {budget:.1f} CPUs")
    pools = known_or(scene.pool_ratio, 0.0)
    full.clear(pools >= POOL_RATIO, f"pools want {pools:.1f} times the CPUs")
    in_model = known_or(computing, 1.0)
    full.clear(in_model < COMPUTING_RATIO, f"in the model {format_pct(100 * in_model)} % of the time")
    waits = known_or(find_waits(scene), [])
    if len(waits) > 1:
        # Their stacks are in the model all the same: DDP exchanges gradients within backward.
        least = waits[0].ratio
        full.clear(least >= ALL_WAIT_RATIO, f"every rank waits for the others {format_pct(100 * least)} %")
    few = [known_or(count_calling(rank), (0, 0.0))[0] for rank in scene.ranks if has_pool(rank)]
    full.doubt(
        any(0 < count < LEAST_CALLING for count in few) and _samples(scene) < SURE_SAMPLES,
        "whether its operators take microseconds, and the pool spins between them",
    )
    full.add(Figure.RANKS_DEMAND, demand, ratio / BUSY_BUDGET_RATIO)
    full.show(Figure.CPU_BUDGET, budget, source=scene.frame.cpu.budget_reason)
    if is_known(computing):
        full.add(Figure.IN_PHASE, computing, of="the model")
        by_stacks = computing / COMPUTING_RATIO
        full.margin = by_stacks if idle else max(full.margin, by_stacks)
    got, unread = say_got(scene), taker_unread(scene)
    if got or unread:
        full.margin = min(full.margin, CROWDED_MARGIN)
    words = f"the CPUs compute: the ranks want {demand:.1f} of {budget:.1f}"
    if idle:
        full.add(Figure.CPUS_FREE, idle)
        whose = "the rank" if len(scene.ranks) == 1 else "each rank"
        words = f"one thread of {whose} computes, and {idle:.1f} of {budget:.1f} CPUs are idle"
    return full.suspect(
        Kind.COMPUTE_BOUND,
        "cpu",
        min(1.0, ratio),
        words + (f"; {got}" if got else ""),
        against=(read_waiting(scene),) if got else (),
        unread=unread,
    )


def _most_held(rank: RankScene) -> tuple[Phase, float]:
    if not is_known(rank.phases):
        return Phase.OTHER, 0.0
    phases = rank.phases
    return max(((phase, phases.ratio(phase)) for phase in _HOLDING), key=lambda one: one[1])


def _was_paused(rank: RankScene, phase: Phase) -> bool:
    """Tell whether a phase is a past pause of a run that goes on: no other rule reports it then."""
    return phase in _PAUSES and find_pause(rank) is None


def _check_stacks(scene: Scene) -> Answer | float:
    """Return the share of samples in the model, or what holds a rank."""
    computing = _computing(scene)
    if not is_known(computing):
        return Unsure(f"balanced ({computing.reason})")
    for rank in scene.ranks:
        phase, ratio = _most_held(rank)
        if ratio >= HELD_RATIO and not _was_paused(rank, phase):
            return Cleared(f"balanced ({name_rank(rank)}: {phase.value} {format_pct(100 * ratio)} %)")
    if computing < LIVELY_RATIO:
        return Cleared(f"balanced (in the model only {format_pct(100 * computing)} % of the time)")
    return float(computing)


def _check_looks(scene: Scene) -> Answer | float:
    """Return the share of samples that found the least busy main thread running, or what holds it."""
    running = []
    for rank in scene.ranks:
        if not is_known(rank.main):
            return Unsure(f"balanced ({rank.main.reason})")
        phase, held = _most_held(rank)
        paused = held >= HELD_RATIO and _was_paused(rank, phase)
        for words, ratio in (("a batch", rank.main.batch_wait), ("reads", 0.0 if paused else rank.main.io)):
            if ratio >= WAITING_RATIO:
                return Cleared(f"balanced ({name_rank(rank)} waits for {words} {format_pct(100 * ratio)} %)")
        running.append(rank.main.running)
    if not running:
        return Unsure("balanced (no rank was read)")
    if min(running) < LIVELY_LOOKS:
        return Cleared(f"balanced (a main thread runs only {format_pct(100 * min(running))} %)")
    return float(min(running))


def _find_outside(scene: Scene) -> FigureReading | None:
    """Return how long a rank is in its own code outside steps, perhaps in one thread; not with GPUs."""
    worst = 0.0
    for rank in scene.ranks if not scene.gpus else ():
        if is_known(rank.phases):
            share = rank.phases.share(*OUTSIDE)
            worst = max(worst, share.ratio if may_be_one(rank, share) else 0.0)
    if not worst:
        return None
    return reading(Figure.OUTSIDE_STEP, 100 * worst, scene.frame)


def _find_pauses(scene: Scene) -> FigureReading | None:
    """Return how much of a rank's time goes into checkpoints or validations between its steps."""
    worst = max(map(_most_held, scene.ranks), key=lambda one: one[1], default=(Phase.OTHER, 0.0))
    if worst[0] not in _PAUSES or worst[1] < HELD_RATIO:
        return None
    return reading(Figure.IN_PHASE, 100 * worst[1], scene.frame, of=_PAUSES[worst[0]])


def _sees_steps(scene: Scene) -> bool:
    """Tell whether a hook counts steps."""
    return any(one.counts.steps for one in list_hooks(scene.frame))


@by_conditions
def judge_balanced(scene: Scene) -> Answer:
    """Suspect, in the good sense, that nothing holds the run: it works and no wait takes a fifth of it."""
    balanced = Proof("balanced", scene)
    for card in scene.gpus:
        name = f"card {card.index}"
        busy_pct = balanced.known(card.busy_pct, f"{name}: ")
        balanced.clear(busy_pct < STARVED_PCT, f"{name} is busy only {format_pct(busy_pct)} %")
        hollow = balanced.known(judge_hollow(card), f"whether {name} is hollow: ")
        balanced.clear(hollow, f"{name} is {BUSY_PCT:.0f} % busy and hollow")
    by_stacks, by_looks = _check_stacks(scene), _check_looks(scene)
    if isinstance(by_stacks, Cleared):
        return by_stacks
    if isinstance(by_looks, Cleared) and not scene.gpus:
        return by_looks
    if isinstance(by_stacks, Unsure) and not scene.gpus and not _sees_steps(scene):
        return by_stacks  # a running thread may do anything: load, import, spawn workers
    got = say_got(scene)
    if isinstance(by_stacks, float):
        balanced.add(Figure.IN_PHASE, by_stacks, by_stacks / LIVELY_RATIO, of="the model")
    if isinstance(by_looks, float):
        # A host that waits for its busy card is no less healthy: its samples do not weaken the stacks.
        margin = math.inf if scene.gpus and balanced.evidence else by_looks / LIVELY_LOOKS
        # State R includes waiting for a CPU.
        balanced.add(Figure.MAIN_RUNS_OR_WAITS if got else Figure.MAIN_RUNS, by_looks, margin)
    if not balanced.evidence:
        return by_stacks if isinstance(by_stacks, Unsure) else Unsure("balanced (too little was read)")
    if scene.gpus:
        busiest = min(known_or(card.busy_pct, 0.0) for card in scene.gpus)
        balanced.add(Figure.GPU_BUSY, busiest / 100, source="NVML utilisation")
    outside, pauses = _find_outside(scene), _find_pauses(scene)
    against = tuple(one for one in (pauses, outside) if one is not None)
    unread = taker_unread(scene)
    if isinstance(by_stacks, Unsure):
        # Only stacks tell a step from a checkpoint, a validation or the program's other code.
        unread += (f"pauses and code outside of the step: {by_stacks.text}",)
    if got or against or unread:
        balanced.margin = min(balanced.margin, CROWDED_MARGIN)
    summary = "steps go on and no single wait takes a fifth of the time"
    if got:
        summary, against = (
            f"steps go on, but {got}: {find_taker(scene).value}",
            (read_waiting(scene), *against),
        )
    elif pauses is not None:
        percent = format_pct(known_or(pauses.value, 0.0))
        summary = f"steps go on, and {percent} % of the time is spent {pauses.name}"
    elif outside is not None:
        percent = format_pct(known_or(outside.value, 0.0))
        summary = f"steps go on, and {percent} % of the time goes into code outside of the model"
    return balanced.suspect(Kind.BALANCED, NOT_APPLICABLE, 0.0, summary, against=against, unread=unread)


RULES: tuple[Rule, ...] = (judge_cpu_compute, judge_balanced)
