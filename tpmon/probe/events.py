"""Word what changed between two Frames as events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tpmon.model.frame import Event, EventKind
from tpmon.model.known import is_known
from tpmon.model.process import ProcessSample, Role
from tpmon.probe.job import Member

EVENTS_NAMED = 4
"""More births or deaths than this in one second become one event with their number."""


def name_member(member: Member | ProcessSample) -> str:
    """Name a process as a person would: "rank 0", "worker 1 of rank 0", "helper wandb"."""
    rank = f"rank {member.rank}" if is_known(member.rank) else "the rank"
    if member.role is Role.RANK:
        return rank
    if member.role is Role.WORKER:
        number = f"worker {member.worker}" if is_known(member.worker) else "a worker"
        return f"{number} of {rank}"
    if member.role is Role.LAUNCHER:
        return "the launcher"
    return f"{member.role.value} {member.label}"


def _describe(members: Sequence[Member], verb: str, taken: datetime) -> list[Event]:
    if len(members) <= EVENTS_NAMED:
        return [
            Event(taken, EventKind.PROCESS, f"{name_member(m)} {verb} (pid {m.identity.pid})")
            for m in members
        ]
    kinds: dict[str, int] = {}
    for member in members:
        kinds[member.role.value] = kinds.get(member.role.value, 0) + 1
    parts = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in sorted(kinds.items()))
    return [Event(taken, EventKind.PROCESS, f"{parts} {verb}")]


def describe_members(born: Sequence[Member], gone: Sequence[Member], taken: datetime) -> list[Event]:
    """Return events for births and deaths; workers replaced within one second are a respawn."""
    new_workers = [m for m in born if m.role is Role.WORKER]
    old_workers = [m for m in gone if m.role is Role.WORKER]
    if new_workers and old_workers:
        text = f"loader workers replaced: {len(old_workers)} gone, {len(new_workers)} new (new epoch?)"
        rest_born = [m for m in born if m.role is not Role.WORKER]
        rest_gone = [m for m in gone if m.role is not Role.WORKER]
        return [
            Event(taken, EventKind.PROCESS, text),
            *_describe(rest_born, "started", taken),
            *_describe(rest_gone, "ended", taken),
        ]
    return [*_describe(born, "started", taken), *_describe(gone, "ended", taken)]


def describe_attach(pid: int, processes: Sequence[ProcessSample], taken: datetime) -> Event:
    """Return the first event: what tpmon attached to."""
    ranks = sum(p.role is Role.RANK for p in processes)
    workers = sum(p.role is Role.WORKER for p in processes)
    text = (
        f"attached to pid {pid}: {ranks} rank{'' if ranks == 1 else 's'}, "
        f"{workers} worker{'' if workers == 1 else 's'}"
    )
    return Event(taken, EventKind.ATTACH, text)
