"""Judge healthy runs (CPUs that compute, nothing that holds) by work seen, not by absent trouble. Pure."""

from __future__ import annotations

from tpmon.judge.answers.result import Answer, Claim, Cleared, Suspicion, Unsure, by_conditions, reading
from tpmon.judge.features.card_use import judge_hollow
from tpmon.judge.features.cards import BUSY_PCT, STARVED_PCT
from tpmon.judge.features.comms import find_waits
from tpmon.judge.features.cpu import (
    FREE_CORES,
    LEAST_CALLING,
    POOL_THREADS,
    count_calling,
    find_cores_free,
    find_cores_had,
    find_taker,
    has_pool,
    taker_unread,
)
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import name_rank
from tpmon.judge.features.starvation import name_spot
from tpmon.judge.rules.cards import answer_without_cards
from tpmon.judge.rules.comms import ALL_WAIT_RATIO
from tpmon.judge.rules.cpu import CROWDED_MARGIN, POOL_RATIO, read_waiting, say_got
from tpmon.judge.rules.lifecycle import find_pause
from tpmon.judge.rules.python import RUNNING, find_clock, may_be_one
from tpmon.judge.stacks.phases import ELSEWHERE, OUTSIDE, TRAINING
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Figure, Kind, Origin

BUSY_BUDGET_RATIO = 0.8
"""Demand of the ranks over the budget above which the cores are the limit: 1.0 with as many threads as CPUs,
0.5 with one on two. Demand, not use: neighbours do not change it."""
COMPUTING_RATIO = 0.6
"""Share of samples in forward, backward and optimizer that makes computing what the ranks do."""
LIVELY_RATIO = 0.4
"""Share of samples in the model below which steps may be a small part of the run."""
HELD_RATIO = 0.2
"""Share of samples that no single wait may reach in a balanced run."""
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
    full, computing = Claim("CPU compute"), _computing(scene)
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
    evidence: tuple[Evidence, ...] = (
        reading(Figure.RANKS_DEMAND, demand, scene.frame),
        reading(Figure.CPU_BUDGET, budget, scene.frame, source=scene.frame.cpu.budget_reason),
    )
    origins = {Origin.PROC}
    margin = ratio / BUSY_BUDGET_RATIO
    if is_known(computing):
        origins.add(Origin.STACKS)
        margin = computing / COMPUTING_RATIO if idle else max(margin, computing / COMPUTING_RATIO)
        evidence += (reading(Figure.IN_PHASE, 100 * computing, scene.frame, of="the model"),)
    got, unread = say_got(scene), taker_unread(scene)
    words = f"the CPUs compute: the ranks want {demand:.1f} of {budget:.1f}"
    if idle:
        evidence += (reading(Figure.CPUS_FREE, idle, scene.frame),)
        whose = "the rank" if len(scene.ranks) == 1 else "each rank"
        words = f"one thread of {whose} computes, and {idle:.1f} of {budget:.1f} CPUs are idle"
    return Suspicion(
        kind=Kind.COMPUTE_BOUND,
        cause="cpu",
        weight=min(1.0, ratio),
        margin=min(margin, CROWDED_MARGIN) if got or unread else margin,
        origins=frozenset(origins),
        summary=words + (f"; {got}" if got else ""),
        evidence=evidence,
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


def _find_outside(scene: Scene) -> Evidence | None:
    """Return how long a rank is in its own code outside steps, perhaps in one thread; not with GPUs."""
    worst = 0.0
    for rank in scene.ranks if not scene.gpus else ():
        if is_known(rank.phases):
            share = rank.phases.share(*OUTSIDE)
            worst = max(worst, share.ratio if may_be_one(rank, share) else 0.0)
    if not worst:
        return None
    return reading(Figure.OUTSIDE_STEP, 100 * worst, scene.frame)


def _find_pauses(scene: Scene) -> Evidence | None:
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
    balanced = Claim("balanced")
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
    origins = set[Origin]()
    got = say_got(scene)
    evidence: tuple[Evidence, ...] = ()
    margins = []
    if isinstance(by_stacks, float):
        origins.add(Origin.STACKS)
        margins.append(by_stacks / LIVELY_RATIO)
        evidence += (reading(Figure.IN_PHASE, 100 * by_stacks, scene.frame, of="the model"),)
    if isinstance(by_looks, float):
        origins.add(Origin.PROC)
        # A host that waits for its busy card is no less healthy: its samples do not weaken the stacks.
        if not (scene.gpus and margins):
            margins.append(by_looks / LIVELY_LOOKS)
        # State R includes waiting for a CPU.
        figure = Figure.MAIN_RUNS_OR_WAITS if got else Figure.MAIN_RUNS
        evidence += (reading(figure, 100 * by_looks, scene.frame),)
    if scene.gpus and origins:
        origins.add(Origin.DRIVER)
    if not origins:
        return by_stacks if isinstance(by_stacks, Unsure) else Unsure("balanced (too little was read)")
    outside, pauses = _find_outside(scene), _find_pauses(scene)
    against = tuple(one for one in (pauses, outside) if one is not None)
    unread = taker_unread(scene)
    if isinstance(by_stacks, Unsure):
        # Only stacks tell a step from a checkpoint, a validation or the program's other code.
        unread += (f"pauses and code outside of the step: {by_stacks.text}",)
    summary = "steps go on and no single wait takes a fifth of the time"
    if got:
        summary = f"steps go on, but {got}: {find_taker(scene).value}"
    elif pauses is not None:
        percent = format_pct(known_or(pauses.value, 0.0))
        summary = f"steps go on, and {percent} % of the time is spent {pauses.name}"
    elif outside is not None:
        percent = format_pct(known_or(outside.value, 0.0))
        summary = f"steps go on, and {percent} % of the time goes into code outside of the model"
    return Suspicion(
        kind=Kind.BALANCED,
        cause=NOT_APPLICABLE,
        weight=0.0,
        margin=min((*margins, CROWDED_MARGIN)) if got or against or unread else min(margins),
        origins=frozenset(origins),
        summary=summary,
        evidence=evidence,
        against=((read_waiting(scene),) if got else ()) + against,
        unread=unread,
    )


@by_conditions
def judge_pace(scene: Scene) -> Answer:
    """Suspect, in the good sense, a clock: the loop sleeps at one line, and nothing works meanwhile."""
    pace = Claim("a pace on purpose")
    pace.clear(len(scene.ranks) != 1, "there is not one rank alone")
    rank = scene.ranks[0]
    phases = pace.known(rank.phases)
    pace.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    spot = find_clock(rank, scene)
    if spot is None:
        return Cleared(f"{pace.what} (no plain sleep at one line)")
    asleep = 1 - known_or(map_known(lambda main: main.running, rank.main), 0.0)
    return Suspicion(
        kind=Kind.BALANCED,
        cause=NOT_APPLICABLE,
        weight=0.0,
        margin=spot.ratio / HELD_RATIO,
        origins=frozenset((Origin.STACKS, Origin.PROC)),
        summary=f"a clock sets the pace: the loop sleeps {format_pct(100 * asleep)} % of its time, at "
        f"{spot.where}, and nothing of the job works or waits meanwhile",
        evidence=(reading(Figure.MAIN_ASLEEP, 100 * asleep, scene.frame), *name_spot(spot, scene)),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


RULES: tuple[Rule, ...] = (judge_cpu_compute, judge_pace, judge_balanced)
