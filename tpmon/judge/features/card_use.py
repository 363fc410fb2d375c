"""Read from the history of a card which memory on it is the job's, how full it was, how that grew. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.judge.features.card_slices import find_slice, is_sliced
from tpmon.judge.features.growth import GROWTH_WINDOW_S, GROWTH_WINDOWS, Growth, read_growth
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.hook_progress import list_hooks
from tpmon.model.card_use import is_listed, list_processes
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample
from tpmon.model.known import Known, Missing, is_known, known_or

STEADY_RATIO = 0.5
"""Slope of the slowest window over the mean from which growth is steady; what settles grows ever slower."""
RECORD_RATIO = 0.2
"""Share of the readings that must be a new maximum: the maxima of a cache that settles become rare."""
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
        if not is_known(self.used):
            return self.used
        if not is_known(self.total):
            return self.total
        return self.used / self.total if self.total else Missing("the card has no memory of its own")


def _own_bytes(sample: GpuSample, used: Known[int], others: bool) -> Known[int]:
    """Return what the job has of ``used``: all of it where nobody else is there."""
    if not is_listed(sample):
        return _WHOSE
    ours = known_or(sample.pids, ())
    listed = list_processes(sample)
    told = [one.used_bytes for one in listed if one.pid in ours and is_known(one.used_bytes)]
    if len(told) == len(ours):
        return sum(told)
    return _WHOSE if others or is_known(sample.lists_only) else used


def read_fill(sample: GpuSample) -> Fill:
    """Return the memory of one reading; of a card in slices that of the job's."""
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
    """Return how full a card was at most over the history: what was freed to find room was there before."""
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
    """Tell whether it grew alike in all windows, and not in a few large steps."""
    highest, records = values[0], 0
    for value in values[1:]:
        if value > highest:
            highest, records = value, records + 1
    if records < max(LEAST_RECORDS, RECORD_RATIO * (len(values) - 1)):
        return False
    return growth.grows and min(growth.slopes) >= STEADY_RATIO * growth.mean


def read_own_growth(scene: Scene, uuid: str, least_bytes_s: float) -> Known[Growth | None]:
    """Return how the job's memory on a card grows, None where it does so slowly, not steadily, or not.

    Missing where it may grow, and the history is too short or the memory not known to be the job's.
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
    """Return how what the allocators of these ranks hold for tensors grows, as their hooks tell."""

    def read(frame: Frame) -> Known[float]:
        held = 0.0
        told = 0
        for one in list_hooks(frame):
            if one.pid in pids and is_known(one.settings) and is_known(one.settings.allocator):
                held, told = held + one.settings.allocator.allocated_bytes, told + 1
        return held if told and told == len(pids) else Missing("no hook tells what the allocator holds")

    return read_growth(scene, read)
