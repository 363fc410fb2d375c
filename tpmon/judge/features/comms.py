"""Measure waits between ranks and the data that moves between them. Pure.

Stacks tell and, on CPUs, how often the main thread was in a lock: the longer counts. A GPU rank also waits
while its collective's kernel spins; for how long, its main thread says.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features import card_use
from tpmon.judge.features.cards import QUIET_LINK_BYTES_S, cards_of, list_samples
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Scene, once
from tpmon.judge.features.standstill import fresh_phase, name_rank
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import share_of
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import NO_NVLINK, GpuSample
from tpmon.model.host import NetworkSample
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.process import ThreadKind
from tpmon.model.units import format_bytes

COMM_DEMAND = 0.2  # demand of a rank's communication threads above which they move data; gloo idles at 0.02
NIC_BYTES_S = 50e6  # bytes/s of the job's interface above which the network works: 40 % of a gigabit link
LINK_BYTES_S = 1e9  # NVLink or PCIe bytes/s above which a collective moves data
MUCH_NVLINK_BYTES_S = 50e9  # NVLink bytes/s, both ways, that may take a tenth of the time
MUCH_PCIE_BYTES_S = 5e9  # the same for PCIe


def nic_bytes_s(scene: Scene) -> Known[float]:
    """Return the bytes per second of the busiest interface that the job uses, both directions."""

    def find_busiest(network: tuple[NetworkSample, ...]) -> Known[float]:
        used = (one for one in network if known_or(one.used_by_job, False))
        sums = (join_known(operator.add, one.receive_bytes_s, one.send_bytes_s) for one in used)
        rates = [one for one in sums if is_known(one)]
        return max(rates, default=Missing("no interface of the job was read"))

    return median_known(map_known(find_busiest, frame.network) for frame in scene.frames)


def count_wakings(scene: Scene) -> Known[float]:
    """Return how often a second the typical rank is put on a CPU: each small message wakes it some times."""
    return median_known(median_known(one.switches_s for one in rank.samples) for rank in scene.ranks)


def measure_card(uuid: str, scene: Scene, read: Callable[[GpuSample], Known[float]]) -> Known[float]:
    """Return the figure of one card, median over the span."""
    return median_known(map(read, list_samples(scene.frames, uuid)))


def _on_cards(scene: Scene, read: Callable[[GpuSample], Known[float]]) -> Known[float]:
    """Return the figure of the job's card that has least of it, median over the span."""
    rates = [rate for card in scene.gpus if is_known(rate := measure_card(card.last.uuid, scene, read))]
    return min(rates, default=Missing("no link of a card was read"))


def find_pcie_bytes_s(card: GpuSample) -> Known[float]:
    """Return what goes both ways: ranks send as much as they receive, batches only go to the card."""
    return join_known(lambda out, back: 2 * min(out, back), card.pcie_tx_bytes_s, card.pcie_rx_bytes_s)


@once
def _read_links(scene: Scene) -> dict[Figure, Known[float]]:
    return {
        Figure.NETWORK: nic_bytes_s(scene),
        Figure.NVLINK: _on_cards(
            scene, lambda card: join_known(operator.add, card.nvlink_tx_bytes_s, card.nvlink_rx_bytes_s)
        ),
        Figure.PCIE: _on_cards(scene, find_pcie_bytes_s),
    }


def find_traffic(scene: Scene) -> tuple[float, tuple[FigureReading, ...], tuple[FigureReading, ...]]:
    """Return how far traffic is past its thresholds (0: none), the figures that are, and the others."""
    limits = (COMM_DEMAND, NIC_BYTES_S, LINK_BYTES_S, LINK_BYTES_S)
    wants = [want for rank in scene.ranks if is_known(want := rank.demand_by(ThreadKind.COMM))]
    threads = max(wants, default=Missing("no communication threads were read"))
    values = {Figure.COMM_THREADS: threads, **_read_links(scene)}
    known = [
        (reading(figure, value, scene.frame), value / limit)
        for (figure, value), limit in zip(values.items(), limits, strict=True)
        if is_known(value)
    ]
    moves = tuple(row for row, ratio in known if ratio >= 1)
    rest = tuple(row for row, ratio in known if ratio < 1)
    return max((ratio for _, ratio in known if ratio >= 1), default=0.0), moves, rest


_MUCH = {Figure.NETWORK: NIC_BYTES_S, Figure.NVLINK: MUCH_NVLINK_BYTES_S, Figure.PCIE: MUCH_PCIE_BYTES_S}


def find_exchange(scene: Scene) -> tuple[FigureReading, ...]:
    """Return traffic so large that it may take a good part of the time; () for none."""
    # Less only shows that the ranks exchange gradients, as all do: NVLink has hundreds of GB/s. Network
    # traffic counts as data if no rank runs on another machine.
    return tuple(
        reading(figure, value, scene.frame)
        for figure, value in _read_links(scene).items()
        if is_known(value) and value >= _MUCH[figure] and (scene.elsewhere or figure is not Figure.NETWORK)
    )


def exchange_unread(scene: Scene) -> tuple[str, ...]:
    """Say which link between the ranks was not read; a card without NVLink has none there."""
    names, world = {Figure.PCIE: "PCIe"}, scene.frame.target.world_size
    if isinstance(world, Missing) or scene.elsewhere:
        names[Figure.NETWORK] = "the network"
    if any(card.last.nvlink_tx_bytes_s != NO_NVLINK for card in scene.gpus):
        names[Figure.NVLINK] = "NVLink"
    return tuple(
        f"what the ranks exchange over {names[figure]} ({value.reason})"
        for figure, value in _read_links(scene).items()
        if isinstance(value, Missing) and figure in names
    )


def are_links_read(scene: Scene) -> bool:
    """Tell whether NVLink or PCIe bytes of the job's cards were read."""
    links = _read_links(scene)
    return is_known(links[Figure.NVLINK]) or is_known(links[Figure.PCIE])


def is_traffic_read(scene: Scene) -> bool:
    """Tell whether bytes of any link or interface were read: else nobody knows that little moves."""
    if are_links_read(scene):
        return True
    if scene.gpus and is_known(scene.frame.target.world_size) and not scene.elsewhere:
        return False  # between the cards of one machine nothing goes over an interface
    return any(is_known(one.receive_bytes_s) for one in known_or(scene.frame.network, ()))


def say_traffic(scene: Scene) -> str:
    """Say how fast the network works, "" where it does not."""
    rate = nic_bytes_s(scene)
    return f" at {format_bytes(int(rate))}/s" if is_known(rate) and rate >= NIC_BYTES_S else ""


LEAST_SAMPLES = 10  # stack samples of a rank below which they say nothing about its waits
AGREE_RATIO = 0.15  # difference up to which two sets of a few dozen samples agree
SPINNING_RATIO = 0.2  # share in a synchronise or collective from which a hollow card waits


@dataclass(frozen=True, slots=True)
class RankWait:
    """Hold the share of a rank's time in collectives, the upper end of its interval, and its origins."""

    rank: RankScene
    ratio: float
    high: float
    origins: frozenset[Origin]

    def at_most(self, ratio: float, high: float) -> RankWait:
        """Return the wait as far as something else leaves it."""
        return replace(self, ratio=min(self.ratio, ratio), high=min(self.high, high))


def _has_comm_threads(rank: RankScene) -> bool:
    return any(group.kind is ThreadKind.COMM for group in rank.process.thread_groups)


def _by_stacks(rank: RankScene) -> Known[RankWait]:
    phases = rank.phases
    if not is_known(phases) or phases.samples < LEAST_SAMPLES:
        return Missing(f"{phases.samples} stack samples are too few") if is_known(phases) else phases
    share = phases.share(Phase.COMMS)
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


def _by_card(rank: RankScene, scene: Scene) -> Known[RankWait] | None:
    """Read a collective that spins on the card: busy, hollow, and the host waits for it."""
    # None where the card shows no wait: it works, or does little while the host does not wait (tiny kernels).
    cards = cards_of(rank.process.pid, scene.gpus)
    if not cards:
        return None
    hollow = [card_use.judge_hollow(card) for card in cards]
    unread = next((one for one in hollow if isinstance(one, Missing)), None)
    if unread is not None:
        return unread
    if not all(hollow):
        return None
    if not is_known(rank.phases):
        return Missing(f"the card is hollow, and why is not known yet: {rank.phases.reason}")
    slack = card_use.rank_slack(rank, scene)
    held = rank.phases.share(Phase.SYNC, Phase.COMMS)
    if held.ratio < SPINNING_RATIO or not is_known(slack) or slack.ratio - held.ratio >= card_use.SLACK_RATIO:
        return None
    rests = all(known_or(card.link_bytes_s, math.inf) < QUIET_LINK_BYTES_S for card in cards)
    # More than a synchronise must show collectives: frames, threads, or links at rest.
    if not (rests or rank.phases.ratio(Phase.COMMS) > 0 or _has_comm_threads(rank)):
        return None
    origins = frozenset((Origin.DRIVER, Origin.STACKS))
    return RankWait(rank, min(held.ratio, slack.ratio), min(held.high, slack.ratio), origins)


def _within_backward(looks: RankWait) -> RankWait:
    """Count a lock as a collective only as far as the stacks are in one, or in backward."""
    # DDP waits for its gradients in C, within backward: no frame tells, but the lock does. Any other lock is
    # the program's own, even if the rank came there from backward.
    phases = looks.rank.phases
    if not is_known(phases):
        return looks
    if phases.same_place_s > 0 and fresh_phase(phases) not in (Phase.COMMS, Phase.BACKWARD):
        return looks.at_most(0.0, 0.0)
    most = phases.share(Phase.COMMS, Phase.BACKWARD)
    return looks.at_most(most.ratio, most.high)


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


def _as_far_as_cards_wait(wait: RankWait, scene: Scene) -> RankWait:
    """Count the host's wait in a collective only as far as its cards had nothing else to do."""
    # Some collectives synchronise: the host is in their frames while the card does earlier work.
    left = []
    for card in cards_of(wait.rank.process.pid, scene.gpus):
        # By SM activity, what is left of it; by power, where it is between a spinning kernel and the limit.
        works = map_known(lambda pct: pct / 100, card.sm_active_pct)
        if not is_known(works):
            works = map_known(
                lambda work: 1 - (1 - work) / (1 - card_use.HOLLOW_POWER_RATIO), card.work_ratio
            )
        hollow = card_use.judge_hollow(card)
        if not is_known(card.busy_pct) or not is_known(hollow) or not is_known(works):
            return wait
        left.append(1.0 if hollow else max(0.0, 1 - works, 1 - card.busy_pct / 100))
    most = max(left, default=1.0)
    return wait.at_most(most, most)


@once
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
    unseen = card_use.find_unseen_cards(scene)
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


BEHIND_RATIO = 0.2  # how much less than the typical rank a late one waits
ALL_WAIT_RATIO = 0.35  # share that even the least waiting rank spends in collectives, a third and more
