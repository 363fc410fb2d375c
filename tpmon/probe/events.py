"""Word what happened to the job, and to tpmon, as events. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tpmon.model.frame import Event, EventKind
from tpmon.model.process import Identity, ProcessSample, Role
from tpmon.probe.cgroup import CgroupReading
from tpmon.probe.cgroup_layout import HOST
from tpmon.probe.changes import Changes, describe_changes
from tpmon.probe.ends import Ends, OomKills


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def describe_attach(pid: int, processes: Sequence[ProcessSample], taken: datetime) -> Event:
    """Return the first event: what tpmon attached to."""
    ranks = sum(process.role is Role.RANK for process in processes)
    workers = sum(process.role is Role.WORKER for process in processes)
    text = f"attached to pid {pid}: {_count(ranks, 'rank')}, {_count(workers, 'loader worker')}"
    return Event(taken, EventKind.ATTACH, text)


class EventTeller:
    """Turn what differs from the last Frame into events; remembers who ended and how."""

    def __init__(self, root: Identity) -> None:
        """Begin with nothing told; ``root`` is the process whose end is the job's."""
        self._oom_kills = OomKills()
        self._ends = Ends(root)
        self._told_shedding = False

    def tell_changes(
        self, taken: datetime, changes: Changes, group: CgroupReading, now_ns: int
    ) -> list[Event]:
        """Return the events of members that came and went, and of the OOM killer."""
        kills = self._oom_kills.count_new(group.memory_source, group.oom_kills, now_ns)
        host_wide = group.memory_source == HOST
        # others' may be among those of the machine
        own_kills = 0 if host_wide else self._oom_kills.count_recent(now_ns)
        self._ends.add(changes, oom_kills=own_kills)
        texts = describe_changes(changes, oom_kills=own_kills)
        events = [Event(taken, EventKind.PROCESS, text) for text in texts]
        if kills:
            where = "on this machine" if host_wide else "in the job's control group"
            text = f"the OOM killer ended {kills} process(es) {where}"
            events.append(Event(taken, EventKind.MEMORY, text))
        return events

    def tell_shedding(self, taken: datetime, *, shedding: bool) -> list[Event]:
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

    def describe_end(self) -> str:
        """Say how the job ended, and who failed first."""
        return self._ends.describe()
