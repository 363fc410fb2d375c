"""Say in words what a thread waits for, from its state, kernel function and system call. Pure.

Kernel function names differ by version (futex_do_wait, futex_wait_queue), so prefixes are
matched. System call numbers are those of x86-64 and arm64.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import FROZEN, ON_A_CPU, Role

RUNNING = ON_A_CPU
ON_CPU = Missing(RUNNING)
"""What the kernel says of the wait and the call of a thread that runs."""
LOADER_POLL_MS = 5000
"""MP_STATUS_CHECK_INTERVAL of torch.utils.data: both ends of a loader queue poll this long."""
_LOADER_WAITS = {Role.RANK: "a batch (loader queue)", Role.WORKER: "work from its rank (loader queue)"}
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
    """Parse /proc/PID/syscall (proc(5)); "running" has neither number nor PC.

    Raises:
        ValueError: when the text is no syscall line.
    """
    fields = raw.split()
    if not fields:
        raise ValueError("syscall line is empty")
    if fields[0] == b"running":
        return ON_CPU
    numbers = [int(field, 0) for field in fields]
    return Syscall(numbers[0], tuple(numbers[1:-2]), numbers[-1] if len(numbers) > 1 else 0)


_BY_PREFIX = (
    ("request_wait_answer", "FUSE file system"),
    ("fuse_", "FUSE file system"),
    ("nfs", "NFS"),
    ("rpc_", "NFS"),
    ("ceph_", "Ceph file system"),
    ("ll_", "Lustre file system"),
    ("cl_", "Lustre file system"),
    ("folio_wait", "page from disk"),
    ("wait_on_page", "page from disk"),
    ("iomap_dio", "direct disk read"),
    ("__iomap_dio", "direct disk read"),
    ("blkdev_", "disk"),
    ("io_schedule", "disk"),
    ("jbd2", "file system journal"),
    ("anon_pipe_read", "pipe read"),
    ("pipe_read", "pipe read"),
    ("pipe_wait_read", "pipe read"),
    ("anon_pipe_write", "pipe write (full)"),
    ("pipe_write", "pipe write (full)"),
    ("wait_for_partner", "FIFO without a partner"),
    ("unix_stream", "unix socket"),
    ("unix_", "unix socket"),
    ("sk_wait_data", "socket receive"),
    ("wait_woken", "socket or tty"),
    ("tcp_", "TCP socket"),
    ("inet_csk_accept", "connection"),
    ("sk_stream_wait", "socket send"),
    ("hrtimer_nanosleep", "sleep"),
    ("do_nanosleep", "sleep"),
    ("do_wait", "child process"),
    ("ep_poll", "epoll"),
    ("do_epoll_wait", "epoll"),
    ("do_sys_poll", "poll"),
    ("poll_schedule", "poll"),
    ("do_select", "select"),
    ("n_tty_read", "terminal input"),
    ("do_signal_stop", "stopped by a signal"),
    ("ptrace_stop", "stopped by a debugger"),
    ("do_sigtimedwait", "signal"),
    ("sigsuspend", "signal"),
    ("__do_sys_pause", "signal"),
    ("sys_pause", "signal"),
    ("do_freezer_trap", FROZEN),
    ("cgroup_freez", FROZEN),
    ("__refrigerator", "frozen"),
)


_INPUTS = {
    "pipe read": "standard input (pipe)",
    "unix socket": "standard input (socket)",
    "socket or tty": "terminal input",
}
"""Waits that a read of descriptor 0 makes one for input; nobody gives a training a TCP socket for it."""


def _is_call(call: Known[Syscall], numbers: dict[str, int], machine: str) -> bool:
    return is_known(call) and call.number == numbers.get(machine)


def _reads_stdin(call: Known[Syscall], machine: str) -> bool:
    return _is_call(call, _READ_NUMBERS, machine) and is_known(call) and call.arguments[:1] == (0,)


def _describe_futex(call: Known[Syscall]) -> str:
    if not is_known(call) or len(call.arguments) < 4:
        return "lock or queue (futex)"
    return "lock or queue (futex)" if call.arguments[3] == 0 else "lock with a time-out (futex)"


def _describe_poll(call: Known[Syscall], role: Role, machine: str) -> str:
    if _is_call(call, _POLL_NUMBERS, machine) and is_known(call) and len(call.arguments) >= 3:
        watched, timeout_ms = call.arguments[1], call.arguments[2]
        if machine == "x86_64" and watched == 1 and timeout_ms == LOADER_POLL_MS:
            return _LOADER_WAITS.get(role, "poll")
    return "poll"


def describe_wait(
    state: str, wchan: Known[str], call: Known[Syscall], role: Role, machine: str
) -> Known[str]:
    """Say what a thread waits for: "running", "a batch (loader queue)", "page from disk".

    Unknown kernel functions are returned by their own name. Missing where the kernel hides
    wchan ("0" for another user's process).
    """
    if state == "R":
        return RUNNING
    if state == "Z":
        return "zombie: ended, not reaped by its parent"
    if state == "t":
        return "stopped by a debugger"
    if state == "T":
        return "stopped by a signal"
    if call == ON_CPU and (not is_known(wchan) or wchan in ("0", "") or wchan.startswith("futex")):
        # It woke up between the reading of its state and of its wait. Which lock that was, with a time-out or
        # without one, its call would have told.
        return RUNNING
    if not is_known(wchan):
        return wchan
    if wchan in ("0", ""):
        return Missing("the kernel does not say (wchan is 0)")
    if wchan.startswith("futex"):
        return _describe_futex(call)
    for prefix, words in _BY_PREFIX:
        if wchan.startswith(prefix):
            if words in _INPUTS and role is Role.RANK and _reads_stdin(call, machine):
                return _INPUTS[words]
            return _describe_poll(call, role, machine) if words == "poll" else words
    if _is_call(call, _FUTEX_NUMBERS, machine):
        return _describe_futex(call)
    return wchan
