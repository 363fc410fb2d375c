"""Tell how processes that are not our children ended, as far as the kernel shows it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import time
from collections.abc import Container

from tpmon.model.dump import DeadChild
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME, Identity
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    has_ended,
    in_first_pid_namespace,
    is_python_name,
    read_or,
    read_stat,
    read_table,
)
from tpmon.probe.job.job import now_ticks

UNSEEN = "ended (exit status not visible to tpmon)"

# include/uapi/linux/pidfd.h: PIDFD_GET_INFO = _IOWR(0xFF, 11, 64 bytes), exit_code last; Linux 6.15
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_SIZE = 64
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_OPEN = 434  # include/uapi/asm-generic/unistd.h; the same on every machine that tpmon runs on
_KILLED = re.compile(rb"^[0-7],\d+,(\d+),[^;]*;[^\n]*(?:Killed|Kill) process (\d+)", re.MULTILINE)
_KERNEL_RECORDS = 20_000
_RECORD_BYTES = 8192
KMSG = "/dev/kmsg"
RECENT_S = 60.0  # how far back the kernel log is read for an end that was seen just now
_DRIFT_RATIO = 1e-4  # 100 ppm: most drift between printk's clock and a CLOCK_MONOTONIC steered by NTP


def open_pidfd(pid: int) -> int:
    """Open a pidfd, -1 for none; Pythons built on an old system (conda, uv) lack os.pidfd_open."""
    # None: gone, older than Linux 5.3, forbidden in a container, or no descriptor left.
    return read_or(-1, lambda: os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call_pidfd_open(pid))


def _call_pidfd_open(pid: int) -> int:
    import ctypes  # noqa: PLC0415 only where Python cannot do it

    opened = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_OPEN, ctypes.c_long(pid), ctypes.c_long(0))
    if opened < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(opened)


def read_wait_status(identity: Identity, pidfd: int, proc: str = PROC) -> Known[int]:
    """Read an ended process's wait status: field 52 of a zombie, else ``pidfd``, opened before (-1: none)."""
    try:
        stat = read_stat(identity.pid, proc)
        if stat.start_ticks == identity.start_ticks and stat.state in "ZX":
            return stat.wait_status
    except OSError:
        pass  # reaped: the pidfd knows
    if pidfd < 0:
        return Missing("it was reaped before tpmon could read it")
    info = bytearray(_PIDFD_INFO_SIZE)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return Missing("this kernel keeps no exit status for others (Linux 6.15 does)")
    if not struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
        return Missing("the kernel did not tell the exit status")
    return int(struct.unpack_from("=i", info, _PIDFD_INFO_SIZE - 4)[0])


def name_signal(number: int) -> str:
    """Name a signal: "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(wait_status: Known[int], *, oom_victim: bool = False, oom_kills: int = 0) -> str:
    """Say how a process ended, such as "exit 1"; ``oom_kills``: new ones in the job's control group."""
    counted = "; OOM kill counted in its control group" if oom_kills else ""
    if not is_known(wait_status):
        return UNSEEN + counted
    number = wait_status & 0x7F
    if not number:
        return f"exit {wait_status >> 8 & 0xFF}"
    name = name_signal(number)
    if wait_status & 0x80:
        name += " (core dumped)"
    if number != signal.SIGKILL:
        return name
    return f"{name}; OOM killer (kernel log)" if oom_victim else name + counted


def read_oom_victims(
    kmsg: str = KMSG, *, recent_s: float = RECENT_S, now_s: float | None = None
) -> frozenset[int]:
    """List the PIDs that the kernel log says were killed for memory in the last ``recent_s``.

    The clock of its stamps drifts, so a long uptime extends ``recent_s``. None in a container: the log has
    the host's PIDs. About 1 us of CPU a record, at most 20,000.
    """
    victims: set[int] = set()
    now_s = time.monotonic() if now_s is None else now_s
    since_s = now_s - recent_s - _DRIFT_RATIO * now_s
    try:
        if kmsg == KMSG and not in_first_pid_namespace():
            return frozenset()
        fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return frozenset()
    try:
        for _ in range(_KERNEL_RECORDS):
            try:
                record = os.read(fd, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # this record was overwritten while we read
            if not record:
                break
            victims.update(parse_oom_victims(record, since_s))
    except OSError:
        pass  # EAGAIN: the log was read to its end
    finally:
        os.close(fd)
    return frozenset(victims)


def parse_oom_victims(record: bytes, since_s: float) -> list[int]:
    """Parse records of /dev/kmsg: "priority,number,microseconds since boot,flags;text".

    Priorities from 8 on are user space's own. Source: Documentation/ABI/testing/dev-kmsg.
    """
    return [
        int(victim.group(2)) for victim in _KILLED.finditer(record) if int(victim.group(1)) / 1e6 >= since_s
    ]


def find_dead(parents: Container[int], proc: str = PROC, kmsg: str = KMSG) -> tuple[DeadChild, ...]:
    """List the children of ``parents``, which run Python, that ended badly and were not reaped."""
    dead = [
        stat
        for stat in read_table(proc).values()
        if has_ended(stat.state, stat.threads) and stat.parent in parents and stat.wait_status
    ]
    killed = [stat for stat in dead if stat.wait_status & 0x7F == signal.SIGKILL]
    # Only log entries since the oldest one began: before, their PIDs were others'.
    age_s = (now_ticks() - min((one.start_ticks for one in killed), default=0)) / TICKS_PER_S
    victims = read_oom_victims(kmsg, recent_s=max(RECENT_S, age_s)) if killed else frozenset[int]()
    ends = {one.pid: describe_end(one.wait_status, oom_victim=one.pid in victims) for one in dead}
    # Nothing else is left of their program. A worker of torch that was spawned has its name alone.
    pythons = {one.pid for one in dead if one.forked or is_python_name(one.name) or one.name == WORKER_NAME}
    return tuple(DeadChild(one.pid, one.parent, one.name, ends[one.pid], one.pid in pythons) for one in dead)
