"""Follow the members of one job: births, deaths, exec, respawned workers, restarted ranks.

Each second it reads the children of each main thread through cached descriptors; every 5 s it looks at
processes that are new on this machine, as other threads fork too. A pidfd shows a death without polling, and
no reused PID can fool it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from tpmon.model.known import Known, is_known
from tpmon.model.process import WORKER_NAME, Identity, Role
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    StatLine,
    boot_time_s,
    follow_boot_time_s,
    has_ended,
    list_pids,
    read_file,
    read_or,
    read_stat,
    started_at,
)
from tpmon.probe.job.events import Changes, Departure, standing_of
from tpmon.probe.job.exit_status import open_pidfd, read_oom_victims, read_wait_status
from tpmon.probe.job.job import (
    Job,
    Member,
    find_python_version,
    find_rank_source,
    find_script,
    find_world_size,
    make_member,
    names_workers,
    now_ticks,
    read_torch_version,
)
from tpmon.probe.job.process_facts import Facts, read_all_facts
from tpmon.probe.job.roles import STARTING, YOUNG_S, Departed, RolePart, assign_parts
from tpmon.probe.job.tree import Effort, Family, find_waiting, tell_effort
from tpmon.probe.proc.counters import NO_DESCRIPTOR, Shares, is_clock_of, read_cpu_clock, read_shares

SCAN_EVERY_NS = 5_000_000_000
FULL_SCAN_EVERY_NS = 60_000_000_000
EFFORT_NS = 2_000_000_000
BIRTHS_PER_REFRESH = 64
_CHILDREN_BYTES = 4096
_FACTS_S = 0.2


class _Watched:
    """Hold the descriptors and the last facts of one process; shells inside the job have no part."""

    __slots__ = (
        "children",
        "children_fd",
        "clock_ns",
        "facts",
        "has_room",
        "identity",
        "parent",
        "pidfd",
        "told",
    )

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.identity = Identity(facts.stat.pid, facts.stat.start_ticks)
        self.parent = facts.stat.parent
        self.told: tuple[Facts, RolePart, int, float] | None = None  # what the member was made from
        self.children: bytes | None = None
        self.clock_ns = -1  # its CPU time when it was last read
        self.children_fd = -1
        self.pidfd = -1
        self.has_room = False  # it counts among those that may keep descriptors

    def close(self) -> None:
        for fd in (self.children_fd, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.children_fd = self.pidfd = -1


class Membership:
    """Keep the members of a job up to date; one thread owns it.

    Only as many members as ``shares`` allows (by default, a share of what is free now) keep descriptors open.
    """

    def __init__(self, job: Job, proc: str = PROC, shares: Shares | None = None) -> None:
        self._proc = proc
        self._room = (shares or read_shares()).members
        self.job = job
        self._boot_s = boot_time_s()
        self._watched: dict[int, _Watched] = {}
        self._parts: dict[int, RolePart] = dict(job.parts)
        self._members: dict[int, Member] = {member.identity.pid: member for member in job.members}
        self._departed: list[Departed] = []
        self._ignored: set[int] = set()
        self._seen: set[int] = set()
        self._slow_ns = self._full_scan_ns = 0
        self._has_children_files = True
        self._undecided = True
        self._root_replaced = False
        self._stats: tuple[int, dict[int, StatLine]] = (0, {})
        """When the CPU times were last compared, and those of then."""
        self._waiting = frozenset(
            pid
            for pid, part in job.parts.items()
            if part.role is Role.LAUNCHER and Family(job.facts).may_only_wait(pid)
        )
        self._poll = select.poll()
        self._by_pidfd: dict[int, int] = {}
        for pid, facts in job.facts.items():
            if pid in job.parts or (facts.program.shell and facts.stat.parent in self._watched):
                self._watch(facts)

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the living members, oldest first."""
        return self.job.members

    def refresh(self, now_ns: int, loops: Mapping[Identity, int] = MappingProxyType({})) -> Changes:
        """Find who was born, ended or changed since the last call; threads in ``loops`` start the workers."""
        slow = not self._slow_ns or now_ns - self._slow_ns >= SCAN_EVERY_NS
        self._slow_ns = now_ns if slow else self._slow_ns
        ended = self._find_ended()
        moved = self._settle(ended, slow=slow, retry=self._is_full_scan_due(now_ns))
        moved = (slow and self._watch_waiting(now_ns)) or moved
        before_s, self._boot_s = self._boot_s, follow_boot_time_s(self._boot_s)
        if before_s != self._boot_s:
            moved = True  # the wall clock was set, by which each start is dated
            self.job = replace(self.job, start=started_at(self.job.root.start_ticks, self._boot_s))
        gone = [self._bury(watched) for watched in ended]
        born = self._find_born(now_ns, loops, slow=slow)
        if not (gone or born or moved or (slow and self._undecided)):
            return Changes()
        return self._recast(_find_oom_victims([departure for departure in gone if departure is not None]))

    def close(self) -> None:
        """Close every descriptor; the members stay as last seen."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        self._by_pidfd.clear()

    def _watch(self, facts: Facts) -> None:
        pid = facts.stat.pid
        watched = self._watched[pid] = _Watched(facts)
        if not self._room:
            return
        self._room -= 1
        watched.has_room = True
        with suppress(OSError):  # gone, or no descriptor left: it is opened anew each time
            watched.children_fd = os.open(self._children_path(pid), os.O_RDONLY | os.O_CLOEXEC)
        if self._proc == PROC:
            watched.pidfd = open_pidfd(pid)
            if watched.pidfd < 0:
                return  # its stat line will tell
            self._poll.register(watched.pidfd, select.POLLIN)
            self._by_pidfd[watched.pidfd] = pid

    def _find_ended(self) -> list[_Watched]:
        """List the members that have ended."""
        ended = [self._watched[self._by_pidfd[fd]] for fd, _ in self._poll.poll(0)]
        for pid, watched in self._watched.items():
            if watched.pidfd < 0 and self._has_ended(pid, watched.identity):
                ended.append(watched)
        return ended

    def _has_ended(self, pid: int, identity: Identity) -> bool:
        try:
            stat = read_stat(pid, self._proc)
        except OSError as error:
            return error.errno not in NO_DESCRIPTOR
        return has_ended(stat.state, stat.threads) or stat.start_ticks != identity.start_ticks

    def _watch_waiting(self, now_ns: int) -> bool:
        """Learn who only waits for what it started; True when that has changed.

        One that waited does so, also between two programs, until it computes by itself.
        """
        then_ns, before = self._stats
        if now_ns - then_ns < EFFORT_NS:
            return False
        starters = {one.parent for one in self._watched.values()} | self._waiting
        asked = [
            pid
            for pid, one in self._watched.items()
            if one.facts.torch and one.facts.python and not one.facts.stat.name.startswith(WORKER_NAME)
        ]
        asked = asked if starters & set(asked) else []
        now = {pid: stat for pid in asked if (stat := self._read_stat(pid)) is not None}
        self._stats = (now_ns, now)
        span_s = (now_ns - then_ns) / 1e9
        efforts = {
            pid: tell_effort(before[pid], stat, span_s, self._proc)
            for pid, stat in now.items()
            if pid in before
        }
        facts = {pid: one.facts for pid, one in self._watched.items()}
        kept = {pid for pid in self._waiting & now.keys() if efforts.get(pid) is not Effort.COMPUTES}
        waiting = find_waiting(facts, now, efforts) | kept
        changed, self._waiting = waiting != self._waiting, waiting
        return changed

    def _settle(self, ended: list[_Watched], *, slow: bool, retry: bool) -> bool:
        """Read again the members that may have become something else; True when one has.

        These are the young, the children of those that ended and, when ``slow``, all that ran since. One
        whose PID another process has by now is added to ``ended``. ``retry`` reads again what did not answer.
        """
        dead = {watched.identity.pid for watched in ended}
        now = now_ticks()
        again: list[StatLine] = []
        moved = False
        for pid, watched in self._watched.items():
            before = watched.facts
            age_s = (now - watched.identity.start_ticks) / TICKS_PER_S
            unnamed = not before.stat.name.startswith(WORKER_NAME)
            clock_ns = read_cpu_clock(pid) if slow and self._proc == PROC else -1
            ran = slow and (retry or not 0 <= clock_ns == watched.clock_ns)
            due = before.stat.parent in dead or (unnamed and age_s < YOUNG_S)
            if pid in dead or not (ran or due):
                continue
            stat = self._read_stat(pid)
            if stat is None:
                continue  # it ends just now
            watched.clock_ns = clock_ns if is_clock_of(clock_ns, stat.cpu_s) else -1
            if stat.start_ticks != watched.identity.start_ticks:
                ended.append(watched)
                continue
            moved = moved or stat.parent != watched.parent
            watched.parent = stat.parent
            if before.is_stale(stat, age_s, retry=retry):
                again.append(replace(stat, parent=before.stat.parent))
        for pid, facts in self._read_facts(again).items():
            watched = self._watched[pid]
            replaced = watched.facts.is_replaced(facts.stat)
            self._root_replaced |= replaced and pid == self.job.root.pid
            moved = moved or replaced or not facts.says_the_same(watched.facts)
            watched.facts = facts
        return moved

    def _bury(self, watched: _Watched) -> Departure | None:
        """Stop following a process that ended; None when it was no member."""
        pid = watched.identity.pid
        wait_status = read_wait_status(watched.identity, watched.pidfd, self._proc)
        if watched.pidfd >= 0:
            self._poll.unregister(watched.pidfd)
            del self._by_pidfd[watched.pidfd]
        watched.close()
        self._room += watched.has_room
        del self._watched[pid]
        self._seen.discard(pid)  # its PID may be reused by now, even under the same parent
        if (parent := self._watched.get(watched.facts.stat.parent)) is not None:
            parent.children = None
        part = self._parts.pop(pid, None)
        if part is not None and is_known(part.starter):
            self._departed.append(Departed(part.starter, watched.identity))
        member = self._members.pop(pid, None)
        return None if member is None else Departure(member, wait_status)

    def _find_born(self, now_ns: int, loops: Mapping[Identity, int], *, slow: bool) -> bool:
        """Start to follow new descendants of the members, at most 64 a call; True when there are any."""
        born: set[int] = set()
        for pid, watched in self._watched.items():
            children = self._read_children(pid, watched.children_fd)
            if watched.identity in loops:
                children += b" " + self._read_children(pid, -1, loops[watched.identity])
            if children != watched.children:
                watched.children = children
                born.update(map(int, children.split()))
        stats = self._scan(now_ns) if slow or not self._has_children_files else {}
        room = BIRTHS_PER_REFRESH
        followed = False
        while room > 0:
            born -= self._watched.keys() | self._ignored
            born |= {
                pid for pid, stat in stats.items() if stat.parent in self._watched
            } - self._watched.keys()
            met = [stat for pid in sorted(born) if (stat := stats.pop(pid, None) or self._read_stat(pid))]
            self._ignored.update(stat.pid for stat in met if has_ended(stat.state, stat.threads))
            met = [stat for stat in met if stat.pid not in self._ignored]
            for stat in met[room:]:
                self._postpone(stat)
            if not met:
                break
            born = set()
            for pid, facts in self._read_facts(met[:room]).items():
                if facts.program.boundary:
                    self._ignored.add(pid)
                    continue
                self._watch(facts)
                followed = True
                watched = self._watched[pid]
                watched.children = self._read_children(pid, watched.children_fd)
                born.update(map(int, watched.children.split()))
            room -= len(met)
        return followed

    def _postpone(self, stat: StatLine) -> None:
        self._seen.discard(stat.pid)
        if stat.parent in self._watched:
            self._watched[stat.parent].children = None

    def _is_full_scan_due(self, now_ns: int) -> bool:
        return not self._full_scan_ns or now_ns - self._full_scan_ns >= FULL_SCAN_EVERY_NS

    def _scan(self, now_ns: int) -> dict[int, StatLine]:
        """Read the stat lines of processes that are new on this machine; of all once a minute."""
        full = self._is_full_scan_due(now_ns)
        pids = set(list_pids(self._proc))
        fresh = pids if full else pids - self._seen
        self._seen = pids
        self._full_scan_ns = now_ns if full else self._full_scan_ns
        self._ignored &= pids
        stats = [self._read_stat(pid) for pid in sorted(fresh - self._watched.keys() - self._ignored)]
        return {stat.pid: stat for stat in stats if stat is not None and not stat.kernel}

    def _recast(self, gone: list[Departure]) -> Changes:
        """Assign all parts anew and compare them with the last ones."""
        facts = {pid: watched.facts for pid, watched in self._watched.items()}
        torch = self.job.torch_version
        if not is_known(torch):
            torch = read_torch_version(facts.values(), self._proc)
        starters = {part.starter for part in self._parts.values()}
        self._departed = [each for each in self._departed if each.starter in starters]
        self._parts = assign_parts(
            facts,
            self.job.root.pid,
            now_ticks=now_ticks(),
            named_workers=names_workers(torch),
            previous=self._parts,
            departed=self._departed,
            waiting=self._waiting,
        )
        before = self._members
        self._members = {
            pid: self._make_member(self._watched[pid], before.get(pid))
            for pid in sorted(self._parts, key=lambda pid: (facts[pid].stat.start_ticks, pid))
        }
        self._undecided = not is_known(torch) or any(
            part.label == STARTING
            or (part.role is Role.WORKER and not facts[pid].stat.name.startswith(WORKER_NAME))
            for pid, part in self._parts.items()
        )
        self._update_job(facts, torch)
        root = self._watched.get(self.job.root.pid)
        runs = root.facts.program.label if root is not None and self._root_replaced else ""
        self._root_replaced = False
        return Changes(
            root_runs=runs,
            born=tuple(member for pid, member in self._members.items() if pid not in before),
            gone=tuple(gone),
            changed=tuple(
                member
                for pid, member in self._members.items()
                if pid in before and standing_of(member) != standing_of(before[pid])
            ),
        )

    def _make_member(self, watched: _Watched, before: Member | None) -> Member:
        """Make the member of a process, or return the one from before when nothing differs."""
        told = (watched.facts, self._parts[watched.identity.pid], watched.parent, self._boot_s)
        if before is not None and watched.told == told:
            return before
        watched.told = told
        return replace(make_member(watched.facts, told[1], self._boot_s), parent=watched.parent)

    def _update_job(self, facts: dict[int, Facts], torch: Known[str]) -> None:
        """Update what the members say of the job; what no member says any more stays."""
        members = tuple(self._members.values())
        job = replace(self.job, members=members, torch_version=torch, facts=facts)
        if any(part.role is Role.RANK for part in self._parts.values()):
            job = replace(
                job,
                script=find_script(self._parts, job.script),
                world_size=find_world_size(self._parts.values()),
                rank_source=find_rank_source(self._parts.values()),
            )
        if not is_known(job.python_version):
            job = replace(job, python_version=find_python_version(facts.values()))
        self.job = job

    def _read_facts(self, stats: Iterable[StatLine]) -> dict[int, Facts]:
        return read_all_facts(stats, self._proc, each_s=_FACTS_S, all_s=2 * _FACTS_S)

    def _read_stat(self, pid: int) -> StatLine | None:
        return read_or(None, lambda: read_stat(pid, self._proc))

    def _children_path(self, pid: int, tid: int = 0) -> str:
        return f"{self._proc}/{pid}/task/{tid or pid}/children"

    def _read_children(self, pid: int, fd: int, tid: int = 0) -> bytes:
        """Read the children of a thread, by default the main one; of a dead process there are none."""
        if not self._has_children_files:
            return b""
        try:
            if fd < 0:
                return read_file(self._children_path(pid, tid))
            parts = [os.pread(fd, _CHILDREN_BYTES, 0)]
            while len(parts[-1]) == _CHILDREN_BYTES:
                parts.append(os.pread(fd, _CHILDREN_BYTES, len(parts) * _CHILDREN_BYTES))
            return b"".join(parts)
        except FileNotFoundError:
            # without CONFIG_PROC_CHILDREN the file is missing while the thread is there
            self._has_children_files = not os.path.isdir(f"{self._proc}/{pid}/task/{tid or pid}")
        except OSError:
            pass  # gone
        return b""


def _find_oom_victims(gone: list[Departure]) -> list[Departure]:
    """Mark those that the kernel log says were killed for memory; it is read after a SIGKILL only."""
    if not any(each.wait_status == signal.SIGKILL and each.member.role is not Role.HELPER for each in gone):
        return gone
    victims = read_oom_victims()
    return [replace(each, oom_victim=each.member.identity.pid in victims) for each in gone]
