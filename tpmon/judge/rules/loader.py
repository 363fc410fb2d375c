"""Causes that the workers of a loader show: what they compute, how many they are, how they die."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Suspicion, by_conditions, reading
from tpmon.judge.features.cpu import CROWDED_MARGIN, FREE_CORES, are_taken, find_cores_free, say_free
from tpmon.judge.features.data_wait import measure_share
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.loader_figures import NO_SHARE
from tpmon.judge.features.snapshot import Rule, Scene, ran_of
from tpmon.judge.features.starvation import (
    LEAST_WAIT,
    Starved,
    find_main_part,
    find_starved,
    need_late_batches,
    part_of,
    see_waits,
    suspect_loader,
)
from tpmon.judge.features.workers import (
    BUSY_WORKER,
    RECENT_S,
    LockSign,
    LockWait,
    WorkerLooks,
    WorkerState,
    find_lock,
    is_collating,
    look_at_workers,
    name_hot_work,
    name_state,
    wait_in_vain,
)
from tpmon.judge.hang.ends import list_ends
from tpmon.judge.stacks.profile import DataPart
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import is_known, known_or
from tpmon.model.process import ProcessEnd, Role
from tpmon.model.units import format_pct
from tpmon.model.verdict import IN_WORDS, Kind

AGAIN = 2
"""Times within the history that workers must have been killed: once is an accident, shown as an event."""
LEAST_WEIGHT = 0.3
"""Weight where no wait of the rank shows the cost: each death ends an epoch, or the run."""
_POLITE = "SIGTERM"
"""How a rank ends its own workers."""


def list_kills(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return the workers of the history that a signal ended, and when (CLOCK_MONOTONIC ns), oldest first."""
    return [
        (taken_ns, end)
        for taken_ns, end in list_ends(scene)
        if end.role is Role.WORKER and is_known(end.signal) and end.signal != _POLITE
    ]


@by_conditions
def judge_killed_workers(scene: Scene) -> Answer:
    """Suspect what kills the workers when a signal has ended some of them more than once in a minute."""
    kills = list_kills(scene)
    Claim("killed workers").clear(not kills, "none in the last minute")
    times = len({taken_ns for taken_ns, _ in kills})
    Claim("workers killed again and again").clear(times < AGAIN, "it was once")
    signals = Counter(end.signal for _, end in kills if is_known(end.signal))
    told = ", ".join(f"{count} by {name}" for name, count in signals.most_common())
    found = find_starved(scene)
    share = found.share.ratio if isinstance(found, Starved) else 0.0
    last = kills[-1][1]
    name = f"worker {last.worker}" if is_known(last.worker) else "a worker"
    return Suspicion(
        kind=Kind.DATA_BOUND,
        cause="killed-workers",
        weight=max(LEAST_WEIGHT, share),
        margin=times / AGAIN * 1.25,
        summary=f"workers are killed again and again: {told} in the last minute",
        evidence=(
            reading(Figure.WORKERS_KILLED, float(len(kills)), scene.frame),
            reading(Figure.LAST_KILLED, IN_WORDS, scene.frame, text=f"{name} ({last.pid}): {last.how}"),
        ),
        observed=frozenset((Need.WORKER_DIED,)),
        pid=last.pid,
        rank=last.rank,
    )


TOO_FEW_IDLE = 0.3
"""Mean share of waiting for work above which more workers would wait, too."""
SLOW_IDLE_HIGH = 0.35
"""Upper end of the 95 % interval of idle readings below which a worker is never idle: 0 of 10."""
LEAST_LOOKS = 5
OTHERS_IDLE = 0.5
"""Idle share of the others while one is waited for: 96-98 % on an idle machine, less beside a neighbour."""
RESTING = 0.9
"""Share of waiting for work from which a worker has no data: 96-98 % on an idle machine."""
UNFED_RAN = 0.001
"""CPU time in each second, in threads, from which a rank gets on, and below which a worker makes no batch."""
BACKLOG = 0.5
GENERATIONS = 2
"""Generations of workers in a minute above which they restart all the time."""
LONG_LIFE_S = 6.0
"""Life of workers above which readings of a second tell their start; shorter ones are mostly restarts."""
LATE_LIFE = 0.6
"""Share of the longest life after which a worker's start is over."""
STEADY_READINGS = 5
STEADY_WAIT = 0.7
"""A wait that is this much of the whole late in the workers' life has another cause."""
YOUNG_S = 30.0
"""Age of a worker that shows the same while its rank waits."""


@by_conditions
def judge_cpu_transform(scene: Scene) -> Answer:
    """Suspect the transforms when the workers compute all the time and no core is left for more of them."""
    found, transforms = need_late_batches(scene), Proof("transforms in the workers", scene)
    load, free = name_state(found), known_or(found.cores_free, 0.0)
    transforms.doubt(load is WorkerState.UNREAD and found.rank.has_workers, "what they do was not read")
    transforms.clear(not found.workers, "there are none")
    transforms.at_least(Figure.WORKER_WANTS, found.demand, BUSY_WORKER)
    transforms.clear(load is not WorkerState.COMPUTE, f"they {load.value}")
    transforms.clear(is_collating(found, scene), "most of their time goes into collate")
    transforms.clear(free >= FREE_CORES, say_free(found.cores_free, found.cores_had))
    transforms.show(Figure.CPUS_FREE, found.cores_free)
    words = " and the CPUs are used up" if is_known(found.cores_free) else ""
    return suspect_loader(
        found,
        transforms,
        "cpu-transform",
        f"its workers compute all the time{words}",
        shows=name_hot_work(found, scene),
        observed=frozenset((Need.WORKERS_CPU_BOUND,)),
    )


def _say_too_few(found: Starved, lock: LockWait) -> str:
    """Say that the workers always have work, and what they do beside computing."""
    count = len(found.workers)
    words = f"its {count} workers always have work" if count > 1 else "its one worker always has work"
    plural, whose = ("", "their") if count > 1 else ("s", "its")
    if lock.sign is LockSign.OWN:
        words += f" and wait{plural} for threads of {whose} own"
    elif name_state(found) is WorkerState.OTHER_WAIT:
        words += f" and sleep{plural}, in no read"
    if count < len(found.rank.workers):
        words = f"of the loader in use, {words}"
    return f"{words}, {say_free(found.cores_free, found.cores_had)}"


@by_conditions
def judge_too_few_workers(scene: Scene) -> Answer:
    """Suspect the number of workers when each has work all the time and cores are free for more."""
    found, few = need_late_batches(scene), Proof("too few workers", scene)
    load = name_state(found)
    few.clear(load is WorkerState.IDLE, "they have no work")
    few.doubt(load not in (WorkerState.COMPUTE, WorkerState.OTHER_WAIT), load.value)
    idle = known_or(found.idle, 0.0)
    few.doubt(idle >= TOO_FEW_IDLE, f"they have no work {format_pct(100 * idle)} % of the time")
    free = few.known(found.cores_free, "free CPUs: ")
    few.clear(free < FREE_CORES, f"{free:.1f} CPUs are free")
    few.add(Figure.CPUS_FREE, found.cores_had, free / FREE_CORES)
    few.doubt(wait_in_vain(found, scene), "they wait for CPUs that nobody uses: are they bound to a few?")
    lock = find_lock(found, scene)
    few.clear(lock.is_lock, "they wait for a lock")
    few.doubt(lock.sign in (LockSign.OPEN, LockSign.HANDS), f"they wait {lock.sign.value}")
    few.clear(is_collating(found, scene), "most of their time goes into collate")
    by_demand = known_or(find_cores_free(scene), 0.0) >= FREE_CORES
    is_plain = by_demand and not are_taken(free, found.cores_had)
    is_plain = is_plain and not (len(found.workers) == 1 and lock.looks_so)  # of another rank's worker
    computes = load is WorkerState.COMPUTE
    return suspect_loader(
        found,
        few,
        "too-few-workers",
        _say_too_few(found, lock),
        margin=math.inf if is_plain else CROWDED_MARGIN,
        shows=name_hot_work(found, scene),
        observed=frozenset((Need.WORKERS_CPU_BOUND if computes else Need.WORKERS_ASLEEP,)),
    )


def _tell_lock(found: Starved, lock: LockWait) -> str:
    """Say how long the workers wait for a lock, and for whose threads it may be as well."""
    count = len(found.workers)
    if count == 1:
        return f"its one worker waits {100 * lock.ratio:.0f} % of its time for a lock of another process"
    what = f"wait {100 * lock.ratio:.0f} % of their time for a lock"
    return (
        f"its {count} workers {what}{', or for threads of their own' if lock.sign is LockSign.OPEN else ''}"
    )


@by_conditions
def judge_worker_lock(scene: Scene) -> Answer:
    """Suspect a lock when the workers have work, hardly compute, and most of them wait for one."""
    found, shared = need_late_batches(scene), Proof("a lock that the workers share", scene)
    lock = find_lock(found, scene)
    if not lock.is_lock and lock.sign is not LockSign.OPEN:
        load = name_state(found)
        shared.doubt(load is WorkerState.UNREAD and len(found.workers) > 1, "what they wait for was not read")
        shared.clear(lock.sign in (LockSign.OWN, LockSign.HANDS), f"they wait {lock.sign.value}")
        shared.clear(len(found.workers) < 2, "there are not two of them")
        return Cleared(f"{shared.what} (they {_STATE_WORDS[load]})")
    if lock.ratio > lock.in_stacks:  # else the stacks alone tell
        shared.add(Figure.WORKERS_IN_LOCK, lock.ratio)
    if lock.in_stacks:
        shared.add(Figure.STACKS_AT_LOCK, lock.in_stacks)
    needs = frozenset((Need.WORKERS_IN_LOCK if lock.is_lock else Need.WORKERS_IN_FUTEX,))
    words, hot, margin = _tell_lock(found, lock), name_hot_work(found, scene), lock.ratio / lock.least
    told = suspect_loader(found, shared, "worker-lock", words, margin=margin, shows=hot, observed=needs)
    if lock.is_lock:
        return told
    # However many agree that they are waited for, only one kernel reading tells for what.
    return replace(told, origins=frozenset((Origin.PROC,)), margin=min(told.margin, 1.0))


_STATE_WORDS = {
    WorkerState.COMPUTE: "compute",
    WorkerState.READ: "read",
    WorkerState.OTHER_WAIT: "sleep, in no lock",
    WorkerState.IDLE: "wait for work",
}


def _is_never_idle(looks: WorkerLooks) -> bool:
    """Tell whether a worker never waits for work; an empty queue of its own may be its last request."""
    if looks.looks < LEAST_LOOKS:
        return False
    alone = measure_share(looks.idle / looks.looks, looks.looks)
    both = looks.looks + looks.queue_looks
    idle = looks.idle + looks.queue_looks - looks.backlogs
    return min(alone.high, measure_share(idle / both, both).high) <= SLOW_IDLE_HIGH


def _find_slow(looks: tuple[WorkerLooks, ...]) -> WorkerLooks | None:
    never_idle = [one for one in looks if one.worker.stopped or _is_never_idle(one)]
    if len(never_idle) != 1:
        return None
    others = [known_or(one.idle_ratio, 0.0) for one in looks if one is not never_idle[0]]
    return never_idle[0] if others and min(others) >= OTHERS_IDLE else None


@by_conditions
def judge_one_slow_worker(scene: Scene) -> Answer:
    """Suspect one worker when it always has work, the others mostly none, and all wait for its batch."""
    found, one_slow = need_late_batches(scene), Proof("one slow worker", scene)
    one_slow.clear(len(found.workers) < 2, "there are not two to compare")
    looks = look_at_workers(found, scene)
    read = all(is_known(one.idle_ratio) for one in looks)
    one_slow.doubt(not read, "what the workers wait for was not read")
    slow = _find_slow(looks)
    if slow is None:
        return Cleared("one slow worker (no single one is behind the others)")
    rest = [one for one in looks if one is not slow]
    others = min(known_or(one.idle_ratio, 0.0) for one in rest)
    by_queue = slow.queue_looks and slow.backlog_ratio >= BACKLOG > max(one.backlog_ratio for one in rest)
    number = slow.worker.number
    name = f"worker {number}" if is_known(number) else f"the worker with pid {slow.worker.pid}"
    one_slow.add(Figure.WORKER_IDLE, known_or(slow.idle_ratio, 0.0), of=name)
    one_slow.at_least(Figure.OTHERS_IDLE, others, OTHERS_IDLE, sure=1.25)
    if by_queue:
        one_slow.add(Figure.WORKER_BACKLOG, slow.backlog_ratio, of=name)
    stopped = slow.worker.stopped
    words = f"{name} is stopped" if stopped else f"all wait for {name}, the others have no work"
    needs = frozenset((Need.ONE_WORKER_SLOW, Need.STOPPED) if stopped else (Need.ONE_WORKER_SLOW,))
    return suspect_loader(found, one_slow, "one-slow-worker", words, observed=needs, pid=slow.worker.pid)


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
    since_ns = scene.frame.taken_ns - int(RECENT_S * 1e9)
    took = [
        ran_of(process)
        for frame in scene.history
        if frame.taken_ns >= since_ns
        for process in frame.processes
        if process.pid in pids
    ]
    return [one for one in took if is_known(one)]


def _is_fed_by_one(found: Starved, others: Collection[int], scene: Scene) -> bool:
    """Tell whether the rank gets on in each second while the workers but one make no batch in any."""
    rank, rest = _list_ran((found.rank.process.pid,), scene), _list_ran(others, scene)
    return len(rank) >= LEAST_LOOKS and min(rank) >= UNFED_RAN > max(rest, default=math.inf)


_COUNTED = (Origin.PROC, Origin.PIPES)
"""The index queues that a rank holds tell how many workers it has made."""


def _suspect_uneven(found: Starved, unfed: Proof, fed: int, count: int, words: str) -> Answer:
    has = "has" if fed == 1 else "have"
    why = f"only {fed} of its {count} workers {has} {words}, as with fewer shards than workers"
    needs = frozenset((Need.FEW_WORKERS_FED,))
    return suspect_loader(found, unfed, "uneven-workers", why, observed=needs)


@by_conditions
def judge_uneven_workers(scene: Scene) -> Answer:
    """Suspect that only some workers have data: the others have ended, or each of them has no work at all."""
    found, unfed = need_late_batches(scene), Proof("workers without data", scene)
    gone, alive = _count_gone(found, scene), len(found.workers)
    if gone and name_state(found) is not WorkerState.IDLE:
        unfed.add(Figure.WORKERS_FED, float(alive), of=alive + gone, origins=_COUNTED)
        return _suspect_uneven(
            found, unfed, alive, alive + gone, "data, the others have ended without an error"
        )
    looks = look_at_workers(found, scene)
    read = all(is_known(one.idle_ratio) for one in looks)
    unfed.doubt(not read, "what the workers wait for was not read")
    fed = [not one.worker.stopped and _is_never_idle(one) for one in looks]
    rest = [known_or(one.idle_ratio, 0.0) for one, is_fed in zip(looks, fed, strict=True) if not is_fed]
    unfed.clear(not any(fed) or not rest, "all of them have work, or none")
    unfed.add(Figure.WORKERS_FED, float(sum(fed)), of=len(looks))
    unfed.at_least(Figure.OTHERS_IDLE, min(rest), RESTING, sure=1.25)
    others = [one.worker.pid for one, is_fed in zip(looks, fed, strict=True) if not is_fed]
    turns = sum(fed) == 1 and not _is_fed_by_one(found, others, scene)
    unfed.clear(turns, "the others have work at times")
    told = found.rank.loader is not None and is_known(found.rank.loader.ready_bytes)
    unfed.doubt(not told, "whether all are of one loader was not read")
    return _suspect_uneven(found, unfed, sum(fed), len(looks), "work")


def _waits_for_old_workers(found: Starved, scene: Scene) -> bool:
    """Tell whether the rank waits just as much late in the life of its workers."""
    pid = found.rank.process.pid
    waits = dict(see_waits(found.rank, scene))
    youngest = {}
    for frame in scene.history:
        ages = [
            (frame.taken - process.started).total_seconds()
            for process in frame.processes
            if process.rank_pid == pid and process.role is Role.WORKER
        ]
        if ages and frame.taken_ns in waits:
            youngest[frame.taken_ns] = min(ages)
    longest_s = max(youngest.values(), default=0.0)
    if longest_s < LONG_LIFE_S:
        return False
    late_s = LATE_LIFE * longest_s
    steady = [waits[taken_ns] for taken_ns, age_s in youngest.items() if age_s > late_s]
    return len(steady) >= STEADY_READINGS and statistics.fmean(steady) >= STEADY_WAIT * found.wait.share.ratio


@by_conditions
def judge_respawn(scene: Scene) -> Answer:
    """Suspect the start of workers when they are born again and again while their rank waits."""
    found, restarts = need_late_batches(scene, DataPart.START), Proof("restarts of workers", scene)
    restarts.clear(not found.rank.has_workers, "there are none")
    killed = {end.rank for _, end in list_kills(scene) if is_known(end.rank)}
    restarts.clear(found.rank.process.rank in killed, "a signal ended some: that is why")
    pid = found.rank.process.pid
    counts = [loader.workers for frame in scene.frames for loader in frame.loader if loader.pid == pid]
    births = found.rank.births
    generations = births / max((*counts, 1))
    oldest = max((worker.age_s for worker in found.workers), default=0.0)
    starts = (
        find_main_part(found) is DataPart.START
    )  # then each is slow to start, and few are born in a minute
    again = starts and births > max(loader.workers for frame in scene.history for loader in frame.loader)
    restarts.clear(generations < GENERATIONS and not again, f"{births} in the last minute")
    restarts.clear(oldest > YOUNG_S and not again, f"one is {oldest:.0f} s old")
    goes_on = not again and _waits_for_old_workers(found, scene)
    restarts.clear(goes_on, f"{births} in a minute, but it waits between them as well")
    start = part_of(found, DataPart.START) or NO_SHARE
    part = part_of(found, DataPart.START, DataPart.QUEUE)
    restarts.clear(part is not None and part.low < LEAST_WAIT, "hardly any wait is for new ones")
    restarts.add(Figure.WORKERS_BORN, float(births), max(1.0, generations / GENERATIONS) * 1.25)
    if start.low > 0:
        restarts.add(Figure.MAIN_STARTS_WORKERS, start.ratio)
    words = f"{births} workers were started in the last minute, new ones again and again"
    needs = frozenset((Need.RESPAWN_SEEN,))
    return suspect_loader(found, restarts, "respawn", words, part=part, observed=needs)


RULES: tuple[Rule, ...] = (
    judge_cpu_transform,
    judge_too_few_workers,
    judge_worker_lock,
    judge_one_slow_worker,
    judge_uneven_workers,
    judge_respawn,
)
