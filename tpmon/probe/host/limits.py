"""Read how near the job is to limits besides memory: descriptors, threads, disk space, inodes.

A file system is asked only where it is local, and in a thread of its own: a dead mount never answers.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from tpmon.model.host import DescriptorGroup, LimitSample, Resource
from tpmon.model.known import Missing
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.cgroup_tree import Group, JobGroups
from tpmon.probe.base.procread import PROC, list_pids, read_file, read_links, read_or, read_stat, read_text
from tpmon.probe.host.output import LOCAL, list_written
from tpmon.probe.proc.wait_object import parse_mount_of

LIMITS_EVERY_S = 2.0
SLOW_EVERY = 5
"""Which limits there are is read each so many times, and the threads of the user; the counts each time."""
MOST_PROCESSES = 256
MOST_SAMPLES = 4
"""Processes whose descriptors are told: the fullest."""
MOST_WATCHED = 16
"""Processes whose descriptors are counted each time: those that were fullest when all were."""
MOST_LISTED = 4096
MOST_FOLDERS = 8
MOST_GROUPS = 3
TOLD_RATIO = 0.2
"""Share of its limit from which it is told what the descriptors are."""
TOLD_GROWTH = 32
"""Descriptors more than the fewest that a process was seen with, from which they are told, too."""
_NO_LIMIT = 1 << 40
_MANY_PROCESSES = 8192
_SUFFIX = re.compile(r" \(deleted\)$")


def count_descriptors(pid: int, proc: str = PROC) -> int:
    """Count the open descriptors of a process: the size of its folder since Linux 6.2, else its entries."""
    folder = f"{proc}/{pid}/fd"
    return os.stat(folder).st_size or len(os.listdir(folder))


def parse_limit(text: str, name: str) -> int:
    """Read a soft limit of /proc/PID/limits; a very large number for none."""
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    word = line[len(name) :].split()[:1]
    return int(word[0]) if word and word[0].isdecimal() else _NO_LIMIT


def name_target(link: str) -> str:
    """Name what a descriptor leads to, without numbers: "socket", "anon_inode:[eventpoll]", a folder."""
    if link.startswith("/memfd:"):
        return "memfd"
    if link.startswith("/"):
        return os.path.dirname(_SUFFIX.sub("", link)) or "/"
    kind, _, rest = link.partition(":")
    return link if kind == "anon_inode" and rest else kind


def group_descriptors(links: Iterable[str]) -> tuple[DescriptorGroup, ...]:
    """Count links by what they lead to, the most first."""
    counts = Counter(map(name_target, links))
    return tuple(
        DescriptorGroup(admit_text(name, 80), count) for name, count in counts.most_common(MOST_GROUPS)
    )


def _read_uid(pid: int, proc: str) -> int:
    return os.stat(f"{proc}/{pid}").st_uid


def _count_threads(pid: int, proc: str) -> int:
    return read_stat(pid, proc).threads


class LimitReader:
    """Read the limits of a job again and again; ``pids`` are its ranks first, then their workers."""

    def __init__(self, pids: Callable[[], Sequence[int]], proc: str = PROC) -> None:
        """Read nothing yet; ``pids`` is called in the thread of ``read``."""
        self._pids = pids
        self._proc = proc
        self._turn = 0
        self._most: dict[int, int] = {}  # RLIMIT_NOFILE by PID
        self._fullest: tuple[int, ...] = ()
        self._user: tuple[LimitSample, ...] = ()
        self._groups: tuple[Group, ...] = ()
        self._least: dict[int, int] = {}
        self._rooms: tuple[tuple[str, str], ...] = ()  # a folder on each local file system, its mount
        self._folders: dict[str, int] = {}  # where ranks were seen to write, with the rank

    def read(self) -> tuple[LimitSample, ...]:
        """Read what is due, and return all that is known."""
        pids = self._pids()[:MOST_PROCESSES]
        if self._turn % SLOW_EVERY == 0:
            self._most = {pid: most for pid in pids if (most := self._read_most(pid))}
            self._user = tuple(self._read_user(pids))
            group = JobGroups(pids[:1], self._proc).common("pids")
            self._groups = () if isinstance(group, Missing) else tuple(group.lineage())
            self._rooms = tuple(self._find_rooms(pids))
        self._turn += 1
        rooms = (one for place, mount in self._rooms for one in read_room(place, mount))
        return (*self._read_descriptors(pids), *self._read_groups(), *self._user, *rooms)

    def _read_most(self, pid: int) -> int:
        limits = read_text(f"{self._proc}/{pid}/limits")
        return parse_limit(limits, "Max open files") if limits else 0

    def _read_descriptors(self, pids: Sequence[int]) -> Iterator[LimitSample]:
        counts = sorted(
            (
                (count / self._most[pid], count, pid)
                for pid in (pids if self._turn % SLOW_EVERY == 1 else self._fullest)
                if pid in self._most and (count := read_or(0, partial(count_descriptors, pid, self._proc)))
            ),
            reverse=True,
        )
        self._fullest = tuple(pid for _, _, pid in counts[:MOST_WATCHED])
        self._least = {pid: min(count, self._least.get(pid, count)) for _, count, pid in counts}
        for ratio, count, pid in counts[:MOST_SAMPLES]:
            told = ratio >= TOLD_RATIO or count >= self._least[pid] + TOLD_GROWTH
            links = read_or({}, partial(read_links, pid, self._proc, MOST_LISTED)) if told else {}
            yield LimitSample(
                Resource.DESCRIPTORS,
                count,
                self._most[pid],
                f"process {pid}",
                pid,
                group_descriptors(links.values()),
            )

    def _read_groups(self) -> Iterator[LimitSample]:
        for one in self._groups:
            most, current = (read_text(f"{one.directory}/pids.{name}").strip() for name in ("max", "current"))
            if most.isdecimal() and current.isdecimal():
                yield LimitSample(Resource.THREADS, int(current), int(most), one.label())

    def _read_user(self, pids: Sequence[int]) -> Iterator[LimitSample]:
        """Count the threads of the first rank's user against RLIMIT_NPROC, which root has not."""
        for pid in pids[:1]:
            uid = read_or(0, partial(_read_uid, pid, self._proc))
            most = parse_limit(read_text(f"{self._proc}/{pid}/limits"), "Max processes")
            every = list_pids(self._proc) if uid and most < _NO_LIMIT else []
            if not every or len(every) > _MANY_PROCESSES:
                continue
            own = [one for one in every if read_or(-1, partial(_read_uid, one, self._proc)) == uid]
            used = sum(read_or(0, partial(_count_threads, one, self._proc)) for one in own)
            yield LimitSample(Resource.THREADS, used, most, "the user (ulimit -u)")

    def _find_rooms(self, pids: Sequence[int]) -> Iterator[tuple[str, str]]:
        seen: set[int] = set()
        for folder, pid in self._list_folders(pids):
            mounts = read_or(b"", partial(read_file, f"{self._proc}/{pid}/mountinfo"))
            mount = parse_mount_of(mounts, folder)
            if mount is None or mount[1] not in LOCAL:
                continue
            place = f"{self._proc}/{pid}/root{folder}"
            found = read_or(None, partial(os.stat, place))
            if found is not None and found.st_dev not in seen:
                seen.add(found.st_dev)
                yield place, mount[0]

    def _list_folders(self, pids: Sequence[int]) -> list[tuple[str, int]]:
        """List the folders that ranks write to, have as their own, or keep temporary files in."""
        for pid in pids[:1]:
            environ = read_text(f"{self._proc}/{pid}/environ", errors="surrogateescape").split("\0")
            named = next((word[7:] for word in environ if word.startswith("TMPDIR=")), "")
            cwd = read_or("", partial(os.readlink, f"{self._proc}/{pid}/cwd"))
            written = (os.path.dirname(path) for _, path in list_written(pid, self._proc))
            for folder in (named or "/tmp", cwd, *written):  # noqa: S108  # the default of every library
                if folder.startswith("/") and len(self._folders) < MOST_FOLDERS:
                    self._folders[folder] = pid
        return list(self._folders.items())


def read_room(place: str, mount: str) -> Iterator[LimitSample]:
    """Read the space and the inodes of a file system that is there for a user; it can block."""
    room = read_or(None, lambda: os.statvfs(place))
    if room is None:
        return
    for resource, size, free, unit in (
        (Resource.DISK, room.f_blocks, room.f_bavail, room.f_frsize),
        (Resource.INODES, room.f_files, room.f_favail, 1),
    ):
        if size > 0:
            yield LimitSample(resource, (size - min(free, size)) * unit, size * unit, mount)
