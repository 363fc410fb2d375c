"""Causes that the workers of a loader tell: what they compute, how many they are, how they die."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure, reading
from tpmon.judge.features.cpu import FREE_CORES, are_taken, find_cores_free, say_free
from tpmon.judge.features.data_wait import measure_share
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.features.starvation import Starved, find_starved, part_of, see_waits, suspect_loader
from tpmon.judge.features.workers import (
    BUSY_WORKER,
    Load,
    LockWait,
    Sign,
    WorkerLooks,
    find_lock,
    is_collating,
    look_at_workers,
    name_hot_work,
    name_load,
    wait_in_vain,
)
from tpmon.judge.hang.causes import list_ends
from tpmon.judge.rules.cpu import CROWDED_MARGIN, DELAY_RATIO, POOL_RATIO
from tpmon.judge.stacks.profile import DataPart
from tpmon.model.figures import Figure
from tpmon.model.known import is_known, known_or
from tpmon.model.process import ProcessEnd, Role
from tpmon.model.units import format_pct
from tpmon.model.verdict import IN_WORDS, Kind, Origin

AGAIN = 2
"""Times within the history that workers must have been killed: once is an accident that the event tells."""
LEAST_WEIGHT = 0.3
"""Weight where no wait of the rank says what it costs: each death ends an epoch, or the run."""
_POLITE = "SIGTERM"
"""How a rank ends its own workers."""


def list_kills(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return the workers of the history that a signal ended, and when (CLOCK_MONOTONIC ns), oldest first."""
    return [
        (taken_ns, end)
        for taken_ns, end in list_ends(scene)
        if end.role is Role.WORKER and is_known(end.signal) and end.signal != _POLITE
    ]


def judge_killed_workers(scene: Scene) -> Answer:
    """Suspect what kills the workers when a signal has ended some of them more than once in a minute."""
    kills = list_kills(scene)
    if not kills:
        return Cleared("killed workers (none in the last minute)")
    times = len({taken_ns for taken_ns, _ in kills})
    if times < AGAIN:
        return Cleared("workers killed again and again (it was once)")
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
        origins=frozenset((Origin.PROC,)),
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
"""Mean share of waiting for work from which more workers would wait as well."""
SLOW_IDLE_HIGH = 0.35
"""Upper end of the 95 % interval of idle readings below which a worker never waits for work: 0 of 10."""
LEAST_LOOKS = 5
OTHERS_IDLE = 0.5
"""The others have nothing to do while one is waited for: 96-98 % on an idle machine;
a neighbour on their CPUs lengthens the little that they do."""
RESTING = 0.9
"""Share of waiting for work from which a worker has no data: 96-98 % on an idle machine."""
BACKLOG = 0.5
GENERATIONS = 2
"""Generations of workers in a minute from which they are started anew all the time."""
LONG_LIFE_S = 6.0
"""Life of workers whose start can be told from the rest of it by readings of a second each; workers
that live shorter are restarts before all."""
LATE_LIFE = 0.6
"""Share of the longest life seen after which a worker is at work; its start is over by then."""
STEADY_READINGS = 5
STEADY_WAIT = 0.7
"""A wait that is this much of the whole late in the life of the workers has another cause."""
YOUNG_S = 30.0
"""Age of a worker while its rank waits that says the same."""


def _pools_fight(found: Starved, scene: Scene) -> bool:
    pool, delay = scene.pool_ratio, scene.delay_ratio
    fights = is_known(pool) and pool >= POOL_RATIO and is_known(delay) and delay >= DELAY_RATIO
    return fights and any(is_known(one.busy_threads) and one.busy_threads >= 2 for one in found.workers)


def _demand_text(found: Starved) -> str:
    if not found.workers:
        return "there are none"
    each = f"{found.demand:.1f} CPUs each" if is_known(found.demand) else "their CPU time was not read"
    return f"{len(found.workers)} worker{'' if len(found.workers) == 1 else 's'}, {each}"


def judge_cpu_transform(scene: Scene) -> Answer:
    """Suspect the transforms when the workers compute all the time and no core is left for more of them."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    load = name_load(found)
    if load is Load.UNREAD and found.rank.has_workers:
        return Unsure("transforms in the workers (what they do was not read)")
    if load is not Load.COMPUTE:
        return Cleared(f"transforms in the workers ({_demand_text(found)})")
    if is_collating(found, scene):
        return Cleared("transforms in the workers (most of their time goes into collate)")
    if _pools_fight(found, scene):
        return Cleared("transforms in the workers (their thread pools fight for the CPUs)")
    if is_known(found.cores_free) and found.cores_free >= FREE_CORES:
        return Cleared(f"transforms beyond the CPUs ({say_free(found.cores_free, found.cores_had)})")
    return suspect_loader(
        found,
        scene,
        "cpu-transform",
        "its workers compute all the time"
        + (" and the CPUs are used up" if is_known(found.cores_free) else ""),
        margin=known_or(found.demand, 0.0) / BUSY_WORKER,
        origins=frozenset((Origin.PROC,)),
        evidence=(reading(Figure.CPUS_FREE, found.cores_free, scene.frame), *name_hot_work(found, scene)),
        observed=frozenset((Need.WORKERS_CPU_BOUND,)),
    )


def judge_too_few_workers(scene: Scene) -> Answer:
    """Suspect the number of workers when each has work all the time and cores are free for more."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    load = name_load(found)
    if load not in (Load.COMPUTE, Load.OTHER_WAIT):
        return Cleared("too few workers") if load is Load.IDLE else Unsure(f"too few workers ({load.value})")
    if is_known(found.idle) and found.idle >= TOO_FEW_IDLE:
        return Unsure(f"too few workers (they have no work {format_pct(100 * found.idle)} % of the time)")
    if not is_known(found.cores_free):
        return Unsure(f"too few workers (free CPUs: {found.cores_free.reason})")
    if found.cores_free < FREE_CORES:
        return Cleared(f"too few workers ({found.cores_free:.1f} CPUs are free)")
    if wait_in_vain(found, scene):
        return Unsure("too few workers (they wait for CPUs that nobody uses: are they bound to a few?)")
    lock = find_lock(found, scene)
    if lock.is_lock:
        return Cleared("too few workers (they wait for a lock)")
    if lock.sign in (Sign.OPEN, Sign.HANDS):
        return Unsure(f"too few workers (they wait {lock.sign.value})")
    if is_collating(found, scene):
        return Cleared("too few workers (most of their time goes into collate)")
    if _pools_fight(found, scene):
        return Cleared("too few workers (their thread pools fight for the CPUs)")
    count = len(found.workers)
    by_demand = known_or(find_cores_free(scene), 0.0) >= FREE_CORES
    is_plain = by_demand and not are_taken(found.cores_free, found.cores_had)
    is_plain = is_plain and not (count == 1 and lock.looks_so)  # another rank's worker may have the lock
    words = f"its {count} workers always have work" if count > 1 else "its one worker always has work"
    if lock.sign is Sign.OWN:
        words += " and wait for threads of their own," if count > 1 else " and waits for threads of its own,"
    elif load is Load.OTHER_WAIT:
        words += " and sleep, in no read," if count > 1 else " and sleeps, in no read,"
    if count < len(found.rank.workers):
        words = f"of the loader in use, {words}"
    return suspect_loader(
        found,
        scene,
        "too-few-workers",
        f"{words.removesuffix(',')}, {say_free(found.cores_free, found.cores_had)}",
        margin=min(found.cores_free / FREE_CORES, math.inf if is_plain else CROWDED_MARGIN),
        origins=frozenset((Origin.PROC,)),
        evidence=(reading(Figure.CPUS_FREE, found.cores_had, scene.frame), *name_hot_work(found, scene)),
        observed=frozenset((Need.WORKERS_CPU_BOUND if load is Load.COMPUTE else Need.WORKERS_ASLEEP,)),
    )


def _tell_lock(found: Starved, lock: LockWait) -> str:
    """Say how long the workers wait for a lock, and for whose threads it may be as well."""
    count = len(found.workers)
    if count == 1:
        return f"its one worker waits {100 * lock.ratio:.0f} % of its time for a lock of another process"
    what = f"wait {100 * lock.ratio:.0f} % of their time for a lock"
    return f"its {count} workers {what}{', or for threads of their own' if lock.sign is Sign.OPEN else ''}"


def judge_worker_lock(scene: Scene) -> Answer:
    """Suspect a lock when the workers have work, hardly compute, and most of them wait for one."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    lock = find_lock(found, scene)
    if not lock.is_lock and lock.sign is not Sign.OPEN:
        load = name_load(found)
        if load is Load.UNREAD and len(found.workers) > 1:
            return Unsure("a lock that the workers share (what they wait for was not read)")
        if lock.sign in (Sign.OWN, Sign.HANDS):
            return Cleared(f"a lock that the workers share (they wait {lock.sign.value})")
        if len(found.workers) < 2:
            return Cleared("a lock that the workers share (there are not two of them)")
        return Cleared(f"a lock that the workers share (they {_LOAD_WORDS[load]})")
    stacks = (reading(Figure.STACKS_AT_LOCK, 100 * lock.in_stacks, scene.frame),)
    looks = (reading(Figure.WORKERS_IN_LOCK, 100 * lock.ratio, scene.frame),)
    told = suspect_loader(
        found,
        scene,
        "worker-lock",
        _tell_lock(found, lock),
        margin=lock.ratio / lock.least,
        origins=frozenset((Origin.PROC,)),
        evidence=(
            *(looks if lock.ratio > lock.in_stacks else ()),  # else the stacks alone tell
            *(stacks if lock.in_stacks else ()),
            *name_hot_work(found, scene),
        ),
        observed=frozenset((Need.WORKERS_IN_LOCK if lock.is_lock else Need.WORKERS_IN_FUTEX,)),
    )
    if lock.is_lock:
        return told
    # However many agree that they are waited for, one word of the kernel tells what they wait for.
    return replace(told, origins=frozenset((Origin.PROC,)), margin=min(told.margin, 1.0))


_LOAD_WORDS = {
    Load.COMPUTE: "compute",
    Load.READ: "read",
    Load.OTHER_WAIT: "sleep, in no lock",
    Load.IDLE: "wait for work",
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
    """Return the only worker that always has work while the others mostly have none."""
    never_idle = [one for one in looks if one.worker.stopped or _is_never_idle(one)]
    if len(never_idle) != 1:
        return None
    others = [known_or(one.idle_ratio, 0.0) for one in looks if one is not never_idle[0]]
    return never_idle[0] if others and min(others) >= OTHERS_IDLE else None


def judge_one_slow_worker(scene: Scene) -> Answer:
    """Suspect one worker when it always has work, the others mostly none, and all wait for its batch."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if len(found.workers) < 2:
        return Cleared("one slow worker (there are not two to compare)")
    looks = look_at_workers(found, scene)
    if not all(is_known(one.idle_ratio) for one in looks):
        return Unsure("one slow worker (what the workers wait for was not read)")
    slow = _find_slow(looks)
    if slow is None:
        return Cleared("one slow worker (no single one is behind the others)")
    others = min(known_or(one.idle_ratio, 0.0) for one in looks if one is not slow)
    backlog = max((one.backlog_ratio for one in looks if one is not slow), default=0.0)
    origins = {Origin.PROC}
    if slow.queue_looks and slow.backlog_ratio >= BACKLOG > backlog:
        origins.add(Origin.PIPES)
    number = slow.worker.number
    name = f"worker {number}" if is_known(number) else f"the worker with pid {slow.worker.pid}"
    needs = {Need.ONE_WORKER_SLOW}
    if slow.worker.stopped:
        needs.add(Need.STOPPED)
    return suspect_loader(
        found,
        scene,
        "one-slow-worker",
        f"{name} is stopped" if slow.worker.stopped else f"all wait for {name}, the others have no work",
        margin=others / OTHERS_IDLE * 1.25,
        origins=frozenset(origins),
        evidence=(
            reading(Figure.WORKER_IDLE, 100 * known_or(slow.idle_ratio, 0.0), scene.frame, of=name),
            reading(Figure.OTHERS_IDLE, 100 * others, scene.frame),
        ),
        observed=frozenset(needs),
        pid=slow.worker.pid,
    )


def judge_uneven_workers(scene: Scene) -> Answer:
    """Suspect that only some workers have data when those always have work, and each of the others none."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    looks = look_at_workers(found, scene)
    if not all(is_known(one.idle_ratio) for one in looks):
        return Unsure("workers without data (what the workers wait for was not read)")
    fed = [not one.worker.stopped and _is_never_idle(one) for one in looks]
    rest = [known_or(one.idle_ratio, 0.0) for one, is_fed in zip(looks, fed, strict=True) if not is_fed]
    if sum(fed) < 2 or not rest or min(rest) < RESTING:
        return Cleared("workers without data (no such part of them)")
    if found.rank.loader is None or not is_known(found.rank.loader.ready_bytes):
        return Unsure("workers without data (whether all are of one loader was not read)")
    return suspect_loader(
        found,
        scene,
        "uneven-workers",
        f"only {sum(fed)} of its {len(looks)} workers have work, as with fewer shards than workers",
        margin=min(rest) / RESTING * 1.25,
        origins=frozenset((Origin.PROC,)),
        evidence=(
            reading(Figure.WORKERS_FED, float(sum(fed)), scene.frame, of=len(looks)),
            reading(Figure.OTHERS_IDLE, 100 * min(rest), scene.frame),
        ),
        observed=frozenset((Need.FEW_WORKERS_FED,)),
    )


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


def judge_respawn(scene: Scene) -> Answer:
    """Suspect the start of workers when they are born again and again while their rank waits."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if not found.rank.has_workers:
        return Cleared("restarts of workers (there are none)")
    if any(is_known(end.rank) and end.rank == found.rank.process.rank for _, end in list_kills(scene)):
        return Cleared("restarts of workers (a signal ended some: that is why)")
    pid = found.rank.process.pid
    counts = [loader.workers for frame in scene.frames for loader in frame.loader if loader.pid == pid]
    generations = found.rank.births / max((*counts, 1))
    oldest = max((worker.age_s for worker in found.workers), default=0.0)
    if generations < GENERATIONS:
        return Cleared(f"restarts of workers ({found.rank.births} in the last minute)")
    if oldest > YOUNG_S:
        return Cleared(f"restarts of workers (one is {oldest:.0f} s old)")
    if _waits_for_old_workers(found, scene):
        return Cleared(f"restarts of workers ({found.rank.births} in a minute, but the wait goes on without)")
    origins = {Origin.PROC}
    start = part_of(found, DataPart.START)
    if start is not None and start.low > 0:
        origins.add(Origin.STACKS)
    return suspect_loader(
        found,
        scene,
        "respawn",
        f"{found.rank.births} workers were started in the last minute, new ones again and again",
        margin=generations / GENERATIONS * 1.25,
        origins=frozenset(origins),
        evidence=(reading(Figure.WORKERS_BORN, float(found.rank.births), scene.frame),),
        observed=frozenset((Need.RESPAWN_SEEN,)),
    )


RULES: tuple[Rule, ...] = (
    judge_cpu_transform,
    judge_too_few_workers,
    judge_worker_lock,
    judge_one_slow_worker,
    judge_uneven_workers,
    judge_respawn,
)
