"""Say in words how the members of a job differ from the last look. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpmon.model.known import Applicable, Known, is_known
from tpmon.model.process import Role
from tpmon.probe.ending import UNSEEN, describe_end
from tpmon.probe.job import Member

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


def describe_changes(changes: Changes, *, oom_kills: int = 0) -> tuple[str, ...]:
    """Write one line for each thing that happened to launchers, ranks, workers and compile workers.

    Workers that left and came in the same second are a respawn at the end of an epoch, ranks a
    restart; of these only failures are named. Helpers come and go without a line. ``oom_kills`` as
    in ``describe_end``.
    """
    lines: list[str] = []
    for role in (Role.LAUNCHER, Role.RANK, Role.WORKER, Role.COMPILE):
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
    return tuple(lines)


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
    pid = member.identity.pid
    if member.role is Role.LAUNCHER:
        return f"launcher {member.label} ({pid})"
    if member.role is Role.RANK:
        return f"rank {_number(member.rank)} ({pid})"
    number = f" {_number(member.worker)}" if member.role is Role.WORKER else ""
    return f"{_NOUNS[member.role]}{number} ({pid}) of rank {_number(member.rank)}"


def _group(members: Sequence[Member], count: int) -> str:
    """Count members of one role: "1 worker of rank 0", "8 workers of 4 ranks"."""
    role = members[0].role
    text = f"{count} {_NOUNS[role]}" + ("" if count == 1 else "s")
    if role not in _DISPOSABLE:
        return text
    ranks = {member.rank for member in members}
    return f"{text} of rank {_number(ranks.pop())}" if len(ranks) == 1 else f"{text} of {len(ranks)} ranks"


def _number(number: Applicable[int]) -> str:
    return str(number) if is_known(number) else "?"
