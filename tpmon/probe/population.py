"""Keep one ProcessProbe for each member of the job and read them all in one tick."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tpmon.model.process import Identity, ThreadKind
from tpmon.probe.job import Member, now_ticks
from tpmon.probe.processes import ProcessProbe, ProcessReading
from tpmon.probe.procfs import raise_descriptor_limit
from tpmon.probe.roles import thread_kind
from tpmon.probe.threads import NAMES_PER_TICK, Allowance

MAX_THREAD_DESCRIPTORS = 1536
"""About 10 MB of kernel memory; threads beyond it are opened for each reading."""
MIN_PROCESSES = 8
DESCRIPTORS_PER_PROCESS = 8
"""Five files and the task folder here, two more where membership follows the process."""


def _kind_of(name: str) -> ThreadKind:
    return thread_kind(name, main=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """Join who a process is with what one tick told of it."""

    member: Member
    now: ProcessReading


class Population:
    """Read the processes of the job; opens and closes their files as members come and go."""

    def __init__(self, proc: str = "/proc") -> None:
        """Take a share of the descriptors that are free now, at most the cap."""
        self._proc = proc
        self._probes: dict[Identity, ProcessProbe] = {}
        room = max(0, raise_descriptor_limit() - len(os.listdir("/proc/self/fd")))
        threads = min(MAX_THREAD_DESCRIPTORS, room // 3)
        self._allowance = Allowance(threads)
        self._max_probes = max(MIN_PROCESSES, (room - threads) // DESCRIPTORS_PER_PROCESS)
        self._last_ns = 0
        self._last_ticks = 0
        self.left_out = 0
        """Members that are not read because the descriptor limit is too low."""

    def read(self, members: Sequence[Member], *, skip_threads: bool) -> list[Reading]:
        """Read every member that still lives, in their order."""
        self._allowance.names = NAMES_PER_TICK
        self._close_all_but({member.identity for member in members})
        begun = time.monotonic_ns(), now_ticks()
        readings = []
        self.left_out = 0
        for member in members:
            probe = self._probe(member)
            if probe is None:
                continue
            try:
                now = probe.read(member.role, skip_threads=skip_threads)
            except (OSError, ValueError):
                # It died in this tick; membership will say so.
                self._probes.pop(member.identity).close()
                continue
            if now.stat.start_ticks == member.identity.start_ticks:
                readings.append(Reading(member, now))
            else:
                # The PID was reused between the listing and the opening.
                self._probes.pop(member.identity).close()
        self._last_ns, self._last_ticks = begun
        return readings

    def busy_tids(self, identity: Identity) -> tuple[int, ...]:
        """Return the busy threads of a process, busiest first."""
        probe = self._probes.get(identity)
        return probe.threads.busy_tids() if probe else ()

    def close(self) -> None:
        """Close every file."""
        self._close_all_but(set())

    def _probe(self, member: Member) -> ProcessProbe | None:
        probe = self._probes.get(member.identity)
        if probe is not None:
            return probe
        if len(self._probes) >= self._max_probes:
            self.left_out += 1
            return None
        try:
            probe = ProcessProbe(
                member.identity.pid,
                _kind_of,
                self._allowance,
                self._proc,
                born_after_ns=self._last_ns if member.identity.start_ticks > self._last_ticks else 0,
            )
        except OSError:
            return None
        self._probes[member.identity] = probe
        return probe

    def _close_all_but(self, keep: set[Identity]) -> None:
        for identity in self._probes.keys() - keep:
            self._probes.pop(identity).close()
