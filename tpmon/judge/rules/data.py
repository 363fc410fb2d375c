"""Causes that the main thread of a starved rank tells: no workers, collate, pin, drain, waits in bursts."""

from __future__ import annotations

import math

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Unsure, reading
from tpmon.judge.features.data_wait import LEAST_READINGS, DataWait, measure_share
from tpmon.judge.features.series import CORRELATION, count_steps_between, find_period, round_steps, say_nth
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.starvation import (
    BUSY_PIN,
    IDLE_WORKERS,
    LEAST_WAIT,
    QUEUE_AGREES,
    Starvation,
    Starved,
    find_named_wait,
    find_pin_demand,
    find_starved,
    name_hot,
    part_of,
    see_all_waits,
    see_starved,
    see_waits,
    suspect_loader,
)
from tpmon.judge.features.workers import (
    COLLATE_SHARE,
    Load,
    find_collate_share,
    is_opening,
    look_at_workers,
    name_hot_work,
    name_load,
    name_opens,
    never_idle,
)
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.model.figures import Figure
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.units import format_pct
from tpmon.model.verdict import Origin
from tpmon.model.waits import READS

READS_ITSELF = 0.4
"""Share of the readings in such a wait from which a rank without workers reads its data itself."""
READS_OVER_WRITES = 4.0
"""Bytes read over written: a checkpoint writes."""

IDLE_AT_TIMES = 0.25
"""Share of idle readings of every worker, from which the loader is ahead at times: 0-8 % where it
is just too slow."""
IDLE_SURE = 0.1
ALWAYS_EMPTY = 0.95


def _reads_itself(rank: RankScene, scene: Scene) -> DataWait | None:
    """Tell a rank without workers that reads its files itself, where no stacks were seen."""
    if rank.has_workers or is_known(rank.data_wait):
        return None
    samples = [one for frame in scene.frames for one in frame.processes if one.pid == rank.process.pid]
    waits = [one.waits_for for one in samples if is_known(one.waits_for)]
    if len(waits) < LEAST_READINGS:
        return None
    share = measure_share(sum(wait.reason in READS for wait in waits) / len(waits), len(waits))
    last = samples[-1]
    read: list[Known[float]] = [last.asked_read_bytes_s, last.device_read_bytes_s]
    written: list[Known[float]] = [last.asked_write_bytes_s, last.device_write_bytes_s]
    reads = max((one for one in read if is_known(one)), default=0.0)
    writes = max((one for one in written if is_known(one)), default=math.inf)
    if share.ratio < READS_ITSELF or share.low < LEAST_WAIT or reads < READS_OVER_WRITES * writes:
        return None
    return DataWait(share, {}, frozenset((Origin.PROC,)), share.low)


def judge_no_workers(scene: Scene) -> Answer:
    """Suspect the lack of workers when the main thread itself fetches samples for much of its time."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        for rank in scene.ranks:
            wait = _reads_itself(rank, scene)
            starved = see_starved(rank, wait, scene) if wait is not None else None
            if isinstance(starved, Starved):
                return _suspect_no_workers(starved, scene, "it reads its files itself, there are no workers")
        return found
    if found.rank.has_workers:
        return Cleared("loading in the main thread (there are loader workers)")
    collate = part_of(found, DataPart.COLLATE)
    if collate is not None and collate.ratio >= COLLATE_SHARE * found.wait.share.ratio:
        return Cleared("loading in the main thread (most of it is collate)")
    copy = part_of(found, DataPart.COPY)
    if copy is not None and copy.ratio >= COLLATE_SHARE * found.wait.share.ratio:
        return Cleared("loading in the main thread (most of it is copying)")
    queue = part_of(found, DataPart.QUEUE)
    if queue is not None and queue.ratio >= COLLATE_SHARE * found.wait.share.ratio:
        return Unsure("what fills the queue that the main thread waits at (no loader worker does)")
    if find_named_wait(found.rank) >= COLLATE_SHARE * found.wait.share.ratio:
        return Cleared("loading in the main thread (it only waits for what others hand over)")
    return _suspect_no_workers(found, scene, "it loads its batches itself, there are no workers")


def _opens_files(found: Starved, scene: Scene) -> bool:
    """Tell whether a rank without workers waits for files to open, by its waits as well as by its stacks."""
    main = found.rank.main
    waits = is_known(main) and main.io >= QUEUE_AGREES * found.wait.share.ratio
    return waits and is_opening(scene)


def _suspect_no_workers(found: Starved, scene: Scene, why: str) -> Answer:
    opens = _opens_files(found, scene)
    return suspect_loader(
        found,
        scene,
        "no-workers",
        why,
        origins=frozenset((Origin.PROC,)),
        evidence=(
            reading(Figure.WORKERS, 0.0, scene.frame),
            *name_hot(found.rank.phases, Phase.DATA_WAIT, scene),
            *(name_opens(scene) if opens else ()),
        ),
        observed=frozenset((Need.NO_WORKERS, *((Need.WORKERS_IO_WAIT, Need.SMALL_READS) if opens else ()))),
    )


def judge_collate(scene: Scene) -> Answer:
    """Suspect collating when it takes half of the loading, in the main thread or in the workers."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if not found.rank.has_workers:
        part = part_of(found, DataPart.COLLATE)
        if Origin.STACKS not in found.wait.origins:
            return Unsure("collating (no stacks)")
        if part is None or part.ratio < COLLATE_SHARE * found.wait.share.ratio or part.low < LEAST_WAIT:
            return Cleared(f"collating ({100 * (part.ratio if part else 0):.0f} %)")
        return suspect_loader(
            found,
            scene,
            "collate",
            "it puts its batches together itself",
            part=part,
            margin=part.ratio / (COLLATE_SHARE * found.wait.share.ratio),
            evidence=(
                reading(Figure.MAIN_IN_COLLATE, 100 * part.ratio, scene.frame),
                *name_hot(found.rank.phases, Phase.DATA_WAIT, scene),
            ),
            observed=frozenset((Need.COLLATE_IN_STACK,)),
        )
    if name_load(found) is Load.IDLE:
        return Cleared("collating in the workers (they wait for work)")
    share = find_collate_share(found, scene)
    if not is_known(share):
        return Unsure(f"collating in the workers ({share.reason})")
    if share < COLLATE_SHARE:
        return Cleared(f"collating in the workers ({100 * share:.0f} % of their work)")
    return suspect_loader(
        found,
        scene,
        "collate",
        f"its workers spend {100 * share:.0f} % of their work on putting batches together",
        margin=share / COLLATE_SHARE,
        origins=frozenset((Origin.STACKS,)),
        evidence=(reading(Figure.WORKERS_IN_COLLATE, 100 * share, scene.frame), *name_hot_work(found, scene)),
        observed=frozenset((Need.COLLATE_IN_STACK,)),
    )


def judge_drain(scene: Scene) -> Answer:
    """Suspect the taking out of batches when the main thread copies or unpacks for half of its wait."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if Origin.STACKS not in found.wait.origins:
        return Unsure("unpacking of batches (no stacks)")
    part = part_of(found, DataPart.COPY)
    if part is None or part.low < LEAST_WAIT or part.ratio < COLLATE_SHARE * found.wait.share.ratio:
        return Cleared(f"unpacking of batches ({100 * (part.ratio if part else 0):.0f} %)")
    loader = found.rank.loader
    ready = loader is not None and is_known(loader.ready_batches) and loader.ready_batches > 0
    return suspect_loader(
        found,
        scene,
        "drain",
        "batches are ready, unpacking and copying them takes the time" if ready else "unpacking and copying",
        part=part,
        margin=part.ratio / (COLLATE_SHARE * found.wait.share.ratio),
        origins=frozenset((Origin.PIPES,)) if ready else frozenset(),
        evidence=(reading(Figure.MAIN_IN_COPIES, 100 * part.ratio, scene.frame),),
        observed=frozenset((Need.BATCHES_READY,)) if ready else frozenset(),
    )


def judge_pin(scene: Scene) -> Answer:
    """Suspect the pin-memory thread when it computes all the time while the workers have no work."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if found.rank.loader is None or not found.rank.loader.pin_thread:
        return Cleared("pin-memory thread (there is none)")
    demand = find_pin_demand(found.rank, scene)
    if not is_known(demand):
        return Unsure(f"pin-memory thread ({demand.reason})")
    if demand < BUSY_PIN:
        return Cleared(f"pin-memory thread (busy {100 * demand:.0f} %)")
    if not is_known(found.idle):
        return Unsure(f"pin-memory thread (its workers: {found.idle.reason})")
    if found.idle < IDLE_WORKERS:
        return Cleared(f"pin-memory thread (its workers are idle {format_pct(100 * found.idle)} % only)")
    return suspect_loader(
        found,
        scene,
        "pin",
        "its one pin-memory thread copies all the time, the workers have no work",
        margin=demand / BUSY_PIN * 1.25,
        origins=frozenset((Origin.PROC,)),
        evidence=(
            reading(Figure.PIN_THREAD_WANTS, demand, scene.frame),
            reading(Figure.WORKERS_IDLE, 100 * found.idle, scene.frame),
        ),
        observed=frozenset((Need.BATCHES_PINNED, Need.PIN_THREAD_BUSY)),
    )


def _idle_at_times(found: Starved, scene: Scene) -> Known[float]:
    """Return the idle share of the busiest worker, 0-1; Missing when it is not surely above a tenth.

    The late batches may all fall to one worker: then the others have none for most of the time, and it has
    none at times.
    """
    looks = look_at_workers(found, scene)
    shares = [measure_share(one.idle / one.looks, one.looks) for one in looks if one.looks]
    if not looks or len(shares) < len(looks):
        return Missing("what the workers wait for was not read")
    least = min(shares, key=lambda share: share.low)
    if least.low >= IDLE_SURE and least.ratio >= IDLE_AT_TIMES:
        return least.ratio
    count = sum(one.looks for one in looks)
    together = measure_share(sum(one.idle for one in looks) / count, count)
    if together.low >= IDLE_AT_TIMES and least.ratio >= IDLE_SURE:
        return least.ratio
    return Missing("a worker always has work")


def _starved_over_history(scene: Scene, answer: Starvation) -> Starvation:
    """Look at the whole Window: with a long period ten seconds may fall between two bursts."""
    seen = see_all_waits(scene)
    for rank in scene.ranks:
        waits = seen.get(rank.process.pid, []) if rank.has_workers else []
        if is_known(find_period(waits)):
            share = measure_share(sum(one for _, one in waits) / len(waits), len(waits))
            return see_starved(rank, DataWait(share, {}, frozenset((Origin.PROC,)), share.low), scene)
    return answer


def _queue_empty(found: Starved) -> Known[float]:
    """Return how often the queue was found empty; behind a pin thread it is always."""
    loader = found.rank.loader
    if loader is None:
        return Missing("its queue was not read")
    return Missing("a pin thread empties the queue") if loader.pin_thread else loader.empty_ratio


def judge_periodic(scene: Scene) -> Answer:
    """Suspect late batches now and then: the wait comes in bursts, and between them the loader is ahead."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        found = _starved_over_history(scene, found)
    if not isinstance(found, Starved):
        return found
    if not found.rank.has_workers:
        return Unsure("waits every few steps (seen only at the queue of workers)")
    waits = see_waits(found.rank, scene)
    period = find_period(waits)
    idle = _idle_at_times(found, scene)
    if is_known(period) and never_idle(found, scene):
        return Cleared("waits every few steps (the workers never have no work: the loader never keeps up)")
    if not is_known(period):
        if not is_known(idle):
            return Cleared(f"waits every few steps ({period.reason}, {idle.reason})")
        empty = _queue_empty(found)
        if not is_known(empty):
            return Unsure(f"waits every few steps ({empty.reason})")
        if empty >= ALWAYS_EMPTY:
            return Unsure("waits every few steps (the queue is always empty, and yet workers have no work)")
        if empty < QUEUE_AGREES * found.wait.share.ratio:
            return Cleared(f"waits every few steps (batches are ready {100 - 100 * empty:.0f} % of the time)")
    origins = set[Origin]()
    evidence = []
    if is_known(idle):
        origins.add(Origin.PROC)
        evidence.append(reading(Figure.EVERY_WORKER_IDLE, 100 * idle, scene.frame))
    if is_known(period):
        origins.add(Origin.PROC)
        evidence.append(reading(Figure.BETWEEN_BURSTS, period[0], scene.frame))
        steps = count_steps_between(scene, found.rank.process.pid, period[0])
        nth = ""
        if is_known(steps):
            reading_s = (waits[-1][0] - waits[0][0]) / 1e9 / (len(waits) - 1)
            nth = f", about every {say_nth(round_steps(steps, period[0], reading_s))} step"
            evidence.append(reading(Figure.STEPS_BETWEEN_BURSTS, steps, scene.frame))
        why = f"batches come late every {period[0]:.0f} s{nth}, between that the loader keeps up"
        margin = period[1] / CORRELATION * 1.25
    else:
        why = "batches come in bursts, closer than tpmon can time; on average the loader keeps up"
        margin = max(1.0, known_or(idle, 0.0) / IDLE_AT_TIMES)
    return suspect_loader(
        found,
        scene,
        "periodic",
        why,
        margin=margin,
        origins=frozenset(origins),
        evidence=tuple(evidence),
        observed=frozenset((Need.PERIODIC_SEEN,)),
    )


RULES: tuple[Rule, ...] = (judge_no_workers, judge_collate, judge_drain, judge_pin, judge_periodic)
