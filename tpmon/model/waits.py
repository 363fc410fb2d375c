"""What a thread waits for: one noun from the probe that reads it to whoever shows it."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known


class WaitReason(str, Enum):
    """Name what a thread waits for, by the kernel or by its stack."""

    RUNNING = "running"
    """It runs, or waits for a CPU alone (state R)."""
    BATCH = "batch"
    WORK = "work"
    LOCK = "lock"
    TIMED_LOCK = "timed-lock"
    FUSE = "fuse"
    NFS = "nfs"
    CEPH = "ceph"
    LUSTRE = "lustre"
    PAGE = "page"
    DIRECT_READ = "direct-read"
    DISK = "disk"
    JOURNAL = "journal"
    FILE_LOCK = "file-lock"
    PIPE_READ = "pipe-read"
    PIPE_WRITE = "pipe-write"
    FIFO = "fifo"
    UNIX_SOCKET = "unix-socket"
    SOCKET_RECEIVE = "socket-receive"
    SOCKET_SEND = "socket-send"
    SOCKET_OR_TTY = "socket-or-tty"
    TCP = "tcp"
    CONNECTION = "connection"
    SLEEP = "sleep"
    CHILD = "child"
    SIGNAL = "signal"
    EPOLL = "epoll"
    POLL = "poll"
    SELECT = "select"
    TERMINAL = "terminal"
    INPUT_PIPE = "input-pipe"
    INPUT_SOCKET = "input-socket"
    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    ZOMBIE = "zombie"
    KILLED = "killed"
    """The process was killed, and a thread of it does not end."""
    KILLED_IN_DRIVER = "killed-in-driver"
    ENDING = "ending"
    """It was killed or ended. The kernel gives back the memory of a large process for seconds."""
    ENDING_IN_DRIVER = "ending-in-driver"
    DRIVER = "driver"
    """The driver of a card."""
    COLLECTIVE = "collective"
    """Other ranks, by its stack."""
    DEVICE = "device"
    """The card, by its stack."""
    CALL = "call"
    """A queue, a thread or a process, by the call of the standard library in its stack."""
    OTHER = "other"
    """A kernel function that no table names; of a stack: nothing that it tells."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold what a thread waits for. ``detail`` replaces the words of ``reason``, for eyes alone."""

    reason: WaitReason
    detail: str = ""

    def __hash__(self) -> int:
        """Return that of the reason: hundreds are counted each second, and few have a detail."""
        return hash(self.reason)


RUNNING = Wait(WaitReason.RUNNING)
FROZEN = Wait(WaitReason.FROZEN)

_R = WaitReason
FILE_SYSTEMS = frozenset((_R.FUSE, _R.NFS, _R.CEPH, _R.LUSTRE))
"""Files behind a network, or another process."""
READS = FILE_SYSTEMS | {_R.PAGE, _R.DIRECT_READ}
"""Reads of files; disk and journal alone are often writes."""
FILES = READS | {_R.DISK, _R.JOURNAL}
SOCKETS = frozenset(
    (_R.UNIX_SOCKET, _R.SOCKET_RECEIVE, _R.SOCKET_SEND, _R.SOCKET_OR_TTY, _R.TCP, _R.INPUT_SOCKET)
)
IO = FILES | SOCKETS | {_R.PIPE_READ, _R.FIFO}
PIPES = frozenset((_R.PIPE_READ, _R.PIPE_WRITE, _R.INPUT_PIPE))
INPUTS = frozenset((_R.TERMINAL, _R.INPUT_PIPE, _R.INPUT_SOCKET))
"""A person, or whoever feeds the program, ends them."""
LOCKS = frozenset((_R.LOCK, _R.TIMED_LOCK))
QUEUES = frozenset((_R.BATCH, _R.WORK))
"""Those of a loader."""
DRIVERS = frozenset((_R.DRIVER, _R.KILLED_IN_DRIVER, _R.ENDING_IN_DRIVER))

_WORDS = MappingProxyType(
    {
        _R.RUNNING: "running",
        _R.BATCH: "a batch (loader queue)",
        _R.WORK: "work from its rank (loader queue)",
        _R.LOCK: "lock or queue (futex)",
        _R.TIMED_LOCK: "lock with a time-out (futex)",
        _R.FUSE: "FUSE file system",
        _R.NFS: "NFS",
        _R.CEPH: "Ceph file system",
        _R.LUSTRE: "Lustre file system",
        _R.PAGE: "page from disk",
        _R.DIRECT_READ: "direct disk read",
        _R.DISK: "disk",
        _R.JOURNAL: "file system journal",
        _R.PIPE_READ: "pipe read",
        _R.PIPE_WRITE: "pipe write (full)",
        _R.FIFO: "FIFO without a partner",
        _R.UNIX_SOCKET: "unix socket",
        _R.SOCKET_RECEIVE: "socket receive",
        _R.SOCKET_SEND: "socket send",
        _R.SOCKET_OR_TTY: "socket or tty",
        _R.TCP: "TCP socket",
        _R.CHILD: "child process",
        _R.TERMINAL: "terminal input",
        _R.INPUT_PIPE: "standard input (pipe)",
        _R.INPUT_SOCKET: "standard input (socket)",
        _R.STOPPED: "stopped by a signal",
        _R.TRACED: "stopped by a debugger",
        _R.FROZEN: "frozen by its control group",
        _R.ZOMBIE: "zombie: ended, not reaped by its parent",
    }
)
_BY_WORDS = MappingProxyType({**{one.value: one for one in _R}, **{_WORDS[one]: one for one in _WORDS}})


def describe_wait(wait: Wait) -> str:
    """Say what a thread waits for."""
    return wait.detail or _WORDS.get(wait.reason, wait.reason.value)


def parse_wait(words: str, reason: str = "") -> Wait:
    """Read a wait that was written as its words, with its reason where that was written too.

    Raises:
        ValueError: for a reason that there is not.
    """
    told = WaitReason(reason) if reason else _BY_WORDS.get(words, WaitReason.OTHER)
    return Wait(told, "" if words == describe_wait(Wait(told)) else words)


def is_wait(wait: Known[Wait], *reasons: WaitReason) -> bool:
    """Tell whether a thread is known to wait for one of ``reasons``."""
    return is_known(wait) and wait.reason in reasons


def is_wait_in(wait: Known[Wait], reasons: frozenset[WaitReason]) -> bool:
    """Tell whether a thread is known to wait for one of a set of reasons."""
    return is_known(wait) and wait.reason in reasons
