"""Find the rank that waits longest for its data, and the function in which the time goes. Pure.

A wait of the host matters only while the compute idles: the rank's card, or on CPUs the waiting thread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Cleared,
    EarlyAnswer,
    FigureReading,
    Suspicion,
    Unsure,
    reading,
    reading_aged,
)
from tpmon.judge.features.card_use import find_gpu_idle, may_starve
from tpmon.judge.features.cpu import FREE_CORES, find_cores_had, find_cores_spared
from tpmon.judge.features.data_wait import DataWait, is_behind
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import mean_known, median_known
from tpmon.judge.features.snapshot import RankScene, Scene, WorkerScene, demand_of, once
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, Share, Spot
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind


def see_pins(rank: RankScene) -> bool:
    """Tell whether a pin-memory thread stands between the rank and its workers."""
    return rank.loader is not None and rank.loader.pin_thread


@once
def see_all_waits(scene: Scene) -> dict[int, list[tuple[int, float]]]:
    """Return by rank PID the time of each Frame, and the share of its samples that found the wait."""
    pins = {rank.process.pid for rank in scene.ranks if see_pins(rank)}
    waits: dict[int, list[tuple[int, float]]] = {}
    for frame in scene.history:
        for one in known_or(frame.main_threads, ()):
            if one.looks:
                found = one.timed_lock if one.pid in pins else one.batch_wait
                waits.setdefault(one.pid, []).append((frame.taken_ns, found / one.looks))
    return waits


def see_waits(rank: RankScene, scene: Scene) -> list[tuple[int, float]]:
    """Return the same of one rank."""
    return see_all_waits(scene).get(rank.process.pid, [])


LEAST_WAIT = 0.10
"""Share of the time above which waiting is worth a verdict: 1.1x at best; other costs hide less."""
HIDDEN_IDLE = 0.10
"""A card that idles less than this hides the wait; a full launch queue reads 97-100 % busy."""
IDLE_WORKERS = 0.6
"""Mean share of waiting for work below which workers are too slow: 0-8 %; healthy runs have 96-98 %."""
QUEUE_AGREES = 0.5
"""While a rank waits its queue is empty: samples must find it so at least half as often."""
QUEUE_DISAGREES = 0.25
LEAST_QUEUE_LOOKS = 10
LOST_BATCH = 0.95
"""A rank and workers that all wait this much wait for each other: a hang, not a slow loader."""
MOST_NEEDED = 20.0
"""Largest ratio that is reported of batches that the compute could take over those made."""

BUSY_PIN = 0.8
"""Demand of the pin thread, in threads, above which it sets the pace; it is one thread only."""
ONSET_FRAMES = 10
"""A wait has begun when ten readings average half of what it is now; with fewer, each lull ends it."""


@dataclass(frozen=True, slots=True)
class Starved:
    """Hold the rank that waits longest, and what its wait costs.

    ``share`` is the time saved without the wait: at most as long as the card idles. Worker figures are means
    over its workers, Missing where too few were read.
    """

    rank: RankScene
    wait: DataWait
    share: Share
    gpu_idle: Applicable[float]
    idle: Known[float]
    demand: Known[float]
    blocked: Known[float]
    cores_free: Known[float]
    """Cores of the budget that the job leaves, or would leave without neighbours where that is known."""
    cores_had: Known[float]
    """Those that others leave, too."""

    @property
    def workers(self) -> tuple[WorkerScene, ...]:
        """Return the current workers of the loader that feeds the rank."""
        return self.rank.feeders


Starvation = Union[Starved, Cleared, Unsure]


def cap_share(share: Share, most: float) -> Share:
    """Limit a share, and its interval, to ``most``."""
    return Share(min(share.ratio, most), min(share.low, most), min(share.high, most), share.samples)


def _see(rank: RankScene, wait: DataWait, gpu_idle: Applicable[float], scene: Scene) -> Starved:
    workers = rank.feeders
    free = find_cores_spared(rank, scene)
    return Starved(
        rank=rank,
        wait=wait,
        share=cap_share(wait.share, gpu_idle) if is_known(gpu_idle) else wait.share,
        gpu_idle=gpu_idle,
        idle=mean_known((one.idle_ratio for one in workers), NO_WORKERS),
        demand=mean_known((one.demand for one in workers), NO_WORKERS),
        blocked=mean_known((one.blocked_ratio if one.waits else NOT_READ for one in workers), NO_WORKERS),
        cores_free=free,
        cores_had=find_cores_had(free, scene),
    )


NOT_READ = Missing("what the workers wait for was not read")
NO_WORKERS = Missing("no workers")


def _pct(share: Share) -> str:
    if share.low >= share.high:
        return f"{format_pct(100 * share.ratio)} %"
    return f"{format_pct(100 * share.ratio)} % ({100 * share.low:.0f} to {100 * share.high:.0f})"


def see_starved(rank: RankScene, wait: DataWait, scene: Scene) -> Starvation:
    """Say whether a rank loses time by this wait: it does not while its card is busy."""
    if wait.share.ratio < LEAST_WAIT and _may_be_handed(rank, wait):
        return Unsure("data wait (the loader is behind, and the main thread waits at a lock: for whom?)")
    if wait.share.ratio < LEAST_WAIT:
        return Cleared(f"data wait ({format_pct(100 * wait.share.ratio)} %)")
    if wait.share.low < LEAST_WAIT:
        return Unsure(f"data wait ({_pct(wait.share)}: too close to call)")
    idle = find_gpu_idle(rank, scene)
    if isinstance(idle, Missing) and not may_starve(rank, wait, scene):
        return Unsure(f"whether the data wait of {_pct(wait.share)} costs anything (GPU: {idle.reason})")
    if is_known(idle) and idle < HIDDEN_IDLE:
        return Cleared(
            f"data wait ({format_pct(100 * wait.share.ratio)} %, hidden: "
            f"the GPU is {100 * (1 - idle):.0f} % busy, so it costs 0)"
        )
    found = _see(rank, wait, idle, scene)
    if _waits_for_nothing(found):
        return Unsure("data wait (the rank waits for a batch and every worker for work: is a batch lost?)")
    if _is_any_lock(found, scene):
        return Cleared("data wait (the main thread waits in a lock, the workers have nothing to do)")
    return found


def _may_be_handed(rank: RankScene, wait: DataWait) -> bool:
    """Tell whether another thread may take the batches and hand them on, where no stack tells."""
    if wait.origins != {Origin.PROC} or not is_known(rank.main) or rank.main.lock < LEAST_WAIT:
        return False
    return is_behind(rank.loader, [worker.idle_ratio for worker in rank.feeders])


def _waits_for_nothing(found: Starved) -> bool:
    # Each worker, not their mean: one behind among 32 hardly lowers it. A batch being unpacked is not lost.
    return (
        bool(found.workers)
        and _queue_wait(found) >= LOST_BATCH
        and all(is_known(one.idle_ratio) and one.idle_ratio >= LOST_BATCH for one in found.workers)
    )


def find_pin_demand(found: Starved, scene: Scene) -> Known[float]:
    """Return the demand of the rank's pin-memory thread over the span, in threads."""
    return median_known(
        demand_of(process, (ThreadKind.PIN,))
        for frame in scene.frames
        for process in frame.processes
        if process.pid == found.rank.process.pid
    )


def _is_any_lock(found: Starved, scene: Scene) -> bool:
    """Tell whether the wait is a lock with a time-out that has nothing to do with a loader."""
    loader = found.rank.loader
    if loader is None or not loader.pin_thread or found.wait.origins != {Origin.PROC}:
        return False
    if known_or(find_pin_demand(found, scene), 0.0) >= BUSY_PIN:
        return False
    return not is_known(found.idle) or found.idle >= IDLE_WORKERS


@once
def find_starved(scene: Scene) -> Starvation:
    """Return the rank that loses most by waiting for data: one of many holds up all."""
    if not scene.ranks:
        return Unsure("data wait (no rank was read)")
    answers = [
        Unsure(f"data wait ({wait.reason})") if isinstance(wait, Missing) else see_starved(rank, wait, scene)
        for rank in scene.ranks
        for wait in (rank.data_wait,)
    ]
    starved = [one for one in answers if isinstance(one, Starved)]
    if starved:
        return max(starved, key=lambda one: one.share.low)
    unsure = next((one for one in answers if isinstance(one, Unsure)), None)
    return unsure if unsure is not None else answers[0]


def need_starved(scene: Scene) -> Starved:
    """Return the rank that loses most by waiting for data; if none does, that ends a rule by conditions."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        raise EarlyAnswer(found)
    return found


def _queue_wait(found: Starved) -> float:
    """Return the part of the wait, 0-1, that an empty queue explains: all of it where no stack tells."""
    if Origin.STACKS not in found.wait.origins or not found.wait.parts:
        return found.wait.share.ratio
    others = (part for part in DataPart if part is not DataPart.QUEUE)
    return max(0.0, found.wait.share.ratio - found.wait.part(*others))


def _list_agreeing(found: Starved) -> frozenset[Origin]:
    """Return the origins of the wait that see at least half of it."""
    least = QUEUE_AGREES * found.wait.share.ratio
    return frozenset(one for one in found.wait.origins if found.wait.told.get(one, 1.0) >= least)


def _against(found: Starved, scene: Scene) -> tuple[FigureReading, ...]:
    loader = found.rank.loader
    if loader is None or loader.pin_thread or not is_known(loader.empty_ratio):
        return ()
    if _queue_wait(found) < LEAST_WAIT:  # whatever is waited for, it is no batch
        return ()
    if loader.looks < LEAST_QUEUE_LOOKS or loader.empty_ratio >= QUEUE_DISAGREES * _queue_wait(found):
        return ()
    return (reading(Figure.QUEUE_EMPTY, 100 * loader.empty_ratio, scene.frame),)


def _unread(found: Starved) -> tuple[str, ...]:
    """Say that the workers' queue was not read: it may always have batches ready."""
    loader = found.rank.loader
    if loader is None:
        return ("whether batches are ready (no queue was read)",) if found.rank.has_workers else ()
    empty = loader.empty_ratio
    if loader.pin_thread or not isinstance(empty, Missing):
        return ()
    return (f"whether batches are ready ({empty.reason})",)


_NAMED = {Origin.HOOK: "the hook", Origin.PROC: "state of the main thread", Origin.STACKS: "stacks"}


def _is_exact(found: Starved) -> bool:
    return Origin.HOOK in found.wait.origins and found.wait.told.get(Origin.HOOK) == found.wait.share.ratio


def _source_words(found: Starved) -> str:
    if _is_exact(found):
        return f"the hook, {found.wait.share.samples} steps"
    words = " and ".join(words for source, words in _NAMED.items() if source in found.wait.origins)
    return f"{words}, {found.wait.share.samples} samples"


def _wait_age_s(found: Starved, scene: Scene) -> Known[float]:
    ages = scene.frame.ages_s
    if Origin.HOOK in found.wait.origins:
        return ages.hook
    return ages.stacks if Origin.STACKS in found.wait.origins else ages.threads


def _list_rows(found: Starved, scene: Scene) -> Iterator[tuple[bool, FigureReading]]:
    """List what is known of the wait, and whether it agrees that the rank starves."""
    share, queue = found.wait.share, _queue_wait(found)
    yield (
        True,
        reading_aged(
            Figure.DATA_WAIT,
            100 * share.ratio,
            _wait_age_s(found, scene),
            text=_pct(share),
            source=_source_words(found),
            origins=_list_agreeing(found),
        ),
    )
    loader, frame = found.rank.loader, scene.frame
    # A pin thread empties the pipe at once, so its emptiness says nothing.
    if loader is not None and is_known(loader.empty_ratio) and not loader.pin_thread:
        agrees = loader.empty_ratio >= QUEUE_AGREES * queue > 0
        yield agrees, reading(Figure.QUEUE_EMPTY, 100 * loader.empty_ratio, frame)
    if is_known(found.gpu_idle):
        agrees = found.gpu_idle >= QUEUE_AGREES * share.ratio
        yield agrees, reading(Figure.GPU_IDLE, 100 * found.gpu_idle, frame)
    if found.workers and is_known(found.demand):
        yield False, reading(Figure.WORKER_WANTS, found.demand, frame)
    if found.workers and is_known(found.idle):
        yield found.idle < IDLE_WORKERS, reading(Figure.WORKERS_IDLE, 100 * found.idle, frame)


def _who(found: Starved, scene: Scene) -> str:
    rank = found.rank.process.rank
    return f"rank {rank}" if len(scene.ranks) > 1 and is_known(rank) else "the loop"


def suspect_loader(
    found: Starved,
    proof: Proof,
    cause: str,
    why: str,
    *,
    shows: tuple[FigureReading, ...] = (),
    observed: frozenset[Need] = frozenset(),
    part: Share | None = None,
    margin: float = math.inf,
    pid: Applicable[int] = NOT_APPLICABLE,
) -> Suspicion:
    """Build the suspicion of one cause of a starved rank; ``why`` goes on "the loop waits 61 % …: ".

    What agrees on the wait is added to the proof, and shown where it does not. ``part`` is the share of this
    cause where it is not the whole wait. The wait's own margin counts with that of the proof.
    """
    scene, margin = proof.scene, min(margin, proof.margin)
    evidence, shows = proof.evidence, (*proof.shown, *shows)
    share = part if part is not None else found.share
    if is_known(found.gpu_idle):
        share = cap_share(share, found.gpu_idle)
    own = {row.figure for row in (*evidence, *shows)}
    rows = [(agrees, row) for agrees, row in _list_rows(found, scene) if row.figure not in own]
    origins, unread = frozenset[Origin](), ""
    if isinstance(found.gpu_idle, Missing):  # however many agree on the wait, none tells what it costs
        origins, margin = frozenset(sorted(found.wait.origins)[:1]), 1.0
        unread = f"; whether the GPU works meanwhile is not known ({found.gpu_idle.reason})"
    needed = 1 / max(1 - share.ratio, 1 / MOST_NEEDED)
    return Suspicion(
        kind=Kind.DATA_BOUND,
        cause=cause,
        weight=share.ratio,
        margin=min(max(found.wait.surest_low, share.low) / LEAST_WAIT, margin),
        origins=origins,
        summary=f"{_who(found, scene)} spends {100 * share.ratio:.0f} % of its time on getting data: "
        f"{why}{unread}",
        evidence=(*(row for agrees, row in rows if agrees), *evidence),
        shows=(*(row for agrees, row in rows if not agrees), *shows),
        against=_against(found, scene),
        unread=_unread(found),
        share=share.ratio,
        share_low=share.low,
        share_high=share.high,
        observed=observed | see_cores(found),
        cores_free=found.cores_had if is_known(found.cores_had) else NOT_APPLICABLE,
        pid=pid if is_known(pid) else found.rank.process.pid,
        rank=found.rank.process.rank,
        needed_ratio=needed if found.workers else NOT_APPLICABLE,
        since_ns=find_onset(found, scene),
        is_exact=_is_exact(found),
    )


def find_onset(found: Starved, scene: Scene) -> Applicable[int]:
    """Return when the wait began (CLOCK_MONOTONIC ns), where the Window reaches back to before it.

    Not applicable without workers, or by stacks alone: from outside, loading then looks like computing.
    """
    if not found.workers or found.wait.origins == {Origin.STACKS}:
        return NOT_APPLICABLE
    waits = see_waits(found.rank, scene)
    shares = [share for _, share in waits]
    for start in range(len(waits) - ONSET_FRAMES - 1, -1, -1):
        if statistics.fmean(shares[start : start + ONSET_FRAMES]) < found.wait.share.ratio / 2:
            return waits[start + ONSET_FRAMES // 2][0]
    return NOT_APPLICABLE


def see_cores(found: Starved) -> frozenset[Need]:
    """Return whether cores are free or used up, as far as known; neither where others use the rest."""
    if is_known(found.cores_had) and found.cores_had >= FREE_CORES:
        return frozenset((Need.CORES_FREE,))
    is_full = is_known(found.cores_free) and found.cores_free < FREE_CORES
    return frozenset((Need.CORES_FULL,)) if is_full else frozenset()


MAIN_PART = 0.5
"""Share of the wait that one part of it takes to be the cause: more than all other parts together."""


def find_main_part(found: Starved) -> DataPart | None:
    """Return the part of the wait that takes half of it or more by the stacks, None where none does.

    Where the workers have no work the largest part does: the wait is of the main thread's own making.
    """
    parts = found.wait.parts if Origin.STACKS in found.wait.origins else {}
    part = max(parts, key=lambda one: parts[one].ratio, default=None)
    if part is None or (is_known(found.idle) and found.idle >= IDLE_WORKERS):
        return part
    return part if parts[part].ratio >= MAIN_PART * found.wait.share.ratio else None


def need_late_batches(scene: Scene, *besides: DataPart) -> Starved:
    """Return the rank that starves at the queue of its workers, or in ``besides``; else that ends a rule.

    What the main thread itself does for half of the wait, no worker makes faster; but to take a batch out it
    may wait for a busy worker to hand it over.
    """
    found = need_starved(scene)
    part = find_main_part(found)
    if part is not None and part not in (DataPart.QUEUE, DataPart.COPY, *besides):
        share = format_pct(100 * found.wait.part(part) / found.wait.share.ratio)
        text = f"{share} % of the wait is {part.value} in the main thread"
        raise EarlyAnswer(Cleared(f"what workers do ({text})"))
    return found


def part_of(found: Starved, *parts: DataPart) -> Share | None:
    """Return the share of some parts of the wait by stack samples, None when none was seen."""
    parts_seen: Mapping[DataPart, Share] = found.wait.parts
    seen = [parts_seen[part] for part in parts if part in parts_seen]
    if not seen:
        return None
    if len(seen) == 1:
        return seen[0]
    return Share(
        min(1.0, sum(one.ratio for one in seen)),
        max(one.low for one in seen),
        min(1.0, sum(one.high for one in seen)),
        seen[0].samples,
    )


def name_hot(phases: Known[RankPhases], phase: Phase, scene: Scene) -> tuple[FigureReading, ...]:
    """Name the function of the program that takes most of ``phase``, as evidence."""
    spot = phases.spots.get(phase) if is_known(phases) else None
    return name_spot(spot, scene) if spot is not None else ()


def name_spot(spot: Spot, scene: Scene) -> tuple[FigureReading, ...]:
    """Name a function with its share of the time, as evidence."""
    where = spot.where
    for phase in Phase:
        where = where.removeprefix(f"{phase.value}: ").removeprefix(f"{phase.value} ")
    text = f"{where}, {format_pct(100 * spot.ratio)} % of the time"
    return (reading(Figure.MOST_OF_IT, 100 * spot.ratio, scene.frame, text=text),)


MOST_LOADING = 0.5
"""Share of the samples below such a name that must sleep in a lock to count as a wait."""
_IN_LOCKS = (Phase.BACKWARD, Phase.SYNC, Phase.COMMS, Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE)
"""Phases that may wait in a lock: for autograd's thread, a card, other ranks, a writing thread."""


def find_named_wait(rank: RankScene) -> float:
    """Return the share of samples (0-1) below a loading function's name that sleep in a lock.

    A queue made of C leaves no frame. Without a lock the function may well load: it reads a disk, or pauses.
    """
    phases, main = rank.phases, rank.main
    if not is_known(phases) or not is_known(main) or not phases.hinted_ratio:
        return 0.0
    queue = phases.parts.get(DataPart.QUEUE)
    others = phases.ratio(*_IN_LOCKS) + phases.handed_ratio + phases.call_waits_ratio
    spare = main.lock - others - (queue.ratio if queue is not None else 0.0)
    return min(phases.hinted_ratio, spare) if spare >= MOST_LOADING * phases.hinted_ratio else 0.0
