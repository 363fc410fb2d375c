"""Find what a blocked system call waits on: file, pipe, socket, lock, mount or process.

The call's arguments (/proc/PID/task/TID/syscall) name descriptors or point to a path; /proc/PID/fd, fdinfo
and mountinfo describe them. The file itself is never touched, so a dead mount cannot block here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter

from tpmon.model.dump import OtherEnd, WaitKind, WaitTarget
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.model.waits import QUEUES, Wait, WaitReason
from tpmon.probe.base.procread import PROC, each_process, parse_field, read_file, read_or
from tpmon.probe.proc.pipe_peers import MOST_ENDS, OtherEnds
from tpmon.probe.proc.wchan import (
    MOST_WATCHED,
    PATH_CHARS,
    Syscall,
    find_child,
    find_descriptors,
    find_holder,
    name_call,
    read_path,
    translate_child,
)


def parse_mount(mountinfo: bytes, mount_id: int) -> tuple[str, str] | None:
    """Return mount point and file system of a mount of /proc/PID/mountinfo (proc(5)). Pure."""
    wanted = b"%d" % mount_id
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if fields[0] == wanted and len(fields) > 6 and b"-" in fields[6:]:
            kind = fields[6:].index(b"-") + 7
            if len(fields) > kind:
                return _unescape(fields[4]), _unescape(fields[kind])
    return None


def parse_mount_of(mountinfo: bytes, path: str) -> tuple[str, str] | None:
    """Return mount point and file system of an absolute path; of several mounts the last one. Pure."""
    found: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        mount = parse_mount(line, int(line.split(b" ", 1)[0]))
        if mount is None or (found and len(mount[0]) < len(found[0])):
            continue
        folder = mount[0].rstrip("/")
        if path == mount[0] or path.startswith(f"{folder}/"):
            found = mount
    return found


def _unescape(raw: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8) & 0xFF,)), raw)
    return admit_text(plain.decode("utf-8", "replace"), PATH_CHARS)


def read_mount(pid: int, fd: int, proc: str) -> tuple[Applicable[str], Applicable[str]]:
    """Read mount point and file system of an open file."""
    try:
        mount_id = parse_field(read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096), b"mnt_id")
        found = parse_mount(read_file(f"{proc}/{pid}/mountinfo"), int(mount_id)) if mount_id else None
        why = Missing("the kernel does not tell the mount of a descriptor")
    except (OSError, ValueError) as error:
        found, why = None, Missing(f"mounts: {error}")
    return found or (why, why)


LOCK_CALLS = frozenset(("flock", "fcntl"))
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLock:
    """Hold one row of /proc/locks; rows of one ``number`` are a lock and those waiting for it."""

    number: int
    waits: bool
    pid: int
    inode: int


def parse_locks(raw: bytes) -> tuple[FileLock, ...]:
    """Parse /proc/locks (proc(5)); rows that are cut or name no file are left out. Pure."""
    found = []
    for line in raw.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == b"->"
        if waits:
            del fields[1]
        with contextlib.suppress(ValueError, IndexError):
            number, pid = int(fields[0].rstrip(b":")), int(fields[4])
            found.append(FileLock(number, waits, pid, int(fields[5].rsplit(b":", 1)[1])))
    return tuple(found)


def pick_holders(locks: tuple[FileLock, ...], pid: int, inode: int | None) -> tuple[int, ...]:
    """Return who holds what ``pid`` waits for, of several files that with ``inode``. Pure.

    A holder that is in another PID namespace, or only an open file description (OFD lock), has no PID here.
    """
    waits = {one.number for one in locks if one.waits and one.pid == pid and inode in (None, one.inode)}
    holders = (one.pid for one in locks if not one.waits and one.number in waits and one.pid > 0)
    return tuple(dict.fromkeys(holders))


def find_lock_holders(pid: int, fd: int, proc: str = PROC) -> Known[tuple[int, ...]]:
    """Find the processes that hold the lock for which ``pid`` waits on ``fd``; the file is not touched."""
    try:
        locks = parse_locks(read_file(f"{proc}/locks", _MOST_BYTES))
    except OSError as error:
        return Missing(f"locks: {error.strerror}")
    fdinfo = read_or(b"", lambda: read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096))
    inode = read_or(None, lambda: int(parse_field(fdinfo, b"ino")))  # since Linux 5.14
    return pick_holders(locks, pid, inode)


_FIFO_WAITS = (WaitReason.PIPE_READ, WaitReason.PIPE_WRITE, WaitReason.FIFO)
_MOST_FOLLOWED = 16  # descriptors of one call whose other end is searched
_NOUNS = {
    WaitKind.PIPE: ("pipe", "pipes"),
    WaitKind.SOCKET: ("socket", "sockets"),
    WaitKind.UNIX: ("unix socket", "unix sockets"),
    WaitKind.FILE: ("file", "files"),
}


@dataclass(frozen=True, slots=True)
class Waiter:
    """Hold the thread that waits; ``waits_for`` is what its kernel function shows."""

    pid: int
    tid: int
    call: Known[Syscall]
    waits_for: Known[Wait]
    machine: str
    proc: str = PROC

    @property
    def name(self) -> str:
        """Name the call."""
        return name_call(self.call.number, self.machine) if is_known(self.call) else ""


def read_target(waiter: Waiter, ends: OtherEnds) -> Applicable[WaitTarget]:
    """Read what the call of a thread waits on."""
    call, pid = waiter.call, waiter.pid
    if not is_known(call):
        return NOT_APPLICABLE
    fds = find_descriptors(call, waiter.machine, pid, waiter.proc)
    if isinstance(fds, Missing):
        return fds
    if fds is not None:
        return (
            _target_of_one(waiter, ends, fds[0]) if len(fds) == 1 else _target_of_several(waiter, ends, fds)
        )
    path = read_path(pid, call, waiter.machine, waiter.proc)
    if path is not None:
        return path if isinstance(path, Missing) else _target_of_path(waiter, path)
    child = find_child(call, waiter.machine)
    if child is not None:
        return _target_of_child(waiter, ends, child)
    return _target_of_lock(waiter, call)


def _make_target(
    waiter: Waiter,
    fd: Applicable[int],
    kind: WaitKind,
    name: str,
    *,
    place: tuple[Applicable[str], Applicable[str]] = (NOT_APPLICABLE, NOT_APPLICABLE),
    peer: Applicable[str] = NOT_APPLICABLE,
    fds: Applicable[tuple[int, ...]] = NOT_APPLICABLE,
    others: Applicable[tuple[OtherEnd, ...]] = NOT_APPLICABLE,
) -> WaitTarget:
    """Name what is waited on; ``place`` is its mount and file system."""
    name = admit_text(name, PATH_CHARS)
    return WaitTarget(waiter.name, fd, kind, name, *place, peer=peer, fds=fds, others=others)


def _target_of_one(waiter: Waiter, ends: OtherEnds, fd: int) -> Applicable[WaitTarget]:
    try:
        link = os.readlink(f"{waiter.proc}/{waiter.pid}/fd/{fd}")
    except OSError as error:
        return Missing(f"descriptor {fd}: {say_refusal(error, 'fd')}")
    kind = _kind_of(link)
    if kind is WaitKind.FILE:
        place, others = read_mount(waiter.pid, fd, waiter.proc), _find_others_of_file(waiter, ends, fd, link)
        return _make_target(waiter, fd, kind, link, place=place, others=others)
    kind, peer, others = _follow(waiter, ends, fd, link)
    return _make_target(waiter, fd, kind, link, peer=peer, others=others)


def _find_others_of_file(
    waiter: Waiter, ends: OtherEnds, fd: int, link: str
) -> Applicable[tuple[OtherEnd, ...]]:
    """Find who has the other end of a FIFO or holds a file's lock; other files have neither."""
    if waiter.name in LOCK_CALLS:
        holders = find_lock_holders(waiter.pid, fd, waiter.proc)
        if isinstance(holders, Missing):
            return holders
        return tuple(OtherEnd(pid, NOT_APPLICABLE, ends.name(pid)) for pid in holders[:MOST_ENDS])
    # The kernel function of the wait shows a FIFO: no file is touched for it.
    is_fifo = is_known(waiter.waits_for) and waiter.waits_for.reason in _FIFO_WAITS
    return ends.find_pipe(waiter.pid, fd, link) if is_fifo else NOT_APPLICABLE


def _follow(
    waiter: Waiter, ends: OtherEnds, fd: int, link: str
) -> tuple[WaitKind, Applicable[str], Applicable[tuple[OtherEnd, ...]]]:
    """Find the other end of a pipe or a socket; other things have none."""
    kind = _kind_of(link)
    if kind is WaitKind.PIPE:
        # The parts of the job show who feeds a loader queue; searching costs a scan.
        if is_known(waiter.waits_for) and waiter.waits_for.reason in QUEUES:
            return kind, NOT_APPLICABLE, NOT_APPLICABLE
        return kind, NOT_APPLICABLE, ends.find_pipe(waiter.pid, fd, link)
    if kind is WaitKind.SOCKET:
        found = ends.find_connection(waiter.pid, link)
        if isinstance(found, Missing):
            return kind, found, found
        return (WaitKind.UNIX if found.unix else kind), found.peer, found.others
    return kind, NOT_APPLICABLE, NOT_APPLICABLE


def _target_of_several(waiter: Waiter, ends: OtherEnds, fds: tuple[int, ...]) -> Applicable[WaitTarget]:
    """Describe what a call watches: how many of what, and who has the other ends."""
    kinds: Counter[WaitKind] = Counter()
    met: list[OtherEnd] = []
    complete = True
    path = f"{waiter.proc}/{waiter.pid}/fd/%d"  # one that is closed meanwhile ends no wait
    for fd, link in each_process(fds[:_MOST_FOLLOWED], lambda fd: os.readlink(path % fd)).items():
        kind, _, others = _follow(waiter, ends, fd, known_or(link, ""))
        kinds[kind] += 1
        if is_known(others):
            met += [end for end in others if end not in met and end.pid != waiter.pid]
        else:
            complete = complete and others is NOT_APPLICABLE
    named = [f"{kinds[kind]} {nouns[kinds[kind] > 1]}" for kind, nouns in _NOUNS.items() if kinds[kind]]
    rest = len(fds) - sum(count for kind, count in kinds.items() if kind in _NOUNS)
    more = "at least " if len(fds) >= MOST_WATCHED else ""
    others_word = f"{more}{rest} {'other descriptor' if rest == 1 else 'other descriptors'}"
    words = [*named, others_word] if rest and named else named or [f"{more}{rest} descriptors"]
    known: Applicable[tuple[OtherEnd, ...]] = tuple(met[:MOST_ENDS]) if met else NOT_APPLICABLE
    if not met and not complete:
        known = Missing("not every other end could be searched")
    return _make_target(
        waiter, NOT_APPLICABLE, WaitKind.SEVERAL, " and ".join(words), fds=fds[:MOST_WATCHED], others=known
    )


def _target_of_path(waiter: Waiter, path: str) -> WaitTarget:
    found, why = None, Missing("a relative path has no known mount")
    if path.startswith("/"):
        try:
            found = parse_mount_of(read_file(f"{waiter.proc}/{waiter.pid}/mountinfo"), path)
            why = Missing("no mount has it")
        except (OSError, ValueError) as error:
            why = Missing(f"mounts: {error}")
    return _make_target(waiter, NOT_APPLICABLE, WaitKind.FILE, path, place=found or (why, why))


def _target_of_child(waiter: Waiter, ends: OtherEnds, child: int) -> WaitTarget:
    """Name the process that is awaited; by the container's number where ours is unknown."""
    here = translate_child(waiter.pid, child, waiter.proc)
    others: Applicable[tuple[OtherEnd, ...]] = Missing("which process of this machine it is, is not known")
    name = f"process {child} of its container"
    if here is not None:
        others, name = (OtherEnd(here, NOT_APPLICABLE, ends.name(here)),), f"process {here}"
    return _make_target(waiter, NOT_APPLICABLE, WaitKind.OTHER, name, others=others)


def _target_of_lock(waiter: Waiter, call: Syscall) -> Applicable[WaitTarget]:
    """Name the thread that holds a lock or is joined, where the lock itself shows it."""
    holder = find_holder(call, waiter.machine, waiter.pid, waiter.tid, waiter.proc)
    if holder is None:
        return NOT_APPLICABLE
    try:
        raw = read_file(f"{waiter.proc}/{waiter.pid}/task/{holder.tid}/comm", 64)
    except OSError:
        return NOT_APPLICABLE  # it ended meanwhile, and with it the wait
    name = admit_text(raw.decode("utf-8", "replace").strip(), 64)
    kind = WaitKind.THREAD if holder.joined else WaitKind.LOCK
    end = OtherEnd(waiter.pid, holder.tid, name)
    return _make_target(waiter, NOT_APPLICABLE, kind, f"thread {holder.tid} ({name})", others=(end,))


def _kind_of(link: str) -> WaitKind:
    if link.startswith("pipe:"):
        return WaitKind.PIPE
    if link.startswith("socket:"):
        return WaitKind.SOCKET
    return WaitKind.FILE if link.startswith("/") else WaitKind.OTHER
