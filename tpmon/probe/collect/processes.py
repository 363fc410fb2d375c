"""Follow the processes of a job: one ProcessSample each, once a second."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.model.results.doctor import CheckName, say_refusal
from tpmon.model.text.redaction import admit_text, name_failure
from tpmon.model.waits import RUNNING, Wait
from tpmon.probe.base.procread import PROC, StatLine, has_ended, parse_stat, read_apart, read_or, read_stat
from tpmon.probe.job.job import Member, now_ticks
from tpmon.probe.job.process_facts import find_left
from tpmon.probe.job.roles import thread_kind
from tpmon.probe.proc.counters import (
    KEPT_PROCESSES,
    NO_DESCRIPTOR,
    Io,
    OnceFile,
    ProcFile,
    Shares,
    is_clock_of,
    open_file,
    parse_io,
    read_cpu_clock,
    read_shares,
    tell_no_clock,
)
from tpmon.probe.proc.threads import DIGITS, NAMES_PER_TICK, Allowance, ThreadReading, ThreadSet, leave_unread
from tpmon.probe.proc.wchan import ON_CPU, Syscall, parse_syscall, read_wait

T = TypeVar("T")

REREAD_TICKS = 5  # until the wait of a quiet process is read again

AFFINITY_TICKS = 10  # until the CPUs on which a process may run are read again; they hardly ever change

MOVING_SWITCHES_S = 3.0  # a stuck thread has fewer: a loader queue's own time-out wakes it every 5 s

_MACHINE = os.uname().machine
_ALLOWED_LINE = b"\nCpus_allowed_list:\t"
_CPU_LIST = re.compile(rb"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_FIRST = Missing("rates need two readings")
_REAPED = Missing("a reaped child's bytes were added in this interval")
_HIDDEN = Missing("the kernel does not say (wchan is 0)")


@dataclass(frozen=True, slots=True)
class ProcessRates:
    """Hold per-second differences of one process over its last interval."""

    cpu_pct: Known[float]
    minor_faults_s: Known[float]
    major_faults_s: Known[float]
    asked_read_bytes_s: Known[float]
    asked_write_bytes_s: Known[float]
    device_read_bytes_s: Known[float]
    device_write_bytes_s: Known[float]
    read_calls_s: Known[float]


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Hold what one tick read of one process."""

    stat: StatLine
    rates: ProcessRates
    threads: ThreadReading
    wchan: Known[str]
    syscall: Known[str]
    waits_for: Known[Wait]
    waits_unchanged_s: Known[float]
    taken_ns: int
    state: str  # of the thread that runs the training loop
    allowed_cpus: Known[str] = Missing("not read")


_QUIET = ProcessRates(*[0.0] * 8)


def rate(new: float, old: float, elapsed_s: float) -> float:
    """Return the rate of a counter that only grows; a step back (exec, reset) counts as 0."""
    return round(max(0.0, new - old) / elapsed_s, DIGITS)


def measure_rates(
    old: tuple[StatLine, Known[Io], int] | None, new: tuple[StatLine, Known[Io], int]
) -> ProcessRates:
    """Return the rates between two readings (stat, io, CLOCK_MONOTONIC ns); Missing for the first."""
    if old is None or new[2] <= old[2]:
        return ProcessRates(*[_FIRST] * 8)
    stat, io, _ = new
    old_stat, old_io, _ = old
    if stat is old_stat and io is old_io and is_known(io):
        return _QUIET
    elapsed_s = (new[2] - old[2]) / 1e9

    def io_rate(read: Callable[[Io], int]) -> Known[float]:
        if not is_known(io):
            return io
        if not is_known(old_io):
            return _FIRST
        if stat.children_faults != old_stat.children_faults:
            # Reaping adds a child's whole reads and writes to the parent's counters at once.
            return _REAPED
        return rate(read(io), read(old_io), elapsed_s)

    return ProcessRates(
        cpu_pct=rate(100.0 * stat.cpu_s, 100.0 * old_stat.cpu_s, elapsed_s),
        minor_faults_s=rate(stat.minor_faults, old_stat.minor_faults, elapsed_s),
        major_faults_s=rate(stat.major_faults, old_stat.major_faults, elapsed_s),
        asked_read_bytes_s=io_rate(lambda one: one.asked_read),
        asked_write_bytes_s=io_rate(lambda one: one.asked_write),
        device_read_bytes_s=io_rate(lambda one: one.device_read),
        device_write_bytes_s=io_rate(lambda one: one.device_write),
        read_calls_s=io_rate(lambda one: one.read_calls),
    )


class _Parsed(Generic[T]):
    """Parse a file's bytes only when they changed: most processes of a tree are quiet."""

    __slots__ = ("_file", "_parse", "_raw", "_value")

    def __init__(self, path: str, size: int, parse: Callable[[bytes], T], *, keep: bool) -> None:
        self._file = open_file(path, size, keep=keep)
        self._parse = parse
        self._raw: bytes | None = None
        self._value: T

    def read(self) -> T:
        raw = self._file.read()
        if raw != self._raw:
            self._value = self._parse(raw)
            self._raw = raw
        return self._value

    def close(self) -> None:
        self._file.close()


class _Optional:
    """Keep a file that this user may not be allowed to read; then the refusal is the reading."""

    def __init__(self, path: str, size: int, check: CheckName, *, keep: bool) -> None:
        self._check = check
        self._file: ProcFile | OnceFile | None = None
        self._refused = Missing("not read yet")
        try:
            self._file = open_file(path, size, keep=keep)
        except OSError as error:
            self._refuse(error)

    def read(self) -> Known[bytes]:
        if self._file is None:
            return self._refused
        try:
            return self._file.read()
        except (ProcessLookupError, FileNotFoundError):
            return Missing("the process is gone")
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return Missing("no file descriptor was left")
            self._refuse(error)
            self.close()
            return self._refused

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refuse(self, error: OSError) -> None:
        self._refused = Missing(say_refusal(error, self._check))


_Waits = tuple[Known[str], Known[str], Known[Wait]]  # kernel function, system call number, their meaning


def _parse_wait(state: str, raw: Known[bytes], raw_call: Known[bytes], role: Role) -> _Waits:
    wchan: Known[str]
    if isinstance(raw, Missing):
        wchan = raw
    else:
        wchan = _HIDDEN if raw in (b"0", b"") else admit_text(raw.decode("ascii", "replace"), 64)
    call: Known[Syscall]
    if isinstance(raw_call, Missing):
        call = raw_call
    else:
        try:
            call = parse_syscall(raw_call)
        except ValueError:
            call = Missing("the kernel's text did not parse")
    number: Known[str] = str(call.number) if is_known(call) else call
    return wchan, number, read_wait(state, wchan, call, role, _MACHINE)


def parse_allowed_cpus(raw: bytes) -> Known[str]:
    """Return the line Cpus_allowed_list of /proc/PID/status: "0-3,8"."""
    _, _, rest = raw.partition(_ALLOWED_LINE)
    listed = rest.partition(b"\n")[0]
    if not _CPU_LIST.fullmatch(listed):
        return Missing("/proc/PID/status has no list of CPUs")
    return listed.decode("ascii")


class ProcessProbe:
    """Read one process each tick; ``read`` raises when it is gone."""

    def __init__(
        self,
        pid: int,
        kind_of: Callable[[str], ThreadKind],
        allowance: Allowance,
        proc: str = "/proc",
        *,
        born_after_ns: int = 0,
        keep: bool = True,
    ) -> None:
        """Open the hot files of ``pid``, without ``keep`` for each reading; OSError when it is gone.

        ``born_after_ns`` is a known moment (CLOCK_MONOTONIC) before its birth: then the first reading has
        rates, as all that it did came later.
        """
        self.pid = pid
        self._born_after_ns = born_after_ns
        base = f"{proc}/{pid}"
        self._status = OnceFile(f"{base}/status", 4096)
        self._allowed: Known[str] | None = None
        self.keep = keep
        self._stat = _Parsed(f"{base}/stat", 1024, parse_stat, keep=keep)
        self._io = _Optional(f"{base}/io", 512, "io", keep=keep)
        self._read_clock = read_cpu_clock if proc == PROC else tell_no_clock
        self._clock_ns = -1
        self.threads = ThreadSet(pid, kind_of, allowance, proc, born_after_ns, keep, self._read_clock)
        self._raw_io: Known[bytes] = Missing("not read yet")
        self._parsed_io: Known[Io] = self._raw_io
        self._raw_wait: tuple[str, Known[bytes], Known[bytes], Role] | None = None
        self._waits: _Waits = (_HIDDEN, _HIDDEN, _HIDDEN)
        self._parsed_wait: _Waits = (_HIDDEN, _HIDDEN, _HIDDEN)
        self._looks = pid
        self._old: tuple[StatLine, Known[Io], int] | None = None
        self._proc = proc
        self._wait: tuple[Wait, int] | None = None
        self._open_loop(pid)

    def close(self) -> None:
        """Close all descriptors."""
        self._stat.close()
        for file in (self._io, self._wchan, self._syscall, self._loop_stat):
            if file is not None:
                file.close()
        self.threads.close()

    def follow(self, tid: int) -> None:
        """From now on read the state and waits of thread ``tid``, which runs the training loop."""
        if tid == self._loop_tid:
            return
        for file in (self._wchan, self._syscall, self._loop_stat):
            if file is not None:
                file.close()
        self._open_loop(tid)
        self._looks, self._wait = -1, None  # the next reading looks at the waits
        self.threads.follow(tid)

    def _open_loop(self, tid: int) -> None:
        """Open the files of the loop thread's waits, and of its state where it is not the main one."""
        base = f"{self._proc}/{self.pid}{f'/task/{tid}' if tid != self.pid else ''}"
        self._loop_tid = tid
        self._wchan = _Optional(f"{base}/wchan", 128, "wchan", keep=self.keep)
        self._syscall = _Optional(f"{base}/syscall", 256, "syscall", keep=self.keep)
        self._loop_stat = _Optional(f"{base}/stat", 1024, "stat", keep=self.keep) if tid != self.pid else None

    def read(self, role: Role, *, skip_threads: bool, threads_later: bool = False) -> ProcessReading:
        """Read the process, its threads perhaps later; OSError when it is gone, ValueError for odd text."""
        taken_ns = time.monotonic_ns()
        old = self._old
        self._looks += 1
        clock_ns = self._read_clock(self.pid)
        rests = old is not None and self._rests(old[0], clock_ns)
        if old is not None and rests:
            stat, io, _ = old
        else:
            stat, io = self._read_counters()
            self._clock_ns = clock_ns if is_clock_of(clock_ns, stat.cpu_s) else -1
        self._old = (stat, io, taken_ns)
        if old is None and self._born_after_ns:
            unborn = replace(stat, cpu_s=0.0, minor_faults=0, major_faults=0)
            old = (unborn, map_known(lambda _: Io(0, 0, 0, 0, 0), io), self._born_after_ns)
        rates = measure_rates(old, self._old)
        moved = old is None or old[0].cpu_s != stat.cpu_s
        if has_ended(stat.state, stat.threads):
            threads = ThreadReading(*(Missing("zombie"),) * 6, (), taken_ns)
        elif threads_later:
            threads = leave_unread(taken_ns)
        else:
            threads = self.threads.read(
                time.monotonic_ns,
                stat.threads,
                moved=moved,
                skip=skip_threads,
                cpu_s=stat.cpu_s,
                sleeps=stat.state == "S" and not rests,
            )
        # A process without CPU use, reads and writes is still where it was. It is read again now and then
        # all the same, as a lock can change hands without either.
        still = old is not None and old[0] is stat and old[1] is io
        left = find_left(self.pid, self._loop_tid, self._proc) if stat.state == "Z" else None
        state = left.state if left is not None else self._read_state(stat)
        if left is not None:
            wchan, syscall, wait = _parse_wait(left.state, left.wchan, left.call, role)
            self._waits = wchan, syscall, left.stuck or wait
        elif not still or self._looks % REREAD_TICKS == 0:
            self._waits = self._read_wait(state, role)
        if self._allowed is None or self._looks % AFFINITY_TICKS == 0:
            self._allowed = self._read_allowed()
        wchan, syscall, waits_for = self._waits
        return ProcessReading(
            stat=stat,
            rates=rates,
            threads=threads,
            wchan=wchan,
            syscall=syscall,
            waits_for=waits_for,
            waits_unchanged_s=self._unchanged_s(waits_for, threads, taken_ns),
            taken_ns=taken_ns,
            state=state,
            allowed_cpus=self._allowed,
        )

    def _rests(self, last: StatLine, clock_ns: int) -> bool:
        """Tell whether a process that slept did not run since: to read, to stop and to die it has to.

        What takes no CPU is seen when it is read again all the same: that it waits for one, and what others
        do to it, such as taking back memory.
        """
        return last.state == "S" and 0 <= clock_ns == self._clock_ns and self._looks % REREAD_TICKS != 0

    def _read_counters(self) -> tuple[StatLine, Known[Io]]:
        stat, raw_io = self._stat.read(), self._io.read()
        if raw_io != self._raw_io:
            self._parsed_io = raw_io if isinstance(raw_io, Missing) else parse_io(raw_io)
            self._raw_io = raw_io
        return stat, self._parsed_io

    def begin_threads(self) -> None:
        """Read the threads for the first time, so that they show demand; raises as ``read`` does."""
        stat = self._stat.read()
        if not has_ended(stat.state, stat.threads):
            self.threads.read(time.monotonic_ns, stat.threads, moved=True, skip=False, cpu_s=stat.cpu_s)

    def _read_allowed(self) -> Known[str]:
        try:
            return parse_allowed_cpus(self._status.read())
        except OSError as error:
            return Missing(say_refusal(error, "stat"))

    def _read_state(self, stat: StatLine) -> str:
        """Return the state of the loop's thread; that of the process where the thread is gone."""
        raw = self._loop_stat.read() if self._loop_stat is not None and stat.state not in "ZX" else b""
        if not is_known(raw) or b")" not in raw:
            return stat.state
        state = raw[raw.rindex(b")") + 2 :][:1].decode("ascii", "replace")
        return stat.state if state in "ZX" else state  # the thread ends, not the process

    def _read_wait(self, state: str, role: Role) -> _Waits:
        if state == "R":
            return ON_CPU, ON_CPU, RUNNING
        raw, raw_call = self._wchan.read(), self._syscall.read()
        if self._raw_wait != (state, raw, raw_call, role):
            self._raw_wait = (state, raw, raw_call, role)
            self._parsed_wait = _parse_wait(state, raw, raw_call, role)
        return self._parsed_wait

    def _unchanged_s(self, waits_for: Known[Wait], threads: ThreadReading, taken_ns: int) -> Known[float]:
        if not is_known(waits_for):
            self._wait = None
            return waits_for
        # A rank that waits for batch after batch looks the same each second, but moves on.
        moved_on = known_or(threads.main_switches_s, 0.0) >= MOVING_SWITCHES_S and waits_for != RUNNING
        if self._wait is None or moved_on or self._wait[0] != waits_for:
            self._wait = (waits_for, taken_ns)
        return round((taken_ns - self._wait[1]) / 1e9, DIGITS)


MOST_PROCESSES = 2048  # that are read: uncached ones cost 0.1 ms of CPU each


@dataclass(frozen=True, slots=True)
class Reading:
    """Join who a process is with what one tick read of it."""

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
    """Read the processes of the job; open and close their files as members come and go."""

    def __init__(self, proc: str = "/proc", shares: Shares | None = None) -> None:
        """Keep at most the descriptors of ``shares`` open; by default a share of those free now."""
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
        """Living members that were not read: too many, no descriptor left, or /proc did not answer."""
        self.unreadable = 0  # those of them of which /proc did not answer, or not as it should
        self.why = ""  # what was odd about one of these

    def read(
        self, members: Sequence[Member], *, skip_threads: bool, threads_later: bool = False
    ) -> list[Reading]:
        """Read every living member in their order; their threads perhaps by ``begin_threads``."""
        self._allowance.names = NAMES_PER_TICK
        if members is not self._members:
            # The tuple stays the same object until a member comes, goes or changes.
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
                # It died in this tick; membership will report it.
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
            read_apart(probe.begin_threads)  # gone, no descriptor left, or odd: the next reading reports it

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
                partial(thread_kind, main=False),
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
        """Tell whether a process still lives although something of it could not be read."""
        stat = read_or(None, lambda: read_stat(identity.pid, self._proc))
        if stat is None or stat.start_ticks != identity.start_ticks:
            return False
        return not has_ended(stat.state, stat.threads)

    def _drop(self, identity: Identity) -> None:
        probe = self._probes.pop(identity)
        self._kept -= probe.keep
        probe.close()

    def _close_all_but(self, keep: set[Identity]) -> None:
        for identity in self._probes.keys() - keep:
            self._drop(identity)
