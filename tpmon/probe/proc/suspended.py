"""Tell which processes the freezer of a control group holds: docker pause, systemctl freeze, a scheduler.

Nothing else tells it: a process frozen under cgroup v1 is in state D with the kernel function of the wait
that was interrupted, under v2 in state S in ``get_signal`` (Linux 6.18), whatever it did before. Both
freezers are looked at, as a machine may have v1 controllers beside the unified hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, NotApplicable, is_known
from tpmon.model.stops import Freezer
from tpmon.model.text.redaction import admit_text
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
from tpmon.probe.base.procread import PROC, read_file

LOOK_EVERY_NS = 10_000_000_000
"""How often the groups of a process are looked up again; whether they are frozen is read each time."""
_DIRECTORY_CHARS = 1024
_V1 = "freezer"
_ABOVE = Missing("a group above what can be seen here was frozen: thaw it outside")
_FILE_BYTES = 256


def parse_frozen(version: int, raw: bytes) -> bool:
    """Tell from freezer.state (v1) or cgroup.events (v2) whether every process of a group is frozen.

    "FREEZING" is a group of which one cannot be frozen yet, as it is in a call that nothing interrupts:
    that one says what it waits for itself.
    """
    return raw.strip() == b"FROZEN" if version == 1 else b"frozen 1" in raw.splitlines()


def _read(path: str) -> bytes:
    try:
        return read_file(path, _FILE_BYTES)
    except OSError:
        return b""  # the group is gone, or the kernel has no freezer: nothing is frozen by it


def read_group(group: Group) -> Applicable[Freezer]:
    """Read whether a group is frozen, and which one up the tree was told to be; else not applicable."""
    state, knob = (
        ("freezer.state", "freezer.self_freezing")
        if group.version == 1
        else ("cgroup.events", "cgroup.freeze")
    )
    if not parse_frozen(group.version, _read(f"{group.directory}/{state}")):
        return NOT_APPLICABLE
    last = group
    for one in group.lineage():
        if _read(f"{one.directory}/{knob}").strip() == b"1":
            return Freezer(group.version, one.label(), admit_text(one.directory, _DIRECTORY_CHARS))
        last = one
    return Freezer(
        group.version,
        last.label(),
        _ABOVE,
    )


def find_groups(pid: int, mounts: Sequence[Mount], proc: str = PROC) -> Applicable[tuple[Group, ...]]:
    """Find the groups whose freezer can hold a process; missing where one of them cannot be looked at.

    The root of a hierarchy cannot be frozen and is left out.
    """
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


Found = dict[int, Applicable[Freezer]]
"""What freezes processes, by PID."""


class FreezerReader:
    """Tell of the processes of a job which are frozen; opens a file or two of each group of a rank."""

    def __init__(self, proc: str = PROC) -> None:
        """Read nothing yet."""
        self._proc = proc
        self._groups: dict[int, Applicable[tuple[Group, ...]]] = {}
        self._look_ns = 0

    def read(self, ranks: Iterable[int], others: Iterable[int], now_ns: int) -> Found:
        """Return of each frozen process what freezes it, and of a rank also why that could not be read.

        ``others`` are asked only while a rank is frozen: they are in its group in nearly every job.
        ``now_ns`` is CLOCK_MONOTONIC.
        """
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_EVERY_NS
            self._groups.clear()
        mounts: list[tuple[Mount, ...]] = []
        states: dict[Group, Applicable[Freezer]] = {}
        found = self._tell(ranks, mounts, states)
        if any(map(is_known, found.values())):
            found |= {pid: one for pid, one in self._tell(others, mounts, states).items() if is_known(one)}
        return found

    def _tell(
        self, pids: Iterable[int], mounts: list[tuple[Mount, ...]], states: dict[Group, Applicable[Freezer]]
    ) -> Found:
        told: Found = {}
        for pid in pids:
            groups = self._groups.get(pid)
            if groups is None:
                if not mounts:
                    mounts.append(read_mounts(self._proc))
                groups = self._groups[pid] = find_groups(pid, mounts[0], self._proc)
            if isinstance(groups, Missing):
                told[pid] = groups
            elif not isinstance(groups, NotApplicable):
                for group in groups:
                    if group not in states:
                        states[group] = read_group(group)
                    if is_known(states[group]):
                        told[pid] = states[group]
        return told


def read_mounts(proc: str = PROC) -> tuple[Mount, ...]:
    """Read where control groups are mounted for tpmon; none where that cannot be told."""
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return parse_mounts(file.read())
    except OSError:
        return ()


def read_freezer(pid: int, proc: str = PROC) -> Applicable[Freezer]:
    """Read once what freezes a process; not applicable where nothing does."""
    return FreezerReader(proc).read((pid,), (), 0).get(pid, NOT_APPLICABLE)
