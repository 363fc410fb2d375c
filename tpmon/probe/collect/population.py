"""Keep one ProcessProbe for each member of the job and read them all in one tick."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.process import Identity, ThreadKind
from tpmon.model.text.clean import name_failure
from tpmon.probe.base.each_process import read_apart
from tpmon.probe.base.procread import has_ended, read_stat
from tpmon.probe.collect.processes import ProcessProbe, ProcessReading
from tpmon.probe.job.job import Member, now_ticks
from tpmon.probe.job.roles import thread_kind
from tpmon.probe.proc.files import KEPT_PROCESSES, NO_DESCRIPTOR, Shares, read_shares
from tpmon.probe.proc.threads import NAMES_PER_TICK, Allowance

MOST_PROCESSES = 2048
"""More are not read: uncached ones cost 0.1 ms of CPU each."""


def _kind_of(name: str) -> ThreadKind:
    return thread_kind(name, main=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """Join who a process is with what one tick told of it."""

    member: Member
    now: ProcessReading


def describe_shortage(shares: Shares, population: Population, members: int) -> tuple[str, ...]:
    """Say what a low limit of open files, or the number of processes, costs; nothing when all is well."""
    said = []
    if population.left_out:
        why = f"at most {MOST_PROCESSES}, and {shares.limit} open files"
        if population.unreadable:
            why = f"what /proc says of {population.unreadable} of them could not be read: {population.why}"
        said.append(
            f"{population.left_out} of {members} processes are not read ({why}):"
            " CPU of the job is not known, other sums are at least what they say"
        )
    if population.opened_anew and shares.processes < KEPT_PROCESSES:
        said.append(
            f"only {shares.limit} open files are allowed: those of {population.opened_anew} processes are"
            " opened for each reading, which costs tpmon more CPU (ulimit -n)"
        )
    return tuple(said)


class Population:
    """Read the processes of the job; opens and closes their files as members come and go."""

    def __init__(self, proc: str = "/proc", shares: Shares | None = None) -> None:
        """Keep at most the descriptors of ``shares`` open, by default a share of those free now."""
        self._proc = proc
        self._probes: dict[Identity, ProcessProbe] = {}
        shares = shares or read_shares()
        self._allowance = Allowance(shares.threads)
        self._max_kept = shares.processes
        self._kept = 0
        self._members: Sequence[Member] = ()
        self._last_ns = 0
        self._last_ticks = 0
        self.left_out = 0
        """Living members that were not read: too many, no descriptor was left, or /proc did not answer."""
        self.unreadable = 0
        """Those of them of which /proc did not answer, or not as it should."""
        self.why = ""
        """What was odd about one of these."""

    def read(
        self, members: Sequence[Member], *, skip_threads: bool, threads_later: bool = False
    ) -> list[Reading]:
        """Read every member that still lives, in their order; their threads perhaps by ``begin_threads``."""
        self._allowance.names = NAMES_PER_TICK
        if members is not self._members:
            # Membership gives one and the same tuple until a member comes, goes or changes.
            self._close_all_but({member.identity for member in members})
            self._members = members
        begun = time.monotonic_ns(), now_ticks()
        readings = []
        self.left_out = self.unreadable = 0
        for member in members:
            probe = self._probe(member)
            if probe is None:
                continue
            try:
                probe.follow(member.loop_tid)
                now = probe.read(member.role, skip_threads=skip_threads, threads_later=threads_later)
            except Exception as error:  # noqa: BLE001  # one process fails alone, and says why
                if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                    self.left_out += 1
                    continue
                if self._lives(member.identity):
                    self.left_out += 1
                    self.unreadable += 1
                    self.why = name_failure(error)
                    continue
                # It died in this tick; membership will say so.
                self._drop(member.identity)
                continue
            if now.stat.start_ticks == member.identity.start_ticks:
                readings.append(Reading(member, now))
            else:
                # The PID was reused between the listing and the opening.
                self._drop(member.identity)
        self._last_ns, self._last_ticks = begun
        return readings

    def begin_threads(self) -> None:
        """Read the threads of every member for the first time."""
        self._allowance.names = NAMES_PER_TICK
        for probe in self._probes.values():
            read_apart(probe.begin_threads)  # gone, no descriptor left, or odd: the next reading says so

    @property
    def opened_anew(self) -> int:
        """Count the processes whose files are opened for each reading, which costs more CPU."""
        return len(self._probes) - self._kept

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
        if len(self._probes) >= MOST_PROCESSES:
            self.left_out += 1
            return None
        try:
            probe = ProcessProbe(
                member.identity.pid,
                _kind_of,
                self._allowance,
                self._proc,
                born_after_ns=self._last_ns if member.identity.start_ticks > self._last_ticks else 0,
                keep=self._kept < self._max_kept,
            )
        except OSError:
            return None  # gone: what can be read without a descriptor of its own raises nothing here
        self._probes[member.identity] = probe
        self._kept += probe.keep
        return probe

    def _lives(self, identity: Identity) -> bool:
        """Tell whether a process is still there although something of it could not be read."""
        try:
            stat = read_stat(identity.pid, self._proc)
        except OSError:
            return False
        return stat.start_ticks == identity.start_ticks and not has_ended(stat.state, stat.threads)

    def _drop(self, identity: Identity) -> None:
        probe = self._probes.pop(identity)
        self._kept -= probe.keep
        probe.close()

    def _close_all_but(self, keep: set[Identity]) -> None:
        for identity in self._probes.keys() - keep:
            self._drop(identity)
