"""Ask the kernel about the job's TCP connections and the sockets it listens on.

sock_diag(7) answers for every socket of our network namespace in one dump; the job's are told by the
inodes behind its descriptors. The target is not touched, nothing is opened in it, nothing is connected to.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from tpmon.model.frozen import dataclass
from tpmon.model.host import LOOPBACK, SocketSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to
from tpmon.probe.base.procread import PROC, each_process, read_text
from tpmon.probe.host.network import same_network_namespace

DESCRIPTORS_READ = 4096
"""Descriptors of one process that are looked at: bounds the cost of a job with many open files."""

SCAN_EVERY_NS = 10_000_000_000
MOST_CONNECTIONS = 20_000
"""Connections of the whole host that are gone through before the answer is given up."""

TIMEOUT_S = 2.0

REFUSED = "connections may not be read here: a seccomp filter or a security module refuses sock_diag"
NOT_TOLD = Missing("this kernel does not tell it")
"""Why a field of tcp_info is not known: an older kernel answers with a shorter one."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_MAX_ERRNO = 4095
_ESTABLISHED = 1 << 1
_INET_DIAG_INFO = 2

# linux/netlink.h, linux/inet_diag.h, linux/tcp.h
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_PORT = struct.Struct(">H")
_NUMBER = struct.Struct("=I")
_PORT_AT, _LOCAL_AT, _REMOTE_AT, _BACKLOG_AT, _INODE_AT, _MESSAGE_SIZE = 4, 8, 24, 60, 68, 72
_LAST_SENT_AT, _LAST_RECEIVED_AT, _RETRANSMITS_AT, _UNSENT_AT = 44, 52, 100, 144


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """Hold what the kernel tells of one established connection; ages in milliseconds."""

    inode: int
    local_address: str
    remote_address: str
    last_sent_ms: Known[int]
    last_received_ms: Known[int]
    retransmits: Known[int]
    unsent_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class JobDescriptors:
    """Hold the socket inodes of the job and the InfiniBand devices that it has open."""

    inodes: frozenset[int]
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class SocketReading:
    """Hold the job's connections, and the interfaces and InfiniBand devices that they go through."""

    sample: SocketSample
    interfaces: frozenset[str]


def _parse_address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    if raw[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[12:16])
    return socket.inet_ntop(socket.AF_INET6, raw[:16])


def _parse_socket(message: bytes) -> TcpSocket:
    """Parse one inet_diag_msg with its attributes."""
    info = b""
    at = _MESSAGE_SIZE
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4:
            break
        if kind == _INET_DIAG_INFO:
            info = message[at + 4 : at + size]
        at += (size + 3) & ~3

    def number(offset: int) -> Known[int]:
        if len(info) < offset + 4:
            return NOT_TOLD
        return int(struct.unpack_from("=I", info, offset)[0])

    return TcpSocket(
        inode=struct.unpack_from("=I", message, _INODE_AT)[0],
        local_address=_parse_address(message[0], message[_LOCAL_AT : _LOCAL_AT + 16]),
        remote_address=_parse_address(message[0], message[_REMOTE_AT : _REMOTE_AT + 16]),
        last_sent_ms=number(_LAST_SENT_AT),
        last_received_ms=number(_LAST_RECEIVED_AT),
        retransmits=number(_RETRANSMITS_AT),
        unsent_bytes=number(_UNSENT_AT),
    )


def parse_messages(data: bytes) -> tuple[list[bytes], bool]:
    """Cut one datagram of a dump into its sockets (inet_diag_msg), and tell whether it was the last.

    OSError with the kernel's number; ValueError where a message is cut.
    """
    found: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            raise ValueError("netlink message is cut")
        body = at + _HEADER.size
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            number = -struct.unpack_from("=i", data, body)[0] if size >= _HEADER.size + 4 else 0
            if number > _MAX_ERRNO:
                raise ValueError(f"netlink error {number}")
            if number > 0:
                raise OSError(number, os.strerror(number))
            return found, True
        if kind == _SOCK_DIAG_BY_FAMILY:
            if size < _HEADER.size + _MESSAGE_SIZE:
                raise ValueError("socket message is cut")
            found.append(data[body : at + size])
        at += (size + 3) & ~3
    return found, False


def _ask_kernel(states: int, attributes: int) -> Iterator[list[bytes]]:
    """Dump the TCP sockets of our network namespace that are in one of ``states``, a datagram at a time.

    OSError when the kernel refuses or is silent for ``TIMEOUT_S``; ValueError for another answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(TIMEOUT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, attributes, states)
            size = _HEADER.size + len(body)
            link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, family, 0) + body)
            last = False
            while not last:
                found, last = parse_messages(link.recv(1 << 16))
                yield found


def parse_sockets(messages: Iterable[bytes], inodes: Container[int]) -> list[TcpSocket]:
    """Parse the sockets of ``inodes``."""
    return [_parse_socket(one) for one in messages if _NUMBER.unpack_from(one, _INODE_AT)[0] in inodes]


def read_established(inodes: Container[int]) -> list[TcpSocket]:
    """Read the established TCP connections that ``inodes`` name; OSError also for ``MOST_CONNECTIONS``."""
    mine: list[TcpSocket] = []
    gone_through = 0
    for messages in _ask_kernel(_ESTABLISHED, 1 << (_INET_DIAG_INFO - 1)):
        mine += parse_sockets(messages, inodes)
        gone_through += len(messages)
        if gone_through > MOST_CONNECTIONS:
            raise OSError(f"more than {MOST_CONNECTIONS} connections on this host")
    return mine


def read_descriptors(pids: Sequence[int], proc: str = "/proc", sys: str = "/sys") -> Known[JobDescriptors]:
    """Find the sockets and InfiniBand devices that ``pids`` have open, by the links in /proc/PID/fd."""
    inodes: set[int] = set()
    devices: set[str] = set()
    refused = read = False
    for pid in pids:
        try:
            names = os.listdir(f"{proc}/{pid}/fd")[:DESCRIPTORS_READ]
            paths = (f"{proc}/{pid}/fd/{name}" for name in names)
            each_process(paths, lambda path: _note(os.readlink(path), sys, inodes, devices))
            read = True
        except PermissionError:
            refused = True
        except OSError:
            # The process ended; its connections ended with it.
            continue
    if read:
        return JobDescriptors(frozenset(inodes), frozenset(devices))
    return Missing(point_to(NOT_PERMITTED, "fd") if refused else "the process is gone")


def _note(target: str, sys: str, inodes: set[int], devices: set[str]) -> None:
    if target.startswith("socket:["):
        inodes.add(int(target[8:-1]))
    elif target.startswith("/dev/infiniband/uverbs"):
        name = os.path.basename(target)
        # Of a device of another container the name is not known here.
        devices.update(filter(None, [read_text(f"{sys}/class/infiniband_verbs/{name}/ibdev", 64).strip()]))


def sum_up(connections: Sequence[TcpSocket]) -> SocketSample:
    """Sum up the connections of the job: the newest movement, all losses, all that waits."""
    unknown = NOT_TOLD if connections else Missing("no connection")

    def newest(ages_ms: Iterable[Known[int]]) -> Known[float]:
        known = [age for age in ages_ms if is_known(age)]
        return min(known) / 1e3 if known else unknown

    def total(counts: Sequence[Known[int]]) -> Known[int]:
        known = [count for count in counts if is_known(count)]
        return sum(known) if len(known) == len(counts) else NOT_TOLD

    return SocketSample(
        connections=len(connections),
        last_send_s=newest(one.last_sent_ms for one in connections),
        last_receive_s=newest(one.last_received_ms for one in connections),
        retransmits=total([one.retransmits for one in connections]),
        unsent_bytes=total([one.unsent_bytes for one in connections]),
    )


class SocketReader:
    """Read the TCP connections of a job; made to be called every few seconds off the tick."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc = proc
        self._sys = sys
        self._scanned: tuple[int, ...] = ()
        self._scan_ns = 0
        self._descriptors: Known[JobDescriptors] = Missing("not read yet")
        self._interface_of: dict[str, str] = {}

    def read(self, pids: Sequence[int], now_ns: int) -> Known[SocketReading]:
        """Read the connections of ``pids``, the launcher first.

        Descriptors and addresses are scanned anew every ten seconds, and when ``pids`` change.
        """
        if not pids:
            return Missing("the job has no process")
        same = same_network_namespace(pids[0], self._proc)
        if isinstance(same, Missing):
            return same
        if not same:
            return Missing(point_to("target is in another network namespace", "place"))
        if tuple(pids) != self._scanned or now_ns >= self._scan_ns:
            self._scanned, self._scan_ns = tuple(pids), now_ns + SCAN_EVERY_NS
            self._descriptors = read_descriptors(pids, self._proc, self._sys)
            self._interface_of = {}
        job = self._descriptors
        if isinstance(job, Missing):
            return job
        try:
            mine = read_established(job.inodes) if job.inodes else []
        except (OSError, ValueError) as error:
            refused = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
            return Missing(REFUSED if refused else f"sock_diag: {error}")
        if mine and not self._interface_of:
            self._interface_of = read_addresses()
        names = {find_interface(one, self._interface_of) for one in mine}
        return SocketReading(sum_up(mine), job.devices | (names - {""}))


def find_interface(connection: TcpSocket, interface_of: Mapping[str, str]) -> str:
    """Name the interface that carries a connection; of two addresses of this machine the loopback."""
    local, remote = connection.local_address, connection.remote_address
    if local.startswith("127.") or remote in interface_of:
        return LOOPBACK
    return interface_of.get(local, "")


def read_addresses() -> dict[str, str]:
    """Read which interface of our network namespace has which address."""
    # Imported where it is needed: 15 ms that a job without connections never pays.
    import psutil  # noqa: PLC0415

    return {
        address.address.partition("%")[0]: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }


_LISTEN = 1 << 10


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """Hold one listening TCP socket; ``backlog`` is what the program asked for, capped by the kernel."""

    inode: int
    port: int
    address: str
    backlog: int

    @property
    def is_everywhere(self) -> bool:
        """Tell whether it listens on every address of the host."""
        return self.address in ("0.0.0.0", "::")  # noqa: S104  # compared, not bound


def parse_listener(message: bytes) -> ListeningSocket:
    """Parse one listening socket."""
    family = message[0]
    width = 4 if family == socket.AF_INET else 16
    return ListeningSocket(
        inode=_NUMBER.unpack_from(message, _INODE_AT)[0],
        port=_PORT.unpack_from(message, _PORT_AT)[0],
        address=socket.inet_ntop(family, message[_LOCAL_AT : _LOCAL_AT + width]),
        backlog=_NUMBER.unpack_from(message, _BACKLOG_AT)[0],
    )


def read_all_listeners() -> tuple[ListeningSocket, ...]:
    """Read the listening TCP sockets of our network namespace, as many as ``MOST_CONNECTIONS``."""
    every = (one for messages in _ask_kernel(_LISTEN, 0) for one in messages)
    return tuple(map(parse_listener, islice(every, MOST_CONNECTIONS)))


def read_listeners(
    pid: int, everything: tuple[ListeningSocket, ...], proc: str = PROC
) -> Known[tuple[ListeningSocket, ...]]:
    """Pick out of ``everything`` on what one process listens, by its descriptors.

    No port on which another one listens at the address of another family: that one would be asked.
    """
    same = same_network_namespace(pid, proc)
    if isinstance(same, Missing):
        return same
    if not same:
        return Missing("it is in another network namespace (a container): run tpmon inside of it")
    descriptors = read_descriptors((pid,), proc)
    if isinstance(descriptors, Missing):
        return descriptors
    shared = {one.port for one in everything if one.inode not in descriptors.inodes}
    return tuple(one for one in everything if one.inode in descriptors.inodes and one.port not in shared)
