"""Causes that a starved rank's main thread shows: no workers, collate, pin, drain, waits in bursts."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, by_conditions
from tpmon.judge.features.cards import cards_of
from tpmon.judge.features.data_wait import LEAST_READINGS, DataWait, measure_share
from tpmon.judge.features.engine import Bound, Given, Proof
from tpmon.judge.features.loader_figures import MainPart, name_hot_load, starves
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import name_rank
from tpmon.judge.features.starvation import (
    BUSY_PIN,
    IDLE_WORKERS,
    LEAST_WAIT,
    MAIN_PART,
    QUEUE_AGREES,
    Starvation,
    Starved,
    find_main_part,
    find_named_wait,
    find_pin_demand,
    find_starved,
    name_hot,
    need_late_batches,
    need_starved,
    see_all_waits,
    see_pins,
    see_starved,
    see_waits,
    suspect_loader,
)
from tpmon.judge.features.workers import (
    COLLATE_SHARE,
    WorkerState,
    find_collate_share,
    is_opening,
    look_at_workers,
    name_hot_work,
    name_opens,
    name_state,
    never_idle,
)
from tpmon.judge.stacks.phases import TRAINING
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.judge.watch.tracker import find_pace
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import Applicable, Known, Missing, NotApplicable, is_known, known_or, map_known
from tpmon.model.text.job_words import is_evaluating, is_stalled
from tpmon.model.units import format_pct
from tpmon.model.waits import READS

READS_ITSELF = 0.4
"""Share of readings in a wait for reads above which a rank without workers reads its data itself."""
READS_OVER_WRITES = 4.0
"""Bytes read over written: a checkpoint writes."""

IDLE_AT_TIMES = 0.25
"""Share of idle readings of every worker above which the loader is ahead at times: 0-8 % if too slow."""
IDLE_SURE = 0.1
ALWAYS_EMPTY = 0.95


def _reads_itself(rank: RankScene, scene: Scene) -> DataWait | None:
    """Find a wait of a rank without workers that reads its files itself, where no stacks were seen."""
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


_NOT_LOADING: Mapping[DataPart | None, str] = {
    DataPart.COLLATE: "collate",
    DataPart.COPY: "copying",
    DataPart.SAMPLER: "choosing the samples",
    DataPart.START: "starting workers",
}
"""Parts of the wait that the loading in the main thread is not."""


@by_conditions
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
    loading, least = Claim("loading in the main thread"), MAIN_PART * found.wait.share.ratio
    loading.clear(found.rank.has_workers, "there are loader workers")
    part = find_main_part(found)
    if part in _NOT_LOADING:
        return Cleared(f"{loading.what} (most of it is {_NOT_LOADING[part]})")
    filler = Claim("what fills the queue that the main thread waits at")
    filler.doubt(part is DataPart.QUEUE, "no loader worker does")
    handed = find_named_wait(found.rank)
    loading.clear(handed >= least, "it only waits for what others hand over")
    return _suspect_no_workers(found, scene, "it loads its batches itself, there are no workers")


def _opens_files(found: Starved, scene: Scene) -> bool:
    main = found.rank.main
    waits = is_known(main) and main.io >= QUEUE_AGREES * found.wait.share.ratio
    return waits and is_opening(scene)


def _suspect_no_workers(found: Starved, scene: Scene, why: str) -> Answer:
    opens, loading = _opens_files(found, scene), Proof("loading in the main thread", scene)
    loading.add(Figure.WORKERS, 0.0)
    hot = name_hot(found.rank.phases, Phase.DATA_WAIT, scene)
    needs = (Need.NO_WORKERS, *((Need.WORKERS_IO_WAIT, Need.SMALL_READS) if opens else ()))
    shows = (*hot, *(name_opens(scene) if opens else ()))
    return suspect_loader(found, loading, "no-workers", why, shows=shows, observed=frozenset(needs))


_COLLATES = MainPart(DataPart.COLLATE, Figure.MAIN_IN_COLLATE)
_COPIES = MainPart(DataPart.COPY, Figure.MAIN_IN_COPIES)
_SAMPLES = MainPart(DataPart.SAMPLER, Figure.MAIN_IN_SAMPLER)
_collate_in_main = starves(
    "collate",
    "collating",
    _COLLATES,
    says="it puts its batches together itself",
    part=_COLLATES.measure,
    proves=(Need.COLLATE_IN_STACK,),
    shows=(name_hot_load,),
)
_collate_in_workers = starves(
    "collate",
    "collating in the workers",
    Given(lambda found, _: name_state(found) is not WorkerState.IDLE, "they wait for work"),
    Bound(Figure.WORKERS_IN_COLLATE, find_collate_share, COLLATE_SHARE),
    says="most of what its workers do is putting batches together",
    proves=(Need.COLLATE_IN_STACK,),
    shows=(name_hot_work,),
)


@by_conditions
def judge_collate(scene: Scene) -> Answer:
    """Suspect collating when it takes half of the loading, in the main thread or in the workers."""
    return (_collate_in_workers if need_starved(scene).rank.has_workers else _collate_in_main)(scene)


def _count_ready(found: Starved, _: Scene) -> Known[float]:
    loader = found.rank.loader
    return map_known(float, loader.ready_batches) if loader is not None else Missing("no queue was read")


def _prove_ready(found: Starved, scene: Scene) -> tuple[Need, ...]:
    return (Need.BATCHES_READY,) if known_or(_count_ready(found, scene), 0.0) >= 1 else ()


judge_drain = starves(
    "drain",
    "unpacking of batches",
    _COPIES,
    Given(
        lambda found, scene: (
            name_state(found) is not WorkerState.COMPUTE
            or known_or(found.idle, 1.0) >= IDLE_AT_TIMES
            or bool(_prove_ready(found, scene))
        ),
        "or it waits for busy workers to hand them over",
        is_doubt=True,
    ),
    Bound(Figure.BATCHES_READY, _count_ready, 1, must=False),
    says="unpacking and copying its batches takes the time",
    part=_COPIES.measure,
    proves=_prove_ready,
)
judge_sampler = starves(
    "sampler",
    "choosing of samples",
    _SAMPLES,
    Bound(Figure.WORKERS_IDLE, lambda found, _: found.idle, IDLE_WORKERS, must=False),
    says="the sampler chooses what comes next in the main thread, with and without workers",
    part=_SAMPLES.measure,
    proves=(Need.SAMPLER_IN_STACK,),
    shows=(name_hot_load,),
)
judge_pin = starves(
    "pin",
    "pin-memory thread",
    Given(lambda found, _: see_pins(found.rank), "there is none"),
    Bound(Figure.PIN_THREAD_WANTS, find_pin_demand, BUSY_PIN, sure=1.25),
    Bound(Figure.WORKERS_IDLE, lambda found, _: found.idle, IDLE_WORKERS),
    says="its one pin-memory thread copies all the time, the workers have no work",
    proves=(Need.BATCHES_PINNED, Need.PIN_THREAD_BUSY),
)


ENGINE_FULL_PCT = 85.0
"""Use of a card's decoding engines from which they decode no faster: a mean over time and engines."""


@by_conditions
def judge_decode_engine(scene: Scene) -> Answer:
    """Suspect the engines of the card that decode video or JPEGs: full while its SMs wait for data."""
    found, engines = need_starved(scene), Proof("decoding engines of the card", scene)
    mine = {card.last.uuid for card in cards_of(found.rank.process.pid, scene.gpus)}
    engines.clear(not mine, "the rank computes on no card")
    samples = [one for frame in scene.frames for one in known_or(frame.gpus, ()) if one.uuid in mine]
    video = median_known(_read_engine(one.decoder_pct) for one in samples)
    jpeg = median_known(_read_engine(one.jpeg_pct) for one in samples)
    both = {"NVDEC": video, "JPEG engine": jpeg}
    read = {name: value for name, value in both.items() if is_known(value)}
    engines.doubt(not read, "their use was not read")
    name = max(read, key=lambda one: read[one])
    engines.at_least(Figure.DECODE_ENGINE, read[name] / 100, ENGINE_FULL_PCT / 100, sure=1.25, of=name)
    used = f"{name} {format_pct(read[name])} % busy"
    why = f"the card decodes for it and is full with that ({used}), while its SMs idle"
    needs = frozenset((Need.DECODE_ENGINE_BUSY,))
    return suspect_loader(found, engines, "decode-engine", why, observed=needs)


def _read_engine(pct: Applicable[float]) -> Known[float]:
    return pct if not isinstance(pct, NotApplicable) else Missing("an older recording does not have it")


LEAST_PERIODS = 3
LEAST_PERIOD = 3
"""In readings: shorter periods cannot be seen at one reading a second."""
LEAST_HISTORY = 15
CORRELATION = 0.5
CORRELATION_SIGMAS = 2.5
"""Chance gives correlations of 1 / sqrt(pairs); this many times that is not chance."""
LEAST_SWING = 0.2
"""Standard deviation of the seconds' wait: bursts are all or nothing, a slow loader is even."""
LULL = 0.1
LEAST_LULLS = 0.2
"""Share of the seconds with hardly any wait: the loader is fast enough between the bursts."""
UNTIMED_MARGIN = 1.2
"""Margin of bursts that nothing times: workers that rest at times show them, or are within their noise."""
OVER_PERIODS = 2.0
"""Periods after the last burst from which they are over: the run has changed."""


def _correlate(values: Sequence[float], lag: int) -> float:
    """Return the correlation (-1 to 1) of a series with itself ``lag`` readings later, 0 where it is flat."""
    mean = statistics.fmean(values)
    power = sum((value - mean) ** 2 for value in values) / len(values)
    if power <= 0:
        return 0.0
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
    if statistics.pstdev(shares) < LEAST_SWING or lulls < LEAST_LULLS:
        return Missing("the wait is even")
    longest = len(shares) // LEAST_PERIODS
    scores = {lag: _correlate(shares, lag) for lag in range(LEAST_PERIOD - 1, longest + 2)}
    for lag in range(LEAST_PERIOD, longest + 1):
        least = max(CORRELATION, CORRELATION_SIGMAS / math.sqrt(len(shares) - lag))
        if scores[lag] >= least and scores[lag - 1] <= scores[lag] >= scores[lag + 1]:
            mean = statistics.fmean(shares)
            since_burst = next(number for number, share in enumerate(reversed(shares)) if share >= mean)
            if since_burst > OVER_PERIODS * lag:
                return Missing("the bursts are over")
            interval_s = (waits[-1][0] - waits[0][0]) / 1e9 / (len(waits) - 1)
            return lag * interval_s, scores[lag]
    return Missing("the bursts have no period")


STEADY_RATE = 0.2
"""Difference of the steps of single periods from their mean up to which the rate is steady."""
LEAST_STEPS = 2
"""With fewer steps between bursts every step waits: no number is given."""


def _counts(scene: Scene, pid: int) -> list[tuple[float, int]]:
    """Return seconds and steps of the Frames whose hook counts training steps, oldest first."""
    found = []
    for frame in scene.history:
        pace = find_pace(frame, pid)
        if is_known(pace) and not is_stalled(pace) and not is_evaluating(pace):
            found.append((frame.taken_ns / 1e9, pace.count))
    return found


def _at(counts: Sequence[tuple[float, int]], seconds: float) -> float:
    """Return the count at a time, interpolated between two readings."""
    for (before_s, before), (after_s, after) in itertools.pairwise(counts):
        if before_s <= seconds <= after_s and before_s < after_s:
            return before + (after - before) * (seconds - before_s) / (after_s - before_s)
    return float(counts[-1][1])


def count_steps_between(scene: Scene, pid: int, period_s: float) -> Known[float]:
    """Return the steps of one period, a mean over whole periods of the Window.

    A hook's rate over ten seconds holds one burst or two of every seven, so it cannot tell.
    """
    counts = _counts(scene, pid)
    if len(counts) < 2 or period_s <= 0:
        return Missing("no hook counts the steps")
    span_s = counts[-1][0] - counts[0][0]
    periods = math.floor(span_s / period_s)
    if periods < LEAST_PERIODS:
        return Missing("the steps were counted for less than three periods")
    edges = [_at(counts, counts[-1][0] - number * period_s) for number in range(periods, -1, -1)]
    steps = [after - before for before, after in itertools.pairwise(edges)]
    mean = (edges[-1] - edges[0]) / periods
    if mean < LEAST_STEPS or max(abs(one - mean) for one in steps) > STEADY_RATE * mean:
        return Missing("the steps have no steady rate")
    return mean


def round_steps(steps: float, period_s: float, reading_s: float) -> int:
    """Round to 1 or 5 times a power of ten, as fine as a period known to half a reading allows."""
    doubt = steps * reading_s / (2 * period_s)
    if doubt <= 1:
        return round(steps)
    power: int = 10 ** math.floor(math.log10(doubt))
    unit = 5 * power if doubt >= 5 * power else power
    return unit * round(steps / unit)


def say_nth(number: int) -> str:
    """Write an ordinal number: "1st", "34th", "112th", "1,300th"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"


def _idle_at_times(found: Starved, scene: Scene) -> Known[float]:
    """Return the idle share of the busiest worker, 0-1; Missing when it is not surely above a tenth.

    All late batches may fall to one worker: then the others mostly have none, and it has none at times.
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
    """Use the whole Window: with a long period ten seconds may fall between two bursts."""
    seen = see_all_waits(scene)
    for rank in scene.ranks:
        waits = seen.get(rank.process.pid, []) if rank.has_workers else []
        if is_known(find_period(waits)):
            share = measure_share(sum(one for _, one in waits) / len(waits), len(waits))
            return see_starved(rank, DataWait(share, {}, frozenset((Origin.PROC,)), share.low), scene)
    return answer


def _queue_empty(found: Starved) -> Known[float]:
    """Return how often the queue was found empty; Missing behind a pin thread, which always empties it."""
    loader = found.rank.loader
    if loader is None:
        return Missing("its queue was not read")
    return Missing("a pin thread empties the queue") if loader.pin_thread else loader.empty_ratio


@by_conditions
def judge_periodic(scene: Scene) -> Answer:
    """Suspect late batches now and then: the wait comes in bursts, and between them the loader is ahead."""
    found = find_starved(scene)
    is_starved = isinstance(found, Starved)
    found = need_late_batches(scene) if is_starved else _starved_over_history(scene, found)
    if not isinstance(found, Starved):
        return found
    bursts = Proof("waits every few steps", scene)
    bursts.doubt(not found.rank.has_workers, "seen only at the queue of workers")
    waits = see_waits(found.rank, scene)
    period, idle = find_period(waits), _idle_at_times(found, scene)
    never = is_known(period) and never_idle(found, scene)
    bursts.clear(never, "the workers always have work: the loader never keeps up")
    if is_known(idle):
        bursts.add(Figure.EVERY_WORKER_IDLE, idle)
    if is_known(period):
        bursts.add(Figure.BETWEEN_BURSTS, period[0], period[1] / CORRELATION * 1.25)
        steps = count_steps_between(scene, found.rank.process.pid, period[0])
        nth, interval_s = "", (waits[-1][0] - waits[0][0]) / 1e9 / (len(waits) - 1)
        if is_known(steps):
            nth = f", about every {say_nth(round_steps(steps, period[0], interval_s))} step"
            bursts.add(Figure.STEPS_BETWEEN_BURSTS, steps)
        why = f"batches come late every {period[0]:.0f} s{nth}, between that the loader keeps up"
    else:
        bursts.clear(not is_known(idle), f"{period.reason}, {'' if is_known(idle) else idle.reason}")
        empty = bursts.known(_queue_empty(found))
        bursts.doubt(empty >= ALWAYS_EMPTY, "the queue is always empty, and yet workers have no work")
        is_ahead = empty < QUEUE_AGREES * found.wait.share.ratio
        bursts.clear(is_ahead, f"batches are ready {100 - 100 * empty:.0f} % of the time")
        bursts.margin = min(max(1.0, known_or(idle, 0.0) / IDLE_AT_TIMES), UNTIMED_MARGIN)
        why = "batches come in bursts, too close together for tpmon to time; on average the loader keeps up"
    return suspect_loader(found, bursts, "periodic", why, observed=frozenset((Need.PERIODIC_SEEN,)))


SKIPS_RATIO = 0.9
"""Share of its time that a rank that skips batches waits for them."""
LEAST_SKIPPED = 100
"""Stack samples in which a step of a hundredth of the time would show."""
SKIPS_S = 15.0
"""How long no part of a step may have been seen: the longest that most programs take to one."""


def note_skipping(scene: Scene) -> str:
    """Return the note that batches are taken and no step is made of them, "" where steps are seen."""
    for rank in scene.ranks:
        phases = rank.phases
        if not is_known(phases) or phases.span_s < SKIPS_S or phases.samples < LEAST_SKIPPED:
            continue
        taken = phases.parts.keys() & {DataPart.COPY, DataPart.COLLATE}
        worked = phases.ratio(*TRAINING, Phase.VALIDATION, Phase.SYNC)
        if taken and not worked and phases.ratio(Phase.DATA_WAIT) >= SKIPS_RATIO:
            return (
                f"skipping: {name_rank(rank)} takes batch after batch, and no step is seen in "
                f"{phases.span_s:.0f} s; to resume within an epoch skip the indices, not the batches: "
                "StatefulDataLoader of torchdata, or a sampler that begins there"
            )
    return ""


RULES: tuple[Rule, ...] = (
    judge_no_workers,
    judge_decode_engine,
    judge_sampler,
    judge_collate,
    judge_drain,
    judge_pin,
    judge_periodic,
)
