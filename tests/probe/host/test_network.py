"""Rates of interfaces and InfiniBand ports of the target's network, and the TCP connections of the job."""

import errno
import os
import shutil
import socket
import struct
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import Child
from tests.waiting import wait_until
from tpmon.model.known import Missing, is_known
from tpmon.probe.host import network

DATA = Path(__file__).parents[2] / "data" / "network"
SECOND = 1_000_000_000
NONE = frozenset()


class Machine:
    """A machine made of files: one process, its network, the host's devices."""

    def __init__(self, path: Path) -> None:
        self.proc, self.sys = path / "proc", path / "sys"
        for pid, namespace in (("self", 1), ("7", 1)):
            (self.proc / pid / "ns").mkdir(parents=True)
            (self.proc / pid / "ns" / "net").symlink_to(f"net:[{namespace}]")
        (self.proc / "7" / "net").mkdir()
        shutil.copy(DATA / "net_dev", self.proc / "7" / "net" / "dev")
        (self.sys / "class" / "net" / "enp65s0f0np0" / "device").mkdir(parents=True)
        (self.sys / "class" / "net" / "docker0").mkdir()

    def replace(self, old: str, new: str) -> None:
        path = self.proc / "7" / "net" / "dev"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def port(self, device: str, state: str = "4: ACTIVE", **counters: int) -> None:
        directory = self.sys / "class" / "infiniband" / device / "ports" / "1"
        (directory / "counters").mkdir(parents=True, exist_ok=True)
        (directory / "state").write_text(state + "\n")
        for name, value in counters.items():
            (directory / "counters" / name).write_text(f"{value}\n")

    def reader(self) -> network.NetworkReader:
        return network.NetworkReader(lambda: 7, str(self.proc), str(self.sys))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_net_dev_columns_and_names_that_touch_their_number():
    found = network.parse_net_dev((DATA / "net_dev").read_text())
    assert found["enp65s0f0np0"] == network.InterfaceCounters(66965987000, 131710000, 2 + 1, 17 + 3)
    assert found["lo"] == network.InterfaceCounters(903193, 903193, 0, 0)
    assert set(found) == {"lo", "ifb0", "docker0", "vethb1a2c3d", "enp65s0f0np0", "eth1.100"}


@given(st.text(max_size=300))
def test_net_dev_of_any_text(text):
    assert isinstance(network.parse_net_dev(text), dict)


def names(machine, used=NONE):
    return [(one.interface, one.used_by_job) for one in machine.reader().read(SECOND, used)]


def test_hardware_and_used_interfaces_are_shown_virtual_ones_are_not(machine):
    assert names(machine) == [("enp65s0f0np0", False)]
    assert names(machine, frozenset(["lo", "eth1.100", "gone0"])) == [
        *(("lo", True), ("eth1.100", True), ("enp65s0f0np0", False))
    ]
    unknown = Missing("sock_diag is not permitted here")
    assert names(machine, unknown) == [("enp65s0f0np0", unknown)]


@pytest.mark.parametrize("why", ["down", "another namespace"])
def test_without_hardware_all_that_carries_traffic_but_the_loopback_is_shown(machine, why):
    if why == "down":
        (machine.sys / "class/net/enp65s0f0np0/operstate").write_text("down\n")
    else:
        (machine.proc / "7/ns/net").unlink()
        (machine.proc / "7/ns/net").symlink_to("net:[2]")
    assert [name for name, _ in names(machine)] == ["enp65s0f0np0", "docker0", "vethb1a2c3d", "eth1.100"]


def test_rates_are_differences_over_time_and_an_interface_that_comes_back_begins_anew(machine):
    reader = machine.reader()
    (first,) = reader.read(SECOND, NONE)
    assert first.receive_bytes_s == Missing("needs a second reading")
    machine.replace("66965987000 44108301    2   17", "66967987000 44108301    6   18")
    (second,) = reader.read(3 * SECOND, NONE)
    assert (second.receive_bytes_s, second.send_bytes_s, second.errors_s, second.drops_s) == (1e6, 0.0, 2.0, 0.5)
    machine.replace("66967987000", "5")
    (third,) = reader.read(4 * SECOND, NONE)
    assert third.receive_bytes_s == Missing("counter was reset")
    used = frozenset(["eth1.100"])
    for second, old, new in ((5, "eth1", "eth1"), (6, "eth1", "eth9"), (7, "eth9", "eth1")):
        machine.replace(f"{old}.100", f"{new}.100")
        back = {one.interface: one for one in reader.read(second * SECOND, used)}
    assert back["eth1.100"].receive_bytes_s == Missing("needs a second reading")


def test_infiniband_counts_four_bytes_a_unit(machine):
    counters = {"port_rcv_data": 1000, "port_xmit_data": 500, "port_rcv_errors": 0}
    machine.port("mlx5_0", **counters)
    machine.port("mlx5_1", state="1: DOWN", **counters)
    reader = machine.reader()
    reader.read(SECOND, NONE)
    machine.port("mlx5_0", port_rcv_data=251_000, port_xmit_data=500, port_rcv_errors=3)
    ports = [one for one in reader.read(2 * SECOND, frozenset(["mlx5_0"])) if one.kind == "ib"]
    (port,) = ports
    assert (port.interface, port.used_by_job) == ("mlx5_0/1", True)
    assert (port.receive_bytes_s, port.send_bytes_s, port.errors_s) == (1e6, 0.0, 3.0)
    assert port.drops_s == Missing("the port has no port_xmit_discards")


@given(st.dictionaries(st.text("abc0", min_size=1, max_size=3), st.integers(0, 99), max_size=40), st.data())
def test_choice_is_bounded_and_used_ones_come_first(traffic, data):
    counters = {name: network.InterfaceCounters(count, 0, 0, 0) for name, count in traffic.items()}
    used = set(data.draw(st.lists(st.sampled_from(sorted(traffic)), max_size=5))) if traffic else set()
    chosen = network.choose_interfaces(counters, set(), used)
    assert len(chosen) <= network.MOST_INTERFACES
    assert set(chosen[: len(used)]) == used


def test_the_network_is_read_of_a_rank_that_lives(machine):
    """Its launcher died, or an older rank ended; the interfaces of its namespace are the same."""
    shutil.copytree(machine.proc / "7", machine.proc / "8", symlinks=True)
    ranks = [7, 8]
    reader = network.NetworkReader(lambda: ranks[0], str(machine.proc), str(machine.sys))
    assert is_known(reader.read(SECOND, NONE))
    shutil.rmtree(machine.proc / "7")
    assert reader.read(2 * SECOND, NONE) == Missing("the process is gone")
    ranks.remove(7)
    samples = reader.read(3 * SECOND, NONE)
    assert [one.interface for one in samples] == ["enp65s0f0np0"]


def test_real_loopback_carries_what_is_sent(pair):
    client, peer = pair
    reader = network.NetworkReader(os.getpid)
    used = frozenset(["lo"])
    before = time.monotonic_ns()
    reader.read(before, used)
    client.sendall(bytes(200_000))
    received = 0
    while received < 200_000:
        received += len(peer.recv(1 << 20))
    after = time.monotonic_ns()
    samples = {one.interface: one for one in reader.read(after, used)}
    assert samples["lo"].receive_bytes_s * (after - before) / 1e9 >= 200_000


@contextmanager
def in_own_network():
    """Run a process in a network namespace of its own, or skip with the reason."""
    with closing(Child("say(ctypes.CDLL(None).unshare(0x40000000))\nhear()")) as one:
        if one.hear() != "0":
            pytest.skip("not permitted to make a network namespace")
        yield one.pid


def test_real_namespace_of_the_target_is_the_one_that_is_read():
    assert network.same_network_namespace(os.getpid()) is True
    with in_own_network() as pid:
        assert network.same_network_namespace(pid) is False
        samples = network.NetworkReader(lambda: pid).read(SECOND, NONE)
        # A new namespace has a loopback only, which nobody uses.
        assert samples == ()
        apart = Missing("target is in another network namespace (doctor: place)")
        assert network.SocketReader().read([pid], 0) == apart, "it is not ours to ask"
    assert isinstance(network.same_network_namespace(pid), Missing)
    assert network.SocketReader().read([pid], 0) == Missing("the process is gone")
    assert isinstance(network.SocketReader().read([], 0), Missing)


DUMP = (Path(__file__).parents[2] / "data" / "sockets" / "dump.bin").read_bytes()
"""A loopback pair: 102525 filled the buffer of 102526, which read nothing and sent one byte."""

NEWER = 102525


def reading(sockets: network.SocketReader, pids, now_ns: int = 0):
    found = sockets.read(pids, now_ns)
    assert is_known(found), found
    return found


def parse_dump(data: bytes, inodes: set[int]) -> tuple[list[network.TcpSocket], int, bool]:
    """Return the sockets of a datagram that are wanted, how many there are, and whether it is the last."""
    messages, last = network.parse_messages(data)
    return network.parse_sockets(messages, inodes), len(messages), last


def test_captured_dump_agrees_with_ss_and_a_sum_takes_the_newest_movement_and_adds_losses():
    (found,), seen, last = parse_dump(DUMP, {NEWER})
    assert found == network.TcpSocket(NEWER, "127.0.0.1", "127.0.0.1", 1352, 352, retransmits=0, unsent_bytes=2001920)
    assert (seen, last) == (2, True)
    assert parse_dump(DUMP, set()) == ([], 2, True), "those of others are counted and left out"
    two = replace(found, last_sent_ms=40, last_received_ms=9000, retransmits=3, unsent_bytes=10)
    total = network.sum_up([found, two])
    assert (total.connections, total.last_send_s, total.last_receive_s) == (2, 0.04, 0.352)
    assert (total.retransmits, total.unsent_bytes) == (3, 2001930)
    none = network.sum_up([])
    assert (none.connections, none.retransmits, none.last_send_s) == (0, 0, Missing("no connection"))


def test_short_tcp_info_of_an_old_kernel_is_missing_not_zero():
    _, kind, *rest = struct.unpack_from("=IHHII", DUMP)
    # The fixed part, and tcp_info cut to the length it had in Linux 2.6 (104 bytes).
    body = DUMP[16 : 16 + 72] + struct.pack("=HH", 4 + 104, 2) + bytes(44) + struct.pack("=I", 77) + bytes(56)
    old = struct.pack("=IHHII", 16 + len(body), kind, *rest) + body
    (found,), _, _ = parse_dump(old, {NEWER, 102526})
    assert found.last_sent_ms == 77
    assert isinstance(found.unsent_bytes, Missing)
    assert network.sum_up([found]).unsent_bytes == Missing("this kernel does not tell it")
    assert network.sum_up([replace(found, last_sent_ms=found.unsent_bytes)]).last_send_s == found.unsent_bytes


def test_kernel_error_is_raised_with_its_number():
    refused = struct.pack("=IHHII", 20, 2, 0, 0, 0) + struct.pack("=i", -errno.EPERM)
    with pytest.raises(PermissionError):
        network.parse_messages(refused)
    for cut in (struct.pack("=IHHII", 100, 20, 0, 0, 0), struct.pack("=IHHII", 16, 20, 0, 0, 0)):
        with pytest.raises(ValueError, match="cut"):
            network.parse_messages(cut)
    assert network.parse_messages(struct.pack("=IHHIIi", 20, 3, 0, 0, 0, 0)) == ([], True)


@given(st.binary(max_size=200), st.integers(0, len(DUMP)))
def test_damaged_dumps_end_in_an_answer_or_a_plain_error(noise, cut):
    for data in (noise, DUMP[:cut], DUMP[:cut] + noise):
        try:
            parse_dump(data, {NEWER})
        except (OSError, ValueError):
            continue


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        (socket.inet_pton(socket.AF_INET6, "fe80::1"), "fe80::1"),
        (bytes(10) + b"\xff\xff" + socket.inet_aton("10.1.2.3"), "10.1.2.3"),
    ],
)
def test_ipv6_and_mapped_addresses(raw, address):
    data = bytearray(DUMP)
    data[16], data[16 + 8 : 16 + 24] = socket.AF_INET6, raw
    assert parse_dump(bytes(data), {NEWER, 102526})[0][0].local_address == address


@pytest.mark.parametrize(
    ("addresses", "name"),
    [
        (("127.0.0.1", "127.0.0.1"), "lo"),
        (("10.0.0.5", "10.0.0.9"), "eth0"),
        # Two ranks of one machine that talk by its outer address never leave it.
        (("10.0.0.5", "10.0.0.5"), "lo"),
        (("192.0.2.1", "10.0.0.9"), ""),
        (("127.0.1.1", "10.0.0.9"), "lo"),
    ],
)
def test_interface_of_a_connection(addresses, name):
    one = network.TcpSocket(NEWER, *addresses, 0, 0, retransmits=0, unsent_bytes=0)
    assert network.find_interface(one, {"10.0.0.5": "eth0", "127.0.0.1": "lo"}) == name


def test_descriptors_are_told_by_their_links(tmp_path):
    for pid, links in ((7, ["socket:[11]", "pipe:[12]", "/dev/infiniband/uverbs0"]), (8, ["socket:[13]"])):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        for number, link in enumerate(links):
            (tmp_path / str(pid) / "fd" / str(number)).symlink_to(link)
    (tmp_path / "class/infiniband_verbs/uverbs0").mkdir(parents=True)
    (tmp_path / "class/infiniband_verbs/uverbs0/ibdev").write_text("mlx5_3\n")
    found = network.read_descriptors([7, 8, 9], str(tmp_path), str(tmp_path))
    assert (found.inodes, found.devices) == ({11, 13}, {"mlx5_3"})
    assert network.read_descriptors([9], str(tmp_path)) == Missing("the process is gone")


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


def test_real_pair_last_movement_grows_and_falls_and_what_the_peer_does_not_read_is_unsent(pair):
    client, peer = pair
    client.sendall(b"x")
    peer.recv(1)
    seen = []
    assert wait_until(lambda: seen.extend(network.read_established({inode(client)})) or seen[-1].last_sent_ms >= 100)
    (waiting,) = network.read_established({inode(peer)})
    assert waiting.last_received_ms >= 100
    client.sendall(b"y")
    peer.recv(1)
    (fresh,) = network.read_established({inode(client)})
    assert fresh.last_sent_ms < seen[-1].last_sent_ms
    (received,) = network.read_established({inode(peer)})
    assert received.last_received_ms < waiting.last_received_ms + 100
    client.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(1000):
            client.send(bytes(65536))
    (stuck,) = network.read_established({inode(client)})
    assert stuck.unsent_bytes > 0


def test_real_job_is_this_process(pair):
    sockets = network.SocketReader()
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
