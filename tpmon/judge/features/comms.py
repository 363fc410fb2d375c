"""Whether data moves between the ranks: their communication threads, the network, the links. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.judge.answers.result import reading
from tpmon.judge.features.medians import median_known
from tpmon.judge.features.snapshot import Scene, demand_of
from tpmon.model.gpu import NO_NVLINK, GpuSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.units import format_bytes
from tpmon.model.verdict import Evidence

COMM_DEMAND = 0.2
"""Demand of a rank's communication threads from which they move data; gloo idles at 0.02."""
NIC_BYTES_S = 50e6
"""Bytes/s of the job's interface from which the network works: 40 % of a gigabit link."""
LINK_BYTES_S = 1e9
"""NVLink or PCIe bytes/s from which a collective moves data: one that spins moves under 5 MiB/s."""
MUCH_NVLINK_BYTES_S = 50e9
"""NVLink bytes/s, both directions, from which the exchange may take a tenth of the time: all is 300e9 to
900e9."""
MUCH_PCIE_BYTES_S = 5e9
"""The same of PCIe: 32e9 is all that 16 lanes of generation 3 move, 63e9 of generation 4."""
NIC_SOURCE = "interface counters"
LINK_SOURCES = ("NVLink counters", "NVML PCIe counters")
LINK_ROWS = ("NVLink", "PCIe, both ways")
"""Names of the evidence that is read of the cards' own links."""


def _comm_demand(scene: Scene) -> Known[float]:
    """Return the demand of the communication threads of the busiest rank, in threads."""
    values: dict[int, list[Known[float]]] = {}
    for frame in scene.frames:
        for process in frame.processes:
            if process.role is Role.RANK:
                values.setdefault(process.pid, []).append(demand_of(process, (ThreadKind.COMM,)))
    known = [median for one in values.values() if is_known(median := median_known(one))]
    return max(known) if known else Missing("no communication threads were read")


def nic_bytes_s(scene: Scene) -> Known[float]:
    """Return the bytes per second of the busiest interface that the job uses, both directions."""

    def busiest(index: int) -> Known[float]:
        network = scene.frames[index].network
        if not is_known(network):
            return network
        rates = [
            one.receive_bytes_s + one.send_bytes_s
            for one in network
            if is_known(one.used_by_job)
            and one.used_by_job
            and is_known(one.receive_bytes_s)
            and is_known(one.send_bytes_s)
        ]
        return max(rates) if rates else Missing("no interface of the job was read")

    return median_known(busiest(index) for index in range(len(scene.frames)))


def exchanged_bytes_s(uuid: str, scene: Scene) -> Known[float]:
    """Return what one card's PCIe link moves both ways, bytes/s, the median over the span."""
    return median_known(
        _pcie_bytes_s(one) for frame in scene.frames for one in known_or(frame.gpus, ()) if one.uuid == uuid
    )


def _on_cards(scene: Scene, read: Callable[[GpuSample], Known[float]]) -> Known[float]:
    """Return the figure of the job's card that has least of it, the median over the span."""
    values: dict[str, list[Known[float]]] = {card.last.uuid: [] for card in scene.gpus}
    for frame in scene.frames:
        for sample in known_or(frame.gpus, ()):
            if sample.uuid in values:
                values[sample.uuid].append(read(sample))
    known = [median for one in values.values() if is_known(median := median_known(one))]
    return min(known) if known else Missing("no link of a card was read")


def _nvlink_bytes_s(card: GpuSample) -> Known[float]:
    sent, received = card.nvlink_tx_bytes_s, card.nvlink_rx_bytes_s
    if not is_known(sent) or not is_known(received):
        return sent if isinstance(sent, Missing) else received
    return sent + received


def _pcie_bytes_s(card: GpuSample) -> Known[float]:
    """Return what goes both ways: ranks exchange as much as they get, batches go to the card only."""
    sent, received = card.pcie_tx_bytes_s, card.pcie_rx_bytes_s
    if not is_known(sent) or not is_known(received):
        return sent if isinstance(sent, Missing) else received
    return 2 * min(sent, received)


def find_traffic(scene: Scene) -> tuple[float, set[str], tuple[Evidence, ...]]:
    """Return how far traffic is past its thresholds (0: none), what shows it, and the evidence."""
    age = scene.frame.ages_s
    nvlink, pcie = _on_cards(scene, _nvlink_bytes_s), _on_cards(scene, _pcie_bytes_s)
    rows: tuple[tuple[str, Known[float], float, str, str, Known[float]], ...] = (
        ("communication threads", _comm_demand(scene), COMM_DEMAND, "threads", "schedstat", age.threads),
        ("network", nic_bytes_s(scene), NIC_BYTES_S, "bytes/s", NIC_SOURCE, age.io),
        (LINK_ROWS[0], nvlink, LINK_BYTES_S, "bytes/s", LINK_SOURCES[0], age.gpu),
        (LINK_ROWS[1], pcie, LINK_BYTES_S, "bytes/s", LINK_SOURCES[1], age.gpu),
    )
    margin = 0.0
    sources: set[str] = set()
    evidence = []
    for name, value, limit, unit, source, how_old in rows:
        if is_known(value):
            evidence.append(reading(name, value, unit, source, how_old))
            if value >= limit:
                margin = max(margin, value / limit)
                sources.add(source)
    return margin, sources, tuple(evidence)


def find_exchange(scene: Scene) -> tuple[Evidence, ...]:
    """Return what moves in such amounts that it may take a good part of the time; () where nothing does.

    Less tells no more than that the ranks exchange gradients, as all do: NVLink has hundreds of GB/s. What
    comes over the network is data where no rank runs on another machine.
    """
    age, world = scene.frame.ages_s, scene.frame.target.world_size
    away = is_known(world) and world > len(scene.ranks)
    network = nic_bytes_s(scene) if away else Missing("every rank runs here")
    rows: tuple[tuple[str, Known[float], float, str, Known[float]], ...] = (
        ("network", network, NIC_BYTES_S, NIC_SOURCE, age.io),
        (LINK_ROWS[0], _on_cards(scene, _nvlink_bytes_s), MUCH_NVLINK_BYTES_S, LINK_SOURCES[0], age.gpu),
        (LINK_ROWS[1], _on_cards(scene, _pcie_bytes_s), MUCH_PCIE_BYTES_S, LINK_SOURCES[1], age.gpu),
    )
    return tuple(
        reading(name, value, "bytes/s", source, how_old)
        for name, value, limit, source, how_old in rows
        if is_known(value) and value >= limit
    )


def exchange_unread(scene: Scene) -> tuple[str, ...]:
    """Say which link that ranks may exchange data over was not read; a card without NVLink has none there."""
    world = scene.frame.target.world_size
    away = isinstance(world, Missing) or (is_known(world) and world > len(scene.ranks))
    network = nic_bytes_s(scene) if away else 0.0
    has_nvlink = any(card.last.nvlink_tx_bytes_s != NO_NVLINK for card in scene.gpus)
    rows: tuple[tuple[str, Known[float]], ...] = (
        ("the network", network),
        (LINK_ROWS[0], _on_cards(scene, _nvlink_bytes_s) if has_nvlink else 0.0),
        ("PCIe", _on_cards(scene, _pcie_bytes_s)),
    )
    return tuple(
        f"what the ranks exchange over {name} ({value.reason})"
        for name, value in rows
        if isinstance(value, Missing)
    )


def are_links_read(scene: Scene) -> bool:
    """Tell whether NVLink or PCIe bytes of the job's cards were read."""
    return is_known(_on_cards(scene, _nvlink_bytes_s)) or is_known(_on_cards(scene, _pcie_bytes_s))


def is_traffic_read(scene: Scene) -> bool:
    """Tell whether the bytes of any link or interface were read: else nobody knows that little moves."""
    if are_links_read(scene):
        return True
    world = scene.frame.target.world_size
    if scene.gpus and is_known(world) and world <= len(scene.ranks):
        return False  # between the cards of one machine nothing goes over an interface
    return any(is_known(one.receive_bytes_s) for one in known_or(scene.frame.network, ()))


def say_traffic(scene: Scene) -> str:
    """Say how fast the network works, "" where it does not."""
    rate = nic_bytes_s(scene)
    return f" at {format_bytes(int(rate))}/s" if is_known(rate) and rate >= NIC_BYTES_S else ""
