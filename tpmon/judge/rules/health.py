"""Judge healthy runs (CPUs that compute, nothing that holds) by work seen, not by absent trouble. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tpmon.judge.answers.result import (
    Answer,
    Claim,
    Cleared,
    FigureReading,
    Suspicion,
    Unsure,
    by_conditions,
    reading,
)
from tpmon.judge.features import cpu
from tpmon.judge.features.card_holds import answer_without_cards
from tpmon.judge.features.card_use import judge_hollow
from tpmon.judge.features.cards import BUSY_PCT, STARVED_PCT
from tpmon.judge.features.comms import ALL_WAIT_RATIO, find_waits
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import QUIET_HELPER_DEMAND, QUIET_RANK_DEMAND, find_pause, name_rank
from tpmon.judge.stacks.phases import (
    COMPUTING_RATIO,
    ELSEWHERE,
    HELD_RATIO,
    LIVELY_RATIO,
    OUTSIDE,
    TRAINING,
    Phase,
)
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.units import say_pct, say_ratio
from tpmon.model.verdict import Kind

BUSY_BUDGET_RATIO = 0.8  # demand (not use) of the ranks over the budget above which the cores are the limit
WAITING_RATIO = 0.2  # the same for samples of the main thread: waits for batches and for I/O
LIVELY_LOOKS = 0.5  # of the samples must find the main thread running where no stack tells what it does
SURE_SAMPLES = 400  # stack samples in which few in calls of operators are below SMALL_CALLING
LEAST_SAMPLES = 10  # stack samples of a rank below which its shares say nothing

_HOLDING = (*ELSEWHERE, Phase.SYNC)
_PAUSES = {Phase.CHECKPOINT: "checkpoints", Phase.VALIDATION: "validations"}  # plural words for pauses


def _computing(scene: Scene) -> Known[float]:
    """Return the share of samples in the model, of the rank that has least of it."""
    ratios = []
    for rank in scene.ranks:
        if not is_known(rank.phases):
            return rank.phases
        if rank.phases.samples < LEAST_SAMPLES:
            return Missing(f"{rank.phases.samples} stack samples of {name_rank(rank)} so far")
        ratios.append(rank.phases.ratio(*TRAINING))
    return min(ratios, default=Missing("no rank was read"))


def _find_idle(scene: Scene, computing: Known[float]) -> float:
    """Return the CPUs that idle while one thread of each rank computes all the time; else 0."""
    free = cpu.find_cores_had(cpu.find_cores_free(scene), scene)
    alone = all(
        known_or(rank.busy_threads, cpu.POOL_THREADS) < cpu.POOL_THREADS
        and is_known(rank.main)
        and rank.main.running >= cpu.RUNNING
        for rank in scene.ranks
    )
    computes = is_known(computing) and computing >= COMPUTING_RATIO
    return free if alone and computes and is_known(free) and free >= cpu.FREE_CORES else 0.0


def _only_waits(rank: RankScene) -> bool:
    """Tell whether a rank neither computes nor loads, and is in no known part of a run."""
    rests = known_or(rank.demand, QUIET_RANK_DEMAND) < QUIET_RANK_DEMAND and not rank.has_workers
    return rests and is_known(rank.phases) and rank.phases.ratio(Phase.OTHER) >= COMPUTING_RATIO


def _judge_children(full: Proof, scene: Scene, budget: float) -> Suspicion | None:
    """Suspect the same of processes that the ranks started, and only wait for."""
    pids = {rank.process.pid for rank in scene.ranks if _only_waits(rank)}
    below = (one for one in scene.frame.processes if one.role is Role.HELPER and one.rank_pid in pids)
    demands = [known_or(one.runnable, 0.0) for one in below]
    at_work = [one for one in demands if one >= QUIET_HELPER_DEMAND]
    demand, least = sum(at_work), BUSY_BUDGET_RATIO * min(budget, len(at_work))
    if len(pids) < len(scene.ranks) or not at_work or demand < least:
        return None
    full.add(Figure.CHILDREN_DEMAND, demand, demand / least)
    full.show(Figure.CPU_BUDGET, budget, source=scene.frame.cpu.budget_reason)
    who = f"{len(at_work)} processes compute" if len(at_work) > 1 else "a process computes"
    name, on = name_rank(scene.ranks[0]), f"on {demand:.1f} of {budget:.1f} CPUs"
    words = f"{name} only waits for what it started: {who} {on}"
    return full.suspect(Kind.COMPUTE_BOUND, "cpu", min(1.0, demand / budget), words)


@proves("CPU compute")
def judge_cpu_compute(full: Proof, scene: Scene) -> Answer:
    """Suspect, in the good sense, that the cores are full of computing: a job without GPUs."""
    computing = _computing(scene)
    full.clear(bool(scene.cards), "the job computes on a GPU")
    without = answer_without_cards(scene)
    full.doubt(isinstance(without, Unsure), without.text)
    full.doubt(not scene.ranks, "no rank was read")
    demand, budget = sum(full.known(rank.demand) for rank in scene.ranks), known_or(scene.budget, 0.0)
    full.doubt(budget <= 0, "the CPU budget was not read")
    if (children := _judge_children(full, scene, budget)) is not None:
        return children
    ratio = demand / budget
    idle = _find_idle(scene, computing)
    full.clear(ratio < BUSY_BUDGET_RATIO and not idle, f"the ranks want {demand:.1f} of {budget:.1f} CPUs")
    pools = known_or(scene.pool_ratio, 0.0)
    full.clear(pools >= cpu.POOL_RATIO, f"pools want {pools:.1f} times the CPUs")
    in_model = known_or(computing, 1.0)
    full.clear(in_model < COMPUTING_RATIO, f"in the model {say_ratio(in_model)} of the time")
    waits = known_or(find_waits(scene), [])
    if len(waits) > 1:
        # Their stacks are in the model all the same: DDP exchanges gradients within backward.
        least = waits[0].ratio
        full.clear(least >= ALL_WAIT_RATIO, f"every rank waits for the others {say_ratio(least)}")
    few = [known_or(cpu.count_calling(rank), (0, 0.0))[0] for rank in scene.ranks if cpu.has_pool(rank)]
    samples = [rank.phases.samples for rank in scene.ranks if is_known(rank.phases)]
    may_spin = any(0 < count < cpu.LEAST_CALLING for count in few) and min(samples) < SURE_SAMPLES
    full.doubt(may_spin, "whether its operators take microseconds, and the pool spins between them")
    full.add(Figure.RANKS_DEMAND, demand, ratio / BUSY_BUDGET_RATIO)
    full.show(Figure.CPU_BUDGET, budget, source=scene.frame.cpu.budget_reason)
    if is_known(computing):
        full.add(Figure.IN_PHASE, computing, of="the model")
        by_stacks = computing / COMPUTING_RATIO
        full.margin = by_stacks if idle else max(full.margin, by_stacks)
    got, unread = cpu.say_got(scene), cpu.taker_unread(scene)
    if got or unread:
        full.margin = min(full.margin, cpu.CROWDED_MARGIN)
    words = f"the CPUs compute: the ranks want {demand:.1f} of {budget:.1f}"
    if idle:
        full.add(Figure.CPUS_FREE, idle)
        whose = "the rank" if len(scene.ranks) == 1 else "each rank"
        words = f"one thread of {whose} computes, and {idle:.1f} of {budget:.1f} CPUs are idle"
    words, against = (f"{words}; {got}", (cpu.read_waiting(scene),)) if got else (words, ())
    return full.suspect(Kind.COMPUTE_BOUND, "cpu", min(1.0, ratio), words, against=against, unread=unread)


def _most_held(rank: RankScene) -> tuple[Phase, float]:
    """Return what takes most of a rank's time beside the model, and whose share is worth a word."""
    shares = [(one, rank.phases.ratio(one)) for one in _HOLDING] if is_known(rank.phases) else []
    phase, ratio = max(shares, key=lambda one: one[1], default=(Phase.OTHER, 0.0))
    return (phase, ratio) if ratio >= HELD_RATIO else (Phase.OTHER, 0.0)


def _was_paused(rank: RankScene) -> bool:
    """Tell whether the most of it is a past pause of a run that goes on: no other rule reports it then."""
    return _most_held(rank)[0] in _PAUSES and find_pause(rank) is None


@by_conditions
def _check_stacks(balanced: Claim, scene: Scene) -> float:
    """Return the share of samples in the model, or what holds a rank."""
    computing = balanced.known(_computing(scene))
    for rank in scene.ranks:
        phase, ratio = _most_held(rank)
        held = ratio > 0 and not _was_paused(rank)
        balanced.clear(held, f"{name_rank(rank)}: {phase.value} {say_ratio(ratio)}")
    balanced.clear(computing < LIVELY_RATIO, f"in the model only {say_ratio(computing)} of the time")
    return computing


@by_conditions
def _check_looks(balanced: Claim, scene: Scene) -> float:
    """Return the share of samples that found the least busy main thread running, or what holds it."""
    balanced.doubt(not scene.ranks, "no rank was read")
    running = 1.0
    for rank in scene.ranks:
        main = balanced.known(rank.main)
        waits = {"a batch": main.batch_wait, "reads": 0.0 if _was_paused(rank) else main.io}
        for words, ratio in waits.items():
            balanced.clear(ratio >= WAITING_RATIO, f"{name_rank(rank)} waits for {words} {say_ratio(ratio)}")
        running = min(running, main.running)
    balanced.clear(running < LIVELY_LOOKS, f"a main thread runs only {say_ratio(running)}")
    return running


def _find_against(scene: Scene) -> Iterator[tuple[FigureReading, str]]:
    """Find what speaks against a balanced run, and its words: pauses, and much code outside of steps."""
    phase, paused = max(map(_most_held, scene.ranks), key=lambda one: one[1], default=(Phase.OTHER, 0.0))
    if phase in _PAUSES:
        row = reading(Figure.IN_PHASE, 100 * paused, scene.frame, of=_PAUSES[phase])
        yield row, f"is spent {row.name}"
    outside = 0.0  # perhaps in one thread; not with GPUs
    for rank in () if scene.gpus else scene.ranks:
        share = rank.phases.share(*OUTSIDE) if is_known(rank.phases) else None
        if share is not None and cpu.may_be_one(rank, share):
            outside = max(outside, share.ratio)
    if outside:
        yield reading(Figure.OUTSIDE_STEP, 100 * outside, scene.frame), "goes into code outside of the model"


@proves("balanced")
def judge_balanced(balanced: Proof, scene: Scene) -> Answer:
    """Suspect, in the good sense, that nothing holds the run: it works and no wait takes a fifth of it."""
    for card in scene.gpus:
        name = f"card {card.index}"
        busy_pct = balanced.known(card.busy_pct, f"{name}: ")
        balanced.clear(busy_pct < STARVED_PCT, f"{name} is busy only {say_pct(busy_pct)}")
        hollow = balanced.known(judge_hollow(card), f"whether {name} is hollow: ")
        balanced.clear(hollow, f"{name} is {BUSY_PCT:.0f} % busy and hollow")
    by_stacks, by_looks = _check_stacks(balanced, scene), _check_looks(balanced, scene)
    if isinstance(by_stacks, Cleared):
        return by_stacks
    if isinstance(by_looks, Cleared) and not scene.gpus:
        return by_looks
    sees_steps = any(one.counts.steps for one in list_hooks(scene.frame))
    if isinstance(by_stacks, Unsure) and not scene.gpus and not sees_steps:
        return by_stacks  # a running thread may do anything: load, import, spawn workers
    got = cpu.say_got(scene)
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
    found, unread = list(_find_against(scene)), cpu.taker_unread(scene)
    if isinstance(by_stacks, Unsure):
        # Only stacks tell a step from a checkpoint, a validation or the program's other code.
        unread += (f"pauses and code outside of the step: {by_stacks.text}",)
    if got or found or unread:
        balanced.margin = min(balanced.margin, cpu.CROWDED_MARGIN)
    summary, against = "steps go on and no single wait takes a fifth of the time", [row for row, _ in found]
    if got:
        summary = f"steps go on, but {got}: {cpu.find_taker(scene).value}"
        against.insert(0, cpu.read_waiting(scene))
    elif found:
        row, words = found[0]
        summary = f"steps go on, and {say_pct(known_or(row.value, 0.0))} of the time {words}"
    rows = tuple(against)
    return balanced.suspect(Kind.BALANCED, NOT_APPLICABLE, 0.0, summary, against=rows, unread=unread)


RULES: tuple[Rule, ...] = (judge_cpu_compute, judge_balanced)
