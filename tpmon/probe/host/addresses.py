"""Read which interface has which address in our network namespace (rtnetlink(7))."""

from __future__ import annotations

import os
import socket
import struct

from tpmon.probe.proc.pipe_peers import HEADER, NETLINK_ERROR, walk_attributes

_ROUTE = 0  # NETLINK_ROUTE
_GET_ADDRESS, _NEW_ADDRESS, _DONE = 22, 20, 3  # RTM_GETADDR, RTM_NEWADDR, NLMSG_DONE
_REQUEST_DUMP = 0x301
_MESSAGE = struct.Struct("=BBBBI")  # struct ifaddrmsg
_ADDRESS, _LOCAL = 1, 2  # IFA_ADDRESS; IFA_LOCAL, which is ours where the other end has an address, too
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}
_TIMEOUT_S = 2.0


def parse_addresses(data: bytes) -> tuple[list[tuple[str, int]], bool]:
    """Parse one datagram of a dump: addresses with the number of their interface; whether it was the last.

    OSError with the kernel's number; ValueError where a message is cut.
    """
    found: list[tuple[str, int]] = []
    at = 0
    while at + HEADER.size <= len(data):
        size, kind, *_ = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            raise ValueError("netlink message is cut")
        message, at = data[at + HEADER.size : at + size], at + ((size + 3) & ~3)
        if kind == NETLINK_ERROR and len(message) >= 4:
            number = -struct.unpack_from("=i", message)[0]
            raise OSError(number, os.strerror(number))
        if kind in (NETLINK_ERROR, _DONE):
            return found, True
        if kind == _NEW_ADDRESS and len(message) >= _MESSAGE.size:
            family, _, _, _, interface = _MESSAGE.unpack_from(message)
            told = dict(walk_attributes(message, _MESSAGE.size))
            raw = told.get(_LOCAL) or told.get(_ADDRESS, b"")
            if len(raw) == _BYTES.get(family):
                found.append((socket.inet_ntop(family, raw), interface))
    return found, False


def read_addresses() -> dict[str, str]:
    """Read the interface of each address in our network namespace; raise as ``parse_addresses``."""
    addresses: list[tuple[str, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        request = _MESSAGE.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        link.send(HEADER.pack(HEADER.size + len(request), _GET_ADDRESS, _REQUEST_DUMP, 1, 0) + request)
        last = False
        while not last:
            found, last = parse_addresses(link.recv(1 << 16))
            addresses += found
    names = dict(socket.if_nameindex())
    return {address: names[interface] for address, interface in addresses if interface in names}
