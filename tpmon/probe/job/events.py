"""Word what happened to the job, and to tpmon, as events. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from tpmon.model.frame import Event, EventKind, Target
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity, Outcome, ProcessEnd, ProcessSample, Role
from tpmon.model.units import count_of
from tpmon.probe.host.cgroup import CgroupReading
from tpmon.probe.host.cgroup_layout import HOST
from tpmon.probe.job.changes import Changes, describe_by_role, describe_stops
from tpmon.probe.job.exits import Ends, OomKills

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
_STOPS_MATTER = (Role.RANK, Role.WORKER)


def describe_attach(pid: int, ranks: int, workers: int, taken: datetime) -> Event:
    """Return the first event: what tpmon attached to."""
    text = f"attached to pid {pid}: {count_of(ranks, 'rank')}, {count_of(workers, 'loader worker')}"
    return Event(taken, EventKind.ATTACH, text)


class EventTeller:
    """Turn what differs from the last Frame into events; remembers who ended and how."""

    def __init__(self, root: Identity) -> None:
        """Begin with nothing told; ``root`` is the process whose end is the job's."""
        self._oom_kills = OomKills()
        self._ends = Ends(root)
        self._last_ends: tuple[ProcessEnd, ...] = ()
        self._told_shedding = self._attached = False
        self._stopped: frozenset[tuple[int, int]] = frozenset()
        # PID and start of those that were stopped: plain tuples, this runs over every process each second.

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
        """Return the events of one second, the most important last.

        Those are members that came, went, were stopped or run again, the OOM killer, and
        ``others`` of other sources.
        """
        kills = self._oom_kills.count_new(group.memory_source, group.oom_kills, now_ns)
        host_wide = group.memory_source == HOST
        # others' may be among those of the machine
        own_kills = 0 if host_wide else self._oom_kills.count_recent(now_ns)
        self._last_ends = self._ends.add(changes, now_ns, living=processes, oom_kills=own_kills)
        told = [*describe_by_role(changes, oom_kills=own_kills), *self._tell_stops(processes)]
        weighed = [(_weigh(role), Event(taken, EventKind.PROCESS, text)) for role, text in told]
        if kills:
            where = "on this machine" if host_wide else "in the job's control group"
            victims = "1 process" if kills == 1 else f"{kills} processes"
            text = f"the OOM killer ended {victims} {where}"
            weighed.append((_WEIGHT[EventKind.MEMORY], Event(taken, EventKind.MEMORY, text)))
        weighed += [(_WEIGHT.get(event.kind, _WORKER_WEIGHT), event) for event in others]
        return tuple(event for _, event in sorted(weighed, key=lambda pair: pair[0]))

    def tell_own(
        self, taken: datetime, target: Target, gpu_events: Sequence[str], *, shedding: bool
    ) -> list[Event]:
        """Return what tpmon says of itself and of the cards: what it reads less of, that it attached."""
        events = self._tell_shedding(taken, shedding=shedding)
        events += [Event(taken, EventKind.GPU, text) for text in gpu_events]
        if not self._attached:
            self._attached = True
            events.append(describe_attach(target.pid, target.local_ranks, target.local_workers, taken))
        return events

    def _tell_shedding(self, taken: datetime, *, shedding: bool) -> list[Event]:
        """Return the event that tpmon reads less, or all again; none when that is known."""
        if self._told_shedding == shedding:
            return []
        self._told_shedding = shedding
        text = (
            "tpmon is over its CPU budget: threads are read every other second"
            if shedding
            else "tpmon is within its CPU budget again"
        )
        return [Event(taken, EventKind.PROBE, text)]

    @property
    def last_ends(self) -> Applicable[tuple[ProcessEnd, ...]]:
        """Return who ended in the second that was told last; not applicable where nobody did."""
        return self._last_ends or NOT_APPLICABLE

    @property
    def outcome(self) -> Outcome:
        """Say whether the job, which has ended, ended well."""
        return self._ends.outcome

    @property
    def ranks_outcome(self) -> Outcome:
        """Say whether the ranks that are gone ended well."""
        return self._ends.ranks_outcome

    def describe_end(self) -> str:
        """Say how the job ended, and who failed first."""
        return self._ends.describe()

    def _tell_stops(self, processes: Sequence[ProcessSample]) -> tuple[tuple[Role, str], ...]:
        before = self._stopped
        if not before and not any(map(_is_stopped, processes)):
            return ()
        followed = {(one.pid, one.start_ticks): one for one in processes if one.role in _STOPS_MATTER}
        now = frozenset(who for who, one in followed.items() if _is_stopped(one))
        self._stopped = now
        return describe_stops(
            [one for who, one in followed.items() if who in now - before],
            [one for who, one in followed.items() if who in before - now],
        )


def _is_stopped(process: ProcessSample) -> bool:
    """Tell whether a signal or a freezer stopped a process; a debugger may only look, for a moment."""
    return process.state == "T" or is_known(process.frozen)


def _weigh(role: Role) -> int:
    return _RANK_WEIGHT if role in (Role.RANK, Role.LAUNCHER) else _WORKER_WEIGHT
