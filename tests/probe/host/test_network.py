"""Rates of interfaces and InfiniBand ports, of the network that the target sees."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpmon.model.known import Missing, is_known
from tpmon.probe.host.network import (
    MOST_INTERFACES,
    InterfaceCounters,
    NetworkReader,
    choose_interfaces,
    parse_net_dev,
    same_network_namespace,
)

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

    def reader(self) -> NetworkReader:
        return NetworkReader(lambda: 7, str(self.proc), str(self.sys))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_net_dev_columns_and_names_that_touch_their_number():
    found = parse_net_dev((DATA / "net_dev").read_text())
    assert found["enp65s0f0np0"] == InterfaceCounters(66965987000, 131710000, 2 + 1, 17 + 3)
    assert found["lo"] == InterfaceCounters(903193, 903193, 0, 0)
    assert set(found) == {"lo", "ifb0", "docker0", "vethb1a2c3d", "enp65s0f0np0", "eth1.100"}


@given(st.text(max_size=300))
def test_net_dev_of_any_text(text):
    assert isinstance(parse_net_dev(text), dict)


def test_hardware_and_used_interfaces_are_shown_virtual_ones_are_not(machine):
    samples = machine.reader().read(SECOND, NONE)
    assert [one.interface for one in samples] == ["enp65s0f0np0"]
    samples = machine.reader().read(SECOND, frozenset(["lo", "eth1.100", "gone0"]))
    assert [(one.interface, one.used_by_job) for one in samples] == [
        ("lo", True),
        ("eth1.100", True),
        ("enp65s0f0np0", False),
    ]


def test_use_that_is_not_known_is_missing(machine):
    (sample,) = machine.reader().read(SECOND, Missing("sock_diag is not permitted here"))
    assert sample.used_by_job == Missing("sock_diag is not permitted here")


def test_hardware_that_is_down_is_left_out(machine):
    (machine.sys / "class/net/enp65s0f0np0/operstate").write_text("down\n")
    names = [one.interface for one in machine.reader().read(SECOND, NONE)]
    # No hardware is left, so everything with traffic but the loopback is shown.
    assert names == ["enp65s0f0np0", "docker0", "vethb1a2c3d", "eth1.100"]


def test_another_namespace_shows_its_own_busy_interfaces(machine):
    (machine.proc / "7/ns/net").unlink()
    (machine.proc / "7/ns/net").symlink_to("net:[2]")
    names = [one.interface for one in machine.reader().read(SECOND, NONE)]
    assert "docker0" in names
    assert "lo" not in names


def test_rates_are_differences_over_time(machine):
    reader = machine.reader()
    (first,) = reader.read(SECOND, NONE)
    assert first.receive_bytes_s == Missing("needs a second reading")
    machine.replace("66965987000 44108301    2   17", "66967987000 44108301    6   18")
    (second,) = reader.read(3 * SECOND, NONE)
    assert (second.receive_bytes_s, second.send_bytes_s) == (1e6, 0.0)
    assert (second.errors_s, second.drops_s) == (2.0, 0.5)
    machine.replace("66967987000", "5")
    (third,) = reader.read(4 * SECOND, NONE)
    assert third.receive_bytes_s == Missing("counter was reset")


def test_interface_that_comes_back_begins_anew(machine):
    reader = machine.reader()
    used = frozenset(["eth1.100"])
    reader.read(SECOND, used)
    machine.replace("eth1.100", "eth9.100")
    reader.read(2 * SECOND, used)
    machine.replace("eth9.100", "eth1.100")
    back = {one.interface: one for one in reader.read(3 * SECOND, used)}
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


def test_ended_process_is_missing(machine):
    shutil.rmtree(machine.proc / "7")
    assert machine.reader().read(SECOND, NONE) == Missing("the process is gone")


@given(st.dictionaries(st.text("abc0", min_size=1, max_size=3), st.integers(0, 99), max_size=40), st.data())
def test_choice_is_bounded_and_used_ones_come_first(traffic, data):
    counters = {name: InterfaceCounters(count, 0, 0, 0) for name, count in traffic.items()}
    used = set(data.draw(st.lists(st.sampled_from(sorted(traffic)), max_size=5))) if traffic else set()
    chosen = choose_interfaces(counters, set(), used)
    assert len(chosen) <= MOST_INTERFACES
    assert set(chosen[: len(used)]) == used


def test_the_network_is_read_of_a_rank_that_lives(machine):
    """Its launcher died, or an older rank ended; the interfaces of its namespace are the same."""
    shutil.copytree(machine.proc / "7", machine.proc / "8", symlinks=True)
    ranks = [7, 8]
    reader = NetworkReader(lambda: ranks[0], str(machine.proc), str(machine.sys))
    assert is_known(reader.read(SECOND, NONE))
    shutil.rmtree(machine.proc / "7")
    assert reader.read(2 * SECOND, NONE) == Missing("the process is gone")
    ranks.remove(7)
    samples = reader.read(3 * SECOND, NONE)
    assert [one.interface for one in samples] == ["enp65s0f0np0"]


def test_real_loopback_carries_what_is_sent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    reader = NetworkReader(os.getpid)
    used = frozenset(["lo"])
    before = time.monotonic_ns()
    reader.read(before, used)
    client.sendall(bytes(200_000))
    received = 0
    while received < 200_000:
        received += len(peer.recv(1 << 20))
    after = time.monotonic_ns()
    samples = {one.interface: one for one in reader.read(after, used)}
    client.close()
    peer.close()
    assert samples["lo"].receive_bytes_s * (after - before) / 1e9 >= 200_000


@contextmanager
def in_own_network():
    """Run a process in a network namespace of its own, or skip with the reason."""
    program = "import ctypes\nif ctypes.CDLL(None, use_errno=True).unshare(0x40000000): raise SystemExit('refused')\nprint('in', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if process.stdout.readline() != "in\n":
            pytest.skip("not permitted to make a network namespace")
        yield process.pid
        process.stdin.close()


def test_real_namespace_of_the_target_is_the_one_that_is_read():
    assert same_network_namespace(os.getpid()) is True
    with in_own_network() as pid:
        assert same_network_namespace(pid) is False
        samples = NetworkReader(lambda: pid).read(SECOND, NONE)
        # A new namespace has a loopback only, which nobody uses.
        assert samples == ()
    assert isinstance(same_network_namespace(pid), Missing)
