"""Measure memory of the job on its cards, how it grows, and how much the cards idle. Pure."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.cards import (
    BUSY_PCT,
    NO_SLICE,
    QUIET_LINK_BYTES_S,
    WORKING_CLOCK_RATIO,
    CardScene,
    cards_of,
    find_slice,
    is_sliced,
    mean_busy_pct,
    ratio_of,
)
from tpmon.judge.features.data_wait import DataWait
from tpmon.judge.features.readings import all_known
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.watch.tracker import find_hook
from tpmon.model.figures import Figure
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, MigInstance, is_listed, list_processes, may_be_on, say_unlisted
from tpmon.model.hook import AllocatorFigures
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known, known_or, map_known

GROWTH_BYTES_S = 1e6
GROWTH_WINDOWS = 3
GROWTH_WINDOW_S = 15.0
EDGE_S = 2.0
ETA_S = 1800.0
Item = TypeVar("Item")


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


def measure_growth(
    items: Sequence[Item],
    date: Callable[[Item], int],
    read: Callable[[Item], Known[float]],
    *,
    window_s: float = GROWTH_WINDOW_S,
    edge_s: float = EDGE_S,
) -> Known[Growth]:
    """Return the growth of a figure over the last three windows; Missing for a shorter history.

    ``items`` have a ``date`` in nanoseconds, oldest first. At the edge of a window counts the median of the
    readings within ``edge_s`` of it: one batch is no growth.
    """
    now_ns, span_s = date(items[-1]), window_s * GROWTH_WINDOWS

    def list_points(those: Sequence[Item]) -> Iterator[tuple[float, float]]:
        return (((now_ns - date(one)) / 1e9, value) for one in those if is_known(value := read(one)))

    oldest, values = next(list_points(items), None), []
    if oldest is None:
        return last if isinstance(last := read(items[-1]), Missing) else Missing("not read")
    if oldest[0] < span_s:
        return Missing(f"growth needs {span_s:.0f} s of readings")
    for ago_s in (window_s * number for number in range(GROWTH_WINDOWS, -1, -1)):
        low = bisect_left(items, now_ns - (ago_s + edge_s) * 1e9, key=date)
        near = list(list_points(items[low : bisect_right(items, now_ns - (ago_s - edge_s) * 1e9, key=date)]))
        near = near or [min(list_points(items), key=lambda point, ago_s=ago_s: abs(point[0] - ago_s))]  # type: ignore[misc]
        values.append((statistics.fmean(age for age, _ in near), statistics.median(one for _, one in near)))
    slopes = []
    for (older_s, older), (newer_s, newer) in itertools.pairwise(values):
        if older_s <= newer_s:
            return Missing("too few readings")
        slopes.append((newer - older) / (older_s - newer_s))
    grown = values[-1][1] - values[0][1]
    return Growth(tuple(slopes), grown / (values[0][0] - values[-1][0]), grown, values[-1][1])


def read_growth(scene: Scene, read: Callable[[Frame], Known[float]]) -> Known[Growth]:
    """Return the growth of a figure of the Frames of the Window."""
    return measure_growth(scene.history, attrgetter("taken_ns"), read)


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
RECORD_RATIO = 0.2
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
        return ratio_of(self.used, self.total)


def read_fill(sample: GpuSample) -> Fill:
    """Return the memory of one reading; on a sliced card, that of the job's slice."""
    ours = known_or(sample.pids, ())
    listed = list_processes(sample)
    part: GpuSample | MigInstance = sample
    beside = any(one.pid not in ours and not one.of_job for one in listed)
    if is_sliced(sample):
        own = find_slice(sample)
        if own is None:
            return Fill(NO_SLICE, NO_SLICE, NO_SLICE)
        part, beside = own, not set(ours).issuperset(known_or(own.pids, ()))
    used, total = part.memory_used_bytes, part.memory_total_bytes
    told = [one.used_bytes for one in listed if one.pid in ours and is_known(one.used_bytes)]
    if not is_listed(sample):
        return Fill(used, total, _WHOSE)
    if len(told) == len(ours):
        return Fill(used, total, sum(told))
    return Fill(used, total, _WHOSE if beside or is_known(sample.lists_only) else used)


def _fill_of(frame: Frame, uuid: str) -> Fill:
    sample = next((one for one in known_or(frame.gpus, ()) if one.uuid == uuid), None)
    return read_fill(sample) if sample is not None else Fill(_NOT_THERE, _NOT_THERE, _NOT_THERE)


def find_fullest(history: Sequence[Frame], uuid: str) -> Known[float]:
    """Return how full a card was at most over the history, before anything was freed to find room."""
    ratios = [ratio for frame in history if is_known(ratio := _fill_of(frame, uuid).ratio)]
    return max(ratios) if ratios else _NOT_THERE


def read_own_growth(scene: Scene, uuid: str, least_bytes_s: float) -> Known[Growth | None]:
    """Return how the job's memory on a card grows; None where slowly, not steadily, or not at all."""
    # Missing where it may grow, but the history is too short or the memory may be that of others.
    now_ns, seconds = scene.frame.taken_ns, GROWTH_WINDOWS * GROWTH_WINDOW_S
    recent = [frame for frame in scene.history if now_ns - frame.taken_ns <= seconds * 1e9]
    first, last = (_fill_of(frame, uuid) for frame in (recent[0], scene.frame))
    before, now = (fill.own if is_known(fill.own) else fill.used for fill in (first, last))
    seconds = (now_ns - recent[0].taken_ns) / 1e9
    if is_known(before) and is_known(now) and now - before < least_bytes_s * seconds:
        return None  # most cards: nothing more is to be read of them
    if not is_known(last.own):
        return last.own

    def read(frame: Frame) -> Known[float]:
        return map_known(float, _fill_of(frame, uuid).own)

    growth = read_growth(scene, read)
    if not is_known(growth):
        return growth
    # A leak grows alike in all windows, and not in a few large steps.
    values = [value for frame in recent if is_known(value := read(frame))]
    records = len(set(itertools.accumulate(values, max))) - 1
    often = records >= max(LEAST_RECORDS, RECORD_RATIO * (len(values) - 1))
    return growth if often and growth.grows and min(growth.slopes) >= STEADY_RATIO * growth.mean else None


def find_allocator(frame: Frame, pid: int) -> Known[AllocatorFigures]:
    """Return what the hook of a rank tells of its allocator."""
    hook = find_hook(frame, pid)
    unseen = Missing("no hook tells what the allocator holds")
    return hook.settings.allocator if hook is not None and is_known(hook.settings) else unseen


def read_held_growth(scene: Scene, pids: Sequence[int]) -> Known[Growth]:
    """Return how the tensors' memory in the allocators of these ranks grows, by their hooks."""

    def read(frame: Frame) -> Known[float]:
        told = all_known(find_allocator(frame, pid) for pid in pids)
        return map_known(lambda each: float(sum(one.allocated_bytes for one in each)), told)

    return read_growth(scene, read)


SLICE_WAIT = 0.5


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
    # A card that was not read may be full.
    if max(known_or(card.sm_active_pct, 100.0) for card in own) > 100 * (1 - SLICE_WAIT):
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
HOLLOW_POWER_RATIO = 0.35
FULL_SM_PCT = 60.0
FULL_POWER_RATIO = 0.55
SMALL_LIMIT_W = 150.0
FULL_SMALL_RATIO = 0.65
SPIN_PCT = 1.0

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
    """Tell whether a card is busy by its driver, but does next to nothing by its SMs or its power."""
    # SM activity decides where the card has it, unless the power contradicts it; else the power does,
    # relative to what the clock allows. At a low clock both must agree.
    if not is_known(card.busy_pct):
        return card.busy_pct
    if card.busy_pct < BUSY_PCT:
        return False
    if not is_known(card.clock_ratio):
        return card.clock_ratio
    active, work, full = card.sm_active_pct, card.work_ratio, full_power_ratio(card)
    if not is_known(active):
        if full == FULL_SMALL_RATIO and HOLLOW_POWER_RATIO <= known_or(work, 0.0) < full:
            return MEDIUM_POWER
        return map_known(lambda ratio: ratio < HOLLOW_POWER_RATIO, work)
    if known_or(card.power_ratio, 0.0) >= full or (active >= HOLLOW_SM_PCT and not _only_spins(card)):
        return False
    if card.clock_ratio < WORKING_CLOCK_RATIO and known_or(work, 0.0) >= HOLLOW_POWER_RATIO:
        return Missing("SM activity is low, and the power is not for so low a clock")
    return True


ALL_SM_PCT = 80.0
ALL_POWER_RATIO = 0.8
SLACK_RATIO = 0.3


def median_over(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median over cards; Missing if one of them was not read."""
    nothing = Missing("no card")
    return map_known(lambda known: statistics.median(known) if known else nothing, all_known(values))


def gpu_figures(scene: Scene) -> tuple[FigureReading, ...]:
    """Return what the cards do as evidence: medians over the cards of what was read."""
    rows = (
        (Figure.GPU_BUSY, "busy_pct", 1.0, "NVML utilisation"),
        (Figure.SM_ACTIVITY, "sm_active_pct", 1.0, ""),
        (Figure.TENSOR_ACTIVITY, "tensor_pct", 1.0, ""),
        (Figure.DRAM_ACTIVITY, "dram_pct", 1.0, ""),
        (Figure.GPU_POWER, "power_ratio", 100.0, ""),
        (Figure.GPU_CLOCK, "clock_ratio", 100.0, ""),
    )
    return tuple(
        reading(figure, scale * value, scene.frame, source=source)
        for figure, name, scale, source in rows
        if is_known(value := median_over(map(attrgetter(name), scene.gpus)))
    )


@dataclass(frozen=True, slots=True)
class Slack:
    """Hold how long (0-1) a card does nothing useful, and how long it runs no kernel at all."""

    ratio: float
    idle_ratio: float


def works_all_the_time(card: CardScene) -> bool:
    """Tell whether a card has no time left in which it could wait."""
    return (
        known_or(card.sm_active_pct, 0.0) >= ALL_SM_PCT or known_or(card.work_ratio, 0.0) >= ALL_POWER_RATIO
    )


def card_slack(card: CardScene) -> Known[Slack]:
    """Return the slack of one card; Missing where a hollow card cannot be told from a full one."""
    hollow = judge_hollow(card)
    if not is_known(card.busy_pct):
        return card.busy_pct
    if not is_known(hollow):
        return hollow
    idle, full = max(0.0, 1 - card.busy_pct / 100), full_power_ratio(card)
    if not hollow and card.busy_pct >= BUSY_PCT:
        return Slack(idle, idle)
    active, power = known_or(card.sm_active_pct, 100.0), known_or(card.power_ratio, 0.0)
    work = known_or(card.work_ratio, 1.0)
    rests, saves = active < HOLLOW_SM_PCT and power < full, hollow and work < HOLLOW_POWER_RATIO
    return Slack(max(idle, 1 - active / 100 if rests else 0.0, 1 - work / full if saves else 0.0), idle)


def rank_slack(rank: RankScene, scene: Scene) -> Known[Slack]:
    """Return the slack of the busiest card of a rank."""
    slacks = all_known(card_slack(card) for card in cards_of(rank.process.pid, scene.gpus))
    nothing = Missing("its card is not known")
    return map_known(lambda known: min(known, key=lambda one: one.ratio) if known else nothing, slacks)


def slackest(scene: Scene) -> Known[tuple[RankScene, Slack]]:
    """Return the rank whose GPU has the most slack; Missing when none is known."""
    slacks = [(rank, rank_slack(rank, scene)) for rank in scene.ranks]
    known = [(rank, slack) for rank, slack in slacks if is_known(slack)]
    unread = [slack for _, slack in slacks if isinstance(slack, Missing)]
    if known:
        return max(known, key=lambda pair: pair[1].ratio)
    return unread[-1] if unread else Missing("no rank was read")
