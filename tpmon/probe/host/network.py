"""Read what the network interfaces and InfiniBand ports of the target's network carry.

/proc/PID/net/dev tells of the target's own network namespace. A host that runs containers has
hundreds of virtual interfaces; only those with hardware behind them and those that the job uses
are shown. Some drivers ask their firmware for each counter: call this off the tick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator

from tpmon.model.frozen import dataclass
from tpmon.model.host import LOOPBACK, NetworkSample
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import read_or, read_text
from tpmon.probe.proc.counters import CounterRates

REFRESH_EVERY_NS = 10_000_000_000
MOST_INTERFACES = 16
NAME_LENGTH = 32

_WHATS = ("received", "sent", "errors", "drops")

IB_DATA_UNIT = 4
"""port_rcv_data and port_xmit_data count four bytes each (IBTA, PortCounters)."""


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Hold the totals of one interface or port since it came up."""

    received: Known[int]
    sent: Known[int]
    errors: Known[int]
    drops: Known[int]


@dataclass(frozen=True, slots=True)
class Port:
    """Name one port of an InfiniBand or RoCE device and the directory of its counters."""

    device: str
    port: str
    directory: str


def parse_net_dev(text: str) -> dict[str, InterfaceCounters]:
    """Parse /proc/PID/net/dev (proc_pid_net(5)); lines that do not fit are left out."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        fields = rest.split()
        if len(fields) >= 12 and all(field.isdigit() for field in fields):
            numbers = [int(field) for field in fields]
            found[name.strip()] = InterfaceCounters(
                received=numbers[0],
                sent=numbers[8],
                errors=numbers[2] + numbers[10],
                drops=numbers[3] + numbers[11],
            )
    return found


def same_network_namespace(pid: int, proc: str = "/proc") -> Known[bool]:
    """Tell whether process ``pid`` sees the same network as tpmon (namespaces(7))."""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net") == os.readlink(f"{proc}/self/ns/net")
    except PermissionError as error:
        return Missing(say_refusal(error, "environ"))
    except FileNotFoundError:
        return Missing("the process is gone")


def choose_interfaces(
    counters: dict[str, InterfaceCounters], hardware: Collection[str], used: Collection[str]
) -> list[str]:
    """Choose the interfaces to show: those the job uses and those with hardware behind them.

    Where none has hardware (inside a container) every one with traffic counts; the loopback
    counts only when the job uses it. At most ``MOST_INTERFACES``, the busiest.
    """

    def carried(name: str) -> int:
        return known_or(counters[name].received, 0) + known_or(counters[name].sent, 0)

    physical = [name for name in counters if name in hardware]
    others = [name for name in counters if name != LOOPBACK and carried(name) > 0]
    chosen = {name for name in used if name in counters} | set(physical or others)
    return sorted(chosen, key=lambda name: (name not in used, -carried(name)))[:MOST_INTERFACES]


class NetworkReader:
    """Read the interfaces of a network namespace and the InfiniBand ports of the host.

    The namespace is that of the process that ``find_pid`` names at each look; a descriptor would pin it.
    """

    def __init__(self, find_pid: Callable[[], int], proc: str = "/proc", sys: str = "/sys") -> None:
        self._find_pid = find_pid
        self._pid = 0
        self._proc = proc
        self._sys = sys
        self._rates = CounterRates()
        self._refresh_ns: int | None = None
        self._hardware: frozenset[str] = frozenset()
        self._ports: tuple[Port, ...] = ()

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
        samples = [
            self._sample(name, "nic", counters[name], _among(used, name), now_ns)
            for name in choose_interfaces(counters, self._hardware, names)
        ]
        for port in self._ports:
            label = f"{port.device}/{port.port}"
            in_use = _among(used, port.device)
            samples.append(self._sample(label, "ib", read_port(port), in_use, now_ns))
        self._rates.keep_only({f"{one.interface} {what}" for one in samples for what in _WHATS})
        return tuple(samples)

    def _sample(
        self, name: str, kind: str, counters: InterfaceCounters, used: Known[bool], now_ns: int
    ) -> NetworkSample:
        label = admit_text(name, NAME_LENGTH)
        return NetworkSample(
            interface=label,
            kind=kind,
            used_by_job=used,
            receive_bytes_s=self._rates.rate(f"{label} received", counters.received, now_ns),
            send_bytes_s=self._rates.rate(f"{label} sent", counters.sent, now_ns),
            errors_s=self._rates.rate(f"{label} errors", counters.errors, now_ns),
            drops_s=self._rates.rate(f"{label} drops", counters.drops, now_ns),
        )

    def _look(self) -> None:
        # Another namespace's interfaces are not in our /sys; there the busy ones are shown.
        same = same_network_namespace(self._pid, self._proc)
        self._hardware = frozenset(find_hardware(self._sys)) if is_known(same) and same else frozenset()
        self._ports = tuple(find_ports(self._sys))[:MOST_INTERFACES]


def _among(used: Known[frozenset[str]], name: str) -> Known[bool]:
    return used if isinstance(used, Missing) else name in used


def find_hardware(sys: str) -> Iterator[str]:
    """Yield the interfaces of our own namespace that have a device behind them and are not down."""
    root = f"{sys}/class/net"
    for name in _listed(root):
        if os.path.exists(f"{root}/{name}/device") and _text(f"{root}/{name}/operstate") != "down":
            yield name


def find_ports(sys: str) -> Iterator[Port]:
    """Yield the active InfiniBand and RoCE ports of the host (Documentation/ABI sysfs-class-infiniband)."""
    root = f"{sys}/class/infiniband"
    for device in _listed(root):
        for port in _listed(f"{root}/{device}/ports"):
            directory = f"{root}/{device}/ports/{port}"
            if _text(f"{directory}/state").endswith("ACTIVE"):
                yield Port(device, port, f"{directory}/counters")


def read_port(port: Port) -> InterfaceCounters:
    """Read the counters of one port; one that the device does not have is Missing."""

    def number(name: str) -> Known[int]:
        text = _text(f"{port.directory}/{name}")
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
