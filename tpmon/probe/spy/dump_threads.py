"""Join the Python stacks of one process with what /proc says of its threads at the same moment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from tpmon.model.dump import ProcessToll, ThreadLook, WaitTarget
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.doctor import say_refusal
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.waits import FROZEN, RUNNING
from tpmon.probe.base.procread import PROC, TICKS_PER_S, StatLine, parse_stat, read_file
from tpmon.probe.job.loop_thread import find_loop, read_loop
from tpmon.probe.job.roles import thread_kind
from tpmon.probe.proc.counters import SchedStat, parse_io, parse_schedstat
from tpmon.probe.proc.pipe_peers import OtherEnds
from tpmon.probe.proc.threads import number_stacks
from tpmon.probe.proc.wait_object import Waiter, read_target
from tpmon.probe.proc.wchan import ON_CPU, Syscall, name_call, parse_syscall, read_wait
from tpmon.probe.spy.text import DumpedStack, is_torn

MOST_NATIVE = 64  # native threads of one process that are listed; the rest is counted
MOST_THREADS = 4096
_MACHINE = os.uname().machine
_LISTED = frozenset((ThreadKind.MAIN, ThreadKind.PIN, ThreadKind.AUTOGRAD, ThreadKind.COMM))
_NOT_TOLD = Missing("before Python 3.11 the kernel's number of a thread is not known")
_ENDED = Missing("the thread ended while it was read")
_TORN = Missing("it ran on while its stack was read")
_NOT_READ = Missing("not read of native threads")


@dataclass(frozen=True, slots=True)
class Threads:
    """Hold the threads of one process; ``idle`` counts native ones that are not listed."""

    looks: tuple[ThreadLook, ...]
    idle: int


def read_threads(
    pid: int,
    role: Role,
    stacks: Known[Sequence[StackCount]],
    *,
    loop_tid: int = 0,
    ends: OtherEnds | None = None,
    frozen: bool = False,
    waits: bool = True,
    proc: str = PROC,
) -> Threads:
    """Read every thread of a process with its stack, or why there is none; OSError when it is gone.

    ``loop_tid`` runs the training loop; 0: found by the stacks. ``ends`` knows for a whole round who has the
    other end of what a thread waits on. ``frozen``: a control group holds the process, so its threads wait
    for that alone. With ``waits`` the kernel function and system call of native threads are read too.
    """
    tids = [int(name) for name in os.listdir(f"{proc}/{pid}/task") if name.isdigit()][:MOST_THREADS]
    loop_tid = loop_tid if loop_tid in tids else 0  # it ended: no other thread may silently take its place
    reader = _Reader(pid, role, loop_tid or pid, ends or OtherEnds({}, proc), proc, frozen, waits)
    if isinstance(stacks, Missing):
        first = reader.loop_tid
        native, idle = reader.read_native(tid for tid in tids if tid != first)
        return Threads((reader.read(first, "MainThread" if first == pid else "", stacks), *native), idle)
    here = set(tids)
    if not loop_tid and role is Role.RANK and (found := find_loop(stacks, pid)) is not None:
        loop = read_loop(pid, found, proc)
        reader = replace(reader, loop_tid=loop.thread.tid if is_known(loop) else pid)
    named = number_stacks(pid, stacks, here, proc, _MACHINE)
    python = [
        replace(
            reader.read(tid, one.thread, _TORN if is_torn((one,)) else one.frames)
            if tid in here
            else ThreadLook(
                _NOT_TOLD, one.thread, ThreadKind.OTHER, "?", *(_NOT_TOLD,) * 6, frames=one.frames
            ),
            locals=one.locals if isinstance(one, DumpedStack) else NOT_APPLICABLE,
            holds_gil=one.holds_gil,
        )
        for tid, one in named
    ]
    known = {tid for tid, _ in named}
    native, idle = reader.read_native(tid for tid in tids if tid not in known)
    return Threads((*python, *native), idle)


def read_toll(pid: int, proc: str = PROC) -> Known[ProcessToll]:
    """Read what a process has used since it began."""
    try:
        stat = parse_stat(read_file(f"{proc}/{pid}/stat", 4096))
        moved = parse_io(read_file(f"{proc}/{pid}/io", 1024))
    except (OSError, ValueError) as error:
        return Missing(f"what the process used: {error}")
    faults = stat.minor_faults + stat.major_faults
    return ProcessToll(round(stat.cpu_s * 1e9), faults, moved.asked_read + moved.asked_write)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Read the threads of one process."""

    pid: int
    role: Role
    loop_tid: int
    ends: OtherEnds
    proc: str
    frozen: bool
    waits: bool

    def read(self, tid: int, name: str, frames: Applicable[tuple[StackFrame, ...]]) -> ThreadLook:
        """Read all that /proc says of one thread."""
        folder = f"{self.proc}/{self.pid}/task/{tid}"
        is_main = tid == self.loop_tid
        try:
            stat = parse_stat(read_file(f"{folder}/stat", 4096))
        except (OSError, ValueError):
            return ThreadLook(tid, name, thread_kind("", main=is_main), "?", *(_ENDED,) * 6, frames=frames)
        call = _read_call(folder)
        wchan = _read_wchan(folder)
        times = _read_times(folder)
        waits_for = read_wait(stat.state, wchan, call, self.role, _MACHINE)
        if self.frozen:
            waits_for = FROZEN
        waits_on: Applicable[WaitTarget] = NOT_APPLICABLE
        if stat.state != "R":  # a running thread has left its call
            waits_on = read_target(Waiter(self.pid, tid, call, waits_for, _MACHINE, self.proc), self.ends)
        return ThreadLook(
            tid=tid,
            name=name or stat.name,
            kind=thread_kind(stat.name, main=is_main),
            state=stat.state,
            wchan=wchan,
            call=call if isinstance(call, Missing) else name_call(call.number, _MACHINE),
            waits_for=waits_for,
            waits_on=waits_on,
            run_ns=map_known(_RUN, times),
            delay_ns=map_known(_DELAY, times),
            frames=frames,
            kernel_ns=round(stat.kernel_ticks * 1e9 / TICKS_PER_S),
            slices=map_known(_SLICES, times),
        )

    def read_native(self, tids: Iterable[int]) -> tuple[list[ThreadLook], int]:
        """Read the threads without a Python stack that have a purpose or do not sleep; count the others."""
        listed: list[ThreadLook] = []
        idle = 0
        for tid in tids:
            folder = f"{self.proc}/{self.pid}/task/{tid}"
            try:
                stat = parse_stat(read_file(f"{folder}/stat", 4096))
            except (OSError, ValueError):
                continue  # it ended since it was listed
            kind = thread_kind(stat.name, main=False)
            rests = stat.state in "SI" or (self.frozen and stat.state == "D")
            if (rests and kind not in _LISTED) or len(listed) >= MOST_NATIVE:
                idle += 1
            elif stat.state in "DTt":
                listed.append(self.read(tid, stat.name, NOT_APPLICABLE))
            else:
                listed.append(self._read_cheaply(tid, stat, kind, folder))
        return listed, idle

    def _read_cheaply(self, tid: int, stat: StatLine, kind: ThreadKind, folder: str) -> ThreadLook:
        """Describe a native thread that nothing holds, without what it waits on."""
        times = _read_times(folder)
        call = _read_call(folder) if self.waits else _NOT_READ
        return ThreadLook(
            tid=tid,
            name=stat.name,
            kind=kind,
            state=stat.state,
            wchan=_read_wchan(folder) if self.waits else _NOT_READ,
            call=call if isinstance(call, Missing) else name_call(call.number, _MACHINE),
            waits_for=RUNNING if stat.state == "R" else _NOT_READ,
            waits_on=NOT_APPLICABLE,
            run_ns=map_known(_RUN, times),
            delay_ns=map_known(_DELAY, times),
            frames=NOT_APPLICABLE,
            slices=map_known(_SLICES, times),
        )


def _read_call(folder: str) -> Known[Syscall]:
    try:
        return parse_syscall(read_file(f"{folder}/syscall", 512))
    except OSError as error:
        return Missing(f"system call: {say_refusal(error, 'syscall')}")
    except ValueError:
        return ON_CPU


def _read_wchan(folder: str) -> Known[str]:
    try:
        return read_file(f"{folder}/wchan", 128).decode("ascii", "replace") or "0"
    except OSError as error:
        return Missing(f"wchan: {say_refusal(error, 'wchan')}")


_RUN, _DELAY, _SLICES = attrgetter("run_ns"), attrgetter("wait_ns"), attrgetter("slices")


def _read_times(folder: str) -> Known[SchedStat]:
    try:
        return parse_schedstat(read_file(f"{folder}/schedstat", 256))
    except (OSError, ValueError) as error:
        return Missing(f"schedstat: {error}")
