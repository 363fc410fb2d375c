"""Answer libkineto in a training as the daemon that it asks for profiles.

A message is its body's size (u64), its kind (32 bytes, zero-padded), and the body. libkineto sends

    ctxt    i32 GPU, i32 PID, i64 job               and awaits an i32
    req     i32 bits, i32 n, i64 job, n i32 PIDs    and awaits a configuration, or nothing

every few seconds, and waits 50 ms for the answer. The PIDs are those of its own namespace; the kernel names
the sender's. Bit 2 is set while no profile is under way. An answer that is not understood ends the process
that asked, so nothing else is ever answered.

The socket is there only while a capture is under way. Every process that asks is answered at once, with
nothing; only the right one gets an order, once.

libkineto binds a datagram socket of its own, in the abstract namespace or in a folder, and sends to one
named "dynolog" beside it. Both are in /proc/net/unix with their inodes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import replace

from tpmon.errors import UsageError
from tpmon.foreign_file import open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing
from tpmon.model.process import Identity
from tpmon.model.text.redaction import admit_text
from tpmon.own_command import call_as_owner

DAEMON = "dynolog"
CLIENT = "dynoconfigclient"
MOST_BYTES = 1 << 16
LONGEST_FOLDER = 54
"""libkineto copies folder, "/", and 52 bytes of a name into the 107 of a socket's address, unchecked."""

_HEAD = struct.Struct("<Q32s")
_CONTEXT = struct.Struct("<iiq")
_REQUEST = struct.Struct("<iiq")
_FREE = 2
_UNSAFE = "\n\r#=\0"


@dataclass(frozen=True, slots=True)
class KinetoAsk:
    """Hold a question: to be registered, or for a configuration; ``ordered``: an order was the answer."""

    registers: bool
    free: bool
    pid: int = 0
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """Hold what kineto has to record: so many updates of the optimizer, from the next one on."""

    path: str
    updates: int
    stacks: bool
    shapes: bool
    memory: bool


def parse_ask(data: bytes) -> KinetoAsk | None:
    """Parse a datagram of libkineto; None where it is none."""
    if len(data) < _HEAD.size:
        return None
    size, kind = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if size != len(body):
        return None
    name = kind.split(b"\0", 1)[0]
    if name == b"ctxt" and size == _CONTEXT.size:
        return KinetoAsk(registers=True, free=False)
    if name == b"req" and size >= _REQUEST.size:
        bits, count, _ = _REQUEST.unpack_from(body)
        if count >= 0 and size == _REQUEST.size + 4 * count:
            return KinetoAsk(registers=False, free=bool(bits & _FREE))
    return None


def write_answer(ask: KinetoAsk, order: Order | None) -> bytes:
    """Return the answer to a question; without an order it is empty."""
    if ask.registers:
        return _HEAD.pack(4, b"ctxt") + struct.pack("<i", 1)
    body = write_config(order).encode("utf-8", "surrogateescape") if order is not None else b""
    return _HEAD.pack(len(body), b"req") + body


def write_config(order: Order) -> str:
    """Return the configuration of one profile; ValueError where the path does not fit into a line of it."""
    if not is_sayable(order.path):
        raise ValueError(f"kineto cannot be given this path: {order.path!r}")
    lines = (
        f"ACTIVITIES_LOG_FILE={order.path}",
        "PROFILE_START_ITERATION=0",
        "ACTIVITIES_WARMUP_ITERATIONS=1",
        f"ACTIVITIES_ITERATIONS={order.updates}",
        f"PROFILE_REPORT_INPUT_SHAPES={_word(order.shapes)}",
        f"PROFILE_PROFILE_MEMORY={_word(order.memory)}",
        f"PROFILE_WITH_STACK={_word(order.stacks)}",
        "PROFILE_WITH_FLOPS=false",
        "PROFILE_WITH_MODULES=false",
    )
    return "\n".join(lines) + "\n"


def is_sayable(path: str) -> bool:
    """Tell whether a path fits into a line of kineto's configuration."""
    return path.startswith("/") and path == path.strip() and not any(sign in path for sign in _UNSAFE)


def _word(on: bool) -> str:
    return "true" if on else "false"


OURS = "tpmon-kineto-"
"""The folders of ``tpmon run --kineto`` begin so."""

_MOST_PROCESSES = 65_536


@dataclass(frozen=True, slots=True)
class Socket:
    """Hold a bound socket: abstract names begin with "@", as the kernel writes them."""

    inode: int
    name: str


@dataclass(frozen=True, slots=True)
class KinetoClient:
    """Hold where a process asks for profiles: in ``folder``, or in the abstract namespace where it is ""."""

    process: Identity
    folder: str

    @property
    def is_ours(self) -> bool:
        """Tell whether the run was started by ``tpmon run --kineto``."""
        return os.path.basename(self.folder).startswith(OURS)

    @property
    def daemon(self) -> str:
        """Return the name of the socket that it sends to, as the kernel lists it."""
        return f"{self.folder}/{DAEMON}" if self.folder else f"@{DAEMON}@"


def parse_sockets(text: str) -> list[Socket]:
    """Parse /proc/net/unix: the sockets that have a name."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split(" ", 6)
        inode, _, name = words[6].lstrip().partition(" ") if len(words) == 7 else ("", "", "")
        if inode.isdecimal() and name:
            found.append(Socket(int(inode), name))
    return found


def parse_folder(name: str) -> str | None:
    """Return the folder of a client's socket, "" for an abstract one; None where it is no client's."""
    if name.startswith("@"):
        return "" if name.startswith(f"@{CLIENT}") else None
    folder, _, last = name.rpartition("/")
    return folder if folder and last.startswith(CLIENT) else None


def find_client(process: Identity, proc: str = "/proc") -> KinetoClient | Missing:
    """Find the libkineto of a process that asks for profiles; Missing says why none can be used."""
    pid = process.pid
    try:
        inodes = set(_list_inodes(f"{proc}/{pid}/fd"))
        with open(f"{proc}/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            sockets = parse_sockets(file.read())
    except PermissionError:
        return Missing(f"process {pid} belongs to somebody else")
    except OSError:
        return Missing(f"process {pid} ended")
    for one in sockets:
        folder = parse_folder(one.name) if one.inode in inodes else None
        if folder is None:
            continue
        # An answer from a socket whose name libkineto does not expect ends the process that asked.
        for kind in ("net", "mnt", "pid"):
            if not _is_same_namespace(pid, kind, proc):
                return Missing(f"kineto asks in a container: tpmon can answer it from inside alone ({kind})")
        return KinetoClient(process, folder)
    return Missing("no thread of kineto asks for profiles: it was not started with KINETO_USE_DAEMON=1")


def find_holder(name: str, proc: str = "/proc") -> str:
    """Name the holder of a socket, "" when there is none."""
    try:
        with open(f"{proc}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            inodes = {socket.inode for socket in parse_sockets(file.read()) if socket.name == name}
    except OSError:
        return ""
    if not inodes:
        return ""
    pids = sorted(int(one) for one in os.listdir(proc) if one.isdecimal())[:_MOST_PROCESSES]
    for pid in pids:
        with contextlib.suppress(OSError):
            if inodes.intersection(_list_inodes(f"{proc}/{pid}/fd")):
                return f"process {pid} ({_read_name(pid, proc)})"
    return "a process of another user"


def _list_inodes(folder: str) -> Iterator[int]:
    for number in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{number}")
        except FileNotFoundError:
            continue  # closed between listing and reading
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _read_name(pid: int, proc: str) -> str:
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return admit_text(file.read().strip(), 40)
    except OSError:
        return "ended"


def _is_same_namespace(pid: int, kind: str, proc: str) -> bool:
    try:
        return os.readlink(f"{proc}/{pid}/ns/{kind}") == os.readlink(f"{proc}/self/ns/{kind}")
    except OSError:
        return False


_CREDENTIALS = struct.Struct("iII")


class TakenError(UsageError):
    """Report that another daemon answers kineto already, or that none can."""


class Daemon:
    """Hold the socket that kineto asks; ``orders`` are the next orders by PID."""

    def __init__(self, client: KinetoClient) -> None:
        """Take the place of the daemon; TakenError where another has it."""
        self.orders: dict[int, Order] = {}
        self._path = f"{client.folder}/{DAEMON}" if client.folder else ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._bind(client)
        except OSError as error:
            self._socket.close()
            holder = find_holder(client.daemon)
            why = f"{holder} answers it already" if holder else f"its socket: {error.strerror or error}"
            raise TakenError(
                f"kineto cannot be asked: {why}",
                f"{call_as_owner(client.process.pid)} records with the hook instead",
            ) from error

    def close(self) -> None:
        """Give the place back: a socket that nobody reads would delay the end of the training."""
        self._socket.close()
        if self._path:
            try:
                os.unlink(self._path)
            except OSError:
                return  # the folder is gone

    def listen(self, seconds: float) -> KinetoAsk | None:
        """Wait for one question and answer it; None where none came in time, or none that is understood."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(round(1e3 * seconds)):
            return None
        try:
            data, extra, _, sender = self._socket.recvmsg(
                MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT
            )
        except OSError:
            return None
        ask = parse_ask(data)
        pid = next(
            (
                int(_CREDENTIALS.unpack(value)[0])
                for level, kind, value in extra
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
            ),
            0,
        )
        if ask is None or not pid or not self._is_beside(sender):
            return None
        order = self.orders.get(pid) if ask.free else None
        try:
            self._socket.sendto(write_answer(ask, order), socket.MSG_DONTWAIT, sender)
        except OSError:
            return None  # it has ended, or its folder is gone
        if order is not None:
            del self.orders[pid]
        return replace(ask, pid=pid, ordered=order is not None)

    def _is_beside(self, sender: str | bytes) -> bool:
        """Tell whether a socket lies where kineto makes its own: only there answers go."""
        if isinstance(sender, bytes):
            return not self._path
        return bool(sender) and os.path.dirname(sender) == os.path.dirname(self._path)

    def _bind(self, client: KinetoClient) -> None:
        if not self._path:
            self._socket.bind(f"\0{DAEMON}\0".encode())
            return
        owner = read_owner(client.process.pid)
        # Where others control the path, root would make and remove files for them.
        os.close(open_foreign(client.folder, owner, is_kind=stat.S_ISDIR))
        self._clear(client)
        # No chmod afterwards: it would follow a link put there meanwhile.
        before = os.umask(0o177)
        try:
            self._socket.bind(self._path)
        finally:
            os.umask(before)
        if owner.uid != os.geteuid():
            os.chown(self._path, owner.uid, owner.gid, follow_symlinks=False)

    def _clear(self, client: KinetoClient) -> None:
        """Remove the socket of a daemon that was killed."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if stat.S_ISSOCK(found.st_mode) and not find_holder(client.daemon):
            os.unlink(self._path)
