"""Measure waits between ranks and the data that moves between them. Pure.

Stacks tell and, on CPUs, how often the main thread was in a lock: the longer counts. A GPU rank also waits
while its collective's kernel spins: its card is busy and hollow, its main thread in a synchronise. How hollow
the card is says nothing about how long: the main thread does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.card_use import (
    HOLLOW_POWER_RATIO,
    SLACK_RATIO,
    find_unseen_cards,
    judge_hollow,
    rank_slack,
)
from tpmon.judge.features.cards import QUIET_LINK_BYTES_S, CardScene, cards_of
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Scene, demand_of
from tpmon.judge.features.standstill import fresh_phase, name_rank
from tpmon.judge.stacks.profile import Phase, RankPhases, share_of
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import NO_NVLINK, GpuSample
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.units import format_bytes

COMM_DEMAND = 0.2
"""Demand of a rank's communication threads above which they move data; gloo idles at 0.02."""
NIC_BYTES_S = 50e6
"""Bytes/s of the job's interface above which the network works: 40 % of a gigabit link."""
LINK_BYTES_S = 1e9
"""NVLink or PCIe bytes/s above which a collective moves data; one that spins moves under 5 MiB/s."""
MUCH_NVLINK_BYTES_S = 50e9
"""NVLink bytes/s, both ways, that may take a tenth of the time: the maximum is 300e9 to 900e9."""
MUCH_PCIE_BYTES_S = 5e9
"""The same for PCIe: the maximum is 32e9 with 16 lanes of generation 3, 63e9 of generation 4."""


def _comm_demand(scene: Scene) -> Known[float]:
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


def count_wakings(scene: Scene) -> Known[float]:
    """Return how often a second the typical rank is put on a CPU: each small message wakes it some times."""
    return median_known(
        median_known(
            one.switches_s for frame in scene.frames for one in frame.processes if one.pid == rank.process.pid
        )
        for rank in scene.ranks
    )


def exchanged_bytes_s(uuid: str, scene: Scene) -> Known[float]:
    """Return what one card's PCIe link moves both ways, bytes/s, median over the span."""
    return median_known(
        _pcie_bytes_s(one) for frame in scene.frames for one in known_or(frame.gpus, ()) if one.uuid == uuid
    )


def _on_cards(scene: Scene, read: Callable[[GpuSample], Known[float]]) -> Known[float]:
    """Return the figure of the job's card that has least of it, median over the span."""
    values: dict[str, list[Known[float]]] = {card.last.uuid: [] for card in scene.gpus}
    for frame in scene.frames:
        for sample in known_or(frame.gpus, ()):
            if sample.uuid in values:
                values[sample.uuid].append(read(sample))
    known = [median for one in values.values() if is_known(median := median_known(one))]
    return min(known) if known else Missing("no link of a card was read")


def _nvlink_bytes_s(card: GpuSample) -> Known[float]:
    return join_known(operator.add, card.nvlink_tx_bytes_s, card.nvlink_rx_bytes_s)


def _pcie_bytes_s(card: GpuSample) -> Known[float]:
    """Return what goes both ways: ranks send as much as they receive, batches only go to the card."""
    return join_known(lambda out, back: 2 * min(out, back), card.pcie_tx_bytes_s, card.pcie_rx_bytes_s)


def find_traffic(scene: Scene) -> tuple[float, tuple[FigureReading, ...], tuple[FigureReading, ...]]:
    """Return how far traffic is past its thresholds (0: none), the figures that are, and the others."""
    nvlink, pcie = _on_cards(scene, _nvlink_bytes_s), _on_cards(scene, _pcie_bytes_s)
    rows: tuple[tuple[Figure, Known[float], float], ...] = (
        (Figure.COMM_THREADS, _comm_demand(scene), COMM_DEMAND),
        (Figure.NETWORK, nic_bytes_s(scene), NIC_BYTES_S),
        (Figure.NVLINK, nvlink, LINK_BYTES_S),
        (Figure.PCIE, pcie, LINK_BYTES_S),
    )
    known = [
        (reading(figure, value, scene.frame), value / limit)
        for figure, value, limit in rows
        if is_known(value)
    ]
    moves = tuple(row for row, ratio in known if ratio >= 1)
    rest = tuple(row for row, ratio in known if ratio < 1)
    return max((ratio for _, ratio in known if ratio >= 1), default=0.0), moves, rest


def find_exchange(scene: Scene) -> tuple[FigureReading, ...]:
    """Return traffic so large that it may take a good part of the time; () for none.

    Less only shows that the ranks exchange gradients, as all do: NVLink has hundreds of GB/s. Network traffic
    counts as data if no rank runs on another machine.
    """
    world = scene.frame.target.world_size
    away = is_known(world) and world > len(scene.ranks)
    network = nic_bytes_s(scene) if away else Missing("every rank runs here")
    rows: tuple[tuple[Figure, Known[float], float], ...] = (
        (Figure.NETWORK, network, NIC_BYTES_S),
        (Figure.NVLINK, _on_cards(scene, _nvlink_bytes_s), MUCH_NVLINK_BYTES_S),
        (Figure.PCIE, _on_cards(scene, _pcie_bytes_s), MUCH_PCIE_BYTES_S),
    )
    return tuple(
        reading(figure, value, scene.frame)
        for figure, value, limit in rows
        if is_known(value) and value >= limit
    )


def exchange_unread(scene: Scene) -> tuple[str, ...]:
    """Say which link between the ranks was not read; a card without NVLink has none there."""
    world = scene.frame.target.world_size
    away = isinstance(world, Missing) or (is_known(world) and world > len(scene.ranks))
    network = nic_bytes_s(scene) if away else 0.0
    has_nvlink = any(card.last.nvlink_tx_bytes_s != NO_NVLINK for card in scene.gpus)
    rows: tuple[tuple[str, Known[float]], ...] = (
        ("the network", network),
        (Figure.NVLINK.label, _on_cards(scene, _nvlink_bytes_s) if has_nvlink else 0.0),
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
    """Tell whether bytes of any link or interface were read: else nobody knows that little moves."""
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


LEAST_SAMPLES = 10
"""Stack samples of a rank below which they say nothing about its waits."""
AGREE_RATIO = 0.15
"""Difference up to which two sets of a few dozen samples agree."""
SPINNING_RATIO = 0.2
"""Share in a synchronise or collective that makes a hollow card one that waits, not one of launches."""


@dataclass(frozen=True, slots=True)
class RankWait:
    """Hold the share of a rank's time in collectives, the upper end of its interval, and its origins."""

    rank: RankScene
    ratio: float
    high: float
    origins: frozenset[Origin]


def _has_comm_threads(rank: RankScene) -> bool:
    return any(group.kind is ThreadKind.COMM for group in rank.process.thread_groups)


def _by_stacks(rank: RankScene) -> Known[RankWait]:
    if not is_known(rank.phases):
        return rank.phases
    if rank.phases.samples < LEAST_SAMPLES:
        return Missing(f"{rank.phases.samples} stack samples are too few")
    share = rank.phases.share(Phase.COMMS)
    return RankWait(rank, share.ratio, share.high, frozenset((Origin.STACKS,)))


def _by_looks(rank: RankScene, scene: Scene) -> Known[RankWait]:
    """Read the lock waits of a CPU rank; with cards or a pin thread a lock may be another."""
    main = rank.main
    if not is_known(main):
        return main
    if scene.cards or (rank.loader is not None and rank.loader.pin_thread):
        return Missing("a lock of the main thread has other reasons here")
    if not _has_comm_threads(rank):
        return Missing("the rank has no communication threads")
    share = share_of(round((main.lock + main.timed_lock) * main.looks), main.looks)
    return RankWait(rank, share.ratio, share.high, frozenset((Origin.PROC,)))


def _may_be_collective(rank: RankScene, phases: RankPhases, cards: Sequence[CardScene]) -> bool:
    """Tell whether more than a synchronise shows collectives: frames, threads, or links at rest."""
    links = [card.link_bytes_s for card in cards]
    return (
        phases.ratio(Phase.COMMS) > 0
        or _has_comm_threads(rank)
        or all(is_known(one) and one < QUIET_LINK_BYTES_S for one in links)
    )


def _by_card(rank: RankScene, scene: Scene) -> Known[RankWait] | None:
    """Read a collective that spins on the card: busy, hollow, and the host waits for it.

    None where the card shows no wait: it works, or does little while the host does not wait (tiny kernels).
    """
    cards = cards_of(rank.process.pid, scene.gpus)
    if not cards:
        return None
    hollow = [judge_hollow(card) for card in cards]
    unread = next((one for one in hollow if isinstance(one, Missing)), None)
    if unread is not None:
        return unread
    if not all(hollow):
        return None
    if not is_known(rank.phases):
        return Missing(f"the card is hollow, and why is not known yet: {rank.phases.reason}")
    slack = rank_slack(rank, scene)
    held = rank.phases.share(Phase.SYNC, Phase.COMMS)
    if held.ratio < SPINNING_RATIO or not is_known(slack) or slack.ratio - held.ratio >= SLACK_RATIO:
        return None
    if not _may_be_collective(rank, rank.phases, cards):
        return None
    origins = slack.origins | {Origin.STACKS}
    return RankWait(rank, min(held.ratio, slack.ratio), min(held.high, slack.ratio), origins)


def _within_backward(looks: RankWait) -> RankWait:
    """Count a lock as a collective only as far as the stacks are in one, or in backward.

    DDP waits for its gradients in C, within backward: no frame tells, but the lock does. Any other lock is
    the program's own, even if the rank came there from backward.
    """
    phases = looks.rank.phases
    if not is_known(phases):
        return looks
    stays = phases.same_place_s > 0
    if stays and fresh_phase(phases) not in (Phase.COMMS, Phase.BACKWARD):
        return replace(looks, ratio=0.0, high=0.0)
    most = phases.share(Phase.COMMS, Phase.BACKWARD)
    return replace(looks, ratio=min(looks.ratio, most.ratio), high=min(looks.high, most.high))


def _wait_of(rank: RankScene, scene: Scene) -> Known[RankWait]:
    by_card = _by_card(rank, scene)
    if by_card is not None:
        return by_card
    stacks, looks = _by_stacks(rank), _by_looks(rank, scene)
    if not is_known(stacks) or not is_known(looks):
        return stacks if is_known(stacks) or not is_known(looks) else looks
    looks = _within_backward(looks)
    longer = max(stacks, looks, key=lambda one: one.ratio)
    if abs(stacks.ratio - looks.ratio) < AGREE_RATIO:
        return replace(longer, origins=stacks.origins | looks.origins)
    return longer


def _left_undone(card: CardScene) -> Known[float]:
    """Return the largest share of the time, 0-1, in which a busy card may have waited for other ranks.

    By SM activity, what is left of it; by power, where it lies between a spinning kernel and the limit.
    """
    if is_known(card.sm_active_pct):
        return max(0.0, 1 - card.sm_active_pct / 100)
    return map_known(lambda work: max(0.0, (1 - work) / (1 - HOLLOW_POWER_RATIO)), card.work_ratio)


def _as_far_as_cards_wait(wait: RankWait, scene: Scene) -> RankWait:
    """Count the host's wait in a collective only as far as its cards had nothing else to do.

    Some collectives synchronise: the host is in their frames while the card does earlier work.
    """
    cards = cards_of(wait.rank.process.pid, scene.gpus)
    left = []
    for card in cards:
        hollow, undone = judge_hollow(card), _left_undone(card)
        if not is_known(card.busy_pct) or not is_known(hollow) or not is_known(undone):
            return wait
        left.append(1.0 if hollow else max(undone, 1 - card.busy_pct / 100))
    most = max(left, default=1.0)
    return replace(wait, ratio=min(wait.ratio, most), high=min(wait.high, most))


def find_waits(scene: Scene) -> Known[list[RankWait]]:
    """Return the waits of all ranks of this machine, least first; Missing when one is not known."""
    waits = []
    for rank in scene.ranks:
        wait = _wait_of(rank, scene)
        if not is_known(wait):
            return Missing(f"{name_rank(rank)}: {wait.reason}")
        waits.append(_as_far_as_cards_wait(wait, scene))
    return sorted(waits, key=lambda one: one.ratio) if waits else Missing("no rank was read")


def cards_unread(scene: Scene) -> tuple[str, ...]:
    """Say that cards, or their activity, were not read: a card at work waits for nobody."""
    unseen = find_unseen_cards(scene)
    if unseen:
        return (f"whether cards work meanwhile ({unseen})",)
    figures = [card.sm_active_pct for card in scene.gpus]
    silent = next((one for one in figures if isinstance(one, Missing)), None)
    return () if silent is None else (f"how much of the cards works meanwhile ({silent.reason})",)


def locks_unread(waits: Sequence[RankWait]) -> tuple[str, ...]:
    """Say that only /proc shows a wait: its lock may be one of the program's own."""
    stacks = [one.rank.phases for one in waits]
    silent = next((one for one in stacks if isinstance(one, Missing)), None)
    return () if silent is None else (f"whether its locks are collectives ({silent.reason})",)


BEHIND_RATIO = 0.2
"""How much less than the typical rank a late one waits."""
ALL_WAIT_RATIO = 0.35
"""Share that even the least waiting rank spends in collectives, a third and more: two equal gloo ranks of a
small model exchange gradients for up to a quarter of a step."""
