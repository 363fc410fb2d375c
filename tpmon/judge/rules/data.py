"""Causes that a starved rank's main thread shows: no workers, collate, pin, drain, waits in bursts."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, by_conditions
from tpmon.judge.features import starvation, workers
from tpmon.judge.features.cards import cards_of
from tpmon.judge.features.data_wait import LEAST_READINGS, DataWait, measure_share, wait_by
from tpmon.judge.features.engine import Proof, given, proves, reaches, tells
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import name_rank
from tpmon.judge.features.starvation import MOST, Starved, name_hot_load, starves, suspect_loader
from tpmon.judge.features.workers import WorkerState, name_state
from tpmon.judge.stacks.phases import TRAINING, DataPart, Phase
from tpmon.judge.watch.tracker import find_pace
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ThreadKind
from tpmon.model.text.job_words import is_evaluating, is_stalled
from tpmon.model.units import say_ratio
from tpmon.model.waits import READS

# What each number decides, and where it comes from: docs/thresholds.toml.
READS_ITSELF, READS_OVER_WRITES = 0.4, 4.0
IDLE_AT_TIMES, IDLE_SURE, ALWAYS_EMPTY, UNTIMED_MARGIN = 0.25, 0.1, 0.95, 1.2
ENGINE_FULL_PCT = 85.0
LEAST_PERIODS, LEAST_PERIOD, LEAST_HISTORY, OVER_PERIODS = 3, 3, 15, 2.0
CORRELATION, CORRELATION_SIGMAS, LEAST_SWING = 0.5, 2.5, 0.2
LULL, LEAST_LULLS = 0.1, 0.2
STEADY_RATE, LEAST_STEPS = 0.2, 2
SKIPS_RATIO, SKIPS_S, LEAST_SKIPPED, LEAST_TAKEN = 0.9, 15.0, 100, 20


def _reads_itself(rank: RankScene) -> DataWait | None:
    """Find a wait of a rank without workers that reads its files itself, where no stacks were seen."""
    if rank.has_workers or is_known(rank.data_wait):
        return None
    waits = [one.waits_for for one in rank.samples if is_known(one.waits_for)]
    if len(waits) < LEAST_READINGS:
        return None
    share = measure_share(sum(wait.reason in READS for wait in waits) / len(waits), len(waits))
    last = rank.process
    reads = max(known_or(last.asked_read_bytes_s, 0.0), known_or(last.device_read_bytes_s, 0.0))
    written = [one for one in (last.asked_write_bytes_s, last.device_write_bytes_s) if is_known(one)]
    writes = max(written, default=math.inf)
    if share.ratio < READS_ITSELF or share.low < starvation.LEAST_WAIT or reads < READS_OVER_WRITES * writes:
        return None
    return wait_by(Origin.PROC, share)


def _need_loading(scene: Scene) -> Starved:
    """Return the rank that starves, by its reads alone where nothing else tells; else that ends a rule."""
    found = starvation.find_starved(scene)
    for rank in scene.ranks if not isinstance(found, Starved) else ():
        wait = _reads_itself(rank)
        itself = starvation.see_starved(rank, wait, scene) if wait is not None else found
        found = itself if isinstance(itself, Starved) else found
    return starvation.need(found)


_NOT_LOADING: Mapping[DataPart | None, str] = {
    DataPart.COLLATE: "collate",
    DataPart.COPY: "copying",
    DataPart.SAMPLER: "choosing the samples",
    DataPart.START: "starting workers",
}
"""Parts of the wait that the loading in the main thread is not."""


def _opens_files(found: Starved, scene: Scene) -> bool:
    main = found.rank.main
    waits = is_known(main) and main.io >= starvation.QUEUE_AGREES * found.wait.share.ratio
    return waits and workers.is_most(workers.find_open_share(found, scene))


judge_no_workers = starves(
    "no-workers",
    "loading in the main thread",
    given(lambda found, _: not found.rank.has_workers, "there are loader workers"),
    given(
        lambda found, _: starvation.find_main_part(found) not in _NOT_LOADING,
        lambda found, _: f"most of it is {_NOT_LOADING.get(starvation.find_main_part(found))}",
    ),
    given(
        lambda found, _: starvation.find_main_part(found) is not DataPart.QUEUE,
        "what fills the queue that it waits at is no loader worker",
        is_doubt=True,
    ),
    given(
        lambda found, _: starvation.find_named_wait(found.rank) < MOST * found.wait.share.ratio,
        "it only waits for what others hand over",
    ),
    tells(Figure.WORKERS, lambda *_: 0.0),
    about=_need_loading,
    says=lambda found, _: (
        f"it {'loads its batches' if is_known(found.rank.data_wait) else 'reads its files'} itself, "
        "there are no workers"
    ),
    proves=lambda found, scene: (
        Need.NO_WORKERS,
        *((Need.WORKERS_IO_WAIT, Need.SMALL_READS) if _opens_files(found, scene) else ()),
    ),
    shows=(
        name_hot_load,
        lambda found, scene: workers.name_opens(found, scene) if _opens_files(found, scene) else (),
    ),
)
_collate_in_main = starves(
    "collate",
    "collating",
    main=(DataPart.COLLATE, Figure.MAIN_IN_COLLATE),
    says="it puts its batches together itself",
    proves=(Need.COLLATE_IN_STACK,),
    shows=(name_hot_load,),
)
_collate_in_workers = starves(
    "collate",
    "collating in the workers",
    given(lambda found, _: name_state(found) is not WorkerState.IDLE, "they wait for work"),
    reaches(Figure.WORKERS_IN_COLLATE, workers.find_collate_share, MOST),
    says="most of what its workers do is putting batches together",
    proves=(Need.COLLATE_IN_STACK,),
    shows=(workers.name_hot_work,),
)


@by_conditions
def judge_collate(scene: Scene) -> Answer:
    """Suspect collating when it takes half of the loading, in the main thread or in the workers."""
    return (_collate_in_workers if starvation.need_starved(scene).rank.has_workers else _collate_in_main)(
        scene
    )


def _count_ready(found: Starved, _: Scene) -> Known[float]:
    loader = found.rank.loader
    return map_known(float, loader.ready_batches) if loader is not None else Missing("no queue was read")


def _prove_ready(found: Starved, scene: Scene) -> tuple[Need, ...]:
    return (Need.BATCHES_READY,) if known_or(_count_ready(found, scene), 0.0) >= 1 else ()


judge_drain = starves(
    "drain",
    "unpacking of batches",
    given(
        lambda found, scene: (
            name_state(found) is not WorkerState.COMPUTE
            or known_or(found.idle, 1.0) >= IDLE_AT_TIMES
            or bool(_prove_ready(found, scene))
        ),
        "or it waits for busy workers to hand them over",
        is_doubt=True,
    ),
    reaches(Figure.BATCHES_READY, _count_ready, 1, must=False),
    main=(DataPart.COPY, Figure.MAIN_IN_COPIES),
    says="unpacking and copying its batches takes the time",
    proves=_prove_ready,
)
judge_sampler = starves(
    "sampler",
    "choosing of samples",
    reaches(Figure.WORKERS_IDLE, lambda found, _: found.idle, starvation.IDLE_WORKERS, must=False),
    main=(DataPart.SAMPLER, Figure.MAIN_IN_SAMPLER),
    says="the sampler chooses what comes next in the main thread, with and without workers",
    proves=(Need.SAMPLER_IN_STACK,),
    shows=(name_hot_load,),
)
judge_pin = starves(
    "pin",
    "pin-memory thread",
    given(lambda found, _: starvation.see_pins(found.rank), "there is none"),
    reaches(
        Figure.PIN_THREAD_WANTS,
        lambda found, _: found.rank.demand_by(ThreadKind.PIN),
        starvation.BUSY_PIN,
        sure=1.25,
    ),
    reaches(Figure.WORKERS_IDLE, lambda found, _: found.idle, starvation.IDLE_WORKERS),
    says="its one pin-memory thread copies all the time, the workers have no work",
    proves=(Need.BATCHES_PINNED, Need.PIN_THREAD_BUSY),
)


@proves("decoding engines of the card")
def judge_decode_engine(engines: Proof, scene: Scene) -> Answer:
    """Suspect the engines of the card that decode video or JPEGs: full while its SMs wait for data."""
    found = starvation.need_starved(scene)
    mine = {card.last.uuid for card in cards_of(found.rank.process.pid, scene.gpus)}
    engines.clear(not mine, "the rank computes on no card")
    samples = [one for frame in scene.frames for one in known_or(frame.gpus, ()) if one.uuid in mine]
    unread = Missing("their use was not read")
    both = {
        "NVDEC": median_known(known_or(one.decoder_pct, unread) for one in samples),
        "JPEG engine": median_known(known_or(one.jpeg_pct, unread) for one in samples),
    }
    name = max(both, key=lambda one: known_or(both[one], -1.0))
    used = engines.known(both[name]) / 100
    used = engines.at_least(Figure.DECODE_ENGINE, used, ENGINE_FULL_PCT / 100, sure=1.25, of=name)
    why = f"the card decodes for it and is full with that ({name} {say_ratio(used)} busy), while its SMs idle"
    return suspect_loader(found, engines, "decode-engine", why, observed=(Need.DECODE_ENGINE_BUSY,))


def _correlate(values: Sequence[float], lag: int) -> float:
    """Return the correlation (-1 to 1) of a series that is not flat with itself ``lag`` readings later."""
    mean = statistics.fmean(values)
    power = sum((value - mean) ** 2 for value in values) / len(values)
    pairs = [(one - mean) * (other - mean) for one, other in zip(values, values[lag:], strict=False)]
    return sum(pairs) / len(pairs) / power


def find_period(waits: Sequence[tuple[int, float]]) -> Known[tuple[float, float]]:
    """Return the seconds between bursts of waiting and their correlation; Missing where none is seen.

    ``waits`` are (ns, share of the second). It takes three periods of at least three readings.
    """
    if len(waits) < LEAST_HISTORY:
        return Missing("too short a history")
    shares = [share for _, share in waits]
    lulls = sum(share <= LULL for share in shares) / len(shares)
    if lulls < LEAST_LULLS or statistics.pstdev(shares) < LEAST_SWING:
        return Missing("the wait is even")
    longest, interval_s = len(shares) // LEAST_PERIODS, (waits[-1][0] - waits[0][0]) / 1e9 / (len(waits) - 1)
    scores = {lag: _correlate(shares, lag) for lag in range(LEAST_PERIOD - 1, longest + 2)}
    for lag in range(LEAST_PERIOD, longest + 1):
        # Chance gives correlations of 1 / sqrt(pairs).
        least = max(CORRELATION, CORRELATION_SIGMAS / math.sqrt(len(shares) - lag))
        if scores[lag] >= least and scores[lag - 1] <= scores[lag] >= scores[lag + 1]:
            mean = statistics.fmean(shares)
            since_burst = next(number for number, share in enumerate(reversed(shares)) if share >= mean)
            if since_burst > OVER_PERIODS * lag:
                return Missing("the bursts are over")
            return lag * interval_s, scores[lag]
    return Missing("the bursts have no period")


def count_steps_between(scene: Scene, pid: int, period_s: float) -> Known[float]:
    """Return the steps of one period by the hook, a mean over whole periods of the Window."""
    # A hook's rate over ten seconds holds one burst or two of every seven, so it cannot tell.
    paces = ((frame.taken_ns / 1e9, find_pace(frame, pid)) for frame in scene.history)
    counts = [
        (at_s, pace.count)
        for at_s, pace in paces
        if is_known(pace) and not is_stalled(pace) and not is_evaluating(pace)
    ]
    if len(counts) < 2 or period_s <= 0:
        return Missing("no hook counts the steps")
    end_s = counts[-1][0]
    periods = math.floor((end_s - counts[0][0]) / period_s)
    if periods < LEAST_PERIODS:
        return Missing("the steps were counted for less than three periods")
    edges_s = (end_s - number * period_s for number in range(periods, -1, -1))
    edges = [min(counts, key=lambda one: abs(one[0] - edge_s))[1] for edge_s in edges_s]
    steps = [after - before for before, after in itertools.pairwise(edges)]
    mean = (edges[-1] - edges[0]) / periods
    if mean < LEAST_STEPS or max(abs(one - mean) for one in steps) > STEADY_RATE * mean:
        return Missing("the steps have no steady rate")
    return mean


def _idle_at_times(found: Starved, scene: Scene) -> Known[float]:
    """Return the idle share of the busiest worker, 0-1; Missing when it is not surely above a tenth."""
    # All late batches may fall to one worker: then the others mostly have none, and it has none at times.
    looks = workers.look_at_workers(found, scene)
    shares = [measure_share(one.idle / one.looks, one.looks) for one in looks if one.looks]
    if not looks or len(shares) < len(looks):
        return Missing("what the workers wait for was not read")
    least = min(shares, key=lambda share: share.low)
    count = sum(one.looks for one in looks)
    together = measure_share(sum(one.idle for one in looks) / count, count)
    by_each = least.low >= IDLE_SURE and least.ratio >= IDLE_AT_TIMES
    if by_each or (together.low >= IDLE_AT_TIMES and least.ratio >= IDLE_SURE):
        return least.ratio
    return Missing("a worker always has work")


def _need_bursts(scene: Scene) -> Starved:
    """Return the rank whose batches are late, over ten seconds or the whole Window; else that ends a rule."""
    # With a long period ten seconds may fall between two bursts.
    found = starvation.find_starved(scene)
    if isinstance(found, Starved):
        return starvation.need_late_batches(scene)
    for rank in scene.ranks:
        waits = starvation.see_waits(rank, scene) if rank.has_workers else []
        if is_known(find_period(waits)):
            share = measure_share(sum(one for _, one in waits) / len(waits), len(waits))
            found = starvation.see_starved(rank, wait_by(Origin.PROC, share), scene)
            break
    return starvation.need(found)


@proves("waits every few steps")
def judge_periodic(bursts: Proof, scene: Scene) -> Answer:
    """Suspect late batches now and then: the wait comes in bursts, and between them the loader is ahead."""
    found = _need_bursts(scene)
    bursts.doubt(not found.rank.has_workers, "seen only at the queue of workers")
    waits = starvation.see_waits(found.rank, scene)
    period, idle = find_period(waits), _idle_at_times(found, scene)
    never = is_known(period) and workers.never_idle(found, scene)
    bursts.clear(never, "the workers always have work: the loader never keeps up")
    if is_known(idle):
        bursts.add(Figure.EVERY_WORKER_IDLE, idle)
    if is_known(period):
        bursts.add(Figure.BETWEEN_BURSTS, period[0], period[1] / CORRELATION * 1.25)
        steps, told = count_steps_between(scene, found.rank.process.pid, period[0]), ""
        if is_known(steps):
            told = f", about every {float(f'{steps:.2g}'):,.0f} steps"
            bursts.add(Figure.STEPS_BETWEEN_BURSTS, steps)
        why = f"batches come late every {period[0]:.0f} s{told}, between that the loader keeps up"
    else:
        bursts.clear(not is_known(idle), f"{period.reason}, {'' if is_known(idle) else idle.reason}")
        empty = bursts.known(starvation.find_empty(found))
        bursts.doubt(empty >= ALWAYS_EMPTY, "the queue is always empty, and yet workers have no work")
        is_ahead = empty < starvation.QUEUE_AGREES * found.wait.share.ratio
        bursts.clear(is_ahead, f"batches are ready {100 - 100 * empty:.0f} % of the time")
        bursts.margin = min(max(1.0, known_or(idle, 0.0) / IDLE_AT_TIMES), UNTIMED_MARGIN)
        why = "batches come in bursts, too close together for tpmon to time; on average the loader keeps up"
    return suspect_loader(found, bursts, "periodic", why, observed=(Need.PERIODIC_SEEN,))


def _count_skipped(rank: RankScene) -> int:
    """Count the samples that take a batch, where no sample of all those of a while is in a step; else 0."""
    phases = rank.phases
    if not is_known(phases) or phases.span_s < SKIPS_S or phases.samples < LEAST_SKIPPED:
        return 0
    if phases.ratio(*TRAINING, Phase.VALIDATION, Phase.SYNC) or phases.ratio(Phase.DATA_WAIT) < SKIPS_RATIO:
        return 0
    taken = (phases.parts[part].ratio for part in (DataPart.COPY, DataPart.COLLATE) if part in phases.parts)
    return round(sum(taken) * phases.samples)


_SKIPS = "takes batch after batch, and no step is seen"
judge_skipping = starves(
    "skipping",
    "batches of which no step is made",
    # Of steps a quarter as long as the taking of their batches, chance shows none in one of a hundred spans.
    given(lambda found, _: _count_skipped(found.rank) >= LEAST_TAKEN, "steps are seen, or few batches"),
    says=f"it {_SKIPS}",
    proves=(Need.BATCHES_SKIPPED,),
    shows=(name_hot_load,),
)


def note_skipping(scene: Scene) -> str:
    """Return the note that batches are taken and no step is made of them, "" where steps are seen."""
    skipped = ((rank, _count_skipped(rank)) for rank in scene.ranks)
    few = next((rank for rank, count in skipped if 0 < count < LEAST_TAKEN), None)
    how = "to resume within an epoch skip the indices, not the batches"
    return f"skipping: {name_rank(few)} {_SKIPS}: {how}" if few is not None else ""


RULES: tuple[Rule, ...] = (
    judge_skipping,
    judge_no_workers,
    judge_decode_engine,
    judge_sampler,
    judge_collate,
    judge_drain,
    judge_pin,
    judge_periodic,
)
