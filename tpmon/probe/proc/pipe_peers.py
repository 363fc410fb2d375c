"""Find the processes at the other end of a pipe or a socket that a thread waits on.

/proc/PID/fd says who has what open, the kernel's tables which sockets are connected. The job's processes are
searched first, all others of the machine only where none has the other end. Each table is read once a round.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from tpmon.model.dump import OtherEnd
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.doctor import point_to, say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, list_pids, read_file, read_or

MOST_ENDS = 3  # named processes: one that forks after opening a pipe passes it on to all its children
MOST_PROCESSES = 4096
SEARCH_S = 0.5  # for the search of all processes of the machine
_MOST_NET_BYTES = 4 << 20
_NAME_CHARS = 64
_LISTENS = b"0A"
_INODE = re.compile(r"socket:\[(\d+)\]")
_READS, _WRITES = 0o400, 0o200
_NO_FIFOS = ("/dev/", "/usr/", "/proc/", "/sys/")

# linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h
_SOCK_DIAG, BY_FAMILY, _REQUEST_FLAG, NETLINK_ERROR = 4, 20, 1, 2
HEADER = struct.Struct("=IHHII")
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_ATTRIBUTE = struct.Struct("=HH")
_SHOW_NAME_AND_PEER = 1 | 4
_UNIX_NAME, _UNIX_PEER = 0, 2
_UNIX_MESSAGE_SIZE = 16
_NO_COOKIE = 0xFFFFFFFF
_LINK_S = 0.5


@dataclass(frozen=True, slots=True)
class TcpRow:
    """Hold one row of /proc/net/tcp; addresses as the kernel prints them."""

    local: bytes
    remote: bytes
    inode: int
    listens: bool


@dataclass(frozen=True, slots=True)
class Connection:
    """Say what a socket is connected to: an address or a path, and the processes at the other end."""

    unix: bool
    peer: Applicable[str]
    others: Applicable[tuple[OtherEnd, ...]]


_Table = Mapping[str, list[tuple[int, int]]]  # by link: the PIDs that have it open, each with the mode


def parse_tcp(table: bytes) -> tuple[TcpRow, ...]:
    """Parse /proc/PID/net/tcp or tcp6 (proc(5)); rows that are cut are left out. Pure."""
    rows = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[9].isdigit():
            rows.append(TcpRow(fields[1], fields[2], int(fields[9]), fields[3] == _LISTENS))
    return tuple(rows)


def parse_address(text: bytes) -> str:
    """Write an address that the kernel prints as words in native byte order; else ValueError. Pure."""
    address, _, port = text.partition(b":")
    raw = bytes.fromhex(address.decode("ascii"))
    packed = struct.pack(f">{len(raw) // 4}I", *struct.unpack(f"={len(raw) // 4}I", raw))
    shown = ipaddress.ip_address(packed)
    name = str(getattr(shown, "ipv4_mapped", None) or shown)
    number = int(port, 16)
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def parse_unix(answer: bytes) -> tuple[str, int]:
    """Return path and peer's inode of a socket ("", 0: none); OSError of the kernel, ValueError where cut."""
    if len(answer) < HEADER.size + 4:
        raise ValueError("netlink answer is cut")
    size, kind, *_ = HEADER.unpack_from(answer)
    if kind == NETLINK_ERROR:
        number = -struct.unpack_from("=i", answer, HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    told = dict(walk_attributes(answer[:size], HEADER.size + _UNIX_MESSAGE_SIZE))
    # An abstract name begins with a zero byte.
    name = told.get(_UNIX_NAME, b"").rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
    peer = told.get(_UNIX_PEER, b"")
    return name, int(struct.unpack_from("=I", peer)[0]) if len(peer) >= 4 else 0


def walk_attributes(message: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of each attribute of a netlink message from ``at`` on, until one is cut."""
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, message[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


@contextlib.contextmanager
def ask_sock_diag(request: bytes, flags: int, timeout_s: float) -> Iterator[socket.socket]:
    """Ask the kernel about sockets of our network namespace (sock_diag(7)); the socket gives its answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as link:
        link.settimeout(timeout_s)
        link.send(HEADER.pack(HEADER.size + len(request), BY_FAMILY, flags, 1, 0) + request)
        yield link


class OtherEnds:
    """Find who has the other end, for one round and in any thread; ``names`` are the job's processes."""

    def __init__(self, names: Mapping[int, str], proc: str = PROC) -> None:
        self._names = names
        self._proc = proc
        self._lock = threading.Lock()
        self._of_job: _Table | None = None
        self._of_all: _Table | None = None
        self._incomplete = False
        self._tcp: dict[str, Known[tuple[TcpRow, ...]]] = {}

    def find_pipe(self, pid: int, fd: int, link: str) -> Known[tuple[OtherEnd, ...]]:
        """Find who has the other end of the pipe or FIFO that ``pid`` has open as ``fd``."""
        try:
            mode = os.lstat(f"{self._proc}/{pid}/fd/{fd}").st_mode
        except OSError as error:
            return Missing(f"descriptor {fd}: {say_refusal(error, 'fd')}")
        # A FIFO that was opened for both ways still waits for somebody else.
        wanted = _WRITES if mode & _READS else _READS
        return self._find((link,), wanted, pid)

    def find_connection(self, pid: int, link: str) -> Known[Connection]:
        """Find what a socket of ``pid`` is connected to, in the network namespace of that process."""
        found = _INODE.fullmatch(link)
        if found is None:
            return Missing("no socket")
        inode = int(found[1])
        rows = self._read_tcp(pid)
        if isinstance(rows, Missing):
            return rows
        row = next((one for one in rows if one.inode == inode), None)
        if row is None:
            return self._find_unix(pid, inode)
        try:
            if row.listens:
                return Connection(
                    unix=False, peer=f"{parse_address(row.local)} (listens)", others=NOT_APPLICABLE
                )
            peer = parse_address(row.remote)
        except (ValueError, struct.error) as error:
            return Missing(f"connections: {error}")
        ends = [one.inode for one in rows if (one.local, one.remote) == (row.remote, row.local)]
        # On another machine or in another network namespace only the address is known.
        others = self._find([f"socket:[{one}]" for one in ends if one], 0, 0) if ends else NOT_APPLICABLE
        return Connection(unix=False, peer=peer, others=others)

    def _find_unix(self, pid: int, inode: int) -> Known[Connection]:
        try:
            if os.readlink(f"{self._proc}/{pid}/ns/net") != os.readlink(f"{self._proc}/self/ns/net"):
                return Missing(point_to("its socket is of another network namespace", "place"))
            _, peer = read_unix(inode)
            path = read_unix(peer)[0] if peer else ""
        except (OSError, ValueError) as error:
            return Missing(f"sockets: {error}")
        if not peer:
            return Connection(unix=True, peer=Missing("not connected"), others=NOT_APPLICABLE)
        shown: Applicable[str] = admit_text(path, _NAME_CHARS) if path else NOT_APPLICABLE
        return Connection(unix=True, peer=shown, others=self._find((f"socket:[{peer}]",), 0, 0))

    def _find(self, links: Iterable[str], mode: int, but: int) -> Known[tuple[OtherEnd, ...]]:
        """Return who else has one of ``links`` open in ``mode``; () where nobody on the machine has."""
        wanted = tuple(links)
        with self._lock:
            if self._of_job is None:
                self._of_job, self._incomplete = self._read_open(self._names, SEARCH_S)
            pids = self._pick(self._of_job, wanted, mode, but)
            if not pids:
                if self._of_all is None:
                    try:
                        those = [pid for pid in list_pids(self._proc) if pid not in self._names]
                    except OSError as error:
                        return Missing(f"processes: {error.strerror}")
                    self._of_all, cut = self._read_open(those[:MOST_PROCESSES], SEARCH_S)
                    self._incomplete |= cut or len(those) > MOST_PROCESSES
                pids = self._pick(self._of_all, wanted, mode, but)
                if not pids and self._incomplete:
                    return Missing("not every process of this machine could be searched")
        return tuple(OtherEnd(pid, NOT_APPLICABLE, self.name(pid)) for pid in pids[:MOST_ENDS])

    @staticmethod
    def _pick(table: _Table, links: Iterable[str], mode: int, but: int) -> list[int]:
        found = (one for link in links for one in table.get(link, ()))
        return list(dict.fromkeys(pid for pid, own in found if pid != but and own & mode == mode))

    def name(self, pid: int) -> str:
        """Name a process: its part in the job, else the kernel's name."""
        if pid in self._names:
            return self._names[pid]
        try:
            raw = read_file(f"{self._proc}/{pid}/comm", _NAME_CHARS)
        except OSError:
            return "ended"
        return admit_text(raw.decode("utf-8", "replace").strip(), _NAME_CHARS)

    def _read_open(self, pids: Iterable[int], limit_s: float) -> tuple[_Table, bool]:
        """Read who has which pipe, FIFO and socket open, and whether any process was left out."""
        found: dict[str, list[tuple[int, int]]] = {}
        incomplete = False
        end_s = time.monotonic() + limit_s
        for pid in pids:
            if time.monotonic() > end_s:
                return found, True
            folder = f"{self._proc}/{pid}/fd"
            try:
                names = os.listdir(folder)
            except PermissionError:
                incomplete = True
                continue
            except OSError:
                continue  # it ended
            for name in names:
                with contextlib.suppress(OSError):  # closed since it was listed
                    link = os.readlink(f"{folder}/{name}")
                    # Only opening it would tell a FIFO from a file, and may block on a dead mount.
                    if link.startswith(("pipe:", "socket:", "/")) and not link.startswith(_NO_FIFOS):
                        mode = os.lstat(f"{folder}/{name}").st_mode
                        found.setdefault(link, []).append((pid, mode))
        return found, incomplete

    def _read_tcp(self, pid: int) -> Known[tuple[TcpRow, ...]]:
        """Read all TCP connections of the network namespace of ``pid``, once for each namespace."""
        space = read_or(f"pid {pid}", lambda: os.readlink(f"{self._proc}/{pid}/ns/net"))
        with self._lock:
            if space not in self._tcp:
                rows: tuple[TcpRow, ...] = ()
                try:
                    for name in ("tcp", "tcp6"):
                        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                            rows += parse_tcp(read_file(f"{self._proc}/{pid}/net/{name}", _MOST_NET_BYTES))
                    self._tcp[space] = rows
                except OSError as error:
                    self._tcp[space] = Missing(f"connections: {error.strerror}")
            return self._tcp[space]


def read_unix(inode: int) -> tuple[str, int]:
    """Ask the kernel for path and peer of a unix socket of our network namespace, with ``parse_unix``."""
    request = _UNIX_REQUEST.pack(
        socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _SHOW_NAME_AND_PEER, _NO_COOKIE, _NO_COOKIE
    )
    with ask_sock_diag(request, _REQUEST_FLAG, _LINK_S) as link:
        return parse_unix(link.recv(8192))
