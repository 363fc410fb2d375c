"""Find the sockets on which processes of a job listen: to ask only what is the job's own, and what it is.

sock_diag(7) answers for every listening TCP socket of our network namespace; the job's are told by the
inodes behind its descriptors. Nothing is connected to here.
"""

from __future__ import annotations

import socket
import struct

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.probe.base.procread import PROC
from tpmon.probe.host.network import same_network_namespace
from tpmon.probe.host.sockets import TIMEOUT_S, read_descriptors

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_LISTEN = 1 << 10
# linux/netlink.h, linux/inet_diag.h
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_PORT = struct.Struct(">H")
_NUMBER = struct.Struct("=I")
_PORT_AT, _ADDRESS_AT, _BACKLOG_AT, _INODE_AT, _MESSAGE_SIZE = 4, 8, 60, 68, 72
_MOST = 20_000


@dataclass(frozen=True, slots=True)
class Listener:
    """Hold one listening TCP socket; ``backlog`` is what the program asked for, capped by the kernel."""

    inode: int
    port: int
    address: str
    backlog: int

    @property
    def is_everywhere(self) -> bool:
        """Tell whether it listens on every address of the host."""
        return self.address in ("0.0.0.0", "::")  # noqa: S104  # compared, not bound


def parse_listeners(data: bytes) -> tuple[list[Listener], bool]:
    """Parse one datagram of a dump: the sockets in it, and whether it was the last.

    Raises:
        OSError: with the kernel's error number.
        ValueError: when a message is cut.
    """
    found: list[Listener] = []
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        body = at + _HEADER.size
        if size < _HEADER.size or at + size > len(data):
            raise ValueError("netlink message is cut")
        if kind == _NLMSG_ERROR and size >= _HEADER.size + 4:
            number = -int(struct.unpack_from("=i", data, body)[0])
            raise OSError(number, "sock_diag was refused")
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            return found, True
        if kind == _SOCK_DIAG_BY_FAMILY:
            if size < _HEADER.size + _MESSAGE_SIZE:
                raise ValueError("socket message is cut")
            found.append(_parse_listener(data[body : body + _MESSAGE_SIZE]))
        at += (size + 3) & ~3
    return found, False


def _parse_listener(message: bytes) -> Listener:
    family = message[0]
    width = 4 if family == socket.AF_INET else 16
    return Listener(
        inode=_NUMBER.unpack_from(message, _INODE_AT)[0],
        port=_PORT.unpack_from(message, _PORT_AT)[0],
        address=socket.inet_ntop(family, message[_ADDRESS_AT : _ADDRESS_AT + width]),
        backlog=_NUMBER.unpack_from(message, _BACKLOG_AT)[0],
    )


def read_all_listeners() -> tuple[Listener, ...]:
    """Read every listening TCP socket of our network namespace.

    Raises:
        OSError: when the kernel refuses or does not answer.
        ValueError: when its answer is not understood.
    """
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(TIMEOUT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _LISTEN)
            size = _HEADER.size + len(body)
            link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, family, 0) + body)
            last = False
            while not last and len(found) < _MOST:
                some, last = parse_listeners(link.recv(1 << 16))
                found += some
    return tuple(found)


def read_listeners(
    pid: int, everything: tuple[Listener, ...], proc: str = PROC
) -> Known[tuple[Listener, ...]]:
    """Pick out of ``everything`` on what one process listens, by its descriptors.

    No port on which another one listens too, at the address of another family: that one would be asked.
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
