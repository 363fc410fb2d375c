"""Causes that lie in Python itself: threads that fight for its lock, and one thread that does it all."""

from __future__ import annotations

import math

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    Conditions,
    Suspicion,
    Unsure,
    by_conditions,
    reading,
    take_heaviest,
)
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.cpu import (
    FREE_CORES,
    are_taken,
    find_cores_free,
    find_cores_had,
    find_cores_left,
    find_taker,
    say_free,
    taker_unread,
)
from tpmon.judge.features.data_wait import LEAST_SAMPLES, measure_share
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, demand_of
from tpmon.judge.features.standstill import LEAST_STACK_SPAN_S
from tpmon.judge.features.starvation import name_hot, see_pins
from tpmon.judge.rules.cpu import CROWDED_MARGIN, read_waiting, say_got
from tpmon.judge.stacks.phases import OUTSIDE
from tpmon.judge.stacks.profile import Phase, Share
from tpmon.model.figures import Figure
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind, Origin

ONE_THREAD_LOW, ONE_THREAD_HIGH = 0.85, 1.15
"""Demand of a process that is one thread, in threads; waiting for a CPU counts, so neighbours change
nothing."""
ONE_CORE = 1.15
"""Threads that take turns at one lock run on one core together, 0.98 was measured; those
that ask for it wake up every 5 ms, and wait for a CPU beside a neighbour, so demand may be above."""
LOCK_WAIT = 0.4
"""Share of looks at the main thread in a lock with a time-out: 80-92 % in a fight."""
WAITS_RATIO = 0.5
"""Stack samples at a queue, a lock or a future over the looks in a timed lock, from which these are that
wait: `queue.get(timeout=...)` is the same system call. In a fight the stacks are all over the program."""
OTHERS_RUN = 0.5
"""Threads of demand of the other Python threads: they have what the main thread waits for."""
RUNNING = 0.8
"""Share of looks that found the main thread running."""
PYTHON_SHARE = 0.5
"""Share of stack samples outside of forward, backward and the rest of a step from which it is Python
that is waited for. High, because operators called straight from a loop leave no frame of their own."""
ONE_CALL_S = 5.0
"""How long the newest stacks must be in one line of the program to be one call; a loop changes its line."""
GPU_IDLE = 0.3
"""A GPU that idles less is not waiting for this thread (starved: below 70 % busy)."""

PYTHON_PART = 0.3
"""The lower end of that share from which it is not ruled out that one thread holds a program whose other
parts run a pool: the demand is a mean over both."""


def others_demand(rank: RankScene, scene: Scene) -> Known[float]:
    """Return the demand of the rank's threads that can be Python's, the main one left out."""
    return median_known(
        demand_of(process, (ThreadKind.OTHER,))
        for frame in scene.frames
        for process in frame.processes
        if process.pid == rank.process.pid
    )


def _is_gpu_busy(rank: RankScene, scene: Scene) -> Known[bool]:
    idle = find_gpu_idle(rank, scene)
    if isinstance(idle, Missing):
        return idle
    return is_known(idle) and idle < GPU_IDLE


def _sees_stacks(rank: RankScene) -> bool:
    return is_known(rank.phases) and rank.phases.samples >= LEAST_SAMPLES


def _find_plain_wait(rank: RankScene, timed: Share) -> str:
    """Say by the stacks what the main thread waits for, where it is no fight for the lock; "" else."""
    phases = rank.phases
    if not is_known(phases) or not _sees_stacks(rank):
        return ""
    if phases.waits_ratio >= WAITS_RATIO * timed.ratio:
        waits = format_pct(100 * phases.waits_ratio)
        return f"the main thread waits {waits} % of its time at a queue, a lock or a future: {phases.where}"
    if phases.unchanged_s >= LEAST_STACK_SPAN_S:
        return f"the main thread has stood in one line for {phases.unchanged_s:.0f} s: {phases.where}"
    return ""


@by_conditions
def _judge_gil_of(rank: RankScene, scene: Scene) -> Answer:
    lock = Conditions("Python's interpreter lock")
    ran = lock.known(rank.demand) - lock.known(rank.waiting)
    main = lock.known(rank.main)
    lock.doubt(main.looks < LEAST_SAMPLES, "too few looks at the main thread")
    share = measure_share(main.timed_lock, main.looks)
    shares_core = lock.known(rank.demand) >= ONE_THREAD_LOW and ran <= ONE_CORE
    in_lock = f"main thread in a lock {format_pct(100 * share.ratio)} %"
    lock.clear(not shares_core or share.ratio < LOCK_WAIT, in_lock)
    others = lock.known(others_demand(rank, scene))
    lock.clear(others < OTHERS_RUN, in_lock)
    lock.doubt(see_pins(rank), "behind a pin thread the wait for a batch looks the same")
    plain = _find_plain_wait(rank, share)
    lock.clear(bool(plain), plain)
    lock.clear(lock.known(_is_gpu_busy(rank, scene), "GPU: "), "the GPU is busy all the same")
    # Without stacks any wait with a time-out beside a busy thread looks like this.
    told = _sees_stacks(rank)
    return Suspicion(
        kind=Kind.PYTHON_BOUND,
        cause="gil",
        weight=share.ratio,
        margin=share.ratio / LOCK_WAIT if told else min(share.ratio / LOCK_WAIT, CROWDED_MARGIN),
        origins=frozenset((Origin.PROC, Origin.STACKS) if told else (Origin.PROC,)),
        summary=f"the main thread waits {100 * share.ratio:.0f} % of its time for Python's interpreter lock",
        evidence=(
            reading(Figure.MAIN_IN_TIMED_LOCK, 100 * share.ratio, scene.frame),
            reading(Figure.THREADS_RUNNING, ran, scene.frame),
            reading(Figure.OTHERS_WANT, others, scene.frame),
        ),
        share=share.ratio,
        share_low=share.low,
        share_high=share.high,
        observed=frozenset((Need.GIL_WAIT,)),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_gil(scene: Scene) -> Answer:
    """Suspect Python's interpreter lock when a rank's threads share one core and its main thread waits."""
    return take_heaviest([_judge_gil_of(rank, scene) for rank in scene.ranks], "Python's interpreter lock")


def _python_share(rank: RankScene) -> Known[Share]:
    """Return the share of stack samples in Python outside of the parts of a step."""
    phases = rank.phases
    if not is_known(phases):
        return phases
    if phases.samples < LEAST_SAMPLES:
        return Missing("too few stack samples yet")
    return phases.share(*OUTSIDE)


def _say_single(rank: RankScene, share: Share, *, logs: bool) -> str:
    """Say what the one busy thread does: Python, or a single call that may be a library's own code."""
    phases = rank.phases
    if not logs and is_known(phases) and phases.same_place_s >= ONE_CALL_S:
        return f"one thread has been in one call for {phases.same_place_s:.0f} s ({phases.where})"
    words = "(logging, metrics) " if logs else ""
    return f"one thread runs Python {words}for {100 * share.ratio:.0f} % of the time"


def may_be_one(rank: RankScene, share: Share) -> bool:
    """Tell whether ``share`` of a rank's time may be that of one thread, and the rest that of its pool.

    The demand is a mean over both: a pool that computes all the time wants more than the two together.
    """
    demand, threads = rank.demand, rank.busy_threads
    if share.low < PYTHON_PART:
        return False
    if not is_known(demand) or not is_known(threads):
        return True
    return demand <= share.ratio + (1 - share.low) * max(threads, 1.0)


def _has_room(rank: RankScene, scene: Scene) -> bool:
    """Tell whether something may wait for one thread: CPUs that nobody uses, or a card that idles."""
    busy, free = _is_gpu_busy(rank, scene), find_cores_free(scene)
    return not (is_known(busy) and busy) and is_known(free) and free >= FREE_CORES


@by_conditions
def _judge_single_of(rank: RankScene, scene: Scene) -> Answer:
    single = Conditions("a single Python thread")
    demand, threads = single.known(rank.demand), single.known(rank.busy_threads)
    running = rank.main.running if is_known(rank.main) else rank.running_ratio
    if not ONE_THREAD_LOW <= demand <= ONE_THREAD_HIGH or threads >= 2 or running < RUNNING:
        part = _python_share(rank)
        if running >= RUNNING and is_known(part) and may_be_one(rank, part) and _has_room(rank, scene):
            outside = f"{format_pct(100 * part.ratio)} % outside of the step"
            return Unsure(f"whether one thread runs the {outside}, or a pool of threads")
        return Cleared(f"a single Python thread (runnable: {demand:.1f} threads, busy: {threads:.0f})")
    single.clear(single.known(_is_gpu_busy(rank, scene), "GPU: "), "the GPU is busy")
    free = single.known(find_cores_free(scene), "free CPUs: ")
    single.clear(free < FREE_CORES, f"{free:.1f} CPUs are free")
    share = Conditions("whether the one busy thread computes or runs Python").known(_python_share(rank))
    single.clear(share.low < PYTHON_SHARE, f"Python outside of the step: {100 * share.ratio:.0f} %")
    idle = find_gpu_idle(rank, scene)
    gain = min(share.ratio, idle) if is_known(idle) else share.ratio
    got, had, unread = say_got(scene), find_cores_had(free, scene), taker_unread(scene)
    taken = are_taken(free, had) or not is_known(find_cores_left(scene))
    logging = is_known(rank.phases) and rank.phases.ratio(Phase.LOGGING) >= share.ratio / 2
    needs = (Need.ONE_THREAD_BUSY, Need.LOGGING_IN_STACK) if logging else (Need.ONE_THREAD_BUSY,)
    left = f"; {got}: {find_taker(scene).value}" if got else f", {say_free(free, had)}"
    return Suspicion(
        kind=Kind.PYTHON_BOUND,
        cause="single-thread",
        weight=gain,
        margin=min(share.low / PYTHON_SHARE, CROWDED_MARGIN if got or unread or taken else math.inf),
        origins=frozenset((Origin.STACKS, Origin.PROC)),
        summary=f"{_say_single(rank, share, logs=logging)}{left}",
        evidence=(
            reading(Figure.PYTHON_OUTSIDE, 100 * share.ratio, scene.frame),
            reading(Figure.THREADS_RUNNABLE, demand, scene.frame),
            reading(Figure.CPUS_FREE, had, scene.frame),
            *name_hot(rank.phases, Phase.LOGGING if logging else Phase.OTHER, scene),
        ),
        share=gain,
        share_low=min(share.low, gain),
        share_high=share.high,
        against=(read_waiting(scene),) if got else (),
        unread=unread,
        observed=frozenset(needs),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_single_thread(scene: Scene) -> Answer:
    """Suspect one thread that runs Python outside of the step all the time while cores, or the GPU, idle."""
    return take_heaviest([_judge_single_of(rank, scene) for rank in scene.ranks], "a single Python thread")


RULES: tuple[Rule, ...] = (judge_gil, judge_single_thread)
