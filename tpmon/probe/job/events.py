"""Describe what happened to the members of a job and to tpmon: births, ends, changes.

The last process to go often says nothing: loader workers outlive a killed rank by seconds, then exit with 0.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Union

from tpmon.model.frame import Event, EventKind, Target
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known
from tpmon.model.process import Identity, Outcome, ProcessEnd, ProcessSample, Role
from tpmon.model.text.job_words import say_stop
from tpmon.model.units import count_of
from tpmon.probe.host.cgroup import HOST, CgroupReading
from tpmon.probe.job.exit_status import UNSEEN, describe_end, name_signal
from tpmon.probe.job.job import Member

NAMED = 4  # more members that met the same fate in the same second are counted, not named

_REPLACED = {Role.RANK: "elastic restart", Role.WORKER: "epoch respawn"}
_DISPOSABLE = frozenset((Role.WORKER, Role.COMPILE))
_NOUNS = {
    Role.LAUNCHER: "launcher",
    Role.RANK: "rank",
    Role.WORKER: "worker",
    Role.COMPILE: "compile worker",
    Role.HELPER: "helper",
}


def standing_of(member: Member) -> tuple[object, ...]:
    """Return the fields whose change makes a member another one to a reader."""
    return (member.role, member.rank, member.worker, member.name, member.label)


@dataclass(frozen=True, slots=True)
class Departure:
    """Hold a member that ended, with its wait status where the kernel gave it."""

    member: Member
    wait_status: Known[int]
    oom_victim: bool = False  # the kernel log says that it was killed for memory

    @property
    def failed(self) -> bool:
        """Tell whether it failed by itself; SIGTERM comes from a process that noticed another's end."""
        return is_known(self.wait_status) and self.wait_status not in (0, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Changes:
    """Hold how the members differ from the last call; ``changed`` have another role, number or name."""

    born: tuple[Member, ...] = ()
    gone: tuple[Departure, ...] = ()
    changed: tuple[Member, ...] = ()
    root_runs: str = ""  # what the root runs since it replaced itself by exec


Named = Union[Member, ProcessSample]  # who a process is within its job


def describe_by_role(changes: Changes, *, oom_kills: int = 0) -> tuple[tuple[Role, str], ...]:
    """Write a line for each thing that happened to launchers, ranks, workers and compile workers.

    Workers that left and came in the same second are a respawn at the end of an epoch, ranks a restart: only
    their failures are named. ``oom_kills`` as in ``describe_end``.
    """
    told: list[tuple[Role, str]] = []
    for role in (Role.COMPILE, Role.WORKER, Role.RANK, Role.LAUNCHER):
        lines: list[str] = []
        gone = [departure for departure in changes.gone if departure.member.role is role]
        born = [member for member in changes.born if member.role is role]
        before = Counter(_owner(departure.member) for departure in gone)
        replaced = (before & Counter(map(_owner, born))).total()
        if replaced and role in _REPLACED:
            lines.append(f"{_REPLACED[role]}: {_group([each.member for each in gone], replaced)} replaced")
        if replaced == len(gone) and role in _REPLACED:
            gone = [departure for departure in gone if departure.failed]  # why they were replaced
        lines += _describe_gone(gone, oom_kills)
        if replaced < len(born) or role not in _REPLACED:
            if len(born) > NAMED or (born and role in _DISPOSABLE):
                lines.append(f"{_group(born, len(born))} started")
            else:
                lines += [f"{name_member(member)} started" for member in born]
        told += [(role, line) for line in lines]
    if changes.root_runs:
        line = f"the root of the job replaced itself (exec) and now runs {changes.root_runs}"
        told.append((Role.LAUNCHER, line))
    return tuple(told)


def describe_stops(
    stopped: Sequence[ProcessSample], resumed: Sequence[ProcessSample]
) -> tuple[tuple[Role, str], ...]:
    """Say by role who was stopped or frozen and who runs again; more than ``NAMED`` are counted."""
    told: list[tuple[Role, str]] = []
    for role in (Role.WORKER, Role.RANK):
        held: dict[str, list[ProcessSample]] = {}
        for one in stopped:
            held.setdefault(say_stop(one), []).append(one)
        for what, processes in (*held.items(), ("running again", resumed)):
            of_role = [one for one in processes if one.role is role]
            if len(of_role) > NAMED:
                told.append((role, f"{_group(of_role, len(of_role))} {what}"))
            else:
                told += [(role, f"{name_process(one, one.pid)} {what}") for one in of_role]
    return tuple(told)


def _owner(member: Member) -> object:
    """Return what a replacement shares with the replaced: the number of the rank."""
    return member.rank if is_known(member.rank) else member.label


def _describe_gone(gone: Iterable[Departure], oom_kills: int) -> list[str]:
    by_end: dict[str, list[Member]] = {}
    for each in gone:
        how = describe_end(each.wait_status, oom_victim=each.oom_victim, oom_kills=oom_kills)
        by_end.setdefault(how, []).append(each.member)
    lines: list[str] = []
    for how, members in by_end.items():
        if members[0].role in _DISPOSABLE and how in ("exit 0", UNSEEN):
            lines.append(f"{_group(members, len(members))} ended")
        elif len(members) > NAMED:
            lines.append(f"{_group(members, len(members))} gone: {how}")
        else:
            lines += [f"{name_member(member)} gone: {how}" for member in members]
    return lines


def name_member(member: Member) -> str:
    """Name one member with its PID: "worker 1 (48301) of rank 0"."""
    return name_process(member, member.identity.pid)


def name_process(process: Named, pid: int) -> str:
    """Name one process by its part and its PID."""
    if process.role is Role.LAUNCHER:
        return f"launcher {process.label} ({pid})"
    if process.role is Role.RANK:
        return f"rank {_number(process.rank)} ({pid})"
    number = f" {_number(process.worker)}" if process.role is Role.WORKER else ""
    return f"{_NOUNS[process.role]}{number} ({pid}) of rank {_number(process.rank)}"


def _group(members: Sequence[Named], count: int) -> str:
    """Count members of one role: "1 worker of rank 0", "8 workers of 4 ranks"."""
    role = members[0].role
    text = f"{count} {_NOUNS[role]}" + ("" if count == 1 else "s")
    if role not in _DISPOSABLE:
        return text
    ranks = {member.rank for member in members}
    return f"{text} of rank {_number(ranks.pop())}" if len(ranks) == 1 else f"{text} of {len(ranks)} ranks"


def _number(number: Applicable[int]) -> str:
    return str(number) if is_known(number) else "?"


DYING_NS = 10_000_000_000  # freeing hundreds of GB takes the kernel seconds
OUTLIVED_NS = 2_400_000_000_000
"""A job that runs 40 min after a failure survived it: gloo gives up waiting after 30 min, NCCL after 10."""
MOST_ENDS = 256  # named in one Frame: a job of thousands may end in one second
_FATAL = (Role.RANK, Role.WORKER)


class OomKills:
    """Follow the count of OOM kills of one place; a count of another place says nothing new."""

    def __init__(self) -> None:
        self._before: tuple[str, int] | None = None
        self._told: tuple[int, int] | None = None

    def count_new(self, place: str, total: Known[int], now_ns: int) -> int:
        """Return how many are new since the last count of the same place; 0 at the first."""
        if not is_known(total):
            return 0
        before, self._before = self._before, (place, total)
        if before is None or before[0] != place:
            self._told = None
            return 0
        new = max(0, total - before[1])
        if new:
            self._told = (now_ns, new)
        return new

    def count_recent(self, now_ns: int) -> int:
        """Return the kills whose victims may still be ending: a kill is counted before its victim is gone."""
        return self._told[1] if self._told is not None and now_ns - self._told[0] < DYING_NS else 0


def describe_final(gone: Departure, *, oom_kills: int = 0) -> ProcessEnd:
    """Say how one member ended; ``oom_kills`` as in ``describe_end``."""
    status, member = gone.wait_status, gone.member
    outcome = Outcome.UNKNOWN
    if is_known(status):
        outcome = Outcome.FAILED if status else Outcome.WELL
    return ProcessEnd(
        pid=member.identity.pid,
        role=member.role,
        rank=member.rank,
        worker=member.worker,
        outcome=outcome,
        signal=name_signal(status & 0x7F) if is_known(status) and status & 0x7F else NOT_APPLICABLE,
        how=describe_end(status, oom_victim=gone.oom_victim, oom_kills=oom_kills),
    )


class MemberEnds:
    """Follow the ends of one job's members; the end of ``root`` is the job's, where it ``answers`` for it."""

    def __init__(self, root: Identity, *, answers: bool = True) -> None:
        self._root = root
        self._answers = answers
        self._root_end: ProcessEnd | None = None
        self._last: ProcessEnd | None = None
        self._first: tuple[Member, ProcessEnd] | None = None
        self._first_ns = 0
        self._newest_ticks = 0  # start of the newest rank that lived at the first failure
        self._rank_outcomes: set[Outcome] = set()
        self._failed_rank: tuple[Member, ProcessEnd] | None = None

    def add(
        self, changes: Changes, now_ns: int, *, living: Sequence[ProcessSample] = (), oom_kills: int = 0
    ) -> tuple[ProcessEnd, ...]:
        """Record and return who ended; ``oom_kills`` as in ``describe_end``, ``now_ns`` is monotonic."""
        root_lived = self._root_end is None
        if root_lived and self._first is not None and now_ns - self._first_ns > OUTLIVED_NS:
            self._first = None
        ends = tuple(describe_final(each, oom_kills=oom_kills) for each in changes.gone)
        for each, end in zip(changes.gone, ends, strict=True):
            if each.member.identity == self._root:
                self._root_end = end
            elif root_lived and self._first is None and each.failed and end.role in _FATAL:
                self._first, self._first_ns = (each.member, end), now_ns
                self._newest_ticks = max(_started(living), default=0)
            self._last = end
        if any(one.role is Role.RANK for one in changes.born):
            self._rank_outcomes.clear()  # a rank that was born since starts afresh
            self._failed_rank = None
        self._rank_outcomes |= {end.outcome for end in ends if end.role is Role.RANK}
        failed = (
            (each.member, end)
            for each, end in zip(changes.gone, ends, strict=True)
            if end.role is Role.RANK and end.outcome is Outcome.FAILED
        )
        self._failed_rank = self._failed_rank or next(failed, None)
        if self._first is not None and self._went_on(self._first[0], changes, living):
            self._first = None
        return tuple(end for end in ends if end.role is not Role.HELPER)[:MOST_ENDS]

    def _went_on(self, first: Member, changes: Changes, living: Sequence[ProcessSample]) -> bool:
        """Tell whether the job goes on: ``first`` was replaced, or all ranks (elastic restarts renumber)."""
        if any((one.role, one.rank) == (first.role, first.rank) for one in changes.born):
            return True
        return min(_started(living), default=0) > max(self._newest_ticks, first.identity.start_ticks)

    @property
    def ranks_outcome(self) -> Outcome:
        """Say how the ranks that are gone ended: failed if one of them did."""
        if Outcome.FAILED in self._rank_outcomes:
            return Outcome.FAILED
        return Outcome.WELL if self._rank_outcomes == {Outcome.WELL} else Outcome.UNKNOWN

    @property
    def _says_nothing(self) -> bool:
        """Tell whether the root has ended with the 0 that it ends with however its ranks do."""
        return not self._answers and self._root_end is not None and self._root_end.outcome is Outcome.WELL

    @property
    def outcome(self) -> Outcome:
        """Say how the job ended: by its root, else by a rank or worker that failed before."""
        if self._says_nothing:
            return self.ranks_outcome
        end = self._root_end or self._last
        outcome = Outcome.UNKNOWN if end is None else end.outcome
        if outcome is Outcome.UNKNOWN and self._first is not None:
            return Outcome.FAILED
        # Loader workers that outlive the rest exit with 0, which says nothing of the job.
        return outcome if self._root_end or outcome is Outcome.FAILED else Outcome.UNKNOWN

    def describe(self) -> str:
        """Say how the job ended, and who failed first: "exit 1, after rank 0 (85): SIGKILL"."""
        if self._says_nothing and self.ranks_outcome is not Outcome.WELL:
            first = self._first or self._failed_rank
            return UNSEEN if first is None else f"{name_member(first[0])}: {first[1].how}"
        end = self._root_end or self._last
        how = UNSEEN if end is None else end.how
        if self._first is None or self.outcome is Outcome.WELL or how == self._first[1].how:
            return how
        return f"{how}, after {name_member(self._first[0])}: {self._first[1].how}"

    @property
    def signal(self) -> Applicable[str]:
        """Return the signal that ended the job, or who failed first; not applicable where it ended well."""
        if self.outcome is Outcome.WELL:
            return NOT_APPLICABLE
        first = self._first or (self._failed_rank if self._says_nothing else None)
        ends = (self._root_end or self._last, *(first or ())[1:])
        return next((one.signal for one in ends if one is not None and is_known(one.signal)), NOT_APPLICABLE)


def _started(living: Sequence[ProcessSample]) -> list[int]:
    return [one.start_ticks for one in living if one.role is Role.RANK]


_WEIGHT = {
    EventKind.ATTACH: 0,
    EventKind.PROBE: 1,
    EventKind.OUTPUT: 1,
    EventKind.COMPILE: 2,
    EventKind.MEMORY: 3,
    EventKind.GPU: 4,
    EventKind.VERDICT: 6,
    EventKind.ENDED: 7,
}
_WORKER_WEIGHT = 2
_RANK_WEIGHT = 5
_HEADS = (Role.RANK, Role.LAUNCHER)
_SHEDS = "tpmon is over its CPU budget: threads are read every other second"
_SHEDS_NO_MORE = "tpmon is within its CPU budget again"


def describe_attach(pid: int, ranks: int, workers: int, taken: datetime) -> Event:
    """Return the first event: what tpmon attached to."""
    text = f"attached to pid {pid}: {count_of(ranks, 'rank')}, {count_of(workers, 'loader worker')}"
    return Event(taken, EventKind.ATTACH, text)


class EventTracker:
    """Turn differences from the last Frame into events, and remember who ended and how."""

    def __init__(self, root: Identity, *, answers: bool = True) -> None:
        self._oom_kills = OomKills()
        self.ends = MemberEnds(root, answers=answers)
        self._last_ends: tuple[ProcessEnd, ...] = ()
        self._told_shedding = self._attached = False
        self._stopped: frozenset[tuple[int, int]] = frozenset()
        # PID and start of the stopped, as plain tuples: this runs over every process each second.

    def tell(
        self,
        taken: datetime,
        changes: Changes,
        group: CgroupReading,
        now_ns: int,
        *,
        processes: Sequence[ProcessSample] = (),
        others: Iterable[Event] = (),
    ) -> tuple[Event, ...]:
        """Return the events of one second with ``others`` of other sources, the most important last."""
        kills = self._oom_kills.count_new(group.memory_source, group.oom_kills, now_ns)
        host_wide = group.memory_source == HOST
        # others' kills may be among those of the machine
        own_kills = 0 if host_wide else self._oom_kills.count_recent(now_ns)
        self._last_ends = self.ends.add(changes, now_ns, living=processes, oom_kills=own_kills)
        told = [*describe_by_role(changes, oom_kills=own_kills), *self._list_stops(processes)]
        weighed = [
            (_RANK_WEIGHT if role in _HEADS else _WORKER_WEIGHT, Event(taken, EventKind.PROCESS, text))
            for role, text in told
        ]
        if kills:
            where = "on this machine" if host_wide else "in the job's control group"
            victims = "1 process" if kills == 1 else f"{kills} processes"
            text = f"the OOM killer ended {victims} {where}"
            weighed.append((_WEIGHT[EventKind.MEMORY], Event(taken, EventKind.MEMORY, text)))
        weighed += [(_WEIGHT.get(event.kind, _WORKER_WEIGHT), event) for event in others]
        return tuple(event for _, event in sorted(weighed, key=lambda pair: pair[0]))

    def list_own(
        self, taken: datetime, target: Target, gpu_events: Sequence[str], *, shedding: bool
    ) -> list[Event]:
        """Return the events of tpmon itself and the cards: what it reads less often, that it attached."""
        events = [Event(taken, EventKind.GPU, text) for text in gpu_events]
        if self._told_shedding != shedding:
            self._told_shedding = shedding
            events.insert(0, Event(taken, EventKind.PROBE, _SHEDS if shedding else _SHEDS_NO_MORE))
        if not self._attached:
            self._attached = True
            events.append(describe_attach(target.pid, target.local_ranks, target.local_workers, taken))
        return events

    @property
    def last_ends(self) -> Applicable[tuple[ProcessEnd, ...]]:
        """Return who ended in the last second; not applicable where nobody did."""
        return self._last_ends or NOT_APPLICABLE

    def _list_stops(self, processes: Sequence[ProcessSample]) -> tuple[tuple[Role, str], ...]:
        before = self._stopped
        if not before and not any(map(_is_stopped, processes)):
            return ()
        followed = {(one.pid, one.start_ticks): one for one in processes if one.role in _FATAL}
        now = frozenset(who for who, one in followed.items() if _is_stopped(one))
        self._stopped = now
        return describe_stops(
            [one for who, one in followed.items() if who in now - before],
            [one for who, one in followed.items() if who in before - now],
        )


def _is_stopped(process: ProcessSample) -> bool:
    """Tell whether a signal or a freezer stopped a process; a debugger may stop it for a moment only."""
    return process.state == "T" or is_known(process.frozen)
