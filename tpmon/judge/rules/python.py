"""Causes in the program's own Python: a fight for the GIL, one thread that does it all, waits of its own.

A loader that is no DataLoader, and a call that blocks, need a step beside the wait: a run without steps
starts, is paused or hangs.
"""

from __future__ import annotations

import math

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Unsure
from tpmon.judge.features import cpu, starvation
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.data_wait import LEAST_SAMPLES, is_behind, measure_share
from tpmon.judge.features.engine import Proof, of_ranks, proves
from tpmon.judge.features.snapshot import MainThreadScene, RankScene, Rule, Scene
from tpmon.judge.features.standstill import LEAST_STACK_SPAN_S
from tpmon.judge.stacks.phases import ELSEWHERE, HELD_RATIO, OUTSIDE, TRAINING, DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, Share, Spot, share_of
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ThreadKind
from tpmon.model.units import say_ratio
from tpmon.model.verdict import Kind
from tpmon.model.waits import WaitReason, is_wait

ONE_THREAD_LOW, ONE_THREAD_HIGH = 0.85, 1.15  # demand of a process that is one thread
ONE_CORE = 1.15  # threads that take turns at one lock run on one core together, measured 0.98
LOCK_WAIT = 0.4  # share of samples of the main thread in a lock with a time-out: 80-92 % in a fight
WAITS_RATIO = 0.5
OTHERS_RUN = 0.5  # demand of the other Python threads, in threads: they have what the main thread waits for
PYTHON_SHARE = 0.5  # share of stack samples outside the parts of a step above which Python is waited for
ONE_CALL_S = 5.0  # how long the newest stacks must be in one line of the program to be one call
GPU_IDLE = 0.3  # a GPU that idles less does not wait for this thread (starved: below 70 % busy)


def _is_gpu_busy(rank: RankScene, scene: Scene) -> Known[bool]:
    idle = find_gpu_idle(rank, scene)
    return idle if isinstance(idle, Missing) else known_or(idle, 1.0) < GPU_IDLE


def _sees_stacks(rank: RankScene) -> bool:
    return is_known(rank.phases) and rank.phases.samples >= LEAST_SAMPLES


def _find_plain_wait(rank: RankScene, timed: Share) -> str:
    """Say by the stacks what the main thread waits for, if it is no fight for the GIL; else ""."""
    phases = rank.phases
    if not is_known(phases) or phases.samples < LEAST_SAMPLES:
        return ""
    if phases.waits_ratio >= WAITS_RATIO * timed.ratio:
        waits = say_ratio(phases.waits_ratio)
        return f"the main thread waits {waits} of its time at a queue, a lock or a future: {phases.where}"
    if phases.unchanged_s >= LEAST_STACK_SPAN_S:
        return f"the main thread has stood in one line for {phases.unchanged_s:.0f} s: {phases.where}"
    return ""


@of_ranks("Python's interpreter lock")
def judge_gil(lock: Proof, rank: RankScene, scene: Scene) -> Answer:
    """Suspect Python's interpreter lock when a rank's threads share one core and its main thread waits."""
    ran = lock.known(rank.demand) - lock.known(rank.waiting)
    main = lock.known(rank.main)
    lock.doubt(main.looks < LEAST_SAMPLES, "too few samples of the main thread")
    share = measure_share(main.timed_lock, main.looks)
    shares_core = lock.known(rank.demand) >= ONE_THREAD_LOW and ran <= ONE_CORE
    lock.clear(not shares_core, f"its threads run {ran:.1f} together")
    lock.at_least(Figure.MAIN_IN_TIMED_LOCK, share.ratio, LOCK_WAIT)
    lock.add(Figure.THREADS_RUNNING, ran)
    lock.at_least(Figure.OTHERS_WANT, rank.demand_by(ThreadKind.OTHER), OTHERS_RUN)
    lock.doubt(starvation.see_pins(rank), "behind a pin thread the wait for a batch looks the same")
    plain = _find_plain_wait(rank, share)
    lock.clear(bool(plain), plain)
    lock.clear(lock.known(_is_gpu_busy(rank, scene), "GPU: "), "the GPU is busy all the same")
    # Without stacks any timed wait beside a busy thread looks like this.
    lock.margin = share.ratio / LOCK_WAIT
    if is_known(rank.phases) and _sees_stacks(rank):
        lock.add(Figure.AT_OWN_QUEUE, rank.phases.waits_ratio)
    else:
        lock.margin = min(lock.margin, cpu.CROWDED_MARGIN)
    words = f"the main thread waits {100 * share.ratio:.0f} % of its time for Python's interpreter lock"
    return lock.suspect(Kind.PYTHON_BOUND, "gil", share, words, Need.GIL_WAIT, process=rank.process)


def _python_share(rank: RankScene) -> Known[Share]:
    if is_known(rank.phases) and not _sees_stacks(rank):
        return Missing("too few stack samples yet")
    return map_known(lambda phases: phases.share(*OUTSIDE), rank.phases)


@of_ranks("a single Python thread")
def judge_single_thread(single: Proof, rank: RankScene, scene: Scene) -> Answer:
    """Suspect one thread that runs Python outside of the step all the time while cores, or the GPU, idle."""
    demand, threads = single.known(rank.demand), single.known(rank.busy_threads)
    ran = [one.state == "R" for one in rank.samples]
    running = rank.main.running if is_known(rank.main) else sum(ran) / len(ran)
    if not ONE_THREAD_LOW <= demand <= ONE_THREAD_HIGH or threads >= 2 or running < cpu.RUNNING:
        part, is_busy = _python_share(rank), known_or(_is_gpu_busy(rank, scene), False)
        # Something may wait for one thread: CPUs that nobody uses, or a card that idles.
        has_room = not is_busy and known_or(cpu.find_cores_free(scene), 0.0) >= cpu.FREE_CORES
        if running >= cpu.RUNNING and is_known(part) and cpu.may_be_one(rank, part) and has_room:
            outside = say_ratio(part.ratio)
            return Unsure(f"whether one thread runs the {outside} outside of the step, or a pool of threads")
        single.clear(True, f"runnable: {demand:.1f} threads, busy: {threads:.0f}")
    single.clear(single.known(_is_gpu_busy(rank, scene), "GPU: "), "the GPU is busy")
    free = single.known(cpu.find_cores_free(scene), "free CPUs: ")
    single.clear(free < cpu.FREE_CORES, f"{free:.1f} CPUs are free")
    share = Claim("whether the one busy thread computes or runs Python").known(_python_share(rank))
    single.clear(share.low < PYTHON_SHARE, f"Python outside of the step: {100 * share.ratio:.0f} %")
    idle = find_gpu_idle(rank, scene)
    gain = min(share.ratio, idle) if is_known(idle) else share.ratio
    got, had, unread = cpu.say_got(scene), cpu.find_cores_had(free, scene), cpu.taker_unread(scene)
    taken = cpu.are_taken(free, had) or not is_known(cpu.find_cores_left(scene))
    phases = rank.phases
    logging = is_known(phases) and phases.ratio(Phase.LOGGING) >= share.ratio / 2
    needs = (Need.ONE_THREAD_BUSY, *((Need.LOGGING_IN_STACK,) if logging else ()))
    runs = "Python (logging, metrics)" if logging else "Python"
    words = f"one thread runs {runs} for {100 * share.ratio:.0f} % of the time"
    if is_known(phases) and not logging and phases.same_place_s >= ONE_CALL_S:  # perhaps a library's own code
        words = f"one thread has been in one call for {phases.same_place_s:.0f} s ({phases.where})"
    left = f"; {got}: {cpu.find_taker(scene).value}" if got else f", {cpu.say_free(free, had)}"
    single.margin = min(share.low / PYTHON_SHARE, cpu.CROWDED_MARGIN if got or unread or taken else math.inf)
    single.add(Figure.PYTHON_OUTSIDE, share.ratio)
    single.add(Figure.THREADS_RUNNABLE, demand)
    single.add(Figure.CPUS_FREE, had)
    single.shown += starvation.name_hot(rank.phases, Phase.LOGGING if logging else Phase.OTHER, scene)
    return single.suspect(
        Kind.PYTHON_BOUND,
        "single-thread",
        Share(gain, min(share.low, gain), share.high, share.samples),
        f"{words}{left}",
        *needs,
        process=rank.process,
        against=(cpu.read_waiting(scene),) if got else (),
        unread=unread,
    )


@of_ranks("operators of microseconds")
def judge_small_operators(small: Proof, rank: RankScene, scene: Scene) -> Answer:
    """Suspect operators that end in microseconds when a pool always runs: it spins between them."""
    small.clear(not cpu.has_pool(rank), "no thread pool is at work")
    small.clear(bool(scene.cards), "the job computes on a GPU")
    running = small.known(rank.main).running
    small.clear(running < cpu.RUNNING, f"the main thread runs {say_ratio(running)} of the time")
    pool = small.at_least(Figure.POOL_WANTS, cpu.find_pool_demand(rank), cpu.SPINNING_DEMAND)
    count, share = small.known(cpu.count_calling(rank))
    percent = f"{say_ratio(share)} of the step in calls of operators"
    small.clear(share < cpu.SMALL_CALLING, percent)
    small.doubt(count < cpu.LEAST_CALLING, f"{percent}: too few samples yet")
    one = small.known(rank.phases).one_operator_ratio
    in_one = f"{percent}, and {say_ratio(one)} of the forward pass in one line"
    small.clear(share < cpu.MANY_CALLING and one >= cpu.ONE_OPERATOR, in_one)
    demand = small.known(rank.demand)
    others = known_or(rank.busy_threads, cpu.POOL_THREADS) - 1
    spins = "the other thread of its pool spins" if others <= 1 else f"{others:.0f} threads of its pool spin"
    small.margin = math.inf  # the pool only spins if the operators are small
    small.add(Figure.CALLING_OPERATORS, share, share / cpu.SMALL_CALLING)
    small.show(Figure.RANKS_DEMAND, demand)
    small.shown += starvation.name_hot(rank.phases, Phase.FORWARD, scene)
    words = (
        "its operators take microseconds each and are called one by one from Python; "
        f"{spins} between them: {pool:.1f} CPUs that compute next to nothing"
    )
    weight, process = pool / max(demand, pool), rank.process
    return small.suspect(
        Kind.PYTHON_BOUND, "small-operators", weight, words, Need.POOL_SPINS, process=process
    )


LEAST_BLOCKED = 0.2  # lower end of the share of time asleep in own calls above which they hold the run
SURE_SPOT = 0.05  # share by which a function must exceed all that may be computing to be named as what sleeps
LEAST_SAID = 3  # readings of a wait that it takes to say what the sleep is for
ONE_LINE = 0.8  # of the time outside of steps, and of the readings of a wait, that must be one sleep
AT_REST = 0.1  # threads that anything else of the job may want while a loop keeps a pace
# In these a main thread may sleep, and not in one of the program's own calls.
_MAY_SLEEP = (*(one for one in ELSEWHERE if one is not Phase.LOGGING), Phase.SYNC, Phase.INPUT)
_SLEEPS = {WaitReason.CHILD: "waits for a child process", WaitReason.SLEEP: "pauses (time.sleep or alike)"}


def _find_sleep(main: MainThreadScene) -> float:
    """Return the share of samples that found the main thread asleep, and not for the GIL."""
    return max(0.0, 1 - main.running - main.timed_lock)


def _idle_cost(rank: RankScene, scene: Scene, cause: Claim) -> Applicable[float]:
    """Return how much of the time the rank's card idles; a busy card hides the wait and clears the cause."""
    idle = find_gpu_idle(rank, scene)
    cause.known(idle, "GPU: ")
    if is_known(idle):
        cause.clear(idle < starvation.HIDDEN_IDLE, f"hidden: the GPU is {100 * (1 - idle):.0f} % busy")
    return idle


def _stacks_of(rank: RankScene, cause: Claim) -> RankPhases:
    phases = cause.known(rank.phases)
    cause.doubt(phases.samples < LEAST_SAMPLES, "too few stack samples yet")
    cause.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    return phases


@of_ranks("a loader of the program's own")
def judge_own_loader(own: Proof, rank: RankScene, scene: Scene) -> Answer:
    """Suspect what fills a queue, a pipe or a pool of the program's own while the loop waits at its end."""
    phases = _stacks_of(rank, own)
    behind = is_behind(rank.loader, [worker.idle_ratio for worker in rank.feeders])
    own.clear(behind, "a DataLoader fills the queue")
    handed, asleep, queue = phases.handed_ratio, None, phases.parts.get(DataPart.QUEUE)
    if not rank.has_workers and rank.loader is None:
        # DALI, FFCV, Ray Data and nodes of torchdata have a queue, as have functions named like a loader.
        handed += (queue.ratio if queue is not None else 0.0) + starvation.find_named_wait(rank)
    if is_known(rank.main) and rank.main.looks >= LEAST_SAMPLES:
        asleep = _find_sleep(rank.main) + rank.main.timed_lock  # taking from a queue may have a time-out
        handed = min(handed, asleep)
    share = share_of(handed * phases.samples, phases.samples, phases.design)
    at_queue = f"at a queue {say_ratio(share.ratio)}"
    own.clear(share.ratio < starvation.LEAST_WAIT, at_queue)
    own.doubt(share.low < starvation.LEAST_WAIT, f"{at_queue}: too close to call")
    idle = _idle_cost(rank, scene, own)
    if is_known(idle):
        share = starvation.cap_share(share, idle)
    text = f"{100 * share.ratio:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
    own.add(Figure.AT_OWN_QUEUE, share.ratio, share.low / starvation.LEAST_WAIT, text=text)
    if asleep is not None:
        own.add(Figure.MAIN_ASLEEP, asleep)
    own.show(Figure.OTHERS_OF_RANK_WANT, rank.demand_by(ThreadKind.OTHER))
    words = f"the loop waits {100 * share.ratio:.0f} % of its time"
    spot = known_or(phases.handed, phases.spots.get(Phase.DATA_WAIT))
    where = f": {spot.where.removeprefix(f'{Phase.DATA_WAIT.value}: ')}" if spot is not None else ""
    summary = f"{words} for what other threads or processes hand over{where}"
    process = rank.process
    return own.suspect(Kind.DATA_BOUND, "own-loader", share, summary, Need.OWN_QUEUE_WAIT, process=process)


def _in_calls(phases: RankPhases) -> float:
    """Return the share of samples (0-1) outside the parts of a step that may be calls of the program."""
    return phases.ratio(*OUTSIDE) - phases.handed_ratio - phases.resting_ratio


def _own_sleep(rank: RankScene, main: MainThreadScene, phases: RankPhases, scene: Scene) -> float:
    """Return the share of its time (0-1) that the main thread surely sleeps in calls of its own."""
    # With cards or other ranks, backward may be a futex wait for autograd's thread, unlike a sleep for I/O.
    # A timed wait in a frame that is known to wait is not for the GIL.
    asleep = _find_sleep(main) + min(main.timed_lock, phases.call_waits_ratio)
    own = max(0.0, asleep - phases.ratio(*_MAY_SLEEP) - phases.handed_ratio - phases.resting_ratio)
    alone = scene.size == 1 and not scene.cards and find_gpu_idle(rank, scene) is NOT_APPLICABLE
    return own if alone else max(0.0, own - min(phases.ratio(Phase.BACKWARD), main.lock))


def _find_certain(
    share: Share, io: float, phases: RankPhases, idle: Applicable[float], scene: Scene
) -> Known[float]:
    """Return how much of such a sleep is surely a call: all, where the kernel (``io``) or the stacks tell."""
    # A wait for a card or other ranks (``.item()``, ``Work.wait()``) has no frame, no disk and no socket.
    if max(io, phases.calls_ratio) >= share.ratio / 2:
        return share.ratio
    if scene.size > 1:
        return Missing("a wait for other ranks leaves no frame either")
    # Sleep beyond the card's busy time is no wait for the card.
    certain = share.ratio + idle - 1 if is_known(idle) else share.ratio
    return certain if certain >= LEAST_BLOCKED else Missing("or it waits for the GPU, without a frame either")


def _spot_of_call(phases: RankPhases, share: Share) -> Applicable[Spot]:
    """Return the function that surely sleeps: it waits by its frames, or is too large to only compute."""
    if is_known(phases.calls) and phases.calls_ratio >= share.ratio / 2:
        return phases.calls
    spot = phases.spots.get(max(OUTSIDE, key=phases.ratio))
    least = _in_calls(phases) - share.ratio + SURE_SPOT
    return spot if spot is not None and spot.ratio > least else NOT_APPLICABLE


def _say_sleep(rank: RankScene, share: Share, io: float) -> str:
    """Say what the main thread sleeps for, as far as the kernel tells."""
    if io >= share.ratio / 2:
        return "waits for a disk or a socket"
    least = max(LEAST_SAID, len(rank.samples) * share.ratio / 2)
    said = (
        verb
        for reason, verb in _SLEEPS.items()
        if sum(is_wait(one.waits_for, reason) for one in rank.samples) >= least
    )
    return next(said, "sleeps")


def _find_clock(rank: RankScene, scene: Scene) -> Spot | None:
    """Return where the loop of a job's only rank sleeps on purpose; None where it may wait for something."""
    # It is at one line, in a plain sleep or a timed wait, and nothing of the job works meanwhile: a clock
    # sets the pace. A client that sleeps before it asks a server again waits for that.
    phases = rank.phases
    if not (scene.size == 1 and is_known(phases) and _sees_stacks(rank) and is_known(rank.main)):
        return None
    spot = phases.spots.get(Phase.OTHER)
    if spot is None or spot.is_loop or spot.ratio < max(LEAST_BLOCKED, ONE_LINE * phases.ratio(*OUTSIDE)):
        return None
    beside = known_or(scene.runnable, math.inf) - known_or(rank.demand, 0.0)
    works = max(known_or(rank.demand_by(ThreadKind.OTHER), 0.0), beside) >= AT_REST
    if works or phases.retrying_ratio >= spot.ratio / 2:
        return None
    # At an event, whose wait looks like one for the interpreter, it may be timed.
    timed = 2 * phases.call_waits_ratio >= spot.ratio
    slept = (WaitReason.SLEEP, WaitReason.TIMED_LOCK) if timed else (WaitReason.SLEEP,)
    waits = [one.waits_for.reason for one in rank.samples if is_known(one.waits_for)]
    still = [reason for reason in waits if reason is not WaitReason.RUNNING]
    asleep = sum(reason in slept for reason in still)
    return spot if asleep >= max(LEAST_SAID, ONE_LINE * len(still)) else None


@of_ranks("calls that block")
def judge_blocking_call(call: Proof, rank: RankScene, scene: Scene) -> Answer:
    """Suspect calls of the program itself in which the loop sleeps: a disk, a server, a child, a pause."""
    phases, main = _stacks_of(rank, call), call.known(rank.main)
    call.doubt(main.looks < LEAST_SAMPLES, "too few samples of the main thread")
    pace = _find_clock(rank, scene)
    call.clear(pace is not None, f"a clock sets the pace{f': {pace.where}' if pace else ''}")
    outside = max(0.0, _in_calls(phases)) + phases.calls_in_step_ratio
    share = share_of(
        min(outside, _own_sleep(rank, main, phases, scene)) * phases.samples, phases.samples, phases.design
    )
    blocked = say_ratio(share.ratio)
    call.clear(share.ratio < LEAST_BLOCKED, blocked)
    call.doubt(share.low < LEAST_BLOCKED, f"{blocked}: too close to call")
    idle = _idle_cost(rank, scene, call)
    # It surely waits that long for a disk or a socket in calls of its own.
    io = max(0.0, main.io - phases.ratio(*_MAY_SLEEP))
    certain = call.known(_find_certain(share, io, phases, idle, scene))
    spot = _spot_of_call(phases, share)
    share = starvation.cap_share(share, min(certain, idle) if is_known(idle) else certain)
    time, needs, where = f"{100 * share.ratio:.0f} % of", {Need.BLOCKING_CALL}, ""
    does = _say_sleep(rank, share, io)
    call.add(Figure.PYTHON_OUTSIDE, outside, share.low / LEAST_BLOCKED)
    call.add(Figure.MAIN_ASLEEP, _find_sleep(main))
    call.add(Figure.MAIN_IN_IO, main.io)
    if is_known(spot):
        where = f": {spot.where}"
        call.shown += starvation.name_spot(spot, scene)
        if spot.phase is Phase.LOGGING:
            needs.add(Need.LOGGING_IN_STACK)
    summary = f"the loop {does} {time} its time in a call of its own{where}"
    if is_known(spot) and spot.is_loop:
        needs = {Need.EVENT_LOOP_WAIT}
        summary = f"the event loop has nothing to run {time} the time: all of its tasks await something"
    return call.suspect(Kind.PYTHON_BOUND, "blocking-call", share, summary, *needs, process=rank.process)


@proves("a pace on purpose")
def judge_pace(pace: Proof, scene: Scene) -> Answer:
    """Suspect, in the good sense, a clock: the loop sleeps at one line, and nothing works meanwhile."""
    pace.clear(len(scene.ranks) != 1, "there is not one rank alone")
    rank = scene.ranks[0]
    phases = pace.known(rank.phases)
    pace.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    spot = _find_clock(rank, scene)
    if spot is None:
        return Cleared(f"{pace.what} (no plain sleep at one line)")
    asleep = 1 - known_or(map_known(lambda main: main.running, rank.main), 0.0)
    pace.add(Figure.MAIN_ASLEEP, asleep, spot.ratio / HELD_RATIO)
    pace.evidence += starvation.name_spot(spot, scene)
    sleeps = f"the loop sleeps {say_ratio(asleep)} of its time, at {spot.where}"
    words = f"a clock sets the pace: {sleeps}, and nothing of the job works or waits meanwhile"
    return pace.suspect(Kind.BALANCED, NOT_APPLICABLE, 0.0, words, process=rank.process)


RULES: tuple[Rule, ...] = (
    judge_gil,
    judge_single_thread,
    judge_small_operators,
    judge_own_loader,
    judge_blocking_call,
    judge_pace,
)
