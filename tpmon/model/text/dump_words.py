"""Say what a thread waits for, and name threads, ranks and sets of them for a person. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from tpmon.model.dump import Dump, DumpThread, Motion, StackGroup, WaitKind, WaitTarget
from tpmon.model.known import Known, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.units import format_seconds
from tpmon.model.waits import QUEUES, WaitReason, describe_wait, is_wait, is_wait_in

WORTH_SAYING_PCT = 5
"""Less of a core than this is noise in a look of some seconds."""
ONCE_HINT = " (seen once: --rounds 3 shows whether it moves)"
"""How the command line says that one look tells no motion; a screen has a key for it."""

TO_FILES = "--output=dump-%N-%t.json tpmon dump --job --json"
"""What a step of Slurm runs so that each host writes a dump of its own."""

_READS = frozenset(("read", "pread64", "readv", "preadv", "preadv2"))
_WRITES = frozenset(("write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync"))
_ACCEPTS = frozenset(("accept", "accept4"))
CHILD_WAITS = frozenset(("wait4", "waitid"))
"""Calls that wait for the end of a process."""
LOCK_CALLS = frozenset(("flock", "fcntl"))
"""Calls that wait for a lock on a file."""
_NETWORK_FILES = {"nfs": "NFS", "nfs4": "NFS", "lustre": "Lustre", "ceph": "Ceph", "cifs": "SMB"}


def write_step(job: str, hosts: str = "H") -> str:
    """Write the start of a step of Slurm beside those that hold all of a job, a task on each of its hosts."""
    return f"srun --jobid={job} --overlap -N {hosts} -n {hosts}"


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


def list_others(numbers: Iterable[int], size: int) -> str:
    """Write the numbers below ``size``, however large, that are not among ``numbers``: 1,3-7."""
    taken = [-1, *sorted({number for number in numbers if number < size}), size]
    gaps = [(low + 1, high - 1) for low, high in pairwise(taken) if high - low > 1]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps)


def name_ranks(threads: Iterable[DumpThread]) -> str:
    """Name ranks together: "ranks 0-2,4", "rank 3", "processes 11,12" where they have no numbers."""
    those = list(threads)
    numbers = {thread.rank for thread in those if is_known(thread.rank)}
    others = {thread.pid for thread in those if not is_known(thread.rank)}
    words = []
    if numbers:
        words.append(f"{_plural('rank', numbers)} {list_numbers(numbers)}")
    if others:
        words.append(f"{_plural('process', others, 'es')} {list_numbers(others)}")
    return " and ".join(words)


def _plural(noun: str, those: Collection[int], ending: str = "s") -> str:
    return noun + ending if len(those) > 1 else noun


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
    noun = _plural(role.value, pids)
    if role is not Role.WORKER:
        return f"{noun} {list_numbers(pids)}"
    ranks = {thread.rank for thread in threads if is_known(thread.rank)}
    numbers = [thread.worker for thread in threads if is_known(thread.worker)]
    of = f" of {_plural('rank', ranks)} {list_numbers(ranks)}" if ranks else ""
    return f"{noun} {list_numbers(numbers if len(numbers) == len(threads) else pids)}{of}"


def say_target(target: WaitTarget) -> str:
    """Say what a blocked call waits on: "blocked in a read of /data/a.bin on NFS (/data)"."""
    if target.kind is WaitKind.LOCK:
        return f"waits for a lock that {target.name} holds"
    if target.kind is WaitKind.THREAD:
        return f"waits for {target.name} to end"
    if target.call in CHILD_WAITS:
        names = [end.name for end in target.others] if is_known(target.others) else []
        return f"waits for {target.name}{f' ({names[0]})' if names else ''} to end"
    return _say_descriptor(target) + _say_others(target)


def _say_descriptor(target: WaitTarget) -> str:
    verb = "a read" if target.call in _READS else "a write" if target.call in _WRITES else target.call
    fd = f" (fd {target.fd})" if is_known(target.fd) else ""
    if target.fd == 0:
        return f"blocked in {verb} of standard input ({target.name})"
    if target.kind is WaitKind.FILE:
        system = target.file_system
        where = f" ({target.mount})" if is_known(target.mount) else ""
        on = f" on {_NETWORK_FILES.get(system, system)}{where}" if is_known(system) else ""
        return f"blocked in {verb} of {target.name}{on}"
    if target.kind in (WaitKind.SOCKET, WaitKind.UNIX):
        noun = "a unix socket" if target.kind is WaitKind.UNIX else "a socket"
        known = is_known(target.peer)
        if known and target.call in _ACCEPTS:
            return f"waits for a connection to {target.peer}{fd}"
        return f"blocked in {verb} on {noun}{f' to {target.peer}' if known else ''}{fd}"
    if target.kind is WaitKind.PIPE:
        return f"blocked in {verb} on a pipe{fd}"
    return f"blocked in {verb} on {target.name}{fd}"


def _say_others(target: WaitTarget) -> str:
    """Say who has the other end, or holds a lock: ", other end: rank 0 (4711)", ", which sh (4712) holds"."""
    if not is_known(target.others):
        return ""
    none = "no process that can be seen from here"
    names = ", ".join(f"{end.name} ({end.pid})" for end in target.others)
    if target.call in LOCK_CALLS:
        return f", which {names or none} hold{'s' if len(target.others) < 2 else ''}"
    return f", other end: {names}" if names else f", and {none} has the other end"


def say_wait(thread: DumpThread) -> str:
    """Say what a thread waits for, "" where it is not known."""
    if is_known(thread.frozen):
        return f"frozen by control group {thread.frozen.group}"
    if thread.state in "Tt":
        return "stopped by a debugger" if thread.state == "t" else "stopped by a signal"
    if is_known(thread.waits_on) and not is_wait_in(thread.waits_for, QUEUES):
        fifo = is_wait(thread.waits_for, WaitReason.FIFO) and not is_known(thread.waits_on.others)
        return say_target(thread.waits_on) + (", a FIFO that nobody else has open" if fifo else "")
    if not is_known(thread.waits_for):
        return "in uninterruptible sleep" if thread.state == "D" else ""
    words = describe_wait(thread.waits_for)
    return words if thread.waits_for.reason is WaitReason.RUNNING else f"waits for: {words}"


def say_motion(motion: Motion, since_s: Known[float]) -> str:
    """Say what a thread did between the looks, "" where it was seen once."""
    since = f" for at least {format_seconds(since_s)}" if is_known(since_s) else ""
    return "" if motion is Motion.ONCE else motion.value + since


def say_last_write(dump: Dump, when: str) -> str:
    """Say how long before the last look the job wrote into its log, "" where that is not known.

    What was written after the first look says that not all of the job stands, whatever its stacks look like.
    """
    if not is_known(dump.last_write):
        return ""
    age_s = max(0.0, (dump.taken - dump.last_write).total_seconds())
    between = ": between the dumps, the job still writes" if age_s < dump.seconds else ""
    return f"last log write {when}, {format_seconds(age_s)} before{between}"


def say_cpu(group: StackGroup) -> str:
    """Say how much CPU each thread of a group used between the looks, and how long it waited for one."""
    used = [thread.cpu_pct for thread in group.threads if is_known(thread.cpu_pct)]
    delayed = [thread.delay_pct for thread in group.threads if is_known(thread.delay_pct)]
    words = [f"{_say_range(used)} % CPU"] if used else []
    if delayed and max(delayed) >= WORTH_SAYING_PCT:
        words.append(f"{_say_range(delayed)} % waiting for a CPU")
    return ", ".join(words)


def _say_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{high:.0f}" if high - low < WORTH_SAYING_PCT else f"{low:.0f}-{high:.0f}"


def name_threads(group: StackGroup, *, with_host: bool = False) -> str:
    """Name threads that are no main ones: "8x pt_nccl_watchdg of ranks 0-7"."""
    names = dict.fromkeys(thread.name for thread in group.threads)
    shown = ", ".join(list(names)[:2]) + (" ..." if len(names) > 2 else "")
    return f"{say_count(group)}{shown} of {name_processes(group.threads, with_host=with_host)}"


def say_end(group: StackGroup, *, with_host: bool = False) -> str:
    """Say who goes no further than a line of a tree, and for how long: "ranks 0-6: state S, frozen ..."."""
    name = name_processes(group.threads, with_host=with_host)
    who = name if group.threads[0].kind is ThreadKind.MAIN else name_threads(group, with_host=with_host)
    words = (f"state {group.state}", say_motion(group.motion, group.since_s))
    return f"{who}: {', '.join(filter(None, words))}"


def say_count(group: StackGroup) -> str:
    """Say how many threads a group has, in front of their names: "8x ", "" for one."""
    return f"{len(group.threads)}x " if len(group.threads) > 1 else ""


def say_other(group: StackGroup) -> str:
    """Say in one line what a group of threads does that are no main ones."""
    seen = is_known(group.frames)
    waits = say_wait(group.threads[0]) if group.threads[0].state in "DTt" or seen else ""
    moved = say_motion(group.motion, group.since_s)
    words = (group.doing if seen else "", f"state {group.state}", waits, moved)
    return ", ".join(filter(None, words))


def list_waits(group: StackGroup) -> list[str]:
    """List what the threads of a group wait for: the two common ones, and how many more waits there are."""
    waits = Counter(say for thread in group.threads if (say := say_wait(thread)))
    words = [said for said, _ in waits.most_common(2)]
    more = len(waits) - len(words)
    return [*words, f"{more} more wait{'s' if more > 1 else ''}"] if more else words


def list_state(group: StackGroup) -> list[str]:
    """List the state of a group, what it waits for, whether it moved, and its CPU."""
    motion = say_motion(group.motion, group.since_s)
    words = [f"state {group.state}", *list_waits(group), motion, say_cpu(group)]
    return list(filter(None, words))
