"""The job's TCP connections: parsed from a captured dump, and asked of the kernel for a real pair."""

import errno
import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.host.test_network import in_own_network
from tpmon.model.known import Missing, is_known
from tpmon.probe.host.network import (
    SocketReader,
    TcpSocket,
    find_interface,
    parse_messages,
    parse_sockets,
    read_addresses,
    read_descriptors,
    read_established,
    sum_up,
)

DUMP = (Path(__file__).parents[2] / "data" / "sockets" / "dump.bin").read_bytes()
"""A loopback pair: 102525 filled the buffer of 102526, which read nothing and sent one byte."""

NEWER = 102525
SECOND = 1_000_000_000


def reading(sockets: SocketReader, pids, now_ns: int = 0):
    found = sockets.read(pids, now_ns)
    assert is_known(found), found
    return found


def parse_dump(data: bytes, inodes: set[int]) -> tuple[list[TcpSocket], int, bool]:
    """Return the sockets of a datagram that are wanted, how many there are, and whether it is the last."""
    messages, last = parse_messages(data)
    return parse_sockets(messages, inodes), len(messages), last


def test_captured_dump_agrees_with_ss():
    (found,), seen, last = parse_dump(DUMP, {NEWER})
    assert found == TcpSocket(
        inode=NEWER,
        local_address="127.0.0.1",
        remote_address="127.0.0.1",
        last_sent_ms=1352,
        last_received_ms=352,
        retransmits=0,
        unsent_bytes=2001920,
    )
    assert (seen, last) == (2, True)


def test_sockets_of_others_are_counted_and_left_out():
    assert parse_dump(DUMP, set()) == ([], 2, True)


def test_short_tcp_info_of_an_old_kernel_is_missing_not_zero():
    _, kind, *rest = struct.unpack_from("=IHHII", DUMP)
    # The fixed part, and tcp_info cut to the length it had in Linux 2.6 (104 bytes).
    body = DUMP[16 : 16 + 72] + struct.pack("=HH", 4 + 104, 2) + bytes(44) + struct.pack("=I", 77) + bytes(56)
    old = struct.pack("=IHHII", 16 + len(body), kind, *rest) + body
    (found,), _, _ = parse_dump(old, {NEWER, 102526})
    assert found.last_sent_ms == 77
    assert isinstance(found.unsent_bytes, Missing)
    assert sum_up([found]).unsent_bytes == Missing("this kernel does not tell it")
    assert sum_up([replace(found, last_sent_ms=found.unsent_bytes)]).last_send_s == found.unsent_bytes


def test_kernel_error_is_raised_with_its_number():
    refused = struct.pack("=IHHII", 20, 2, 0, 0, 0) + struct.pack("=i", -errno.EPERM)
    with pytest.raises(PermissionError):
        parse_messages(refused)
    for cut in (struct.pack("=IHHII", 100, 20, 0, 0, 0), struct.pack("=IHHII", 16, 20, 0, 0, 0)):
        with pytest.raises(ValueError, match="cut"):
            parse_messages(cut)
    assert parse_messages(struct.pack("=IHHIIi", 20, 3, 0, 0, 0, 0)) == ([], True)


@given(st.binary(max_size=200), st.integers(0, len(DUMP)))
def test_damaged_dumps_end_in_an_answer_or_a_plain_error(noise, cut):
    for data in (noise, DUMP[:cut], DUMP[:cut] + noise):
        try:
            parse_dump(data, {NEWER})
        except (OSError, ValueError):
            continue


def test_ipv6_and_mapped_addresses():
    def with_address(family, address):
        data = bytearray(DUMP)
        data[16] = family
        data[16 + 8 : 16 + 24] = address
        found, _, _ = parse_dump(bytes(data), {NEWER, 102526})
        return found[0].local_address

    assert with_address(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "fe80::1")) == "fe80::1"
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton("10.1.2.3")
    assert with_address(socket.AF_INET6, mapped) == "10.1.2.3"


def test_sum_takes_the_newest_movement_and_adds_losses():
    (one,), _, _ = parse_dump(DUMP, {NEWER})
    two = replace(one, last_sent_ms=40, last_received_ms=9000, retransmits=3, unsent_bytes=10)
    total = sum_up([one, two])
    assert (total.connections, total.last_send_s, total.last_receive_s) == (2, 0.04, 0.352)
    assert (total.retransmits, total.unsent_bytes) == (3, 2001930)


def test_no_connection_is_a_count_of_zero_and_no_age():
    total = sum_up([])
    assert total.connections == total.retransmits == 0
    assert total.last_send_s == Missing("no connection")


def test_interface_of_a_connection():
    (one,), _, _ = parse_dump(DUMP, {NEWER})
    interface_of = {"10.0.0.5": "eth0", "127.0.0.1": "lo"}
    assert find_interface(one, interface_of) == "lo"
    away = replace(one, local_address="10.0.0.5", remote_address="10.0.0.9")
    assert find_interface(away, interface_of) == "eth0"
    # Two ranks of one machine that talk by its outer address never leave it.
    assert find_interface(replace(away, remote_address="10.0.0.5"), interface_of) == "lo"
    assert find_interface(replace(away, local_address="192.0.2.1"), interface_of) == ""
    assert find_interface(replace(away, local_address="127.0.1.1"), interface_of) == "lo"


def test_descriptors_are_told_by_their_links(tmp_path):
    for pid, links in ((7, ["socket:[11]", "pipe:[12]", "/dev/infiniband/uverbs0"]), (8, ["socket:[13]"])):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        for number, link in enumerate(links):
            (tmp_path / str(pid) / "fd" / str(number)).symlink_to(link)
    (tmp_path / "class/infiniband_verbs/uverbs0").mkdir(parents=True)
    (tmp_path / "class/infiniband_verbs/uverbs0/ibdev").write_text("mlx5_3\n")
    found = read_descriptors([7, 8, 9], str(tmp_path), str(tmp_path))
    assert found.inodes == {11, 13}
    assert found.devices == {"mlx5_3"}
    assert read_descriptors([9], str(tmp_path)) == Missing("the process is gone")


# -- real connections ----------------------------------------------------------------------------


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    yield client, peer
    client.close()
    peer.close()


def inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_real_pair_last_movement_grows_and_falls(pair):
    client, peer = pair
    client.sendall(b"x")
    peer.recv(1)
    deadline = time.monotonic() + 10
    aged = None
    while time.monotonic() < deadline:
        (aged,) = read_established({inode(client)})
        if aged.last_sent_ms >= 100:
            break
        time.sleep(0.02)
    assert aged.last_sent_ms >= 100
    (waiting,) = read_established({inode(peer)})
    assert waiting.last_received_ms >= 100
    client.sendall(b"y")
    peer.recv(1)
    (fresh,) = read_established({inode(client)})
    assert fresh.last_sent_ms < aged.last_sent_ms
    (received,) = read_established({inode(peer)})
    assert received.last_received_ms < waiting.last_received_ms + 100


def test_real_pair_unsent_bytes_of_a_peer_that_does_not_read(pair):
    client, _ = pair
    client.setblocking(False)
    try:
        for _ in range(1000):
            client.send(bytes(65536))
    except BlockingIOError:
        pass
    (stuck,) = read_established({inode(client)})
    assert stuck.unsent_bytes > 0


def test_real_job_is_this_process(pair):
    sockets = SocketReader()
    now = time.monotonic_ns()
    first = reading(sockets, [os.getpid()], now)
    assert first.sample.connections >= 2
    assert "lo" in first.interfaces
    with socket.create_server(("127.0.0.1", 0)) as server:
        late = socket.create_connection(server.getsockname())
        # Descriptors are scanned every ten seconds.
        assert reading(sockets, [os.getpid()], now + SECOND).sample.connections == first.sample.connections
        later = reading(sockets, [os.getpid()], now + 11 * SECOND)
        assert later.sample.connections == first.sample.connections + 1
        late.close()


def test_another_network_namespace_is_not_ours_to_ask():
    with in_own_network() as pid:
        found = SocketReader().read([pid], 0)
    assert found == Missing("target is in another network namespace (doctor: place)")
    assert SocketReader().read([pid], 0) == Missing("the process is gone")
    assert isinstance(SocketReader().read([], 0), Missing)


def test_own_addresses_name_the_loopback():
    assert read_addresses()["127.0.0.1"] == "lo"
