"""Tell which processes a freezer or a signal keeps from running.

The state does not show it: frozen under cgroup v1 it is D with the kernel function of the interrupted wait,
under v2 it is S in ``get_signal`` (Linux 6.18). Both freezers are read, as a machine may have v1 controllers
beside the unified hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, NotApplicable, is_known
from tpmon.model.process import Freezer, Identity, MainThreadSample, ProcessSample, Role, Tracer
from tpmon.model.text.redaction import admit_text
from tpmon.model.waits import FROZEN
from tpmon.probe.base.cgroup_tree import (
    NOT_USED,
    V2,
    Group,
    Mount,
    find_group,
    in_first_namespace,
    parse_groups,
    parse_mounts,
)
from tpmon.probe.base.procread import PROC, read_file, read_or, read_text
from tpmon.probe.proc.access import read_tracer

REFRESH_EVERY_NS = 10_000_000_000  # to find groups again; whether they are frozen is read each time
_DIRECTORY_CHARS = 1024
_V1 = "freezer"
_ABOVE = Missing("a group above what can be seen here was frozen: thaw it outside")
_FILE_BYTES = 256


def parse_frozen(version: int, raw: bytes) -> bool:
    """Tell from freezer.state (v1) or cgroup.events (v2) whether every process of a group is frozen.

    "FREEZING": one process cannot be frozen yet, as it is in an uninterruptible call; it shows its own wait.
    """
    return raw.strip() == b"FROZEN" if version == 1 else b"frozen 1" in raw.splitlines()


def read_group(group: Group) -> Applicable[Freezer]:
    """Read whether a group is frozen and which group above caused it; else not applicable."""

    def read(one: Group, v1: str, v2: str) -> bytes:
        # b"": the group is gone or the kernel has no freezer, so nothing is frozen.
        path = f"{one.directory}/{v1 if group.version == 1 else v2}"
        return read_or(b"", lambda: read_file(path, _FILE_BYTES))

    if not parse_frozen(group.version, read(group, "freezer.state", "cgroup.events")):
        return NOT_APPLICABLE
    last = group
    for one in group.lineage():
        if read(one, "freezer.self_freezing", "cgroup.freeze").strip() == b"1":
            return Freezer(group.version, one.label(), admit_text(one.directory, _DIRECTORY_CHARS))
        last = one
    return Freezer(group.version, last.label(), _ABOVE)


def find_groups(pid: int, mounts: Sequence[Mount], proc: str = PROC) -> Applicable[tuple[Group, ...]]:
    """Find the groups whose freezer can hold a process, without roots; Missing where one cannot be read."""
    try:
        paths = parse_groups(read_file(f"{proc}/{pid}/cgroup", 16_384).decode("utf-8", "surrogateescape"))
    except OSError:
        return NOT_APPLICABLE
    outermost = in_first_namespace(proc)
    groups = []
    for name in (_V1, V2):
        found = find_group(name, [paths[name]], mounts, outermost=outermost) if name in paths else NOT_USED
        if is_known(found):
            if not found.is_root():
                groups.append(found)
        elif found != NOT_USED:
            return found
    return tuple(groups)


Processes = tuple[ProcessSample, ...]
Found = dict[int, Applicable[Freezer]]  # what freezes processes, by PID


class SuspendedReader:
    """Find what holds the processes of a job; opens a file or two for each group of a rank."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._groups: dict[int, Applicable[tuple[Group, ...]]] = {}
        self._mounts: tuple[Mount, ...] = ()
        self._refresh_ns = 0

    def read(self, ranks: Iterable[int], others: Iterable[int], now_ns: int) -> Found:
        """Return what freezes each frozen process, and for a rank also why that could not be read.

        ``others`` are read only while a rank is frozen: they are nearly always in its group.
        """
        if now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + REFRESH_EVERY_NS
            self._groups.clear()
            self._mounts = parse_mounts(read_text(f"{self._proc}/self/mountinfo", errors="surrogateescape"))
        states: dict[Group, Applicable[Freezer]] = {}
        found = self._tell(ranks, states)
        if any(map(is_known, found.values())):
            found |= {pid: one for pid, one in self._tell(others, states).items() if is_known(one)}
        return found

    def mark(self, processes: Processes, loops: Mapping[Identity, int], now_ns: int) -> Processes:
        """Return ``processes`` with what holds them; ``loops`` stand for their processes."""
        ranks = [one.pid for one in processes if one.role is Role.RANK]
        frozen = self.read(ranks, (one.pid for one in processes), now_ns)
        traced = [Identity(one.pid, one.start_ticks) for one in processes if one.state == "t"]
        tracers = {one.pid: read_tracer(one.pid, loops.get(one, one.pid), self._proc) for one in traced}
        return mark_held(processes, frozen, tracers)

    def _tell(self, pids: Iterable[int], states: dict[Group, Applicable[Freezer]]) -> Found:
        told: Found = {}
        for pid in pids:
            groups = self._groups.get(pid)
            if groups is None:
                groups = self._groups[pid] = find_groups(pid, self._mounts, self._proc)
            if isinstance(groups, Missing):
                told[pid] = groups
            elif not isinstance(groups, NotApplicable):
                for group in groups:
                    if group not in states:
                        states[group] = read_group(group)
                    if is_known(states[group]):
                        told[pid] = states[group]
        return told


def mark_held(
    processes: Processes, frozen: Mapping[int, Applicable[Freezer]], tracers: Mapping[int, Known[Tracer]]
) -> Processes:
    """Mark by PID which processes are frozen and who traces them. Pure.

    The kernel function of a frozen process is that of the interrupted wait, or of the freezer itself.
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


def leave_out_frozen(
    looks: Known[tuple[MainThreadSample, ...]], processes: Processes
) -> Known[tuple[MainThreadSample, ...]]:
    """Drop samples of main threads that were frozen: under v1 they look blocked in I/O (state D). Pure."""
    frozen = {one.pid for one in processes if is_known(one.frozen)}
    if isinstance(looks, Missing) or not frozen:
        return looks
    return tuple(one for one in looks if one.pid not in frozen)


def are_all_suspended(processes: Processes) -> bool:
    """Tell whether no rank may run: a signal, a debugger or a freezer holds each."""
    ranks = [one for one in processes if one.role is Role.RANK]
    return bool(ranks) and all(one.state in "Tt" or is_known(one.frozen) for one in ranks)


def read_freezer(pid: int, proc: str = PROC) -> Applicable[Freezer]:
    """Read once what freezes a process; not applicable where nothing does."""
    return SuspendedReader(proc).read((pid,), (), 0).get(pid, NOT_APPLICABLE)
