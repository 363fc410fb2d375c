"""Say which of a rank's loaders is in use: one that waits for the next validation feeds nobody. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tpmon.model.frame import Frame
from tpmon.model.host import LoaderSample
from tpmon.model.known import Known, is_known, known_or

IDLE_STEPS = 4
"""Steps in which the idle shares of two loaders are compared: those closer than that are as busy."""


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
