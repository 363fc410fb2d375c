"""Measure how many CPUs threads demand, and translate thread numbers.

Source: /proc/PID/task/TID/schedstat. Demand = (d run + d wait)/dt summed over threads is exact and, unlike
CPU %, PSI and involuntary switches, hardly changes with noisy neighbours.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from tpmon.model.codec import DECIMALS
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.stacks import StackCount
from tpmon.probe.base.procread import PROC, read_status
from tpmon.probe.proc.counters import (
    NO_DESCRIPTOR,
    ProcFile,
    SchedStat,
    is_clock_of,
    parse_schedstat,
    tell_no_clock,
)
from tpmon.probe.proc.memory import read_memory

DIGITS = DECIMALS
"""Figures of processes and threads keep the decimals that the JSON shows: their recording is smaller."""
BUSY_DEMAND = 0.25  # at least this makes one compute thread (exact for 2-32 OMP threads)
RELIST_NS = 10_000_000_000
QUIET_RELIST_NS = 60_000_000_000  # a process that used no CPU has hardly replaced a thread
QUIET_TICKS = 5  # a quiet process is read at least so often: a thread that waits but never runs uses no CPU
RESTING_SAMPLES = 3  # a thread unchanged so often is read with those of quiet processes, not each tick
UNSEEN_S = 0.025
"""More CPU of a process than its read threads used means that a resting one runs; both count 10 ms ticks."""
NAMES_PER_TICK = 250  # 1000 in the first tick of a large job took a sixteenth of its first picture


@dataclass(slots=True)
class Allowance:
    """Bound the descriptors that all processes keep open, and the names that one tick reads."""

    descriptors: int
    names: int = NAMES_PER_TICK


@dataclass(slots=True)
class _Thread:
    tid: int
    first_seen_ns: int
    file: ProcFile | None = None
    raw: bytes = b""
    last: SchedStat | None = None
    read_ns: int = 0
    unchanged: int = 0
    demand: float = 0.0
    kind: ThreadKind = ThreadKind.UNREAD


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """Hold the demand of one process over the last interval in which its threads were read."""

    runnable: Known[float]
    waiting: Known[float]
    running: Known[float]
    busy_threads: Known[int]
    switches_s: Known[float]
    main_switches_s: Known[float]
    groups: tuple[ThreadGroup, ...]
    taken_ns: int


_UNREAD = Missing("threads are read twice before they show demand")
_NOT_FILLED = Missing("this kernel does not fill schedstat")
NO_SCHEDSTAT = Missing("this kernel has no schedstat")


def leave_unread(
    taken_ns: int, why: Missing = _UNREAD, counted: tuple[ThreadGroup, ...] = ()
) -> ThreadReading:
    """Return the reading of a process whose threads are only counted, or read later."""
    groups = tuple(ThreadGroup(one.kind, one.count, why) for one in counted)
    return ThreadReading(*(why,) * 6, groups, taken_ns)


@dataclass(slots=True)
class _Sums:
    """Add up what one process's threads did, each since its own last reading."""

    read: int = 0
    run_ns: int = 0
    run: float = 0.0
    wait: float = 0.0
    switches_s: float = 0.0
    main_switches_s: float = 0.0
    busy: int = 0
    filled: bool = False
    demand_of: dict[ThreadKind, float] = field(default_factory=dict)

    def add(self, thread: _Thread, old: SchedStat, new: SchedStat, elapsed_ns: int, *, is_main: bool) -> None:
        """Add what a thread did within ``elapsed_ns``; 0: since an unknown time."""
        thread.demand = 0.0
        if elapsed_ns <= 0:
            return
        d_run, d_wait = new.run_ns - old.run_ns, new.wait_ns - old.wait_ns
        thread.demand = (d_run + d_wait) / elapsed_ns
        self.run_ns += d_run
        self.run += d_run / elapsed_ns
        self.wait += d_wait / elapsed_ns
        switches_s = (new.slices - old.slices) / elapsed_ns * 1e9
        self.switches_s += switches_s
        if is_main:
            self.main_switches_s = switches_s
        self.busy += thread.demand >= BUSY_DEMAND
        self.demand_of[thread.kind] = self.demand_of.get(thread.kind, 0.0) + thread.demand

    def close(self, resting: tuple[ThreadGroup, ...], taken_ns: int, *, first: bool) -> ThreadReading:
        """Return the reading; ``resting`` are all threads of the process without demand, also unread ones."""
        if first or not self.filled:
            # A thread that ran was put on a CPU at least once: all zero means the kernel does not count.
            return leave_unread(taken_ns, _UNREAD if self.filled else _NOT_FILLED, resting)
        return ThreadReading(
            runnable=round(self.run + self.wait, DIGITS),
            waiting=round(self.wait, DIGITS),
            running=round(self.run, DIGITS),
            busy_threads=self.busy,
            switches_s=round(self.switches_s, DIGITS),
            main_switches_s=round(self.main_switches_s, DIGITS),
            groups=tuple(map(self._share, resting)) if self.demand_of else resting,
            taken_ns=taken_ns,
        )

    def _share(self, resting: ThreadGroup) -> ThreadGroup:
        demand = round(self.demand_of.get(resting.kind, 0.0), DIGITS)
        return ThreadGroup(resting.kind, resting.count, demand) if demand else resting


@dataclass(slots=True)
class ThreadSet:
    """Follow the threads of one process. Call ``read`` each tick; it decides what to read."""

    pid: int
    kind_of: Callable[[str], ThreadKind]
    allowance: Allowance
    proc: str = "/proc"
    born_after_ns: int = 0  # the process did not exist yet, so all its threads' time came later
    keep_folder: bool = True  # False where descriptors are short: it is opened for each reading
    cpu_clock: Callable[[int], int] = tell_no_clock
    _loop_tid: int = 0
    _threads: dict[int, _Thread] = field(default_factory=dict)
    _resting: tuple[ThreadGroup, ...] = ()  # the threads by kind, as they were listed, without demand
    _task_fd: int = -1
    _listed_ns: int = 0
    _read_ns: int = 0
    _rested_ns: int = 0  # until when no thread ran since it was read
    _ticks: int = 0
    _was_moving: bool = True
    _all_read_cpu_s: float = 0.0  # CPU time of the process when all its threads were last read
    _seen_run_ns: int = 0  # what the threads that were read since then used of it
    _clock_ns: int = -1  # the process's CPU clock at that time
    _each_read_ns: int = 0  # when each thread's file was last read
    _all_cached: bool = True  # False when descriptors ran out: opening anew costs three times as much
    _count: int = -1
    _has_schedstat: bool = True  # False once a living thread had none: then the kernel has it for none
    _latest: ThreadReading = field(default_factory=lambda: ThreadReading(*(_UNREAD,) * 6, (), 0))

    def __post_init__(self) -> None:
        self._read_ns = self.born_after_ns
        self._loop_tid = self.pid

    def read(
        self,
        now: Callable[[], int],
        threads: int,
        *,
        moved: bool,
        skip: bool,
        cpu_s: float = -1.0,
        sleeps: bool = False,
    ) -> ThreadReading:
        """Return the newest reading, taking a new one unless the process is quiet or ``skip`` is set.

        ``threads`` is num_threads of the same tick, ``moved`` whether the process used CPU since the last,
        ``sleeps`` whether its main thread sleeps now.
        With its total ``cpu_s``, resting threads are left out while the others account for it. OSError when
        it is gone.
        """
        quiet = not moved and not self._was_moving and threads == self._count
        self._was_moving = moved
        self._ticks += 1
        # Spread by PID, so that quiet processes are not all read in the same tick.
        period = QUIET_TICKS if self._all_cached else 2 * QUIET_TICKS
        due = (self._ticks + self.pid) % period == 0
        if self._read_ns and (skip or quiet) and not due:
            return self._latest
        taken_ns = now()
        relist_ns = QUIET_RELIST_NS if quiet else RELIST_NS
        if self._task_fd < 0:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._task_fd = os.open(f"{self.proc}/{self.pid}/task", flags)
        everyone = due or quiet or cpu_s < 0
        if threads != self._count or taken_ns - self._listed_ns >= relist_ns:
            self._list(taken_ns)
            self._count = threads
            everyone = True
        if self._has_schedstat:
            self._measure(taken_ns, cpu_s, everyone=everyone, sleeps=sleeps)
        else:
            self._latest = self._lack_schedstat(taken_ns)
        if not self.keep_folder:
            self._close_folder()
        return self._latest

    def close(self) -> None:
        """Close every descriptor."""
        for thread in self._threads.values():
            self._drop_file(thread)
        self._threads.clear()
        self._close_folder()

    def _close_folder(self) -> None:
        if self._task_fd >= 0:
            os.close(self._task_fd)
            self._task_fd = -1

    def follow(self, tid: int) -> None:
        """Make another thread the one of kind MAIN: it runs the training loop."""
        for one in {self._loop_tid, tid} & self._threads.keys():
            self._threads[one].kind = ThreadKind.UNREAD
        self._loop_tid = tid
        self._count = -1  # the next reading lists them again, and so names them

    def busy_tids(self) -> tuple[int, ...]:
        """Return the threads whose demand reached ``BUSY_DEMAND``, busiest first."""
        busy = [t for t in self._threads.values() if t.demand >= BUSY_DEMAND]
        return tuple(t.tid for t in sorted(busy, key=lambda t: (-t.demand, t.tid)))

    def _list(self, taken_ns: int) -> list[_Thread]:
        """List the threads again and return those that are new."""
        tids = {int(name) for name in os.listdir(self._task_fd)}
        for tid in self._threads.keys() - tids:
            self._drop_file(self._threads.pop(tid))
        born = [_Thread(tid, taken_ns) for tid in tids - self._threads.keys()]
        self._threads.update((thread.tid, thread) for thread in born)
        for thread in self._threads.values():
            # A thread inherits its creator's name and sets its own a moment later.
            named_early = thread.first_seen_ns >= self._listed_ns
            if (thread.kind is ThreadKind.UNREAD or named_early) and self.allowance.names > 0:
                self.allowance.names -= 1
                thread.kind = self._read_kind(thread.tid)
        counts = Counter(thread.kind for thread in self._threads.values())
        self._resting = tuple(ThreadGroup(kind, counts[kind], 0.0) for kind in ThreadKind if kind in counts)
        self._listed_ns = taken_ns
        return born

    def _read_kind(self, tid: int) -> ThreadKind:
        if tid == self._loop_tid:
            return ThreadKind.MAIN
        try:
            name = self._read_once(f"{tid}/comm")
        except OSError:
            return ThreadKind.UNREAD
        return self.kind_of(name.decode("utf-8", "replace").rstrip("\n"))

    def _read_once(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._task_fd)
        try:
            return os.read(fd, 128)
        finally:
            os.close(fd)

    def _read_thread(self, thread: _Thread) -> SchedStat:
        if thread.file is None and self.allowance.descriptors > 0:
            thread.file = ProcFile(f"{thread.tid}/schedstat", 128, dir_fd=self._task_fd)
            self.allowance.descriptors -= 1
        raw = thread.file.read() if thread.file else self._read_once(f"{thread.tid}/schedstat")
        if raw == thread.raw and thread.last is not None:
            return thread.last
        thread.raw = raw
        return parse_schedstat(raw)

    def _drop_file(self, thread: _Thread) -> None:
        if thread.file is not None:
            thread.file.close()
            thread.file = None
            self.allowance.descriptors += 1

    def _read_threads(self, threads: Iterable[_Thread]) -> tuple[list[tuple[_Thread, SchedStat]], bool]:
        """Read each thread now; also return whether any was gone."""
        readings = []
        any_gone = False
        for thread in threads:
            try:
                readings.append((thread, self._read_thread(thread)))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                    raise  # not gone: without it the sum would be too small
                any_gone = True
        return readings, any_gone

    def _before(self, thread: _Thread, new: SchedStat, elapsed_ns: int) -> SchedStat:
        """Return the counters from which the thread's part of the interval is counted."""
        old = thread.last
        if elapsed_ns <= 0:
            return new
        if old is None:
            # Born within the interval: all its time counts. One with more time than that replaced a dead
            # thread earlier, unseen, and starts to count now.
            born_within = thread.first_seen_ns > self._read_ns and new.run_ns + new.wait_ns <= elapsed_ns
            return SchedStat(0, 0, 0) if born_within else new
        # After exec by another thread this TID has that thread's smaller counters.
        back = new.run_ns < old.run_ns or new.wait_ns < old.wait_ns or new.slices < old.slices
        return new if back else old

    def _measure(self, taken_ns: int, cpu_s: float, *, everyone: bool, sleeps: bool) -> None:
        clock_ns = self._read_clock(cpu_s) if everyone else -1
        # A thread that waits for a CPU and never runs moves no clock: now and then each file is read.
        by_clock = min(clock_ns, self._clock_ns) >= 0 and taken_ns - self._each_read_ns < QUIET_RELIST_NS
        threads = self._threads.values()
        awake = [one for one in threads if one.unchanged < RESTING_SAMPLES]
        stood = by_clock and clock_ns == self._clock_ns and self._latest.busy_threads == 0
        if stood and sleeps and all(one.tid == self.pid for one in awake):
            # Only the main thread would be read, and it slept all the time: to sleep again it has to run.
            self._rested_ns = self._read_ns = taken_ns
            self._latest = _Sums(filled=True).close(self._resting, taken_ns, first=False)
            return
        each = everyone and not by_clock
        sums = _Sums()
        any_gone = self._add(sums, threads if each else awake, taken_ns)
        ran_ns = self._seen_run_ns + sums.run_ns
        resting = [] if each else [one for one in threads if one.read_ns != taken_ns]
        if by_clock and clock_ns - self._clock_ns == ran_ns:
            # To the nanosecond, the others used all the time: these did not run.
            self._take(sums, [(one, one.last) for one in resting if one.last is not None], taken_ns)
        elif by_clock or (not everyone and cpu_s - self._all_read_cpu_s - ran_ns / 1e9 > UNSEEN_S):
            if not everyone:
                # They rested until the last tick, so what they used since belongs to this one.
                for one in resting:
                    one.read_ns = self._read_ns
            any_gone = self._add(sums, resting, taken_ns) or any_gone
            each = everyone = True
        if any_gone:
            # As many others may have been born in their place, which the number of threads does not show.
            self._add(sums, self._list(taken_ns), taken_ns)
        if not sums.read:
            self._has_schedstat = not self._lacks_schedstat()
            if self._has_schedstat:
                raise ProcessLookupError(f"process {self.pid} is gone")
            self._latest = self._lack_schedstat(taken_ns)
            return
        if everyone:
            self._all_read_cpu_s, self._seen_run_ns, self._clock_ns = cpu_s, 0, clock_ns
            self._each_read_ns = taken_ns if each else self._each_read_ns
            self._all_cached = all(thread.file is not None for thread in self._threads.values())
        else:
            self._seen_run_ns += sums.run_ns
        elapsed_ns = taken_ns - self._read_ns if self._read_ns else 0
        self._read_ns = taken_ns
        self._latest = sums.close(self._resting, taken_ns, first=elapsed_ns <= 0)

    def _read_clock(self, cpu_s: float) -> int:
        """Return the CPU clock of the process, -1 where it may be of another one, or counts otherwise."""
        clock_ns = self.cpu_clock(self.pid)
        return clock_ns if is_clock_of(clock_ns, cpu_s) else -1

    def _lacks_schedstat(self) -> bool:
        """Tell whether a living thread has no schedstat: no CONFIG_SCHED_INFO, or a sandbox's /proc."""
        for tid in self._threads:
            try:
                os.close(os.open(f"{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._task_fd))
            except FileNotFoundError:
                try:
                    os.stat(str(tid), dir_fd=self._task_fd)
                except OSError:
                    continue  # the thread ended
                return True
            except OSError:
                continue
        return False

    def _lack_schedstat(self, taken_ns: int) -> ThreadReading:
        self._read_ns = taken_ns
        return leave_unread(taken_ns, NO_SCHEDSTAT, self._resting)

    def _add(self, sums: _Sums, threads: Iterable[_Thread], taken_ns: int) -> bool:
        """Read threads and add what they did to the sums; return whether any was gone."""
        readings, any_gone = self._read_threads(threads)
        self._take(sums, readings, taken_ns)
        return any_gone

    def _take(self, sums: _Sums, readings: Sequence[tuple[_Thread, SchedStat]], taken_ns: int) -> None:
        """Add what threads did by their readings, the last one of those that did not run since."""
        sums.read += len(readings)
        sums.filled = sums.filled or any(new.slices > 0 for _, new in readings)
        for thread, new in readings:
            is_main = thread.tid == self._loop_tid
            if new is thread.last:
                thread.read_ns = taken_ns
                thread.unchanged += not is_main
                thread.demand = 0.0
                continue
            since_ns = max(thread.read_ns, self._rested_ns) or self._read_ns
            elapsed_ns = taken_ns - since_ns if since_ns else 0
            thread.read_ns = taken_ns
            thread.unchanged = 0
            old = self._before(thread, new, elapsed_ns)
            thread.last = new
            sums.add(thread, old, new, elapsed_ns, is_main=is_main)


_MACHINE = os.uname().machine
_TID_AT = {"x86_64": 720, "aarch64": 208}  # offset of the TID in glibc's struct pthread (pthread_self())
_LOWEST_ADDRESS = 1 << 32


def number_stacks(
    pid: int, stacks: Sequence[StackCount], here: set[int], proc: str = PROC, machine: str = _MACHINE
) -> list[tuple[int, StackCount]]:
    """Give each stack our number of its thread; an unknown one keeps py-spy's.

    py-spy has the number of the target's PID namespace, and before Python 3.11 only an address. ``here`` are
    the process's threads in /proc.
    """
    said = {stack.tid for stack in stacks}
    unknown = said - here
    outer: dict[int, int] = _read_inner_numbers(pid, here, proc) if unknown else {}
    for tid in unknown - outer.keys():
        number = _read_number(pid, tid, here, proc, machine)
        # No two stacks share a thread: a number that is taken means another one.
        if number is not None and number not in said and number not in outer.values():
            outer[tid] = number
    return [(stack.tid if stack.tid in here else outer.get(stack.tid, stack.tid), stack) for stack in stacks]


def _read_number(pid: int, pthread: int, here: set[int], proc: str, machine: str) -> int | None:
    """Read a thread's TID from glibc's struct pthread; only a living one, as other C libraries differ."""
    at = _TID_AT.get(machine)
    if at is None or pthread < _LOWEST_ADDRESS:
        return None
    data = read_memory(pid, pthread + at, 4, proc)
    if isinstance(data, Missing) or len(data) < 4:
        return None
    number = int.from_bytes(data, sys.byteorder)
    return number if number in here else None


def _read_inner_numbers(pid: int, tids: Iterable[int], proc: str) -> dict[int, int]:
    """Map the TIDs that threads have in their container to ours; {} without a container."""
    try:
        if len(read_status(pid, proc).ns_pids) < 2:
            return {}
        return {read_status(tid, f"{proc}/{pid}/task").ns_pids[-1]: tid for tid in tids}
    except OSError:
        return {}
