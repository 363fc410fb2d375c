"""Tell what a thread waits for, from its state, kernel function and system call. Pure.

Kernel function names differ by version (futex_do_wait, futex_wait_queue), so prefixes are
matched. System call numbers are those of x86-64 and arm64.
"""

from __future__ import annotations

import re

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.waits import RUNNING, Wait, WaitReason

ON_CPU = Missing("running")
"""What the kernel says of the wait and the call of a thread that runs."""
LOADER_POLL_MS = 5000
"""MP_STATUS_CHECK_INTERVAL of torch.utils.data: both ends of a loader queue poll this long."""
_LOADER_WAITS = {Role.RANK: WaitReason.BATCH, Role.WORKER: WaitReason.WORK}
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_READ_NUMBERS = {"x86_64": 0, "aarch64": 63}
_POLL_NUMBERS = {"x86_64": 7, "aarch64": 73}


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
"""Waits that a read of descriptor 0 makes one for input; nobody gives a training a TCP socket for it."""


_FILE_LOCKS = re.compile(r"lock_inode_wait|lock_file_wait|fcntl_setlk")
"""Kernel functions in which flock and fcntl wait for a lock on a file."""
_DRIVERS = re.compile(r"\b(?:nvidia_|nvkms_|nv_|_nv\d|uvm_|os_acquire_|amdgpu_|kfd_)")
"""Those of the drivers of cards (nvidia.ko, nvidia-uvm.ko, amdgpu.ko)."""


def _is_call(call: Known[Syscall], numbers: dict[str, int], machine: str) -> bool:
    return is_known(call) and call.number == numbers.get(machine)


def _reads_stdin(call: Known[Syscall], machine: str) -> bool:
    return _is_call(call, _READ_NUMBERS, machine) and is_known(call) and call.arguments[:1] == (0,)


def _tell_futex(call: Known[Syscall]) -> WaitReason:
    if not is_known(call) or len(call.arguments) < 4:
        return WaitReason.LOCK
    return WaitReason.LOCK if call.arguments[3] == 0 else WaitReason.TIMED_LOCK


def _tell_poll(call: Known[Syscall], role: Role, machine: str) -> WaitReason:
    if _is_call(call, _POLL_NUMBERS, machine) and is_known(call) and len(call.arguments) >= 3:
        watched, timeout_ms = call.arguments[1], call.arguments[2]
        if machine == "x86_64" and watched == 1 and timeout_ms == LOADER_POLL_MS:
            return _LOADER_WAITS.get(role, WaitReason.POLL)
    return WaitReason.POLL


_OF_STATE = {
    "R": RUNNING,
    "Z": Wait(WaitReason.ZOMBIE),
    "t": Wait(WaitReason.TRACED),
    "T": Wait(WaitReason.STOPPED),
}


def is_in_driver(wchan: str) -> bool:
    """Tell whether a kernel function is of the driver of a card."""
    return _DRIVERS.search(wchan) is not None


def read_wait(state: str, wchan: Known[str], call: Known[Syscall], role: Role, machine: str) -> Known[Wait]:
    """Tell what a thread waits for; an unknown kernel function by its own name.

    Missing where the kernel hides wchan ("0" for another user's process).
    """
    if state in _OF_STATE:
        return _OF_STATE[state]
    if call == ON_CPU and (not is_known(wchan) or wchan in ("0", "") or wchan.startswith("futex")):
        # It woke up between the reading of its state and of its wait. Which lock that was, with a time-out or
        # without one, its call would have told.
        return RUNNING
    if not is_known(wchan):
        return wchan
    if wchan in ("0", ""):
        return Missing("the kernel does not say (wchan is 0)")
    if wchan.startswith("futex"):
        return Wait(_tell_futex(call))
    for prefix, reason in _BY_PREFIX:
        if wchan.startswith(prefix):
            if reason in _INPUTS and role is Role.RANK and _reads_stdin(call, machine):
                return Wait(_INPUTS[reason])
            return Wait(_tell_poll(call, role, machine) if reason is WaitReason.POLL else reason)
    if wchan == "pipe_wait":  # before Linux 5.5, of both ends
        reads = _is_call(call, _READ_NUMBERS, machine)
        return Wait(WaitReason.PIPE_READ if reads else WaitReason.PIPE_WRITE, wchan)
    if wchan.startswith("__refrigerator"):
        return Wait(WaitReason.FROZEN, "frozen")
    if _is_call(call, _FUTEX_NUMBERS, machine):
        return Wait(_tell_futex(call))
    if _FILE_LOCKS.search(wchan):
        return Wait(WaitReason.FILE_LOCK, wchan)
    return Wait(WaitReason.DRIVER if is_in_driver(wchan) else WaitReason.OTHER, wchan)
