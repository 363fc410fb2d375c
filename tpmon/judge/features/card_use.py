"""Measure memory of the job on its cards, how it grows, and how much the cards idle. Pure."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.cards import (
    BUSY_PCT,
    QUIET_LINK_BYTES_S,
    WORKING_CLOCK_RATIO,
    CardScene,
    cards_of,
    find_slice,
    is_sliced,
    mean_busy_pct,
    ratio_of_memory,
)
from tpmon.judge.features.data_wait import DataWait
from tpmon.judge.features.readings import all_known
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, is_listed, list_processes, may_be_on, say_unlisted
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known, known_or, map_known

GROWTH_BYTES_S = 1e6
"""Slope above which memory grows; the allocator's own noise is below it."""
GROWTH_WINDOWS = 3
GROWTH_WINDOW_S = 15.0
"""Growth counts in three windows in a row; in one it is a cache that fills, or a new epoch."""
EDGE_S = 2.0
ETA_S = 1800.0
"""Growth is reported when the limit is nearer than this."""
_TAKEN_NS = attrgetter("taken_ns")


@dataclass(frozen=True, slots=True)
class Growth:
    """Hold the growth of one figure: bytes per second in each window, oldest first, and over all of them."""

    slopes: tuple[float, ...]
    mean: float
    grown_bytes: float
    newest: float

    @property
    def grows(self) -> bool:
        """Tell whether it grew in every window."""
        return min(self.slopes) > GROWTH_BYTES_S


def _points(
    frames: Sequence[Frame], now_ns: int, read: Callable[[Frame], Known[float]]
) -> Iterator[tuple[float, float]]:
    for frame in frames:
        if is_known(value := read(frame)):
            yield (now_ns - frame.taken_ns) / 1e9, value


def _around(
    history: Sequence[Frame], now_ns: int, edge_s: float, read: Callable[[Frame], Known[float]]
) -> tuple[float, float]:
    """Return age and value ``edge_s`` ago, as the median of the readings there: one batch is no growth."""
    low = bisect_left(history, now_ns - (edge_s + EDGE_S) * 1e9, key=_TAKEN_NS)
    high = bisect_right(history, now_ns - (edge_s - EDGE_S) * 1e9, key=_TAKEN_NS)
    near = list(_points(history[low:high], now_ns, read))
    near = near or [min(_points(history, now_ns, read), key=lambda point: abs(point[0] - edge_s))]
    return statistics.fmean(age for age, _ in near), statistics.median(value for _, value in near)


def read_growth(scene: Scene, read: Callable[[Frame], Known[float]]) -> Known[Growth]:
    """Return the growth of a figure over the last three windows; Missing for a shorter history."""
    now_ns, history = scene.frame.taken_ns, scene.history
    oldest = next(_points(history, now_ns, read), None)
    if oldest is None:
        return last if isinstance(last := read(scene.frame), Missing) else Missing("not read")
    edges = [GROWTH_WINDOW_S * number for number in range(GROWTH_WINDOWS, -1, -1)]
    if oldest[0] < edges[0]:
        return Missing(f"growth needs {edges[0]:.0f} s of readings")
    values = [_around(history, now_ns, edge, read) for edge in edges]
    slopes = []
    for (older_s, older), (newer_s, newer) in itertools.pairwise(values):
        if older_s <= newer_s:
            return Missing("too few readings")
        slopes.append((newer - older) / (older_s - newer_s))
    grown = values[-1][1] - values[0][1]
    return Growth(tuple(slopes), grown / (values[0][0] - values[-1][0]), grown, values[-1][1])


def say_about(seconds: float) -> str:
    """Write a time to come: "about 14 min"."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.0f} h" if seconds < 172_800 else "days"


def find_urgency(eta_s: float) -> float:
    """Return the weight, 0-1, of a danger that costs no time yet: the nearer, the heavier."""
    return min(1.0, max(0.2, 1 - eta_s / ETA_S))


STEADY_RATIO = 0.5
"""Slowest window over the mean above which growth is steady; what settles grows ever slower."""
RECORD_RATIO = 0.2
"""Share of the readings that must set a new maximum; in a cache that settles they become rare."""
LEAST_RECORDS = 3
_NOT_THERE = Missing("the card was not read")
_WHOSE = Missing("whose memory it is, the driver does not say")


@dataclass(frozen=True, slots=True)
class Fill:
    """Hold the memory of a card, or of the job's slice of it, in bytes; ``own`` is the job's part."""

    used: Known[int]
    total: Known[int]
    own: Known[int]

    @property
    def ratio(self) -> Known[float]:
        """Return the filled share, 0-1."""
        return ratio_of_memory(self.used, self.total)


def _own_bytes(sample: GpuSample, used: Known[int], others: bool) -> Known[int]:
    if not is_listed(sample):
        return _WHOSE
    ours = known_or(sample.pids, ())
    listed = list_processes(sample)
    told = [one.used_bytes for one in listed if one.pid in ours and is_known(one.used_bytes)]
    if len(told) == len(ours):
        return sum(told)
    return _WHOSE if others or is_known(sample.lists_only) else used


def read_fill(sample: GpuSample) -> Fill:
    """Return the memory of one reading; on a sliced card, that of the job's slice."""
    ours = known_or(sample.pids, ())
    if is_sliced(sample):
        own = find_slice((sample,))
        beside = any(
            set(known_or(one.pids, ())) - set(ours)
            for one in sample.mig_instances
            if len(sample.mig_instances) == 1 or set(known_or(one.pids, ())) & set(ours)
        )
        used = own.memory_used_bytes
        return Fill(
            used, own.memory_total_bytes, _own_bytes(sample, used, beside) if is_known(used) else used
        )
    beside = any(one.pid not in ours and not one.of_job for one in list_processes(sample))
    used = sample.memory_used_bytes
    return Fill(used, sample.memory_total_bytes, _own_bytes(sample, used, beside))


def find_sample(frame: Frame, uuid: str) -> GpuSample | None:
    """Return the reading of one card in a Frame."""
    return next((one for one in known_or(frame.gpus, ()) if one.uuid == uuid), None)


def find_fullest(history: Sequence[Frame], uuid: str) -> Known[float]:
    """Return how full a card was at most over the history, before anything was freed to find room."""
    samples = [one for frame in history if (one := find_sample(frame, uuid)) is not None]
    ratios = [ratio for one in samples if is_known(ratio := read_fill(one).ratio)]
    return max(ratios) if ratios else _NOT_THERE


def _own_on(uuid: str) -> Callable[[Frame], Known[float]]:
    def read(frame: Frame) -> Known[float]:
        sample = find_sample(frame, uuid)
        own = read_fill(sample).own if sample is not None else _NOT_THERE
        return float(own) if is_known(own) else own

    return read


def _own_or_used(frame: Frame, uuid: str) -> Known[int]:
    sample = find_sample(frame, uuid)
    if sample is None:
        return _NOT_THERE
    fill = read_fill(sample)
    return fill.own if is_known(fill.own) else fill.used


def _is_steady(values: Sequence[float], growth: Growth) -> bool:
    """Tell whether it grew alike in all windows, not in a few large steps."""
    highest, records = values[0], 0
    for value in values[1:]:
        if value > highest:
            highest, records = value, records + 1
    if records < max(LEAST_RECORDS, RECORD_RATIO * (len(values) - 1)):
        return False
    return growth.grows and min(growth.slopes) >= STEADY_RATIO * growth.mean


def read_own_growth(scene: Scene, uuid: str, least_bytes_s: float) -> Known[Growth | None]:
    """Return how the job's memory on a card grows; None where slowly, not steadily, or not at all.

    Missing where it may grow, but the history is too short or the memory may be that of others.
    """
    now_ns, seconds = scene.frame.taken_ns, GROWTH_WINDOWS * GROWTH_WINDOW_S
    recent = [frame for frame in scene.history if now_ns - frame.taken_ns <= seconds * 1e9]
    read = _own_on(uuid)
    own = read(scene.frame)
    ends = [_own_or_used(frame, uuid) for frame in (recent[0], scene.frame)]
    seconds = (now_ns - recent[0].taken_ns) / 1e9
    if is_known(ends[0]) and is_known(ends[1]) and ends[1] - ends[0] < least_bytes_s * seconds:
        return None  # most cards: nothing more is to be read of them
    if not is_known(own):
        return own
    growth = read_growth(scene, read)
    if not is_known(growth):
        return growth
    values = [value for frame in recent if is_known(value := read(frame))]
    return growth if _is_steady(values, growth) else None


def read_held_growth(scene: Scene, pids: Sequence[int]) -> Known[Growth]:
    """Return how the tensors' memory in the allocators of these ranks grows, by their hooks."""

    def read(frame: Frame) -> Known[float]:
        held = 0.0
        told = 0
        for one in list_hooks(frame):
            if one.pid in pids and is_known(one.settings) and is_known(one.settings.allocator):
                held, told = held + one.settings.allocator.allocated_bytes, told + 1
        return held if told and told == len(pids) else Missing("no hook tells what the allocator holds")

    return read_growth(scene, read)


SLICE_WAIT = 0.5
"""Share of the time above which a wait counts on a MIG slice, whose utilisation nobody knows."""


def find_gpu_idle(rank: RankScene, scene: Scene) -> Applicable[float]:
    """Return the idle share (0-1) of the rank's cards; Missing where it may have one that was not read."""
    own = cards_of(rank.process.pid, scene.gpus)
    if own:
        return map_known(lambda pct: max(0.0, 1 - pct / 100), mean_busy_pct(own))
    if scene.gpus:
        return Missing(f"the card of process {rank.process.pid} is not known")
    unseen = find_unseen_cards(scene)
    return Missing(unseen) if unseen else NOT_APPLICABLE


def may_starve(rank: RankScene, wait: DataWait, scene: Scene) -> bool:
    """Tell whether a MIG slice may idle for half of the time, by the wait, the empty queue and its SMs."""
    own = cards_of(rank.process.pid, scene.gpus)
    if not own or not all(is_sliced(card.last) for card in own) or wait.share.low < SLICE_WAIT:
        return False
    active = [card.sm_active_pct for card in own]
    if not all(is_known(pct) and 1 - pct / 100 >= SLICE_WAIT for pct in active):
        return False
    loader = rank.loader
    if loader is None:
        return not rank.has_workers
    # A pin thread empties the pipe at once, so its emptiness says nothing.
    return not loader.pin_thread and is_known(loader.empty_ratio) and loader.empty_ratio >= SLICE_WAIT


def find_unseen_cards(scene: Scene) -> str:
    """Say why the job may compute on cards that were not read; "" when it uses none, or they were."""
    gpus = scene.frame.gpus
    if isinstance(gpus, Missing):
        return "" if gpus.why is Why.ABSENT else gpus.reason
    holders = [card.pids for card in gpus]
    unread = next((one for one in holders if isinstance(one, Missing)), None)
    if unread is not None and not any(is_known(one) for one in holders):
        return f"which processes are on the cards: {unread.reason}"
    if is_known(scene.frame.unlisted_gpus):
        return say_unlisted(scene.frame.unlisted_gpus)
    return next(
        (f"card {one.index}: {one.unheard}" for one in gpus if is_known(one.unheard) and may_be_on(one)), ""
    )


HOLLOW_SM_PCT = 25.0
"""SM activity below which 100 % busy is wrong; a healthy H100 job reads 91-93."""
HOLLOW_POWER_RATIO = 0.35
"""P below which 100 % busy is wrong: a quarter of the usable span above idle power (5-15 %)."""
FULL_SM_PCT = 60.0
"""SM activity above which a busy card truly computes."""
FULL_POWER_RATIO = 0.55
"""P above which a busy card truly computes, where SM activity is not read."""
SMALL_LIMIT_W = 150.0
"""Power limit up to which idle work may draw a third to half (T4, L4, A2, A10): reported, not measured."""
FULL_SMALL_RATIO = 0.65
"""P above which such a card truly computes: a guess, above what a spinning kernel may draw."""
SPIN_PCT = 1.0
"""Activity of tensor cores and memory below which active SMs only poll a flag."""

MEDIUM_POWER = Missing("its power is between that of a card that spins and of one that computes")


def full_power_ratio(card: CardScene) -> float:
    """Return P above which a busy card truly computes, where SM activity is not read."""
    limit = card.last.power_limit_w
    return FULL_SMALL_RATIO if is_known(limit) and limit <= SMALL_LIMIT_W else FULL_POWER_RATIO


def _only_spins(card: CardScene) -> bool:
    """Tell whether active SMs do nothing: two collectives that do not end hold a third or half of them."""
    readings = (
        (card.sm_active_pct, FULL_SM_PCT),
        (card.tensor_pct, SPIN_PCT),
        (card.dram_pct, SPIN_PCT),
        (card.link_bytes_s, QUIET_LINK_BYTES_S),
        (card.work_ratio, HOLLOW_POWER_RATIO),
    )
    return all(is_known(value) and value < limit for value, limit in readings)


def judge_hollow(card: CardScene) -> Known[bool]:
    """Tell whether a card is busy by its driver, but does next to nothing by its SMs or its power.

    SM activity decides where the card has it, unless the power contradicts it; else the power does, relative
    to what the clock allows. At a low clock both must agree. Missing where the readings do not decide.
    """
    if not is_known(card.busy_pct):
        return card.busy_pct
    if card.busy_pct < BUSY_PCT:
        return False
    if not is_known(card.clock_ratio):
        return card.clock_ratio
    if is_known(card.sm_active_pct):
        powerful = is_known(card.power_ratio) and card.power_ratio >= full_power_ratio(card)
        if powerful or (card.sm_active_pct >= HOLLOW_SM_PCT and not _only_spins(card)):
            return False
        work = card.work_ratio
        if card.clock_ratio < WORKING_CLOCK_RATIO and is_known(work) and work >= HOLLOW_POWER_RATIO:
            return Missing("SM activity is low, and the power is not for so low a clock")
        return True
    work = card.work_ratio
    small = full_power_ratio(card) == FULL_SMALL_RATIO
    if small and is_known(work) and HOLLOW_POWER_RATIO <= work < FULL_SMALL_RATIO:
        return MEDIUM_POWER
    return map_known(lambda ratio: ratio < HOLLOW_POWER_RATIO, work)


ALL_SM_PCT = 80.0
"""SM activity above which a card has no time left to wait for other ranks."""
ALL_POWER_RATIO = 0.8
"""P above which it has none; by the power of a spinning kernel, two thirds of the rest may be waits."""
SLACK_RATIO = 0.3
"""Share of time in which a GPU must do nothing useful: the complement of starved (U < 70)."""


def median_over(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median over cards; Missing if one of them was not read."""
    nothing = Missing("no card")
    return map_known(lambda known: statistics.median(known) if known else nothing, all_known(values))


def gpu_figures(scene: Scene) -> tuple[FigureReading, ...]:
    """Return what the cards do as evidence: medians over the cards of what was read."""
    cards = scene.gpus
    rows = (
        (Figure.GPU_BUSY, median_over(card.busy_pct for card in cards), 1.0, "NVML utilisation"),
        (Figure.SM_ACTIVITY, median_over(card.sm_active_pct for card in cards), 1.0, ""),
        (Figure.TENSOR_ACTIVITY, median_over(card.tensor_pct for card in cards), 1.0, ""),
        (Figure.DRAM_ACTIVITY, median_over(card.dram_pct for card in cards), 1.0, ""),
        (Figure.GPU_POWER, median_over(card.power_ratio for card in cards), 100.0, ""),
        (Figure.GPU_CLOCK, median_over(card.clock_ratio for card in cards), 100.0, ""),
    )
    return tuple(
        reading(figure, scale * value, scene.frame, source=source)
        for figure, value, scale, source in rows
        if is_known(value)
    )


@dataclass(frozen=True, slots=True)
class Slack:
    """Hold how long (0-1) a card does nothing useful, how long it runs no kernel at all, and the origins."""

    ratio: float
    idle_ratio: float
    origins: frozenset[Origin]


def works_all_the_time(card: CardScene) -> bool:
    """Tell whether a card has no time left in which it could wait."""
    active, work = card.sm_active_pct, card.work_ratio
    return (is_known(active) and active >= ALL_SM_PCT) or (is_known(work) and work >= ALL_POWER_RATIO)


def card_slack(card: CardScene) -> Known[Slack]:
    """Return the slack of one card; Missing where a hollow card cannot be told from a full one."""
    if not is_known(card.busy_pct):
        return card.busy_pct
    idle = max(0.0, 1 - card.busy_pct / 100)
    origins = {Origin.DRIVER} if idle >= SLACK_RATIO else set[Origin]()
    ratio = idle
    hollow = judge_hollow(card)
    if is_known(hollow) and not hollow and card.busy_pct >= BUSY_PCT:
        return Slack(idle, idle, frozenset(origins))
    if isinstance(hollow, Missing):
        return hollow
    powerful = is_known(card.power_ratio) and card.power_ratio >= full_power_ratio(card)
    if is_known(card.sm_active_pct) and card.sm_active_pct < HOLLOW_SM_PCT and not powerful:
        ratio = max(ratio, 1 - card.sm_active_pct / 100)
        origins.add(Origin.DRIVER)
    work = card.work_ratio if hollow else card.power_ratio
    if is_known(work) and work < HOLLOW_POWER_RATIO:
        if hollow:
            ratio = max(ratio, 1 - work / full_power_ratio(card))
        origins.add(Origin.DRIVER)
    return Slack(ratio, idle, frozenset(origins))


def rank_slack(rank: RankScene, scene: Scene) -> Known[Slack]:
    """Return the slack of the busiest card of a rank."""
    best: Known[Slack] = Missing("its card is not known")
    for card in cards_of(rank.process.pid, scene.gpus):
        slack = card_slack(card)
        if not is_known(slack):
            return slack
        if not is_known(best) or slack.ratio < best.ratio:
            best = slack
    return best


def slackest(scene: Scene) -> Known[tuple[RankScene, Slack]]:
    """Return the rank whose GPU has the most slack; Missing when none is known."""
    found: list[tuple[RankScene, Slack]] = []
    reason = Missing("no rank was read")
    for rank in scene.ranks:
        slack = rank_slack(rank, scene)
        if is_known(slack):
            found.append((rank, slack))
        else:
            reason = slack
    return max(found, key=lambda pair: pair[1].ratio) if found else reason
