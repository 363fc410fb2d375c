"""Say in words how the members of a job differ from the last look. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, is_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.text.stop_words import say_stop
from tpmon.probe.job.ending import UNSEEN, describe_end
from tpmon.probe.job.job import Member

NAMED = 4
"""More members than this that met the same fate in the same second are counted, not named."""

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
    """Return what makes a member another one to a reader."""
    return (member.role, member.rank, member.worker, member.name, member.label)


@dataclass(frozen=True, slots=True)
class Departure:
    """Hold a member that ended, with its wait status where the kernel told it."""

    member: Member
    wait_status: Known[int]
    oom_victim: bool = False
    """Whether the kernel log says that it was killed for memory."""

    @property
    def failed(self) -> bool:
        """Tell whether it ended by itself in a bad way; SIGTERM comes from one that noticed another's end."""
        return is_known(self.wait_status) and self.wait_status not in (0, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Changes:
    """Say how the members differ from the last look; ``changed`` got another role, number or name."""

    born: tuple[Member, ...] = ()
    gone: tuple[Departure, ...] = ()
    changed: tuple[Member, ...] = ()
    root_runs: str = ""
    """What the root of the job runs since it replaced itself by exec; "" when it did not."""


Named = Union[Member, ProcessSample]
"""Says who a process is within its job."""


def describe_by_role(changes: Changes, *, oom_kills: int = 0) -> tuple[tuple[Role, str], ...]:
    """Write one line for each thing that happened to launchers, ranks, workers and compile workers.

    Workers that left and came in the same second are a respawn at the end of an epoch, ranks a
    restart; of these only failures are named. Helpers come and go without a line. ``oom_kills`` as
    in ``describe_end``.
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
            lines += _describe_born(born)
        told += [(role, line) for line in lines]
    if changes.root_runs:
        line = f"the root of the job replaced itself (exec) and now runs {changes.root_runs}"
        told.append((Role.LAUNCHER, line))
    return tuple(told)


def describe_stops(
    stopped: Sequence[ProcessSample], resumed: Sequence[ProcessSample]
) -> tuple[tuple[Role, str], ...]:
    """Say who was stopped by a signal or frozen and who runs again, by role; many at once are counted."""
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
    """Return what a replacement has in common with the replaced: the number of the rank."""
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


def _describe_born(born: Sequence[Member]) -> list[str]:
    if len(born) > NAMED or (born and born[0].role in _DISPOSABLE):
        return [f"{_group(born, len(born))} started"]
    return [f"{name_member(member)} started" for member in born]


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
