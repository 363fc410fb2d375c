"""Find out what a blocked system call waits on: the file, pipe or socket behind its descriptor.

The call's arguments (/proc/PID/task/TID/syscall) name the descriptor or point to the path; /proc/PID/fd,
fdinfo and mountinfo say what it is. None of them touches the file itself, so a dead mount cannot block here.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct

from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.units import clean_text
from tpmon.probe.procread import PROC, read_file
from tpmon.probe.waits import Syscall

_PATH_CHARS = 400
_MOST_NET_BYTES = 4 << 20
_POLLFD = struct.Struct("=ihh")
_INODE = re.compile(r"socket:\[(\d+)\]")

# arch/x86/entry/syscalls/syscall_64.tbl
_X86_64 = (
    "0 read,1 write,2 open,3 close,4 stat,5 fstat,6 lstat,7 poll,9 mmap,11 munmap,16 ioctl,17 pread64,"
    "18 pwrite64,19 readv,20 writev,23 select,26 msync,28 madvise,34 pause,35 nanosleep,40 sendfile,"
    "42 connect,43 accept,44 sendto,45 recvfrom,46 sendmsg,47 recvmsg,61 wait4,72 fcntl,73 flock,74 fsync,"
    "75 fdatasync,76 truncate,77 ftruncate,82 rename,83 mkdir,87 unlink,202 futex,217 getdents64,"
    "219 restart_syscall,230 clock_nanosleep,232 epoll_wait,247 waitid,257 openat,262 newfstatat,"
    "270 pselect6,271 ppoll,275 splice,281 epoll_pwait,285 fallocate,288 accept4,295 preadv,296 pwritev,"
    "326 copy_file_range,327 preadv2,328 pwritev2,332 statx,426 io_uring_enter,449 futex_waitv"
)
# include/uapi/asm-generic/unistd.h
_AARCH64 = (
    "22 epoll_pwait,25 fcntl,29 ioctl,32 flock,45 truncate,46 ftruncate,47 fallocate,56 openat,57 close,"
    "61 getdents64,63 read,64 write,65 readv,66 writev,67 pread64,68 pwrite64,69 preadv,70 pwritev,"
    "71 sendfile,72 pselect6,73 ppoll,76 splice,79 newfstatat,80 fstat,82 fsync,83 fdatasync,95 waitid,"
    "98 futex,101 nanosleep,115 clock_nanosleep,128 restart_syscall,202 accept,203 connect,206 sendto,"
    "207 recvfrom,211 sendmsg,212 recvmsg,215 munmap,222 mmap,227 msync,233 madvise,242 accept4,260 wait4,"
    "285 copy_file_range,286 preadv2,287 pwritev2,291 statx,426 io_uring_enter,449 futex_waitv"
)


def _table(text: str) -> dict[int, str]:
    pairs = (entry.split() for entry in text.split(","))
    return {int(number): name for number, name in pairs}


_CALLS = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
_FD_WORDS = (
    "read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 ioctl fcntl flock fsync"
    " fdatasync fstat getdents64 ftruncate fallocate connect accept accept4 sendto recvfrom sendmsg recvmsg"
)
_FD_FIRST = frozenset(_FD_WORDS.split())
_POLLS = frozenset(("poll", "ppoll"))
_PATH_AT = {
    **dict.fromkeys(("open", "stat", "lstat", "truncate", "rename", "mkdir", "unlink"), 0),
    **dict.fromkeys(("openat", "newfstatat", "statx"), 1),
}
"""Which argument of a call points to a path."""


def name_call(number: int, machine: str) -> str:
    """Name a system call; its number where the table has no name, "" for -1, outside of a call. Pure."""
    if number < 0:
        return ""
    return _CALLS.get(machine, {}).get(number, str(number))


def find_descriptor(call: Syscall, machine: str, pid: int, proc: str = PROC) -> Known[int] | None:
    """Return the descriptor that a call waits on; None for a call that waits on none."""
    name = name_call(call.number, machine)
    if not call.arguments:
        return None
    if name in _FD_FIRST:
        return struct.unpack("=i", struct.pack("=I", call.arguments[0] & 0xFFFFFFFF))[0]  # type: ignore[no-any-return]
    if name in _POLLS and len(call.arguments) > 1 and call.arguments[1] == 1:
        return _read_pollfd(pid, call.arguments[0], proc)
    return None


def _read_pollfd(pid: int, address: int, proc: str) -> Known[int]:
    """Read the only descriptor of a poll out of the target's memory."""
    data = _read_memory(pid, address, _POLLFD.size, proc)
    if isinstance(data, Missing):
        return data
    return int(_POLLFD.unpack(data)[0]) if len(data) == _POLLFD.size else Missing("memory: cut")


def _read_memory(pid: int, address: int, size: int, proc: str) -> Known[bytes]:
    """Read some bytes of the target's memory; nothing is stopped for it."""
    try:
        fd = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return Missing(f"memory: {error.strerror}")
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError) as error:
        return Missing(f"memory: {error}")
    finally:
        os.close(fd)


def _read_path(pid: int, call: Syscall, machine: str, proc: str) -> Known[str] | None:
    """Read the path that a call was given; None for a call that takes none, or an empty one."""
    at = _PATH_AT.get(name_call(call.number, machine))
    if at is None or len(call.arguments) <= at:
        return None
    data = _read_memory(pid, call.arguments[at], _PATH_CHARS, proc)
    if isinstance(data, Missing):
        return data
    path = data.partition(b"\0")[0]
    return clean_text(path.decode("utf-8", "replace"), _PATH_CHARS) if path else None


def parse_mount_id(fdinfo: bytes) -> int | None:
    """Return mnt_id of /proc/PID/fdinfo/N; None where the kernel does not tell. Pure."""
    for line in fdinfo.splitlines():
        if line.startswith(b"mnt_id:"):
            return int(line.split()[1])
    return None


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
    return clean_text(plain.decode("utf-8", "replace"), _PATH_CHARS)


def parse_peer(table: bytes, inode: int) -> str:
    """Return the remote address and port of a socket of /proc/PID/net/tcp or tcp6, "" if not there. Pure."""
    wanted = b"%d" % inode
    if wanted not in table:
        return ""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[9] == wanted:
            address, _, port = fields[2].partition(b":")
            return _join_peer(bytes.fromhex(address.decode("ascii")), int(port, 16))
    return ""


def _join_peer(raw: bytes, port: int) -> str:
    """Write an address that the kernel prints as words in the machine's byte order."""
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    packed = struct.pack(f">{len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    shown = str(mapped or address)
    return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"


def read_target(pid: int, call: Known[Syscall], machine: str, proc: str = PROC) -> Applicable[WaitTarget]:
    """Read what the call of a thread of ``pid`` waits on."""
    if not is_known(call):
        return NOT_APPLICABLE
    fd = find_descriptor(call, machine, pid, proc)
    if fd is None:
        path = _read_path(pid, call, machine, proc)
        if path is None:
            return NOT_APPLICABLE
        return path if isinstance(path, Missing) else _target_of_path(pid, call, path, machine, proc)
    if isinstance(fd, Missing):
        return fd
    try:
        link = os.readlink(f"{proc}/{pid}/fd/{fd}")
    except OSError as error:
        return Missing(f"descriptor {fd}: {error.strerror}")
    kind = _kind_of(link)
    mount, system = _read_mount(pid, fd, proc) if kind is WaitKind.FILE else (NOT_APPLICABLE, NOT_APPLICABLE)
    return WaitTarget(
        call=name_call(call.number, machine),
        fd=fd,
        kind=kind,
        name=clean_text(link, _PATH_CHARS),
        mount=mount,
        file_system=system,
        peer=_read_peer(pid, link, proc) if kind is WaitKind.SOCKET else NOT_APPLICABLE,
    )


def _target_of_path(pid: int, call: Syscall, path: str, machine: str, proc: str) -> WaitTarget:
    mount: Applicable[str]
    system: Applicable[str]
    mount = system = Missing("a relative path has no known mount")
    if path.startswith("/"):
        try:
            found = parse_mount_of(read_file(f"{proc}/{pid}/mountinfo"), path)
        except (OSError, ValueError) as error:
            mount = system = Missing(f"mounts: {error}")
        else:
            mount, system = found or (Missing("no mount has it"), Missing("no mount has it"))
    return WaitTarget(
        call=name_call(call.number, machine),
        fd=NOT_APPLICABLE,
        kind=WaitKind.FILE,
        name=path,
        mount=mount,
        file_system=system,
        peer=NOT_APPLICABLE,
    )


def _kind_of(link: str) -> WaitKind:
    if link.startswith("pipe:"):
        return WaitKind.PIPE
    if link.startswith("socket:"):
        return WaitKind.SOCKET
    return WaitKind.FILE if link.startswith("/") else WaitKind.OTHER


def _read_mount(pid: int, fd: int, proc: str) -> tuple[Applicable[str], Applicable[str]]:
    try:
        mount_id = parse_mount_id(read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096))
        mounts = read_file(f"{proc}/{pid}/mountinfo")
    except (OSError, ValueError, IndexError) as error:
        why = Missing(f"mounts: {error}")
        return why, why
    found = parse_mount(mounts, mount_id) if mount_id is not None else None
    if found is None:
        why = Missing("the kernel does not tell the mount of a descriptor")
        return why, why
    return found


def _read_peer(pid: int, link: str, proc: str) -> Applicable[str]:
    """Read the other end of a TCP socket, in the network namespace of the process."""
    inode = _INODE.fullmatch(link)
    if inode is None:
        return NOT_APPLICABLE
    try:
        for name in ("tcp", "tcp6"):
            peer = parse_peer(read_file(f"{proc}/{pid}/net/{name}", _MOST_NET_BYTES), int(inode[1]))
            if peer:
                return peer
    except (OSError, ValueError) as error:
        return Missing(f"connections: {error}")
    return NOT_APPLICABLE
