"""Find the thread of libkineto in a process by the socket that it asks through, and who else answers it.

libkineto binds a datagram socket of its own, in the abstract namespace or in a folder, and sends to one
named "dynolog" beside it. Both stand in /proc/net/unix with their inodes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tpmon.capture.kineto_daemon import CLIENT, DAEMON
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing
from tpmon.model.process import Identity
from tpmon.model.text.redaction import admit_text

OURS = "tpmon-kineto-"
"""How the folders begin that ``tpmon run --kineto`` makes."""

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
    """Find the libkineto of a process that asks for profiles; Missing says why there is none to be used."""
    pid = process.pid
    try:
        inodes = set(_list_inodes(f"{proc}/{pid}/fd"))
        with open(f"{proc}/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            sockets = parse_sockets(file.read())
    except PermissionError:
        return Missing(f"process {pid} belongs to somebody else")
    except OSError:
        return Missing(f"process {pid} ended")
    for socket in sockets:
        folder = parse_folder(socket.name) if socket.inode in inodes else None
        if folder is None:
            continue
        # An answer from a socket whose name libkineto does not expect ends the process that asked.
        for kind in ("net", "mnt", "pid"):
            if not _is_same_namespace(pid, kind, proc):
                return Missing(f"kineto asks in a container: tpmon can answer it from inside alone ({kind})")
        return KinetoClient(process, folder)
    return Missing("no thread of kineto asks for profiles: it was not started with KINETO_USE_DAEMON=1")


def find_holder(name: str, proc: str = "/proc") -> str:
    """Say who has a socket of that name, "" when nobody has."""
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
    """List the inodes of the sockets that are open."""
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
