"""Tell what a thread waits for by its state, kernel function and system call, and read the call's arguments.

Kernel function names differ by version (futex_do_wait, futex_wait_queue), so prefixes are matched. What
arguments point to is read from the target's memory, which stops nothing.
"""

from __future__ import annotations

import os
import re
import struct

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.model.waits import RUNNING, Wait, WaitReason
from tpmon.probe.base.procread import PROC, each_process, read_file, read_status
from tpmon.probe.proc.memory import read_memory

ON_CPU = Missing("running")  # the kernel's answer for wait and call of a running thread
LOADER_POLL_MS = 5000  # MP_STATUS_CHECK_INTERVAL of torch.utils.data: both ends of a loader queue poll so
_LOADER_WAITS = {Role.RANK: WaitReason.BATCH, Role.WORKER: WaitReason.WORK}


@dataclass(frozen=True, slots=True)
class Syscall:
    """Hold /proc/PID/syscall: call number (-1 when blocked outside a call), arguments, user PC."""

    number: int
    arguments: tuple[int, ...]
    user_pc: int


def parse_syscall(raw: bytes) -> Known[Syscall]:
    """Parse /proc/PID/syscall (proc(5)), "running" or a line; else ValueError."""
    fields = raw.split()
    if not fields:
        raise ValueError("syscall line is empty")
    if fields[0] == b"running":
        return ON_CPU
    numbers = [int(field, 0) for field in fields]
    return Syscall(numbers[0], tuple(numbers[1:-2]), numbers[-1] if len(numbers) > 1 else 0)


PATH_CHARS = 400
MOST_WATCHED = 64  # descriptors of one call that are listed; of more only the number is told
_POLLFD = struct.Struct("=ihh")
_MUTEX = struct.Struct("=iIi")  # glibc's mutex: lock word, count, TID of the holder (pthreadtypes.h)
_CONTENDED = 2  # value of a lock word with a waiter
_PI_TID = 0x3FFFFFFF

# arch/x86/entry/syscalls/syscall_64.tbl
_X86_64 = (
    "0 read,1 write,2 open,3 close,4 stat,5 fstat,6 lstat,7 poll,9 mmap,11 munmap,16 ioctl,17 pread64,"
    "18 pwrite64,19 readv,20 writev,23 select,26 msync,28 madvise,34 pause,35 nanosleep,40 sendfile,"
    "42 connect,43 accept,44 sendto,45 recvfrom,46 sendmsg,47 recvmsg,61 wait4,72 fcntl,73 flock,74 fsync,"
    "75 fdatasync,76 truncate,77 ftruncate,82 rename,83 mkdir,87 unlink,202 futex,217 getdents64,"
    "219 restart_syscall,230 clock_nanosleep,232 epoll_wait,247 waitid,257 openat,262 newfstatat,"
    "270 pselect6,271 ppoll,275 splice,281 epoll_pwait,285 fallocate,288 accept4,295 preadv,296 pwritev,"
    "326 copy_file_range,327 preadv2,328 pwritev2,332 statx,426 io_uring_enter,441 epoll_pwait2,"
    "449 futex_waitv"
)
# include/uapi/asm-generic/unistd.h
_AARCH64 = (
    "22 epoll_pwait,25 fcntl,29 ioctl,32 flock,45 truncate,46 ftruncate,47 fallocate,56 openat,57 close,"
    "61 getdents64,63 read,64 write,65 readv,66 writev,67 pread64,68 pwrite64,69 preadv,70 pwritev,"
    "71 sendfile,72 pselect6,73 ppoll,76 splice,79 newfstatat,80 fstat,82 fsync,83 fdatasync,95 waitid,"
    "98 futex,101 nanosleep,115 clock_nanosleep,128 restart_syscall,202 accept,203 connect,206 sendto,"
    "207 recvfrom,211 sendmsg,212 recvmsg,215 munmap,222 mmap,227 msync,233 madvise,242 accept4,260 wait4,"
    "285 copy_file_range,286 preadv2,287 pwritev2,291 statx,426 io_uring_enter,441 epoll_pwait2,"
    "449 futex_waitv"
)


_CALLS = {
    machine: {int(number): name for number, name in map(str.split, text.split(","))}
    for machine, text in (("x86_64", _X86_64), ("aarch64", _AARCH64))
}
_FD_WORDS = (
    "read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 ioctl fcntl flock fsync"
    " fdatasync fstat getdents64 ftruncate fallocate connect accept accept4 sendto recvfrom sendmsg recvmsg"
)
_FD_FIRST = frozenset(_FD_WORDS.split())
_PATH_AT = {
    **dict.fromkeys(("open", "stat", "lstat", "truncate", "rename", "mkdir", "unlink"), 0),
    **dict.fromkeys(("openat", "newfstatat", "statx"), 1),
}
"""Which argument of a call points to a path."""
_FUTEX_WAIT, _FUTEX_LOCK_PI, _FUTEX_WAIT_BITSET, _FUTEX_LOCK_PI2 = 0, 6, 9, 13
_FUTEX_COMMAND = 127
_LONG = struct.calcsize("=Q")


def name_call(number: int, machine: str) -> str:
    """Name a system call; its number where the table has no name, "" for -1, outside of a call. Pure."""
    return "" if number < 0 else _CALLS.get(machine, {}).get(number) or str(number)


_BY_PREFIX = (
    ("request_wait_answer", WaitReason.FUSE),
    ("fuse_", WaitReason.FUSE),
    ("nfs", WaitReason.NFS),
    ("rpc_", WaitReason.NFS),
    ("ceph_", WaitReason.CEPH),
    ("ll_", WaitReason.LUSTRE),
    ("cl_", WaitReason.LUSTRE),
    ("folio_wait", WaitReason.PAGE),
    ("wait_on_page", WaitReason.PAGE),
    ("iomap_dio", WaitReason.DIRECT_READ),
    ("__iomap_dio", WaitReason.DIRECT_READ),
    ("blkdev_", WaitReason.DISK),
    ("io_schedule", WaitReason.DISK),
    ("jbd2", WaitReason.JOURNAL),
    ("anon_pipe_read", WaitReason.PIPE_READ),
    ("pipe_read", WaitReason.PIPE_READ),
    ("pipe_wait_read", WaitReason.PIPE_READ),
    ("pipe_wait_writable", WaitReason.PIPE_WRITE),
    ("anon_pipe_write", WaitReason.PIPE_WRITE),
    ("pipe_write", WaitReason.PIPE_WRITE),
    ("wait_for_partner", WaitReason.FIFO),
    ("unix_stream", WaitReason.UNIX_SOCKET),
    ("unix_", WaitReason.UNIX_SOCKET),
    ("sk_wait_data", WaitReason.SOCKET_RECEIVE),
    ("wait_woken", WaitReason.SOCKET_OR_TTY),
    ("tcp_", WaitReason.TCP),
    ("inet_csk_accept", WaitReason.CONNECTION),
    ("sk_stream_wait", WaitReason.SOCKET_SEND),
    ("hrtimer_nanosleep", WaitReason.SLEEP),
    ("do_nanosleep", WaitReason.SLEEP),
    ("do_wait", WaitReason.CHILD),
    ("ep_poll", WaitReason.EPOLL),
    ("do_epoll_wait", WaitReason.EPOLL),
    ("do_sys_poll", WaitReason.POLL),
    ("poll_schedule", WaitReason.POLL),
    ("do_select", WaitReason.SELECT),
    ("n_tty_read", WaitReason.TERMINAL),
    ("do_signal_stop", WaitReason.STOPPED),
    ("ptrace_stop", WaitReason.TRACED),
    ("do_sigtimedwait", WaitReason.SIGNAL),
    ("sigsuspend", WaitReason.SIGNAL),
    ("__do_sys_pause", WaitReason.SIGNAL),
    ("sys_pause", WaitReason.SIGNAL),
    ("do_freezer_trap", WaitReason.FROZEN),
    ("cgroup_freez", WaitReason.FROZEN),
)


_INPUTS = {
    WaitReason.PIPE_READ: WaitReason.INPUT_PIPE,
    WaitReason.UNIX_SOCKET: WaitReason.INPUT_SOCKET,
    WaitReason.SOCKET_OR_TTY: WaitReason.TERMINAL,
}
"""Waits that become input when descriptor 0 is read; nobody gives a training a TCP socket for it."""


_FILE_LOCKS = re.compile(r"lock_inode_wait|lock_file_wait|fcntl_setlk")  # of flock and fcntl
_DRIVERS = re.compile(r"\b(?:nvidia_|nvkms_|nv_|_nv\d|uvm_|os_acquire_|amdgpu_|kfd_)")
"""Those of the card drivers (nvidia.ko, nvidia-uvm.ko, amdgpu.ko)."""


def _tell_futex(call: Known[Syscall]) -> WaitReason:
    if not is_known(call) or len(call.arguments) < 4:
        return WaitReason.LOCK
    return WaitReason.LOCK if call.arguments[3] == 0 else WaitReason.TIMED_LOCK


_OF_STATE = {
    "R": RUNNING,
    "Z": Wait(WaitReason.ZOMBIE),
    "t": Wait(WaitReason.TRACED),
    "T": Wait(WaitReason.STOPPED),
}


def is_in_driver(wchan: str) -> bool:
    """Tell whether a kernel function is a card driver's."""
    return _DRIVERS.search(wchan) is not None


def read_wait(state: str, wchan: Known[str], call: Known[Syscall], role: Role, machine: str) -> Known[Wait]:
    """Tell what a thread waits for, or the function's name; Missing where the kernel hides wchan."""
    if state in _OF_STATE:
        return _OF_STATE[state]
    if call == ON_CPU and (not is_known(wchan) or wchan in ("0", "") or wchan.startswith("futex")):
        # It woke up between the readings of its state and of its wait; only its call would show the lock.
        return RUNNING
    if not is_known(wchan):
        return wchan
    if wchan in ("0", ""):
        return Missing("the kernel does not say (wchan is 0)")
    if wchan.startswith("futex"):
        return Wait(_tell_futex(call))
    name = name_call(call.number, machine) if is_known(call) else ""
    arguments = call.arguments if is_known(call) else ()
    for prefix, reason in _BY_PREFIX:
        if wchan.startswith(prefix):
            if reason in _INPUTS and role is Role.RANK and name == "read" and arguments[:1] == (0,):
                reason = _INPUTS[reason]  # noqa: PLW2901  # it reads its standard input
            # arm64 has only ppoll, whose time-out is behind a pointer.
            elif reason is WaitReason.POLL and name == "poll" and arguments[1:3] == (1, LOADER_POLL_MS):
                reason = _LOADER_WAITS.get(role, reason)  # noqa: PLW2901
            return Wait(reason)
    if wchan == "pipe_wait":  # before Linux 5.5, of both ends
        return Wait(WaitReason.PIPE_READ if name == "read" else WaitReason.PIPE_WRITE, wchan)
    if wchan.startswith("__refrigerator"):
        return Wait(WaitReason.FROZEN, "frozen")
    if name == "futex":
        return Wait(_tell_futex(call))
    if _FILE_LOCKS.search(wchan):
        return Wait(WaitReason.FILE_LOCK, wchan)
    return Wait(WaitReason.DRIVER if is_in_driver(wchan) else WaitReason.OTHER, wchan)


@dataclass(frozen=True, slots=True)
class Holder:
    """Name the thread that a futex wait is for: a lock's holder, or a joined thread."""

    tid: int
    joined: bool


def find_descriptors(
    call: Syscall, machine: str, pid: int, proc: str = PROC
) -> Known[tuple[int, ...]] | None:
    """Return the descriptors that a call waits on; None for other calls."""
    name = name_call(call.number, machine)
    if not call.arguments:
        return None
    if name in _FD_FIRST:
        return (_signed(call.arguments[0]),)
    try:
        if name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
            return parse_epoll(read_file(f"{proc}/{pid}/fdinfo/{_signed(call.arguments[0])}", 65536))
        if name in ("poll", "ppoll") and len(call.arguments) > 1:
            return _read_pollfds(pid, call.arguments[0], call.arguments[1], proc)
        if name in ("select", "pselect6") and len(call.arguments) > 2:
            return _read_sets(pid, call.arguments[0], call.arguments[1:3], proc)
    except OSError as error:
        return Missing(f"watched descriptors: {say_refusal(error, 'fd')}")
    return None


def _signed(argument: int) -> int:
    return int(struct.unpack("=i", struct.pack("=I", argument & 0xFFFFFFFF))[0])


def parse_epoll(fdinfo: bytes) -> tuple[int, ...]:
    """Return the descriptors that an epoll instance watches, from /proc/PID/fdinfo/N (proc(5)). Pure."""
    lines = (line.split() for line in fdinfo.splitlines() if line.startswith(b"tfd:"))
    return tuple(int(fields[1]) for fields in lines if len(fields) > 1)


def _read_pollfds(pid: int, address: int, count: int, proc: str) -> Known[tuple[int, ...]]:
    data = read_memory(pid, address, _POLLFD.size * min(count, MOST_WATCHED), proc)
    if isinstance(data, Missing):
        return data
    if len(data) % _POLLFD.size:
        return Missing("memory: cut")
    return tuple(fd for fd, _, _ in _POLLFD.iter_unpack(data) if fd >= 0)


def _read_sets(pid: int, count: int, addresses: tuple[int, ...], proc: str) -> Known[tuple[int, ...]]:
    """Read the descriptor sets of select(2), to read from and to write to."""
    size = -(-min(_signed(count), 1024) // (8 * _LONG)) * _LONG
    found: set[int] = set()
    for address in filter(None, addresses):
        data = read_memory(pid, address, size, proc)
        if isinstance(data, Missing):
            return data
        bits = int.from_bytes(data, "little")
        found.update(fd for fd in range(8 * len(data)) if bits >> fd & 1)
    return tuple(sorted(found))


def read_path(pid: int, call: Syscall, machine: str, proc: str) -> Known[str] | None:
    """Read the path argument of a call; None for a call without one, or an empty one."""
    at = _PATH_AT.get(name_call(call.number, machine))
    if at is None or len(call.arguments) <= at:
        return None
    data = read_memory(pid, call.arguments[at], PATH_CHARS, proc)
    if isinstance(data, Missing):
        return data
    path = data.partition(b"\0")[0]
    return admit_text(path.decode("utf-8", "replace"), PATH_CHARS) if path else None


def find_child(call: Syscall, machine: str) -> int | None:
    """Return the child, as the caller numbers it, for whose end a call waits; None for other calls. Pure."""
    name = name_call(call.number, machine)
    if name == "wait4" and call.arguments:
        child = _signed(call.arguments[0])
    elif name == "waitid" and len(call.arguments) > 1 and call.arguments[0] == os.P_PID:
        child = _signed(call.arguments[1])
    else:
        return None
    return child if child > 0 else None


def translate_child(pid: int, child: int, proc: str = PROC) -> int | None:
    """Return our number of a child of ``pid``, which a container numbers itself; None where it is unknown."""
    try:
        depth = len(read_status(pid, proc).ns_pids) - 1
        if not depth:
            return child
        children = [
            int(number)
            for tid in os.listdir(f"{proc}/{pid}/task")
            for number in read_file(f"{proc}/{pid}/task/{tid}/children").split()
        ]
    except (OSError, ValueError):
        return None  # it ended, or this kernel does not list children
    inside = each_process(children, lambda at: read_status(at, proc).ns_pids[depth : depth + 1])
    return next((at for at, numbers in inside.items() if numbers == (child,)), None)


def find_holder(call: Syscall, machine: str, pid: int, tid: int, proc: str = PROC) -> Holder | None:
    """Find the thread of ``pid`` that a futex wait is for; None where the lock does not show it.

    C mutexes and joins name their thread; Python locks, conditions and semaphores name nobody.
    """
    if name_call(call.number, machine) != "futex" or len(call.arguments) < 3:
        return None
    address, operation, value = call.arguments[0], call.arguments[1] & _FUTEX_COMMAND, call.arguments[2]
    if operation in (_FUTEX_LOCK_PI, _FUTEX_LOCK_PI2):
        size = 4
    elif operation == _FUTEX_WAIT and value & 0xFFFFFFFF == _CONTENDED:
        size = _MUTEX.size
    elif operation in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET) and value > _CONTENDED:
        size = 4
    else:
        return None
    data = read_memory(pid, address, size, proc)
    if isinstance(data, Missing) or len(data) < size:
        return None
    word = int(struct.unpack_from("=i", data)[0])
    joined = False
    if size > 4:
        word, _, owner = _MUTEX.unpack(data)
        found = owner if word == _CONTENDED else 0
    elif operation in (_FUTEX_LOCK_PI, _FUTEX_LOCK_PI2):
        found = word & _PI_TID
    else:
        # The kernel clears the TID word of a thread that ends, which is what a join waits for.
        found, joined = (word, True) if word == value else (0, False)
    if found in (0, tid) or not os.path.exists(f"{proc}/{pid}/task/{found}"):
        return None
    return Holder(found, joined)
