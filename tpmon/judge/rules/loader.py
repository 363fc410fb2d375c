"""Causes that the workers of a loader show: what they compute, how many they are, how they die."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Suspicion
from tpmon.judge.features import cpu, starvation, workers
from tpmon.judge.features.data_wait import measure_share
from tpmon.judge.features.ends import list_ends
from tpmon.judge.features.engine import Proof, given, proves, reaches, tells
from tpmon.judge.features.snapshot import Rule, Scene, ran_of
from tpmon.judge.features.starvation import MOST, Starved, need_late_batches, part_of, starves, suspect_loader
from tpmon.judge.features.workers import LockSign, WorkerState, find_lock, name_hot_work, name_state
from tpmon.judge.stacks.phases import DataPart
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import is_known, known_or, map_known, sum_known
from tpmon.model.process import ProcessEnd, Role
from tpmon.model.units import say_ratio
from tpmon.model.verdict import IN_WORDS, Kind

# What each number decides, and where it comes from: docs/thresholds.toml.
AGAIN, LEAST_WEIGHT, TOO_FEW_IDLE, WAITS_IN_VAIN = 2, 0.3, 0.3, 0.5
SLOW_IDLE_HIGH, LEAST_LOOKS, OTHERS_IDLE, RESTING, UNFED_RAN, BACKLOG = 0.35, 5, 0.5, 0.9, 0.001, 0.5
GENERATIONS, YOUNG_S, LONG_LIFE_S, LATE_LIFE, STEADY_READINGS, STEADY_WAIT = 2, 30.0, 6.0, 0.6, 5, 0.7


def list_kills(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return the workers of the history that a signal ended, and when (CLOCK_MONOTONIC ns), oldest first."""
    # By SIGTERM a rank ends its own workers.
    return [
        (taken_ns, end)
        for taken_ns, end in list_ends(scene.history)
        if end.role is Role.WORKER and is_known(end.signal) and end.signal != "SIGTERM"
    ]


@proves("killed workers")
def judge_killed_workers(killed: Proof, scene: Scene) -> Suspicion:
    """Suspect what kills the workers when a signal has ended some of them more than once in a minute."""
    kills = list_kills(scene)
    killed.clear(not kills, "none in the last minute")
    times = len({taken_ns for taken_ns, _ in kills})
    killed.clear(times < AGAIN, "it was once")  # an accident, which an event shows
    signals = Counter(end.signal for _, end in kills if is_known(end.signal))
    told = ", ".join(f"{count} by {name}" for name, count in signals.most_common())
    found, last = starvation.find_starved(scene), kills[-1][1]
    killed.add(Figure.WORKERS_KILLED, float(len(kills)), times / AGAIN * 1.25)
    name = f"worker {last.worker}" if is_known(last.worker) else "a worker"
    killed.add(Figure.LAST_KILLED, IN_WORDS, text=f"{name} ({last.pid}): {last.how}")
    return killed.suspect(
        Kind.DATA_BOUND,
        "killed-workers",
        # Each death ends an epoch, or the run, even where no wait shows the cost.
        max(LEAST_WEIGHT, found.share.ratio if isinstance(found, Starved) else 0.0),
        f"workers are killed again and again: {told} in the last minute",
        Need.WORKER_DIED,
        pid=last.pid,
        rank=last.rank,
    )


def _say_free(found: Starved, _: Scene) -> str:
    return cpu.say_free(found.cores_free, found.cores_had)


def _collates_not(found: Starved, scene: Scene) -> bool:
    return not workers.is_most(workers.find_collate_share(found, scene))


judge_cpu_transform = starves(
    "cpu-transform",
    "transforms in the workers",
    given(
        lambda found, _: not found.rank.has_workers or name_state(found) is not WorkerState.UNREAD,
        "what they do was not read",
        is_doubt=True,
    ),
    given(lambda found, _: bool(found.workers), "there are none"),
    reaches(Figure.WORKER_WANTS, lambda found, _: found.demand, workers.BUSY_WORKER),
    given(
        lambda found, _: name_state(found) is WorkerState.COMPUTE,
        lambda found, _: f"they {name_state(found).value}",
    ),
    given(_collates_not, "most of their time goes into collate"),
    given(lambda found, _: known_or(found.cores_free, 0.0) < cpu.FREE_CORES, _say_free),
    tells(Figure.CPUS_FREE, lambda found, _: found.cores_free, decides=False),
    about=need_late_batches,
    says=lambda found, _: (
        f"its workers compute all the time{' and the CPUs are used up' if is_known(found.cores_free) else ''}"
    ),
    proves=(Need.WORKERS_CPU_BOUND,),
    shows=(name_hot_work,),
)


def _wait_in_vain(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers wait for CPUs that others leave: something keeps them off these."""
    if known_or(cpu.are_others_waited_for(scene), True):
        return False
    wanted, waited = (
        sum_known(one.demand for one in found.workers),
        sum_known(one.waiting for one in found.workers),
    )
    return wanted > 0 and waited >= WAITS_IN_VAIN * wanted


def _say_too_few(found: Starved, scene: Scene) -> str:
    """Say that the workers always have work, and what they do beside computing."""
    count = len(found.workers)
    words = f"its {count} workers always have work" if count > 1 else "its one worker always has work"
    plural, whose = ("", "their") if count > 1 else ("s", "its")
    if find_lock(scene).sign is LockSign.OWN:
        words += f" and wait{plural} for threads of {whose} own"
    elif name_state(found) is WorkerState.OTHER_WAIT:
        words += f" and sleep{plural}, in no read"
    if count < len(found.rank.workers):
        words = f"of the loader in use, {words}"
    return f"{words}, {_say_free(found, scene)}"


def _is_crowded(found: Starved, scene: Scene) -> bool:
    """Tell whether more workers may not help: others have CPUs, or the one worker waits for a lock."""
    few = known_or(cpu.find_cores_free(scene), 0.0) < cpu.FREE_CORES
    lock = find_lock(scene)
    alone = len(found.workers) == 1 and lock.ratio >= lock.least  # of another rank's worker
    return few or alone or cpu.are_taken(found.cores_free, found.cores_had)


_STATES = (WorkerState.COMPUTE, WorkerState.OTHER_WAIT)
judge_too_few_workers = starves(
    "too-few-workers",
    "too few workers",
    given(lambda found, _: name_state(found) is not WorkerState.IDLE, "they have no work"),
    given(
        lambda found, _: name_state(found) in _STATES, lambda found, _: name_state(found).value, is_doubt=True
    ),
    given(
        lambda found, _: known_or(found.idle, 0.0) < TOO_FEW_IDLE,
        lambda found, _: f"they have no work {say_ratio(known_or(found.idle, 0.0))} of the time",
        is_doubt=True,
    ),
    given(lambda found, _: map_known(lambda free: free >= cpu.FREE_CORES, found.cores_free), _say_free),
    tells(
        Figure.CPUS_FREE,
        lambda found, _: found.cores_had,
        margin=lambda found, scene: min(
            known_or(found.cores_free, 0.0) / cpu.FREE_CORES,
            cpu.CROWDED_MARGIN if _is_crowded(found, scene) else math.inf,
        ),
    ),
    given(
        lambda found, scene: not _wait_in_vain(found, scene),
        "they wait for CPUs that nobody uses: are they bound to a few?",
        is_doubt=True,
    ),
    given(lambda _, scene: not find_lock(scene).is_lock, "they wait for a lock"),
    given(
        lambda _, scene: find_lock(scene).sign not in (LockSign.OPEN, LockSign.HANDS),
        lambda _, scene: f"they wait {find_lock(scene).sign.value}",
        is_doubt=True,
    ),
    given(_collates_not, "most of their time goes into collate"),
    about=need_late_batches,
    says=_say_too_few,
    proves=lambda found, _: (
        Need.WORKERS_CPU_BOUND if name_state(found) is WorkerState.COMPUTE else Need.WORKERS_ASLEEP,
    ),
    shows=(name_hot_work,),
)


def _say_lock(found: Starved, lock: workers.LockWait) -> str:
    """Say how long the workers wait for a lock, and for whose threads it may be as well."""
    count, pct = len(found.workers), f"{100 * lock.ratio:.0f} %"
    if count == 1:
        return f"its one worker waits {pct} of its time for a lock of another process"
    maybe = ", or for threads of their own" if lock.sign is LockSign.OPEN else ""
    return f"its {count} workers wait {pct} of their time for a lock{maybe}"


_BESIDE_LOCKS = {WorkerState.READ: "read", WorkerState.OTHER_WAIT: "sleep, in no lock"}
_locks_itself = starves(
    "worker-lock",
    "a lock that the workers share",
    reaches(Figure.STACKS_AT_LOCK, workers.find_lock_share, MOST),
    says="its main thread waits for a lock that it shares with other processes, there are no workers",
    proves=(Need.WORKERS_IN_LOCK,),
    shows=(starvation.name_hot_load,),
)


@proves("a lock that the workers share")
def judge_worker_lock(shared: Proof, scene: Scene) -> Answer:
    """Suspect a lock when the workers have work, hardly compute, and most of them wait for one."""
    if not starvation.need_starved(scene).rank.has_workers:
        return _locks_itself(scene)
    found = need_late_batches(scene)
    lock, load = find_lock(scene), name_state(found)
    if not lock.is_lock and lock.sign is not LockSign.OPEN:
        shared.doubt(load is WorkerState.UNREAD and len(found.workers) > 1, "what they wait for was not read")
        shared.clear(lock.sign in (LockSign.OWN, LockSign.HANDS), f"they wait {lock.sign.value}")
        shared.clear(len(found.workers) < 2, "there are not two of them")
        shared.clear(True, f"they {_BESIDE_LOCKS.get(load, load.value)}")
    if lock.ratio > lock.in_stacks:  # else the stacks alone tell
        shared.add(Figure.WORKERS_IN_LOCK, lock.ratio)
    if lock.in_stacks:
        shared.add(Figure.STACKS_AT_LOCK, lock.in_stacks)
    shared.margin = lock.ratio / lock.least
    shared.shown += name_hot_work(found, scene)
    need, why = Need.WORKERS_IN_LOCK if lock.is_lock else Need.WORKERS_IN_FUTEX, _say_lock(found, lock)
    told = suspect_loader(found, shared, "worker-lock", why, observed=(need,))
    if lock.is_lock:
        return told
    # However many agree that they are waited for, only one kernel reading tells for what.
    return replace(told, origins=frozenset((Origin.PROC,)), margin=min(told.margin, 1.0))


def _is_never_idle(looks: workers.WorkerLooks) -> bool:
    """Tell whether a worker never waits for work; an empty queue of its own may be its last request."""
    if looks.looks < LEAST_LOOKS:
        return False
    alone = measure_share(looks.idle / looks.looks, looks.looks)
    both = looks.looks + looks.queue_looks
    idle = looks.idle + looks.queue_looks - looks.backlogs
    return min(alone.high, measure_share(idle / both, both).high) <= SLOW_IDLE_HIGH


def _need_looks(proof: Proof, found: Starved) -> tuple[workers.WorkerLooks, ...]:
    looks = workers.look_at_workers(found, proof.scene)
    proof.doubt(not all(is_known(one.idle_ratio) for one in looks), "what the workers wait for was not read")
    return looks


@proves("one slow worker")
def judge_one_slow_worker(one_slow: Proof, scene: Scene) -> Answer:
    """Suspect one worker when it always has work, the others mostly none, and all wait for its batch."""
    found = need_late_batches(scene)
    one_slow.clear(len(found.workers) < 2, "there are not two to compare")
    looks = _need_looks(one_slow, found)
    busy = [one for one in looks if one.worker.stopped or _is_never_idle(one)]
    one_slow.clear(len(busy) != 1, "no single one is behind the others")
    slow, stopped = busy[0], busy[0].worker.stopped
    rest = [one for one in looks if one is not slow]
    others = min(known_or(one.idle_ratio, 0.0) for one in rest)
    by_queue = slow.queue_looks and slow.backlog_ratio >= BACKLOG > max(one.backlog_ratio for one in rest)
    number, pid = slow.worker.number, slow.worker.pid
    name = f"worker {number}" if is_known(number) else f"the worker with pid {pid}"
    one_slow.add(Figure.WORKER_IDLE, known_or(slow.idle_ratio, 0.0), of=name)
    one_slow.at_least(Figure.OTHERS_IDLE, others, OTHERS_IDLE, sure=1.25)
    if by_queue:
        one_slow.add(Figure.WORKER_BACKLOG, slow.backlog_ratio, of=name)
    words = f"{name} is stopped" if stopped else f"all wait for {name}, the others have no work"
    needs = (Need.ONE_WORKER_SLOW, Need.STOPPED) if stopped else (Need.ONE_WORKER_SLOW,)
    return suspect_loader(found, one_slow, "one-slow-worker", words, observed=needs, pid=pid)


def _count_gone(found: Starved, scene: Scene) -> int:
    """Return how many workers of the loader in use have ended while it goes on: over the whole span."""
    loader = found.rank.loader
    if loader is None or any(worker.age_s < LONG_LIFE_S for worker in found.workers):
        return 0
    of_it = (found.rank.process.pid, loader.loader)
    seen = [one for frame in scene.frames for one in frame.loader if (one.pid, one.loader) == of_it]
    return max(0, min((one.made - one.workers for one in seen if is_known(one.made)), default=0))


def _list_ran(pids: Collection[int], scene: Scene) -> list[float]:
    """Return the CPU time of these processes in each of the last seconds, in threads."""
    since_ns = scene.frame.taken_ns - int(workers.RECENT_S * 1e9)
    frames = (frame for frame in scene.history if frame.taken_ns >= since_ns)
    took = [ran_of(process) for frame in frames for process in frame.processes if process.pid in pids]
    return [one for one in took if is_known(one)]


def _is_fed_by_one(found: Starved, others: Collection[int], scene: Scene) -> bool:
    """Tell whether the rank gets on in each second while the workers but one make no batch in any."""
    rank, rest = _list_ran((found.rank.process.pid,), scene), _list_ran(others, scene)
    return len(rank) >= LEAST_LOOKS and min(rank) >= UNFED_RAN > max(rest, default=math.inf)


@proves("workers without data")
def judge_uneven_workers(unfed: Proof, scene: Scene) -> Answer:
    """Suspect that only some workers have data: the others have ended, or each of them has no work at all."""
    found = need_late_batches(scene)
    gone, alive = _count_gone(found, scene), len(found.workers)
    if gone and name_state(found) is not WorkerState.IDLE:
        fed, count, words = alive, alive + gone, "data, the others have ended without an error"
        # The index queues that a rank holds tell how many workers it has made.
        unfed.add(Figure.WORKERS_FED, float(fed), of=count, origins=(Origin.PROC, Origin.PIPES))
    else:
        looks = _need_looks(unfed, found)
        rest = [one for one in looks if one.worker.stopped or not _is_never_idle(one)]
        fed, count, words = len(looks) - len(rest), len(looks), "work"
        unfed.clear(not fed or not rest, "all of them have work, or none")
        unfed.add(Figure.WORKERS_FED, float(fed), of=count)
        idle = min(known_or(one.idle_ratio, 0.0) for one in rest)
        unfed.at_least(Figure.OTHERS_IDLE, idle, RESTING, sure=1.25)
        turns = fed == 1 and not _is_fed_by_one(found, [one.worker.pid for one in rest], scene)
        unfed.clear(turns, "the others have work at times")
        told = found.rank.loader is not None and is_known(found.rank.loader.ready_bytes)
        unfed.doubt(not told, "whether all are of one loader was not read")
    words = f"{'has' if fed == 1 else 'have'} {words}, as with fewer shards than workers"
    why = f"only {fed} of its {count} workers {words}"
    return suspect_loader(found, unfed, "uneven-workers", why, observed=(Need.FEW_WORKERS_FED,))


def _waits_for_old_workers(found: Starved, scene: Scene) -> bool:
    """Tell whether the rank waits just as much late in the life of its workers."""
    waits, youngest = dict(starvation.see_waits(found.rank, scene)), {}
    for frame in scene.history:
        ages = [
            (frame.taken - process.started).total_seconds()
            for process in frame.processes
            if process.rank_pid == found.rank.process.pid and process.role is Role.WORKER
        ]
        if ages and frame.taken_ns in waits:
            youngest[frame.taken_ns] = min(ages)
    longest_s = max(youngest.values(), default=0.0)
    steady = [waits[taken_ns] for taken_ns, age_s in youngest.items() if age_s > LATE_LIFE * longest_s]
    if longest_s < LONG_LIFE_S or len(steady) < STEADY_READINGS:
        return False
    return statistics.fmean(steady) >= STEADY_WAIT * found.wait.share.ratio


@proves("restarts of workers")
def judge_respawn(restarts: Proof, scene: Scene) -> Answer:
    """Suspect the start of workers when they are born again and again while their rank waits."""
    found = need_late_batches(scene, DataPart.START)
    restarts.clear(not found.rank.has_workers, "there are none")
    killed = {end.rank for _, end in list_kills(scene) if is_known(end.rank)}
    restarts.clear(found.rank.process.rank in killed, "a signal ended some: that is why")
    pid, births = found.rank.process.pid, found.rank.births
    counts = [loader.workers for frame in scene.frames for loader in frame.loader if loader.pid == pid]
    generations = births / max((*counts, 1))
    oldest = max((worker.age_s for worker in found.workers), default=0.0)
    # Where each is slow to start, few are born in a minute.
    most = max((loader.workers for frame in scene.history for loader in frame.loader), default=0)
    again = starvation.find_main_part(found) is DataPart.START and births > most
    restarts.clear(generations < GENERATIONS and not again, f"{births} in the last minute")
    restarts.clear(oldest > YOUNG_S and not again, f"one is {oldest:.0f} s old")
    goes_on = not again and _waits_for_old_workers(found, scene)
    restarts.clear(goes_on, f"{births} in a minute, but it waits between them as well")
    start = part_of(found, DataPart.START)
    part = part_of(found, DataPart.START, DataPart.QUEUE)
    restarts.clear(part.samples > 0 and part.low < starvation.LEAST_WAIT, "hardly any wait is for new ones")
    restarts.add(Figure.WORKERS_BORN, float(births), max(1.0, generations / GENERATIONS) * 1.25)
    if start.low > 0:
        restarts.add(Figure.MAIN_STARTS_WORKERS, start.ratio)
    words = f"{births} workers were started in the last minute, new ones again and again"
    return suspect_loader(found, restarts, "respawn", words, part=part, observed=(Need.RESPAWN_SEEN,))


RULES: tuple[Rule, ...] = (
    judge_cpu_transform,
    judge_too_few_workers,
    judge_worker_lock,
    judge_one_slow_worker,
    judge_uneven_workers,
    judge_respawn,
)
