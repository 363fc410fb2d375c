"""The kernel says which interface has which address: what psutil, which asks the C library, finds as well."""

import socket
import struct

import psutil
import pytest

from tpmon.probe.host.addresses import parse_addresses, read_addresses
from tpmon.probe.proc.pipe_peers import HEADER

NEW, DONE, ERROR = 20, 3, 2


def message(kind: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, 0, 1, 0) + body + bytes(-len(body) % 4)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def address(family: int, interface: int, *attributes: bytes) -> bytes:
    return message(NEW, struct.pack("=BBBBI", family, 24, 0, 0, interface) + b"".join(attributes))


def test_each_address_of_this_machine_has_its_interface():
    known = {
        one.address.partition("%")[0]: name
        for name, found in psutil.net_if_addrs().items()
        for one in found
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert read_addresses() == known
    assert known["127.0.0.1"] == "lo"


def test_of_two_ends_ours_is_the_local_one():
    here, there = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    data = address(socket.AF_INET, 3, attribute(1, there), attribute(2, here))
    data += address(socket.AF_INET6, 4, attribute(1, bytes(15) + b"\1"))
    assert parse_addresses(data) == ([("10.0.0.1", 3), ("::1", 4)], False)
    assert parse_addresses(data + message(DONE, bytes(4)))[1]


def test_what_does_not_fit_is_left_out():
    odd = address(socket.AF_INET, 3, attribute(2, b"\1\2")) + address(socket.AF_APPLETALK, 3) + message(NEW, b"")
    assert parse_addresses(odd) == ([], False)


def test_a_refusal_and_a_cut_message_are_told():
    with pytest.raises(PermissionError):
        parse_addresses(message(ERROR, struct.pack("=i", -1)))
    with pytest.raises(ValueError, match="cut"):
        parse_addresses(address(socket.AF_INET, 3, attribute(2, bytes(4)))[:-4])
