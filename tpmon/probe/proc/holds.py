"""Mark the processes of a Frame that something keeps from running: a freezer, or a debugger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity, MainThreadSample, ProcessSample, Role
from tpmon.model.stops import FROZEN, Freezer, Tracer
from tpmon.probe.base.procread import PROC
from tpmon.probe.proc.suspended import FreezerReader
from tpmon.probe.proc.tracer import read_tracer

Processes = tuple[ProcessSample, ...]


def mark_held(
    processes: Processes,
    frozen: Mapping[int, Applicable[Freezer]],
    tracers: Mapping[int, Known[Tracer]],
) -> Processes:
    """Say of processes by PID which are frozen and who traces them. Pure.

    The kernel's word for the wait of a frozen process is where it was interrupted, or the freezer itself.
    """
    if not frozen and not tracers:
        return processes
    marked = []
    for one in processes:
        freezer = frozen.get(one.pid, NOT_APPLICABLE) if one.state not in ("Z", "X") else NOT_APPLICABLE
        waits_for = FROZEN if is_known(freezer) else one.waits_for
        tracer = tracers.get(one.pid, NOT_APPLICABLE)
        marked.append(replace(one, frozen=freezer, tracer=tracer, waits_for=waits_for))
    return tuple(marked)


class HoldReader:
    """Read what holds the processes of a job."""

    def __init__(self, proc: str = PROC) -> None:
        """Read nothing yet."""
        self._proc = proc
        self._freezer = FreezerReader(proc)

    def mark(self, processes: Processes, loops: Mapping[Identity, int], now_ns: int) -> Processes:
        """Return ``processes`` with what holds them.

        ``loops`` names the threads of training loops that are no main threads: their state is that of the
        process, and so is their tracer. ``now_ns`` is CLOCK_MONOTONIC.
        """
        ranks = [one.pid for one in processes if one.role is Role.RANK]
        frozen = self._freezer.read(ranks, (one.pid for one in processes), now_ns)
        traced = [Identity(one.pid, one.start_ticks) for one in processes if one.state == "t"]
        tracers = {one.pid: read_tracer(one.pid, loops.get(one, one.pid), self._proc) for one in traced}
        return mark_held(processes, frozen, tracers)


def leave_out_frozen(
    looks: Known[tuple[MainThreadSample, ...]], processes: Processes
) -> Known[tuple[MainThreadSample, ...]]:
    """Leave out looks at main threads that were frozen: those of v1 look blocked in I/O (state D). Pure."""
    frozen = {one.pid for one in processes if is_known(one.frozen)}
    if isinstance(looks, Missing) or not frozen:
        return looks
    return tuple(one for one in looks if one.pid not in frozen)


def are_all_held(processes: Processes) -> bool:
    """Tell whether no rank of the job may run: a signal, a debugger or a freezer holds each."""
    ranks = [one for one in processes if one.role is Role.RANK]
    return bool(ranks) and all(one.state in "Tt" or is_known(one.frozen) for one in ranks)
