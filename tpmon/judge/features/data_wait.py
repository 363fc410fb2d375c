"""Measure a main thread's wait for data as one share with its interval, and which loader feeds it. Pure.

Stack samples see it, and frequent samples of state and system call. The hook's figure is exact where torch's
DataLoader makes the batches: the time inside its next(). Stacks also see copies of a batch afterwards.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import DESIGN, RankPhases, Share, share_of
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.hook import StepPace, StepRule
from tpmon.model.host import LoaderSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.text.job_words import is_evaluating, is_stalled

# What each number decides, and where it comes from: docs/thresholds.toml.
LEAST_SAMPLES, LEAST_READINGS, LEAST_HANDED = 20, 5, 0.1
AGREES_RATIO, LEAST_STEPS = 0.1, 3
IDLE_STEPS, RESTS, STARVES = 4, 0.25, 0.5

_BATCHES = (StepRule.BATCH_AFTER_UPDATE, StepRule.BATCH_AFTER_BACKWARD, StepRule.CALL)
"""Rules of loops whose batches come from torch's DataLoader; otherwise fetching counts as forward."""


@dataclass(frozen=True, slots=True)
class DataWait:
    """Hold the share of a main thread's time that goes into getting batches, 0-1.

    ``parts`` are shares of all stack samples; empty without stacks. ``surest_low`` is the highest lower bound
    that one of ``origins``, or all together, give.
    """

    share: Share
    parts: Mapping[DataPart, Share]
    origins: frozenset[Origin]
    surest_low: float
    told: Mapping[Origin, float] = field(default_factory=dict)
    """What each origin says by itself, where there are two."""

    def part(self, *names: DataPart) -> float:
        """Return the share of samples in any of these parts, 0-1."""
        return sum(self.parts[name].ratio for name in names if name in self.parts)


def wait_by(origin: Origin, share: Share, parts: Mapping[DataPart, Share] = MappingProxyType({})) -> DataWait:
    """Return a wait that one origin sees."""
    return DataWait(share, parts, frozenset((origin,)), share.low)


def measure_share(ratio: float, samples: int) -> Share:
    """Return a share of ``samples`` with its 95 % interval."""
    return share_of(ratio * samples, samples)


def _add(one: Share, other: Share) -> Share:
    """Add two shares of the same time; the errors of their intervals add as independent ones."""
    ratio = min(1.0, one.ratio + other.ratio)
    low = ratio - math.hypot(one.ratio - one.low, other.ratio - other.low)
    high = ratio + math.hypot(one.high - one.ratio, other.high - other.ratio)
    return Share(ratio, max(0.0, low), min(1.0, high), one.samples)


def _share_in(stacks: RankPhases, ratio: float) -> Share:
    return share_of(ratio * stacks.samples, stacks.samples, stacks.design)


def _join(stacks: RankPhases, looks: Share, queue: float) -> Share:
    """Pool the queue wait, which both see, weighted by independent samples; add what only stacks see."""
    seen = stacks.ratio(Phase.DATA_WAIT)
    queue = min(seen, queue)
    by_stacks, by_looks = stacks.samples / stacks.design, looks.samples / DESIGN
    pooled = share_of(queue * by_stacks + looks.ratio * by_looks, by_stacks + by_looks, 1.0)
    pooled = replace(pooled, samples=stacks.samples + looks.samples)
    return pooled if seen <= queue else _add(pooled, _share_in(stacks, seen - queue))


def combine_wait(
    looks: Known[Share], stacks: Known[RankPhases], *, is_any_lock: bool = False
) -> Known[DataWait]:
    """Combine the samples of the main thread's state with its stacks; Missing when neither suffices.

    ``is_any_lock``: a timed lock was seen, as behind a pin thread; with the stacks elsewhere it was another.
    """
    told = is_known(stacks) and stacks.samples >= LEAST_SAMPLES
    if is_known(stacks) and told:
        seen = stacks.share(Phase.DATA_WAIT)
        queue = stacks.parts[DataPart.QUEUE].ratio if DataPart.QUEUE in stacks.parts else 0.0
        if not is_known(looks) or (is_any_lock and _share_in(stacks, queue).high < looks.low):
            return wait_by(Origin.STACKS, seen, stacks.parts)
        both = _join(stacks, looks, queue)
        surest = max(seen.low, looks.low, both.low)
        shares = {Origin.STACKS: seen.ratio, Origin.PROC: looks.ratio}
        return DataWait(both, stacks.parts, frozenset(shares), surest, shares)
    if is_known(looks):
        return wait_by(Origin.PROC, looks)
    return stacks if isinstance(stacks, Missing) else Missing("too few stack samples yet")


def join_handed(wait: Known[DataWait], stacks: Known[RankPhases], *, loader_behind: bool) -> Known[DataWait]:
    """Count a wait at a queue, a lock or a future as one for data while the loader cannot keep up.

    A background thread may iterate the loader and hand its batches on. ``loader_behind``: the workers always
    have work, so somebody takes every batch at once.
    """
    if not loader_behind or not is_known(stacks) or stacks.samples < LEAST_SAMPLES:
        return wait
    handed = _share_in(stacks, stacks.plain_waits_ratio)
    if handed.low < LEAST_HANDED:
        return wait
    parts, share = dict(stacks.parts), _add(stacks.share(Phase.DATA_WAIT), handed)
    parts[DataPart.QUEUE] = _add(parts[DataPart.QUEUE], handed) if DataPart.QUEUE in parts else handed
    return wait_by(Origin.STACKS, share, MappingProxyType(parts))


def exact_wait(pace: Known[StepPace]) -> Known[float]:
    """Return the share (0-1) of a step that waits for its batch, Missing where the hook cannot tell."""
    if not is_known(pace):
        return pace
    if pace.rule not in _BATCHES:
        return Missing("the loop has no DataLoader of torch")
    if is_stalled(pace) or is_evaluating(pace):
        return Missing("no training steps lately")
    steps = pace.rate_hz * pace.span_s
    if not is_known(pace.data_pct) or steps < LEAST_STEPS - 0.5:
        return Missing(f"{steps:.0f} steps so far")
    if pace.rule is StepRule.CALL and pace.data_pct <= 0:
        return Missing("the loop may have no DataLoader of torch")
    return pace.data_pct / 100


def join_hook(wait: Known[DataWait], pace: Known[StepPace]) -> Known[DataWait]:
    """Replace the sampled share by the exact one; if that is lower, keep the sampled one beside it.

    ``told`` keeps what each origin says, so that a rule counts only those that agree.
    """
    exact = exact_wait(pace)
    if not is_known(exact) or not is_known(pace):
        return wait
    share = Share(exact, exact, exact, round(pace.rate_hz * pace.span_s))
    if not is_known(wait):
        return replace(wait_by(Origin.HOOK, share), told={Origin.HOOK: exact})
    told = dict(wait.told) or dict.fromkeys(wait.origins, wait.share.ratio)
    told[Origin.HOOK] = exact
    origins = wait.origins | {Origin.HOOK}
    if exact < wait.share.low - AGREES_RATIO:
        return replace(wait, origins=origins, told=told)
    return replace(wait, share=share, origins=origins, surest_low=max(wait.surest_low, exact), told=told)


def _moves(loader: LoaderSample, frames: Sequence[Frame]) -> bool:
    """Tell whether the queues of a loader changed over the span, or hold work."""
    pids = [queue.pid for queue in loader.queues]
    loaders = (one for frame in frames for one in frame.loader if one.pid == loader.pid)
    seen = [one for one in loaders if [queue.pid for queue in one.queues] == pids]
    ready = {one.ready_bytes for one in seen if is_known(one.ready_bytes)}
    return len(ready) > 1 or any(
        is_known(queue.pending_bytes) and queue.pending_bytes > 0 for one in seen for queue in one.queues
    )


def find_loader_in_use(
    pid: int, frames: Sequence[Frame], idle: Mapping[int, Known[float]]
) -> tuple[LoaderSample | None, frozenset[int]]:
    """Return the loader that feeds a rank and the PIDs of its workers; no PIDs where it is the only one.

    It is the one whose workers wait least for work, else whose queues move, else the oldest. ``idle`` is the
    share of waiting for work (0-1) by worker PID.
    """
    loaders = [loader for loader in frames[-1].loader if loader.pid == pid]
    if len(loaders) < 2:
        return (loaders[0] if loaders else None), frozenset()

    def rest(loader: LoaderSample) -> tuple[int, bool, int]:
        shares = [known_or(idle[queue.pid], 0.0) for queue in loader.queues if queue.pid in idle]
        idle_step = round(IDLE_STEPS * statistics.fmean(shares)) if shares else IDLE_STEPS
        return idle_step, not _moves(loader, frames), loader.loader

    found = min(loaders, key=rest)
    return found, frozenset(queue.pid for queue in found.queues)


def is_behind(loader: LoaderSample | None, idle: Sequence[Known[float]]) -> bool:
    """Tell whether a loader never has a batch to spare: its workers have work, its queue is empty.

    ``idle`` is the share of waiting for work (0-1) of each worker. A pin thread keeps the queue empty.
    """
    shares = [share for share in idle if is_known(share)]
    if loader is None or not shares or 2 * len(shares) < len(idle) or statistics.fmean(shares) >= RESTS:
        return False
    return loader.pin_thread or (is_known(loader.empty_ratio) and loader.empty_ratio >= STARVES)
