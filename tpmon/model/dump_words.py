"""Say what a thread waits for, and name threads, ranks and sets of them for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.dump import DumpThread, Motion, StackGroup, WaitKind, WaitTarget
from tpmon.model.known import Known, is_known
from tpmon.model.process import Role
from tpmon.model.units import format_seconds

ONCE_HINT = " (seen once: --rounds 3 tells whether it moves)"
"""How the command line says that one look tells no motion; a screen has a key for it."""

_READS = frozenset(("read", "pread64", "readv", "preadv", "preadv2"))
_WRITES = frozenset(("write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync"))
_NETWORK_FILES = {"nfs": "NFS", "nfs4": "NFS", "lustre": "Lustre", "ceph": "Ceph", "cifs": "SMB"}


def name_rank(thread: DumpThread, *, with_host: bool = False) -> str:
    """Name the rank that a thread belongs to: "rank 3", "process 4711", with its host where asked."""
    name = f"rank {thread.rank}" if is_known(thread.rank) else f"process {thread.pid}"
    return f"{name} on {thread.host}" if with_host else name


def name_process(thread: DumpThread) -> str:
    """Name a process: "rank 3", "worker 1 of rank 3", "helper 4711"."""
    if thread.role is Role.WORKER:
        worker = f"worker {thread.worker}" if is_known(thread.worker) else f"worker {thread.pid}"
        return f"{worker} of rank {thread.rank}" if is_known(thread.rank) else worker
    if thread.role is Role.RANK:
        return name_rank(thread)
    return f"{thread.role.value} {thread.pid}"


def list_numbers(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: 0-2,4-7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def name_ranks(threads: Iterable[DumpThread]) -> str:
    """Name ranks together: "ranks 0-2,4", "rank 3", "processes 11,12" where they have no numbers."""
    those = list(threads)
    numbers = {thread.rank for thread in those if is_known(thread.rank)}
    others = {thread.pid for thread in those if not is_known(thread.rank)}
    words = []
    if numbers:
        words.append(f"rank{'s' if len(numbers) > 1 else ''} {list_numbers(numbers)}")
    if others:
        words.append(f"process{'es' if len(others) > 1 else ''} {list_numbers(others)}")
    return " and ".join(words)


def name_processes(threads: Sequence[DumpThread], *, with_host: bool = False) -> str:
    """Name processes together: "ranks 0-2,4-7", "workers 0-3 of rank 1", "helper 4711 on node-2"."""
    of_role: dict[Role, list[DumpThread]] = {}
    for thread in threads:
        of_role.setdefault(thread.role, []).append(thread)
    names = [_name_role(role, those) for role, those in of_role.items()]
    hosts = sorted({thread.host for thread in threads})
    where = f" on {', '.join(hosts)}" if with_host else ""
    return " and ".join(names) + where


def _name_role(role: Role, threads: Sequence[DumpThread]) -> str:
    if role is Role.RANK:
        return name_ranks(threads)
    pids = {thread.pid for thread in threads}
    noun = f"{role.value}{'s' if len(pids) > 1 else ''}"
    if role is not Role.WORKER:
        return f"{noun} {list_numbers(pids)}"
    ranks = {thread.rank for thread in threads if is_known(thread.rank)}
    numbers = [thread.worker for thread in threads if is_known(thread.worker)]
    of = f" of rank{'s' if len(ranks) > 1 else ''} {list_numbers(ranks)}" if ranks else ""
    return f"{noun} {list_numbers(numbers if len(numbers) == len(threads) else pids)}{of}"


def say_target(target: WaitTarget) -> str:
    """Say what a blocked call waits on: "blocked in a read of /data/a.bin on NFS (/data)"."""
    verb = "a read" if target.call in _READS else "a write" if target.call in _WRITES else target.call
    fd = f" (fd {target.fd})" if is_known(target.fd) else ""
    if target.fd == 0:
        return f"blocked in {verb} of standard input ({target.name})"
    if target.kind is WaitKind.FILE:
        system = target.file_system
        where = f" ({target.mount})" if is_known(target.mount) else ""
        on = f" on {_NETWORK_FILES.get(system, system)}{where}" if is_known(system) else ""
        return f"blocked in {verb} of {target.name}{on}"
    if target.kind is WaitKind.SOCKET:
        peer = f" to {target.peer}" if is_known(target.peer) else ""
        return f"blocked in {verb} on a socket{peer}{fd}"
    if target.kind is WaitKind.PIPE:
        return f"blocked in {verb} on a pipe{fd}"
    return f"blocked in {verb} on {target.name}{fd}"


def say_wait(thread: DumpThread) -> str:
    """Say what a thread waits for, "" where it is not known."""
    if thread.state in "Tt":
        return "stopped by a debugger" if thread.state == "t" else "stopped by a signal"
    loader = is_known(thread.waits_for) and thread.waits_for.endswith("(loader queue)")
    if is_known(thread.waits_on) and not loader:
        fifo = is_known(thread.waits_for) and thread.waits_for.startswith("FIFO")
        return f"{say_target(thread.waits_on)}{', a FIFO that nobody else has open' if fifo else ''}"
    if not is_known(thread.waits_for):
        return "in uninterruptible sleep" if thread.state == "D" else ""
    return "running" if thread.waits_for == "running" else f"waits for: {thread.waits_for}"


def say_motion(motion: Motion, since_s: Known[float]) -> str:
    """Say what a thread did between the looks, "" where it was seen once."""
    if motion is Motion.ONCE:
        return ""
    if is_known(since_s):
        return f"{motion.value} for at least {format_seconds(since_s)}"
    return f"{motion.value}"


def say_cpu(group: StackGroup) -> str:
    """Say how much CPU the threads of a group used between the looks, "" where it is not known."""
    if group.motion is Motion.ONCE:
        return ""
    used = [thread.cpu_pct for thread in group.threads if is_known(thread.cpu_pct)]
    if not used:
        return ""
    low, high = min(used), max(used)
    return f"{high:.0f} % CPU" if high - low < 5 else f"{low:.0f}-{high:.0f} % CPU"
