"""Say which of a rank's loaders is in use: one that waits for the next validation feeds nobody. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tpmon.model.frame import Frame
from tpmon.model.host import LoaderSample
from tpmon.model.known import Known, is_known, known_or

IDLE_STEPS = 4
"""Steps in which the idle shares of two loaders are compared: those closer than that are as busy."""

RESTS = 0.25
"""Mean share of waiting for work from which workers have time to spare: 0-8 % where they are too slow."""
STARVES = 0.5
"""Share of looks at the queue that must find it empty."""


def _moves(loader: LoaderSample, frames: Sequence[Frame]) -> bool:
    """Tell whether its queues were seen to change over the span, or to hold work."""
    pids = {queue.pid for queue in loader.queues}
    seen = [
        one
        for frame in frames
        for one in frame.loader
        if one.pid == loader.pid and {queue.pid for queue in one.queues} == pids
    ]
    ready = {one.ready_bytes for one in seen if is_known(one.ready_bytes)}
    return len(ready) > 1 or any(
        is_known(queue.pending_bytes) and queue.pending_bytes > 0 for one in seen for queue in one.queues
    )


def find_loader_in_use(
    pid: int, frames: Sequence[Frame], idle: Mapping[int, Known[float]]
) -> tuple[LoaderSample | None, frozenset[int]]:
    """Return the loader that feeds a rank and the PIDs of its workers, none where it is the only one.

    It is the one whose workers wait for work least, else whose queues move, else the oldest. ``idle``
    holds the share of waiting for work (0-1) by worker PID.
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

    ``idle`` holds the share of waiting for work (0-1) of each of its workers. Behind a pin thread the
    queue is empty in any case.
    """
    shares = [share for share in idle if is_known(share)]
    if loader is None or not shares or 2 * len(shares) < len(idle) or statistics.fmean(shares) >= RESTS:
        return False
    return loader.pin_thread or (is_known(loader.empty_ratio) and loader.empty_ratio >= STARVES)
