"""Causes in the program's own Python: a fight for the GIL, one thread that does it all, waits of its own.

A loader that is no DataLoader, and a call that blocks, need a step beside the wait: a run without steps
starts, is paused or hangs.
"""

from __future__ import annotations

import math

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Unsure, by_conditions, take_heaviest
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.cpu import (
    CROWDED_MARGIN,
    FREE_CORES,
    LEAST_CALLING,
    POOL_THREADS,
    RUNNING,
    SMALL_CALLING,
    SPINNING_DEMAND,
    are_taken,
    count_calling,
    find_cores_free,
    find_cores_had,
    find_cores_left,
    find_pool_demand,
    find_taker,
    has_pool,
    may_be_one,
    read_waiting,
    say_free,
    say_got,
    taker_unread,
)
from tpmon.judge.features.data_wait import LEAST_SAMPLES, is_behind, measure_share
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import MainThreadScene, RankScene, Rule, Scene, demand_of
from tpmon.judge.features.standstill import LEAST_STACK_SPAN_S
from tpmon.judge.features.starvation import (
    HIDDEN_IDLE,
    LEAST_WAIT,
    cap_share,
    find_named_wait,
    name_hot,
    name_spot,
    see_pins,
)
from tpmon.judge.stacks.phases import HELD_RATIO, OUTSIDE, TRAINING, DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, Share, Spot, share_of
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ThreadKind
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind
from tpmon.model.waits import WaitReason, is_wait

ONE_THREAD_LOW, ONE_THREAD_HIGH = 0.85, 1.15
"""Demand of a process that is one thread; it counts waits for a CPU, so neighbours change nothing."""
ONE_CORE = 1.15
"""Threads that take turns at one lock run on one core together, measured 0.98; those that ask for it wake up
every 5 ms and wait for a CPU beside a neighbour, so demand may be higher."""
LOCK_WAIT = 0.4
"""Share of samples of the main thread in a lock with a time-out: 80-92 % in a fight."""
WAITS_RATIO = 0.5
"""Stack samples at a queue, a lock or a future, over the samples in a timed lock, above which that is the
wait: `queue.get(timeout=...)` is the same system call. In a fight the stacks are all over the program."""
OTHERS_RUN = 0.5
"""Demand of the other Python threads, in threads: they have what the main thread waits for."""
PYTHON_SHARE = 0.5
"""Share of stack samples outside the parts of a step above which Python is waited for. High, because
operators called straight from a loop leave no frame of their own."""
ONE_CALL_S = 5.0
"""How long the newest stacks must be in one line of the program to be one call; a loop changes its line."""
GPU_IDLE = 0.3
"""A GPU that idles less does not wait for this thread (starved: below 70 % busy)."""


def others_demand(rank: RankScene, scene: Scene) -> Known[float]:
    """Return the demand of the rank's threads that can be Python's, without the main one."""
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
    """Say by the stacks what the main thread waits for, if it is no fight for the GIL; else ""."""
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
    lock = Proof("Python's interpreter lock", scene)
    ran = lock.known(rank.demand) - lock.known(rank.waiting)
    main = lock.known(rank.main)
    lock.doubt(main.looks < LEAST_SAMPLES, "too few samples of the main thread")
    share = measure_share(main.timed_lock, main.looks)
    shares_core = lock.known(rank.demand) >= ONE_THREAD_LOW and ran <= ONE_CORE
    lock.clear(not shares_core, f"its threads run {ran:.1f} together")
    lock.at_least(Figure.MAIN_IN_TIMED_LOCK, share.ratio, LOCK_WAIT)
    lock.add(Figure.THREADS_RUNNING, ran)
    lock.at_least(Figure.OTHERS_WANT, others_demand(rank, scene), OTHERS_RUN)
    lock.doubt(see_pins(rank), "behind a pin thread the wait for a batch looks the same")
    plain = _find_plain_wait(rank, share)
    lock.clear(bool(plain), plain)
    lock.clear(lock.known(_is_gpu_busy(rank, scene), "GPU: "), "the GPU is busy all the same")
    # Without stacks any timed wait beside a busy thread looks like this.
    lock.margin = share.ratio / LOCK_WAIT
    if is_known(rank.phases) and _sees_stacks(rank):
        lock.add(Figure.AT_OWN_QUEUE, rank.phases.waits_ratio)
    else:
        lock.margin = min(lock.margin, CROWDED_MARGIN)
    words = f"the main thread waits {100 * share.ratio:.0f} % of its time for Python's interpreter lock"
    needs = frozenset((Need.GIL_WAIT,))
    return lock.suspect_rank(Kind.PYTHON_BOUND, "gil", rank, share, words, observed=needs)


def judge_gil(scene: Scene) -> Answer:
    """Suspect Python's interpreter lock when a rank's threads share one core and its main thread waits."""
    return take_heaviest([_judge_gil_of(rank, scene) for rank in scene.ranks], "Python's interpreter lock")


def _python_share(rank: RankScene) -> Known[Share]:
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


def _has_room(rank: RankScene, scene: Scene) -> bool:
    """Tell whether something may wait for one thread: CPUs that nobody uses, or a card that idles."""
    busy, free = _is_gpu_busy(rank, scene), find_cores_free(scene)
    return not (is_known(busy) and busy) and is_known(free) and free >= FREE_CORES


@by_conditions
def _judge_single_of(rank: RankScene, scene: Scene) -> Answer:
    single = Proof("a single Python thread", scene)
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
    share = Claim("whether the one busy thread computes or runs Python").known(_python_share(rank))
    single.clear(share.low < PYTHON_SHARE, f"Python outside of the step: {100 * share.ratio:.0f} %")
    idle = find_gpu_idle(rank, scene)
    gain = min(share.ratio, idle) if is_known(idle) else share.ratio
    got, had, unread = say_got(scene), find_cores_had(free, scene), taker_unread(scene)
    taken = are_taken(free, had) or not is_known(find_cores_left(scene))
    logging = is_known(rank.phases) and rank.phases.ratio(Phase.LOGGING) >= share.ratio / 2
    needs = (Need.ONE_THREAD_BUSY, Need.LOGGING_IN_STACK) if logging else (Need.ONE_THREAD_BUSY,)
    left = f"; {got}: {find_taker(scene).value}" if got else f", {say_free(free, had)}"
    single.margin = min(share.low / PYTHON_SHARE, CROWDED_MARGIN if got or unread or taken else math.inf)
    single.add(Figure.PYTHON_OUTSIDE, share.ratio)
    single.add(Figure.THREADS_RUNNABLE, demand)
    single.add(Figure.CPUS_FREE, had)
    single.shown += name_hot(rank.phases, Phase.LOGGING if logging else Phase.OTHER, scene)
    return single.suspect_rank(
        Kind.PYTHON_BOUND,
        "single-thread",
        rank,
        Share(gain, min(share.low, gain), share.high, share.samples),
        f"{_say_single(rank, share, logs=logging)}{left}",
        against=(read_waiting(scene),) if got else (),
        unread=unread,
        observed=frozenset(needs),
    )


def judge_single_thread(scene: Scene) -> Answer:
    """Suspect one thread that runs Python outside of the step all the time while cores, or the GPU, idle."""
    return take_heaviest([_judge_single_of(rank, scene) for rank in scene.ranks], "a single Python thread")


@by_conditions
def _judge_small_of(rank: RankScene, scene: Scene) -> Answer:
    small = Proof("operators of microseconds", scene)
    small.clear(not has_pool(rank), "no thread pool is at work")
    small.clear(bool(scene.cards), "the job computes on a GPU")
    running = small.known(rank.main).running
    small.clear(running < RUNNING, f"the main thread runs {format_pct(100 * running)} % of the time")
    pool = small.at_least(Figure.POOL_WANTS, find_pool_demand(rank, scene), SPINNING_DEMAND)
    count, share = small.known(count_calling(rank))
    percent = f"{format_pct(100 * share)} % of the step in calls of operators"
    small.clear(share < SMALL_CALLING, percent)
    small.doubt(count < LEAST_CALLING, f"{percent}: too few samples yet")
    demand = small.known(rank.demand)
    others = known_or(rank.busy_threads, POOL_THREADS) - 1
    spins = "the other thread of its pool spins" if others <= 1 else f"{others:.0f} threads of its pool spin"
    small.margin = math.inf  # the pool only spins if the operators are small
    small.add(Figure.CALLING_OPERATORS, share, share / SMALL_CALLING)
    small.show(Figure.RANKS_DEMAND, demand)
    small.shown += name_hot(rank.phases, Phase.FORWARD, scene)
    return small.suspect(
        Kind.PYTHON_BOUND,
        "small-operators",
        pool / max(demand, pool),
        "its operators take microseconds each and are called one by one from Python; "
        f"{spins} between them: {pool:.1f} CPUs that compute next to nothing",
        observed=frozenset((Need.POOL_SPINS,)),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_small_operators(scene: Scene) -> Answer:
    """Suspect operators that end in microseconds when a pool always runs: it spins between them."""
    return take_heaviest([_judge_small_of(rank, scene) for rank in scene.ranks], "operators of microseconds")


LEAST_BLOCKED = 0.2
"""Lower end of the share of time asleep in own calls above which they hold the run: what any single wait of a
balanced run may take."""
SURE_SPOT = 0.05
"""Share by which a function must exceed all that may be computing to be named as what sleeps: half of the
interval of 100 samples."""
LEAST_SAID = 3
"""Readings of a wait that it takes to say what the sleep is for."""
ONE_LINE = 0.8
"""Share of the time outside of steps, and of the readings of a wait, that must be one sleep at one line."""
AT_REST = 0.1
"""Threads that anything else of the job may want while a loop keeps a pace: what works is waited for."""
_MAY_SLEEP = (
    Phase.DATA_WAIT,
    Phase.SYNC,
    Phase.COMMS,
    Phase.CHECKPOINT,
    Phase.VALIDATION,
    Phase.IMPORT,
    Phase.LOAD,
    Phase.COMPILE,
    Phase.INPUT,
)
"""Phases in which a main thread may sleep, and not in one of the program's own calls."""
_SLEEPS = {WaitReason.CHILD: "waits for a child process", WaitReason.SLEEP: "pauses (time.sleep or alike)"}
"""Kernel waits of a sleeping thread (``ProcessSample.waits_for``), as verbs."""
_OWN_LOADER, _OWN_CALLS = "a loader of the program's own", "calls that block"


def _find_sleep(main: MainThreadScene) -> float:
    """Return the share of samples that found the main thread asleep, and not for the GIL."""
    return max(0.0, 1 - main.running - main.timed_lock)


def _idle_cost(rank: RankScene, scene: Scene, cause: Claim) -> Applicable[float]:
    """Return how much of the time the rank's card idles; a busy card hides the wait and clears the cause."""
    idle = find_gpu_idle(rank, scene)
    cause.known(idle, "GPU: ")
    if is_known(idle):
        cause.clear(idle < HIDDEN_IDLE, f"hidden: the GPU is {100 * (1 - idle):.0f} % busy")
    return idle


def _stacks_of(rank: RankScene, cause: Claim) -> RankPhases:
    phases = cause.known(rank.phases)
    cause.doubt(phases.samples < LEAST_SAMPLES, "too few stack samples yet")
    cause.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    return phases


def _name_spot(phases: RankPhases) -> str:
    spot = phases.handed if is_known(phases.handed) else phases.spots.get(Phase.DATA_WAIT)
    return f": {spot.where.removeprefix(f'{Phase.DATA_WAIT.value}: ')}" if spot is not None else ""


def _queued(rank: RankScene, phases: RankPhases) -> float:
    """Return the share of samples at a queue of data that no DataLoader of torch fills, 0-1.

    Other loaders (DALI, FFCV, Ray Data, nodes of torchdata) have one, as have functions named like a loader.
    """
    if rank.has_workers or rank.loader is not None:
        return 0.0
    queue = phases.parts.get(DataPart.QUEUE)
    return (queue.ratio if queue is not None else 0.0) + find_named_wait(rank)


@by_conditions
def _judge_own_of(rank: RankScene, scene: Scene) -> Answer:
    own = Proof(_OWN_LOADER, scene)
    phases = _stacks_of(rank, own)
    behind = is_behind(rank.loader, [worker.idle_ratio for worker in rank.feeders])
    own.clear(behind, "a DataLoader fills the queue")
    main, handed = rank.main, phases.handed_ratio + _queued(rank, phases)
    looked = is_known(main) and main.looks >= LEAST_SAMPLES
    if is_known(main) and looked:
        # Taking from a queue may have a time-out.
        handed = min(handed, _find_sleep(main) + main.timed_lock)
    share = share_of(handed * phases.samples, phases.samples, phases.design)
    at_queue = f"at a queue {format_pct(100 * share.ratio)} %"
    own.clear(share.ratio < LEAST_WAIT, at_queue)
    own.doubt(share.low < LEAST_WAIT, f"{at_queue}: too close to call")
    idle = _idle_cost(rank, scene, own)
    if is_known(idle):
        share = cap_share(share, idle)
    text = f"{100 * share.ratio:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
    own.add(Figure.AT_OWN_QUEUE, share.ratio, share.low / LEAST_WAIT, text=text)
    if is_known(main) and looked:
        own.add(Figure.MAIN_ASLEEP, _find_sleep(main) + main.timed_lock)
    own.show(Figure.OTHERS_OF_RANK_WANT, others_demand(rank, scene))
    words = (
        f"the loop waits {100 * share.ratio:.0f} % of its time for what other threads or processes hand over"
    )
    needs = frozenset((Need.OWN_QUEUE_WAIT,))
    summary = f"{words}{_name_spot(phases)}"
    return own.suspect_rank(Kind.DATA_BOUND, "own-loader", rank, share, summary, observed=needs)


def _is_alone(scene: Scene) -> bool:
    return len(scene.ranks) == 1 and known_or(scene.frame.target.world_size, 1) == 1


def _no_call(phases: RankPhases) -> float:
    """Return the share of samples (0-1) outside the parts of a step that are known to be no call."""
    return phases.handed_ratio + phases.resting_ratio


def _own_sleep(rank: RankScene, main: MainThreadScene, phases: RankPhases, scene: Scene) -> float:
    """Return the share of its time (0-1) that the main thread surely sleeps in calls of its own.

    With cards or other ranks, backward may be a futex wait for autograd's thread, unlike a sleep for I/O.
    """
    # A timed wait in a frame that is known to wait is not for the GIL.
    asleep = _find_sleep(main) + min(main.timed_lock, phases.call_waits_ratio)
    own = max(0.0, asleep - phases.ratio(*_MAY_SLEEP) - _no_call(phases))
    alone = _is_alone(scene) and not scene.cards and find_gpu_idle(rank, scene) is NOT_APPLICABLE
    return own if alone else max(0.0, own - min(phases.ratio(Phase.BACKWARD), main.lock))


def _own_io(main: MainThreadScene, phases: RankPhases) -> float:
    """Return the share of its time (0-1) that it surely waits for a disk or a socket in calls of its own."""
    return max(0.0, main.io - phases.ratio(*_MAY_SLEEP))


def _find_certain(
    share: Share, main: MainThreadScene, phases: RankPhases, idle: Applicable[float], scene: Scene
) -> Known[float]:
    """Return how much of such a sleep is surely a call: all, where the kernel or the stacks tell.

    A wait for a card or other ranks (``.item()``, ``Work.wait()``) has no frame, and shows no disk or socket.
    """
    if max(_own_io(main, phases), phases.calls_ratio) >= share.ratio / 2:
        return share.ratio
    if not _is_alone(scene):
        return Missing("a wait for other ranks leaves no frame either")
    # Sleep beyond the card's busy time is no wait for the card.
    certain = share.ratio + idle - 1 if is_known(idle) else share.ratio
    return certain if certain >= LEAST_BLOCKED else Missing("or it waits for the GPU, without a frame either")


def _spot_of_call(phases: RankPhases, share: Share) -> Applicable[Spot]:
    """Return the function that surely sleeps: it waits by its frames, or is too large to only compute."""
    if is_known(phases.calls) and phases.calls_ratio >= share.ratio / 2:
        return phases.calls
    spot = phases.spots.get(max(OUTSIDE, key=phases.ratio))
    computing = phases.ratio(*OUTSIDE) - _no_call(phases) - share.ratio
    return spot if spot is not None and spot.ratio > computing + SURE_SPOT else NOT_APPLICABLE


def _say_sleep(rank: RankScene, share: Share, io: float, scene: Scene) -> str:
    """Say what the main thread sleeps for, as far as the kernel tells; ``io`` as in ``_own_io``."""
    if io >= share.ratio / 2:
        return "waits for a disk or a socket"
    samples = [one for frame in scene.frames for one in frame.processes if one.pid == rank.process.pid]
    for reason, verb in _SLEEPS.items():
        if sum(is_wait(one.waits_for, reason) for one in samples) >= max(
            LEAST_SAID, len(samples) * share.ratio / 2
        ):
            return verb
    return "sleeps"


def find_clock(rank: RankScene, scene: Scene) -> Spot | None:
    """Return where the loop of a job's only rank sleeps on purpose; None where it may wait for something.

    It is at one line, in a plain sleep or a timed wait, and nothing of the job works meanwhile: a clock sets
    the pace. A client that sleeps before it asks a server again waits for that.
    """
    phases, main = rank.phases, rank.main
    if not (_is_alone(scene) and _sees_stacks(rank) and is_known(phases) and is_known(main)):
        return None
    spot = phases.spots.get(Phase.OTHER)
    if spot is None or spot.is_loop or spot.ratio < max(LEAST_BLOCKED, ONE_LINE * phases.ratio(*OUTSIDE)):
        return None
    others = known_or(others_demand(rank, scene), 0.0)
    beside = known_or(scene.runnable, math.inf) - known_or(rank.demand, 0.0)
    if max(others, beside) >= AT_REST or phases.retrying_ratio >= spot.ratio / 2:
        return None
    waits = [
        one.waits_for for frame in scene.frames for one in frame.processes if one.pid == rank.process.pid
    ]
    still = [one for one in waits if is_known(one) and one.reason is not WaitReason.RUNNING]
    timed = (
        2 * phases.call_waits_ratio >= spot.ratio
    )  # at an event, whose wait looks like one for the interpreter
    sleeps = sum(
        one.reason is WaitReason.SLEEP or (timed and one.reason is WaitReason.TIMED_LOCK) for one in still
    )
    return spot if sleeps >= max(LEAST_SAID, ONE_LINE * len(still)) else None


@by_conditions
def _judge_call_of(rank: RankScene, scene: Scene) -> Answer:
    call = Proof(_OWN_CALLS, scene)
    phases, main = _stacks_of(rank, call), call.known(rank.main)
    call.doubt(main.looks < LEAST_SAMPLES, "too few samples of the main thread")
    pace = find_clock(rank, scene)
    call.clear(pace is not None, f"a clock sets the pace{f': {pace.where}' if pace else ''}")
    outside = max(0.0, phases.ratio(*OUTSIDE) - _no_call(phases)) + phases.calls_in_step_ratio
    share = share_of(
        min(outside, _own_sleep(rank, main, phases, scene)) * phases.samples, phases.samples, phases.design
    )
    blocked = f"{format_pct(100 * share.ratio)} %"
    call.clear(share.ratio < LEAST_BLOCKED, blocked)
    call.doubt(share.low < LEAST_BLOCKED, f"{blocked}: too close to call")
    idle = _idle_cost(rank, scene, call)
    certain = call.known(_find_certain(share, main, phases, idle, scene))
    spot = _spot_of_call(phases, share)
    share = cap_share(share, min(certain, idle) if is_known(idle) else certain)
    where = f": {spot.where}" if is_known(spot) else ""
    is_loop = is_known(spot) and spot.is_loop
    needs = {Need.EVENT_LOOP_WAIT if is_loop else Need.BLOCKING_CALL}
    if is_known(spot) and spot.phase is Phase.LOGGING:
        needs.add(Need.LOGGING_IN_STACK)
    time = f"{100 * share.ratio:.0f} % of"
    does = _say_sleep(rank, share, _own_io(main, phases), scene)
    summary = f"the loop {does} {time} its time in a call of its own{where}"
    if is_loop:
        summary = f"the event loop has nothing to run {time} the time: all of its tasks await something"
    call.add(Figure.PYTHON_OUTSIDE, outside, share.low / LEAST_BLOCKED)
    call.add(Figure.MAIN_ASLEEP, _find_sleep(main))
    call.add(Figure.MAIN_IN_IO, main.io)
    call.shown += name_spot(spot, scene) if is_known(spot) else ()
    seen = frozenset(needs)
    return call.suspect_rank(Kind.PYTHON_BOUND, "blocking-call", rank, share, summary, observed=seen)


def judge_own_loader(scene: Scene) -> Answer:
    """Suspect what fills a queue, a pipe or a pool of the program's own while the loop waits at its end."""
    return take_heaviest([_judge_own_of(rank, scene) for rank in scene.ranks], _OWN_LOADER)


def judge_blocking_call(scene: Scene) -> Answer:
    """Suspect calls of the program itself in which the loop sleeps: a disk, a server, a child, a pause."""
    return take_heaviest([_judge_call_of(rank, scene) for rank in scene.ranks], _OWN_CALLS)


@by_conditions
def judge_pace(scene: Scene) -> Answer:
    """Suspect, in the good sense, a clock: the loop sleeps at one line, and nothing works meanwhile."""
    pace = Proof("a pace on purpose", scene)
    pace.clear(len(scene.ranks) != 1, "there is not one rank alone")
    rank = scene.ranks[0]
    phases = pace.known(rank.phases)
    pace.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    spot = find_clock(rank, scene)
    if spot is None:
        return Cleared(f"{pace.what} (no plain sleep at one line)")
    asleep = 1 - known_or(map_known(lambda main: main.running, rank.main), 0.0)
    pace.add(Figure.MAIN_ASLEEP, asleep, spot.ratio / HELD_RATIO)
    pace.evidence += name_spot(spot, scene)
    return pace.suspect(
        Kind.BALANCED,
        NOT_APPLICABLE,
        0.0,
        f"a clock sets the pace: the loop sleeps {format_pct(100 * asleep)} % of its time, at "
        f"{spot.where}, and nothing of the job works or waits meanwhile",
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


RULES: tuple[Rule, ...] = (
    judge_gil,
    judge_single_thread,
    judge_small_operators,
    judge_own_loader,
    judge_blocking_call,
    judge_pace,
)
