"""Find the rank that waits longest for its data, and make the rules about it: a row for each cause. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Claim,
    Cleared,
    EarlyAnswer,
    FigureReading,
    Suspicion,
    Unsure,
    by_conditions,
    reading,
    reading_aged,
)
from tpmon.judge.features import engine
from tpmon.judge.features.card_use import find_gpu_idle, may_starve
from tpmon.judge.features.cpu import FREE_CORES, find_cores_had, find_cores_spared
from tpmon.judge.features.data_wait import DataWait, is_behind
from tpmon.judge.features.engine import Proof, Rows, Term, Text, write_text
from tpmon.judge.features.readings import mean_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, WorkerScene, once
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, Share, Spot
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.units import say_ratio
from tpmon.model.verdict import Kind

# What each number decides, and where it comes from: docs/thresholds.toml.
LEAST_WAIT, HIDDEN_IDLE, IDLE_WORKERS, LOST_BATCH = 0.1, 0.1, 0.6, 0.95
QUEUE_AGREES, QUEUE_DISAGREES, LEAST_QUEUE_LOOKS = 0.5, 0.25, 10
MOST, MOST_NEEDED, BUSY_PIN, ONSET_FRAMES = 0.5, 20.0, 0.8, 10

NOT_READ = Missing("what the workers wait for was not read")
NO_WORKERS = Missing("no workers")
NO_SHARE = Share(0.0, 0.0, 0.0, 0)


def see_pins(rank: RankScene) -> bool:
    """Tell whether a pin-memory thread stands between the rank and its workers."""
    return rank.loader is not None and rank.loader.pin_thread


@once
def _see_all_waits(scene: Scene) -> dict[int, list[tuple[int, float]]]:
    pins = {rank.process.pid for rank in scene.ranks if see_pins(rank)}
    waits: dict[int, list[tuple[int, float]]] = {}
    for frame in scene.history:
        for one in known_or(frame.main_threads, ()):
            if one.looks:
                found = one.timed_lock if one.pid in pins else one.batch_wait
                waits.setdefault(one.pid, []).append((frame.taken_ns, found / one.looks))
    return waits


def see_waits(rank: RankScene, scene: Scene) -> list[tuple[int, float]]:
    """Return the time of each Frame, and the share of its samples that found the rank's wait for a batch."""
    return _see_all_waits(scene).get(rank.process.pid, [])


@dataclass(frozen=True, slots=True)
class Starved:
    """Hold the rank that waits longest, and what its wait costs.

    ``share`` is the time saved without the wait: at most as long as the card idles. Figures of workers are
    means over the current ones of the loader that feeds the rank, Missing where too few were read.
    """

    rank: RankScene
    wait: DataWait
    share: Share
    gpu_idle: Applicable[float]
    workers: tuple[WorkerScene, ...]
    idle: Known[float]
    demand: Known[float]
    blocked: Known[float]
    cores_free: Known[float]
    """Cores of the budget that the job leaves, or would leave without neighbours where that is known."""
    cores_had: Known[float]
    """Those that others leave, too."""


Starvation = Union[Starved, Cleared, Unsure]


def cap_share(share: Share, most: Applicable[float]) -> Share:
    """Limit a share, and its interval, to ``most`` where that is known."""
    if not is_known(most):
        return share
    return Share(min(share.ratio, most), min(share.low, most), min(share.high, most), share.samples)


def _pct(share: Share) -> str:
    if share.low >= share.high:
        return say_ratio(share.ratio)
    return f"{say_ratio(share.ratio)} ({100 * share.low:.0f} to {100 * share.high:.0f})"


@by_conditions
def see_starved(rank: RankScene, wait: DataWait, scene: Scene) -> Starved:
    """Say whether a rank loses time by this wait: it does not while its card is busy."""
    share, waiting = wait.share, Claim("data wait")
    is_short, text = share.ratio < LEAST_WAIT, say_ratio(share.ratio)
    handed = "the loader is behind, and the main thread waits at a lock: for whom?"
    # Where no stack tells, another thread may take the batches and hand them on.
    at_lock = wait.origins == {Origin.PROC} and is_known(rank.main) and rank.main.lock >= LEAST_WAIT
    behind = at_lock and is_behind(rank.loader, [worker.idle_ratio for worker in rank.feeders])
    waiting.doubt(is_short and behind, handed)
    waiting.clear(is_short, text)
    waiting.doubt(share.low < LEAST_WAIT, f"{_pct(share)}: too close to call")
    gpu_idle = find_gpu_idle(rank, scene)
    if isinstance(gpu_idle, Missing) and not may_starve(rank, wait, scene):
        Claim(f"whether the data wait of {_pct(share)} costs anything").known(gpu_idle, "GPU: ")
    idle = known_or(gpu_idle, 1.0)
    hidden = f"{text}, hidden: the GPU is {100 * (1 - idle):.0f} % busy, so it costs 0"
    waiting.clear(idle < HIDDEN_IDLE, hidden)
    workers, free = rank.feeders, find_cores_spared(rank, scene)
    found = Starved(
        rank=rank,
        wait=wait,
        share=cap_share(share, gpu_idle),
        gpu_idle=gpu_idle,
        workers=workers,
        idle=mean_known((one.idle_ratio for one in workers), NO_WORKERS),
        demand=mean_known((one.demand for one in workers), NO_WORKERS),
        blocked=mean_known((one.blocked_ratio if one.waits else NOT_READ for one in workers), NO_WORKERS),
        cores_free=free,
        cores_had=find_cores_had(free, scene),
    )
    # Each worker, not their mean: one behind among 32 hardly lowers it. A batch being unpacked is not lost.
    rest = bool(workers) and all(known_or(one.idle_ratio, 0.0) >= LOST_BATCH for one in workers)
    lost = "the rank waits for a batch and every worker for work: is a batch lost?"
    waiting.doubt(rest and _queue_wait(found) >= LOST_BATCH, lost)
    if see_pins(rank) and wait.origins == {Origin.PROC}:  # then its lock may be no loader's
        rests = known_or(found.idle, 1.0) >= IDLE_WORKERS
        pins = known_or(rank.demand_by(ThreadKind.PIN), 0.0) >= BUSY_PIN
        waiting.clear(rests and not pins, "the main thread waits in a lock, the workers have nothing to do")
    return found


@once
def find_starved(scene: Scene) -> Starvation:
    """Return the rank that loses most by waiting for data: one of many holds up all."""
    answers: list[Starvation] = [
        Unsure(f"data wait ({wait.reason})") if isinstance(wait, Missing) else see_starved(rank, wait, scene)
        for rank in scene.ranks
        for wait in (rank.data_wait,)
    ] or [Unsure("data wait (no rank was read)")]
    starved = [one for one in answers if isinstance(one, Starved)]
    if starved:
        return max(starved, key=lambda one: one.share.low)
    return next((one for one in answers if isinstance(one, Unsure)), answers[0])


def need(found: Starvation) -> Starved:
    """Return who starves; if nobody does, that ends a rule by conditions."""
    if not isinstance(found, Starved):
        raise EarlyAnswer(found)
    return found


def need_starved(scene: Scene) -> Starved:
    """Return the rank that loses most by waiting for data; if none does, that ends a rule by conditions."""
    return need(find_starved(scene))


def _queue_wait(found: Starved) -> float:
    """Return the part of the wait, 0-1, that an empty queue explains: all of it where no stack tells."""
    if Origin.STACKS not in found.wait.origins or not found.wait.parts:
        return found.wait.share.ratio
    others = (part for part in DataPart if part is not DataPart.QUEUE)
    return max(0.0, found.wait.share.ratio - found.wait.part(*others))


def find_empty(found: Starved) -> Known[float]:
    """Return how often the queue was found empty, 0-1; Missing behind a pin thread: it empties it."""
    loader = found.rank.loader
    if loader is None:
        return Missing("no queue was read")
    return Missing("a pin thread empties the queue") if loader.pin_thread else loader.empty_ratio


def _against(found: Starved, scene: Scene) -> Rows:
    empty, queue, loader = known_or(find_empty(found), 1.0), _queue_wait(found), found.rank.loader
    enough = loader is not None and loader.looks >= LEAST_QUEUE_LOOKS
    # Where the queue explains hardly any of the wait, no batch is waited for.
    if not enough or queue < LEAST_WAIT or empty >= QUEUE_DISAGREES * queue:
        return ()
    return (reading(Figure.QUEUE_EMPTY, 100 * empty, scene.frame),)


_NAMED = {Origin.HOOK: "the hook", Origin.PROC: "state of the main thread", Origin.STACKS: "stacks"}


def _is_exact(found: Starved) -> bool:
    return Origin.HOOK in found.wait.origins and found.wait.told.get(Origin.HOOK) == found.wait.share.ratio


def _list_rows(found: Starved, scene: Scene) -> Iterator[tuple[bool, FigureReading]]:
    """List what is known of the wait, and whether it agrees that the rank starves."""
    wait, share, frame, ages = found.wait, found.wait.share, scene.frame, scene.frame.ages_s
    names = " and ".join(words for origin, words in _NAMED.items() if origin in wait.origins)
    exact = f"the hook, {share.samples} steps"
    age_s = ages.stacks if Origin.STACKS in wait.origins else ages.threads
    yield (
        True,
        reading_aged(
            Figure.DATA_WAIT,
            100 * share.ratio,
            ages.hook if Origin.HOOK in wait.origins else age_s,
            text=_pct(share),
            source=exact if _is_exact(found) else f"{names}, {share.samples} samples",
            # Those that see at least half of it.
            origins=[one for one in wait.origins if wait.told.get(one, 1.0) >= QUEUE_AGREES * share.ratio],
        ),
    )
    empty = find_empty(found)
    if is_known(empty):
        yield empty >= QUEUE_AGREES * _queue_wait(found) > 0, reading(Figure.QUEUE_EMPTY, 100 * empty, frame)
    if is_known(found.gpu_idle):
        agrees = found.gpu_idle >= QUEUE_AGREES * share.ratio
        yield agrees, reading(Figure.GPU_IDLE, 100 * found.gpu_idle, frame)
    if is_known(found.demand):
        yield False, reading(Figure.WORKER_WANTS, found.demand, frame)
    if is_known(found.idle):
        yield found.idle < IDLE_WORKERS, reading(Figure.WORKERS_IDLE, 100 * found.idle, frame)


def suspect_loader(
    found: Starved,
    proof: Proof,
    cause: str,
    why: str,
    *,
    observed: Iterable[Need] = (),
    part: Share = NO_SHARE,
    pid: int | None = None,
) -> Suspicion:
    """Build the suspicion of one cause of a starved rank; ``why`` goes on "the loop waits 61 % …: ".

    What agrees on the wait is added to the proof, and shown where it does not. ``part`` is the share of this
    cause where it is not the whole wait. The wait's own margin counts with that of the proof.
    """
    scene, rank = proof.scene, found.rank.process.rank
    share = cap_share(part, found.gpu_idle) if part.samples else found.share
    own = {row.figure for row in (*proof.evidence, *proof.shown)}
    rows = [(agrees, row) for agrees, row in _list_rows(found, scene) if row.figure not in own]
    proof.evidence = (*(row for agrees, row in rows if agrees), *proof.evidence)
    proof.shown = (*(row for agrees, row in rows if not agrees), *proof.shown)
    proof.margin = min(max(found.wait.surest_low, share.low) / LEAST_WAIT, proof.margin)
    origins, unread = frozenset[Origin](), ""
    if isinstance(found.gpu_idle, Missing):  # however many agree on the wait, none tells what it costs
        origins, proof.margin = frozenset(sorted(found.wait.origins)[:1]), min(proof.margin, 1.0)
        unread = f"; whether the GPU works meanwhile is not known ({found.gpu_idle.reason})"
    who, empty = f"rank {rank}" if len(scene.ranks) > 1 and is_known(rank) else "the loop", find_empty(found)
    unread_queue: tuple[str, ...] = ()
    if isinstance(empty, Missing) and found.rank.has_workers and not see_pins(found.rank):
        unread_queue = (f"whether batches are ready ({empty.reason})",)
    needs = set(observed)
    if known_or(found.cores_had, 0.0) >= FREE_CORES:
        needs.add(Need.CORES_FREE)
    elif known_or(found.cores_free, FREE_CORES) < FREE_CORES:  # not where others use the rest
        needs.add(Need.CORES_FULL)
    return proof.suspect(
        Kind.DATA_BOUND,
        cause,
        share,
        f"{who} spends {100 * share.ratio:.0f} % of its time on getting data: {why}{unread}",
        *needs,
        origins=origins,
        against=_against(found, scene),
        unread=unread_queue,
        cores_free=found.cores_had,
        pid=pid or found.rank.process.pid,
        rank=rank,
        needed_ratio=1 / max(1 - share.ratio, 1 / MOST_NEEDED) if found.workers else NOT_APPLICABLE,
        since_ns=find_onset(found, scene),
        is_exact=_is_exact(found),
    )


def find_onset(found: Starved, scene: Scene) -> Applicable[int]:
    """Return when the wait began (CLOCK_MONOTONIC ns), where the Window reaches back to before it."""
    # Not applicable without workers, or by stacks alone: from outside, loading then looks like computing.
    if not found.workers or found.wait.origins == {Origin.STACKS}:
        return NOT_APPLICABLE
    waits = see_waits(found.rank, scene)
    shares = [share for _, share in waits]
    for start in range(len(waits) - ONSET_FRAMES - 1, -1, -1):
        if statistics.fmean(shares[start : start + ONSET_FRAMES]) < found.wait.share.ratio / 2:
            return waits[start + ONSET_FRAMES // 2][0]
    return NOT_APPLICABLE


def find_main_part(found: Starved) -> DataPart | None:
    """Return the part of the wait that takes half of it or more by the stacks, None where none does."""
    # Where the workers have no work the largest part does: the wait is of the main thread's own making.
    parts = found.wait.parts if Origin.STACKS in found.wait.origins else {}
    part = max(parts, key=lambda one: parts[one].ratio, default=None)
    if part is None or known_or(found.idle, 0.0) >= IDLE_WORKERS:
        return part
    return part if parts[part].ratio >= MOST * found.wait.share.ratio else None


def need_late_batches(scene: Scene, *besides: DataPart) -> Starved:
    """Return the rank that starves at the queue of its workers, or in ``besides``; else that ends a rule."""
    # What the main thread itself does for half of the wait, no worker makes faster; but to take a batch out
    # it may wait for a busy worker to hand it over.
    found = need_starved(scene)
    part = find_main_part(found)
    if part is not None and part not in (DataPart.QUEUE, DataPart.COPY, *besides):
        share = say_ratio(found.wait.part(part) / found.wait.share.ratio)
        Claim("what workers do").clear(True, f"{share} of the wait is {part.value} in the main thread")
    return found


def part_of(found: Starved, *parts: DataPart) -> Share:
    """Return the share of some parts of the wait by stack samples; none of all where none was seen."""
    seen = [found.wait.parts[part] for part in parts if part in found.wait.parts] or [NO_SHARE]
    ratio, high = sum(one.ratio for one in seen), sum(one.high for one in seen)
    return Share(min(1.0, ratio), max(one.low for one in seen), min(1.0, high), seen[0].samples)


def name_hot(phases: Known[RankPhases], phase: Phase, scene: Scene) -> Rows:
    """Name the function of the program that takes most of ``phase``, as evidence."""
    spot = phases.spots.get(phase) if is_known(phases) else None
    return name_spot(spot, scene) if spot is not None else ()


def name_spot(spot: Spot, scene: Scene, of: str = "the time") -> Rows:
    """Name a function with its share of the time, as evidence."""
    where = spot.where
    for phase in Phase:
        where = where.removeprefix(f"{phase.value}: ").removeprefix(f"{phase.value} ")
    text = f"{where}, {say_ratio(spot.ratio)} of {of}"
    return (reading(Figure.MOST_OF_IT, 100 * spot.ratio, scene.frame, text=text),)


_IN_LOCKS = (Phase.BACKWARD, Phase.SYNC, Phase.COMMS, Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE)
"""Phases that may wait in a lock: for autograd's thread, a card, other ranks, a writing thread."""


def find_named_wait(rank: RankScene) -> float:
    """Return the share of samples (0-1) below a loading function's name that sleep in a lock."""
    # A queue made of C leaves no frame. Without a lock the function may well load, or pause.
    phases, main = rank.phases, rank.main
    if not is_known(phases) or not is_known(main) or not phases.hinted_ratio:
        return 0.0
    others = phases.ratio(*_IN_LOCKS) + phases.handed_ratio + phases.call_waits_ratio
    spare = main.lock - others - phases.parts.get(DataPart.QUEUE, NO_SHARE).ratio
    return min(phases.hinted_ratio, spare) if spare >= MOST * phases.hinted_ratio else 0.0


def name_hot_load(found: Starved, scene: Scene) -> Rows:
    """Name the function of the main thread that loads."""
    return name_hot(found.rank.phases, Phase.DATA_WAIT, scene)


def _takes_most(part: DataPart, figure: Figure) -> Term[Starved]:
    """Make the condition that one part of the loading takes half of the wait in the main thread."""

    def take(proof: Proof, found: Starved) -> None:
        share = part_of(found, part)
        proof.doubt(Origin.STACKS not in found.wait.origins, "no stacks")
        is_main = find_main_part(found) is part and share.low >= LEAST_WAIT
        proof.clear(not is_main, say_ratio(share.ratio))
        proof.add(figure, share.ratio, share.ratio / (MOST * found.wait.share.ratio))

    return take


def starves(
    cause: str,
    name: str,
    *holds: Term[Starved],
    says: Text[Starved],
    main: tuple[DataPart, Figure] | None = None,
    about: Callable[[Scene], Starved] = need_starved,
    proves: Callable[[Starved, Scene], tuple[Need, ...]] | tuple[Need, ...] = (),
    shows: tuple[Callable[[Starved, Scene], Rows], ...] = (),
) -> Rule:
    """Make the rule of a cause for which a rank starves: of all its wait, or of its ``main`` part.

    It is a row: all that ``holds`` is taken in turn, of the rank that ``about`` finds.
    """
    parts = main[:1] if main is not None else ()
    terms = (*((_takes_most(*main),) if main is not None else ()), *holds)

    @engine.proves(name)
    def judge(proof: Proof, scene: Scene) -> Suspicion:
        found = about(scene)
        for take in terms:
            take(proof, found)
        proof.shown += tuple(row for show in shows for row in show(found, scene))
        needs, why = proves(found, scene) if callable(proves) else proves, write_text(says, found, scene)
        return suspect_loader(found, proof, cause, why, observed=needs, part=part_of(found, *parts))

    return judge
