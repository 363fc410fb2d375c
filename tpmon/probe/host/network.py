"""Read what interfaces and InfiniBand ports carry, and the TCP connections of the job.

/proc/PID/net/dev is of the target's own network namespace. A host of containers has hundreds of virtual
interfaces, so only those with hardware and those that the job uses are shown. Some drivers ask their firmware
for each counter: call this off the tick.

sock_diag(7) answers for every socket of our network namespace in one dump; the inodes behind the job's
descriptors pick its own. The target is not touched, and nothing in it is opened or connected to.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tpmon.model.frozen import dataclass
from tpmon.model.host import LOOPBACK, NetworkSample, SocketSample
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to, say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, read_links, read_or, read_text
from tpmon.probe.host.addresses import read_addresses
from tpmon.probe.proc.counters import CounterRates
from tpmon.probe.proc.pipe_peers import BY_FAMILY, HEADER, NETLINK_ERROR, ask_sock_diag, walk_attributes

REFRESH_EVERY_NS = 10_000_000_000
MOST_INTERFACES = 16
NAME_LENGTH = 32

IB_DATA_UNIT = 4  # bytes that port_rcv_data and port_xmit_data count by (IBTA, PortCounters)


class InterfaceCounters(NamedTuple):
    """Hold the totals of one interface or port since it came up."""

    received: Known[int]
    sent: Known[int]
    errors: Known[int]
    drops: Known[int]


def parse_net_dev(text: str) -> dict[str, InterfaceCounters]:
    """Parse /proc/PID/net/dev (proc_pid_net(5)); lines that do not fit are left out."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        fields = rest.split()
        if len(fields) >= 12 and all(field.isdigit() for field in fields):
            numbers = [int(field) for field in fields]
            errors, drops = numbers[2] + numbers[10], numbers[3] + numbers[11]
            found[name.strip()] = InterfaceCounters(numbers[0], numbers[8], errors, drops)
    return found


def same_network_namespace(pid: int, proc: str = "/proc") -> Known[bool]:
    """Tell whether process ``pid`` sees the same network as tpmon (namespaces(7))."""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net") == os.readlink(f"{proc}/self/ns/net")
    except PermissionError as error:
        return Missing(say_refusal(error, "environ"))
    except (FileNotFoundError, ProcessLookupError):
        return Missing("the process is gone")


def choose_interfaces(
    counters: dict[str, InterfaceCounters], hardware: Collection[str], used: Collection[str]
) -> list[str]:
    """Choose the interfaces that the job uses and those with hardware, at most ``MOST_INTERFACES``.

    The busiest come first. Without hardware (in a container) every one with traffic counts, the loopback only
    when the job uses it.
    """

    def carried(name: str) -> int:
        return known_or(counters[name].received, 0) + known_or(counters[name].sent, 0)

    physical = [name for name in counters if name in hardware]
    others = [name for name in counters if name != LOOPBACK and carried(name) > 0]
    chosen = {name for name in used if name in counters} | set(physical or others)
    return sorted(chosen, key=lambda name: (name not in used, -carried(name)))[:MOST_INTERFACES]


class NetworkReader:
    """Read the interfaces of a network namespace and the InfiniBand ports of the host.

    The namespace is that of the process which ``find_pid`` names each time; a descriptor would pin it.
    """

    def __init__(self, find_pid: Callable[[], int], proc: str = "/proc", sys: str = "/sys") -> None:
        self._find_pid = find_pid
        self._pid = 0
        self._proc = proc
        self._sys = sys
        self._rates = CounterRates()
        self._refresh_ns: int | None = None
        self._hardware: frozenset[str] = frozenset()
        self._ports: tuple[tuple[str, str], ...] = ()

    def read(self, now_ns: int, used: Known[frozenset[str]]) -> Known[tuple[NetworkSample, ...]]:
        """Read every interface once; ``used`` are interfaces and InfiniBand devices of the job."""
        before, self._pid = self._pid, self._find_pid()
        if self._refresh_ns is None or self._pid != before or now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + REFRESH_EVERY_NS
            self._look()
        try:
            with open(f"{self._proc}/{self._pid}/net/dev", encoding="utf-8", errors="replace") as file:
                counters = parse_net_dev(file.read())
        except FileNotFoundError:
            return Missing("the process is gone")
        except OSError as error:
            return Missing(error.strerror or str(error))
        names: frozenset[str] = known_or(used, frozenset())
        found = [
            (name, "nic", name, counters[name]) for name in choose_interfaces(counters, self._hardware, names)
        ]
        found += [(name, "ib", name.partition("/")[0], read_port(folder)) for name, folder in self._ports]
        met, samples = set(), []
        for name, kind, device, totals in found:
            label = admit_text(name, NAME_LENGTH)
            keys = [f"{label} {what}" for what in InterfaceCounters._fields]
            rates = [self._rates.rate(key, total, now_ns) for key, total in zip(keys, totals, strict=True)]
            in_use = used if isinstance(used, Missing) else device in used
            samples.append(NetworkSample(label, kind, in_use, *rates))
            met.update(keys)
        self._rates.keep_only(met)
        return tuple(samples)

    def _look(self) -> None:
        # Our /sys lacks another namespace's interfaces; of those the busy ones are shown.
        same = same_network_namespace(self._pid, self._proc)
        self._hardware = frozenset(find_hardware(self._sys)) if is_known(same) and same else frozenset()
        self._ports = tuple(find_ports(self._sys))[:MOST_INTERFACES]


def find_hardware(sys: str) -> Iterator[str]:
    """Yield the interfaces of our own namespace that have a device behind them and are not down."""
    root = f"{sys}/class/net"
    for name in _listed(root):
        if os.path.exists(f"{root}/{name}/device") and _text(f"{root}/{name}/operstate") != "down":
            yield name


def find_ports(sys: str) -> Iterator[tuple[str, str]]:
    """Yield active InfiniBand and RoCE ports with their counters' directory (ABI sysfs-class-infiniband)."""
    root = f"{sys}/class/infiniband"
    for device in _listed(root):
        for port in _listed(f"{root}/{device}/ports"):
            directory = f"{root}/{device}/ports/{port}"
            if _text(f"{directory}/state").endswith("ACTIVE"):
                yield f"{device}/{port}", f"{directory}/counters"


def read_port(directory: str) -> InterfaceCounters:
    """Read the counters of one port; Missing for those that the device lacks."""

    def number(name: str) -> Known[int]:
        text = _text(f"{directory}/{name}")
        return int(text) if text.isdigit() else Missing(f"the port has no {name}")

    received, sent = number("port_rcv_data"), number("port_xmit_data")
    return InterfaceCounters(
        received=map_known(lambda units: units * IB_DATA_UNIT, received),
        sent=map_known(lambda units: units * IB_DATA_UNIT, sent),
        errors=number("port_rcv_errors"),
        drops=number("port_xmit_discards"),
    )


def _listed(directory: str) -> list[str]:
    return read_or([], lambda: sorted(os.listdir(directory)))  # no such class of devices on this machine


def _text(path: str) -> str:
    return read_text(path, 256).strip()  # some answer EINVAL while the link is down


DESCRIPTORS_READ = 4096  # of one process: bounds the cost of a job with many open files

SCAN_EVERY_NS = 10_000_000_000
MOST_CONNECTIONS = 20_000  # of the whole host, after which the answer is given up

TIMEOUT_S = 2.0

REFUSED = "connections may not be read here: a seccomp filter or a security module refuses sock_diag"
NOT_TOLD = Missing("this kernel does not tell it")  # an older kernel has a shorter tcp_info

_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_DONE = 3
_MAX_ERRNO = 4095
_ESTABLISHED = 1 << 1
_INET_DIAG_INFO = 2

# linux/inet_diag.h, linux/tcp.h
_REQUEST = struct.Struct("=BBBxI48x")
_PORT = struct.Struct(">H")
_NUMBER = struct.Struct("=I")
_PORT_AT, _LOCAL_AT, _REMOTE_AT, _BACKLOG_AT, _INODE_AT, _MESSAGE_SIZE = 4, 8, 24, 60, 68, 72
_LAST_SENT_AT, _LAST_RECEIVED_AT, _RETRANSMITS_AT, _UNSENT_AT = 44, 52, 100, 144


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """Hold what the kernel says of one established connection; ages in milliseconds."""

    inode: int
    local_address: str
    remote_address: str
    last_sent_ms: Known[int]
    last_received_ms: Known[int]
    retransmits: Known[int]
    unsent_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class JobDescriptors:
    """Hold the job's socket inodes and open InfiniBand devices."""

    inodes: frozenset[int]
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class SocketReading:
    """Hold the job's connections, and the interfaces and InfiniBand devices that carry them."""

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
    info = dict(walk_attributes(message, _MESSAGE_SIZE)).get(_INET_DIAG_INFO, b"")

    def number(offset: int) -> Known[int]:
        return NOT_TOLD if len(info) < offset + 4 else int(_NUMBER.unpack_from(info, offset)[0])

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
    """Cut one datagram of a dump into sockets (inet_diag_msg), and tell whether it was the last.

    OSError with the kernel's number; ValueError where a message is cut.
    """
    found: list[bytes] = []
    at = 0
    while at + HEADER.size <= len(data):
        size, kind, *_ = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            raise ValueError("netlink message is cut")
        body = at + HEADER.size
        if kind in (NETLINK_ERROR, _NLMSG_DONE):
            number = -struct.unpack_from("=i", data, body)[0] if size >= HEADER.size + 4 else 0
            if number > _MAX_ERRNO:
                raise ValueError(f"netlink error {number}")
            if number > 0:
                raise OSError(number, os.strerror(number))
            return found, True
        if kind == BY_FAMILY:
            if size < HEADER.size + _MESSAGE_SIZE:
                raise ValueError("socket message is cut")
            found.append(data[body : at + size])
        at += (size + 3) & ~3
    return found, False


def _ask_kernel(states: int, attributes: int) -> Iterator[list[bytes]]:
    """Dump the TCP sockets of our network namespace in one of ``states``, a datagram at a time.

    OSError when the kernel refuses or is silent for ``TIMEOUT_S``; ValueError for another answer.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, attributes, states)
        with ask_sock_diag(request, _NLM_F_REQUEST_DUMP, TIMEOUT_S) as link:
            last = False
            while not last:
                found, last = parse_messages(link.recv(1 << 16))
                yield found


def parse_sockets(messages: Iterable[bytes], inodes: Container[int]) -> list[TcpSocket]:
    """Parse the sockets of ``inodes``."""
    return [_parse_socket(one) for one in messages if _NUMBER.unpack_from(one, _INODE_AT)[0] in inodes]


def read_established(inodes: Container[int]) -> list[TcpSocket]:
    """Read the established TCP connections of ``inodes``; OSError also for ``MOST_CONNECTIONS``."""
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
            links = read_links(pid, proc, DESCRIPTORS_READ).values()
        except PermissionError:
            refused = True
            continue
        except OSError:
            continue  # the process ended, and its connections with it
        read = True
        inodes.update(int(link[8:-1]) for link in links if link.startswith("socket:["))
        verbs = (os.path.basename(link) for link in links if link.startswith("/dev/infiniband/uverbs"))
        # The name of another container's device is unknown here.
        devices.update(filter(None, (_text(f"{sys}/class/infiniband_verbs/{name}/ibdev") for name in verbs)))
    if read:
        return JobDescriptors(frozenset(inodes), frozenset(devices))
    return Missing(point_to(NOT_PERMITTED, "fd") if refused else "the process is gone")


def sum_up(connections: Sequence[TcpSocket]) -> SocketSample:
    """Sum up the job's connections: the newest transfer, all losses, all that waits."""
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
    """Read the TCP connections of a job; call it every few seconds, off the tick."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc = proc
        self._sys = sys
        self._scanned: tuple[int, ...] = ()
        self._scan_ns = 0
        self._descriptors: Known[JobDescriptors] = Missing("not read yet")
        self._interface_of: dict[str, str] = {}

    def read(self, pids: Sequence[int], now_ns: int) -> Known[SocketReading]:
        """Read the connections of ``pids``, launcher first; scan all every 10 s and when ``pids`` change."""
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
            if mine and not self._interface_of:
                self._interface_of = read_addresses()
        except (OSError, ValueError) as error:
            refused = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
            return Missing(REFUSED if refused else f"sock_diag: {error}")
        names = {find_interface(one, self._interface_of) for one in mine}
        return SocketReading(sum_up(mine), job.devices | (names - {""}))


def find_interface(connection: TcpSocket, interface_of: Mapping[str, str]) -> str:
    """Name the interface that carries a connection: the loopback between two addresses of this machine."""
    local, remote = connection.local_address, connection.remote_address
    if local.startswith("127.") or remote in interface_of:
        return LOOPBACK
    return interface_of.get(local, "")


_LISTEN = 1 << 10


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """Hold a listening TCP socket; ``backlog`` is what the program asked for, capped by the kernel."""

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
    """Read the listening TCP sockets of our network namespace, at most ``MOST_CONNECTIONS``."""
    every = (one for messages in _ask_kernel(_LISTEN, 0) for one in messages)
    return tuple(map(parse_listener, islice(every, MOST_CONNECTIONS)))


def read_listeners(
    pid: int, everything: tuple[ListeningSocket, ...], proc: str = PROC
) -> Known[tuple[ListeningSocket, ...]]:
    """Pick from ``everything`` where one process listens, without ports that another shares on IPv4 or IPv6.

    A request to such a port would reach the other one.
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
