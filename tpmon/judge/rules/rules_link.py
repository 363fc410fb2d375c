"""The PCIe link of a card, judged under load only: an idle card lowers it on purpose."""

from __future__ import annotations

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure, reading
from tpmon.judge.features.cards import CardScene
from tpmon.judge.features.comms import exchanged_bytes_s
from tpmon.judge.features.rank_waits import find_waits
from tpmon.judge.features.slack import works_all_the_time
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.rules.cards import UNREAD_COST, answer_without_cards, is_loaded, rank_on
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Kind

LINK_LOAD_PCT = 50.0
LINK_USE_RATIO = 0.2
"""Share of the present link's capacity from which a faster one would be felt."""
LINK_RUIN_RATIO = 0.25
"""More than two generations, or than three quarters of the lanes, lost: named even where no counter tells
the traffic. Slots of four lanes are sold for cards of sixteen."""
HIDDEN_IDLE_RATIO = 0.03
"""Share of time that a card idles, or its ranks wait for each other, below which no faster link is felt:
copies beside kernels cost nothing, and a card with a full launch queue reads 97 to 100 %."""
LANE_BYTES_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""PCI Express payload per lane and direction by generation, after line coding."""


def _lane_speed(generation: Known[int], width: Known[int]) -> Known[float]:
    if not is_known(generation):
        return generation
    if not is_known(width):
        return width
    lane = LANE_BYTES_S.get(generation)
    return lane * width if lane and width > 0 else Missing(f"PCIe generation {generation} x{width}")


def _lane_speed_of(card: CardScene) -> Known[float]:
    return _lane_speed(card.last.pcie_generation, card.last.pcie_width)


def _link_ratio(card: CardScene) -> Known[float]:
    """Return the present link's speed over the best that card and slot can."""
    now = _lane_speed_of(card)
    best = _lane_speed(card.last.pcie_generation_max, card.last.pcie_width_max)
    if not is_known(now):
        return now
    return now / best if is_known(best) else best


def _link_use(card: CardScene) -> Known[float]:
    now = _lane_speed_of(card)
    if not is_known(now):
        return now
    return min(1.0, card.pcie_bytes_s / now) if is_known(card.pcie_bytes_s) else card.pcie_bytes_s


def _felt_ratio(card: CardScene, scene: Scene) -> Known[float]:
    """Return the share of time, 0-1, that a faster link could give back: what the card or its ranks wait."""
    idle = map_known(lambda busy: max(0.0, 1 - busy / 100), card.busy_pct)
    world = scene.frame.target.world_size
    if not is_known(idle) or (len(scene.ranks) < 2 and (not is_known(world) or world < 2)):
        return idle
    # Collectives may go over the link, and their kernels count as busy meanwhile: the host of ranks that
    # exchange gradients waits in no call of its own.
    now, exchanged = _lane_speed_of(card), exchanged_bytes_s(card.last.uuid, scene)
    much = is_known(now) and is_known(exchanged) and exchanged / 2 >= LINK_USE_RATIO * now
    if much and not works_all_the_time(card):
        return Missing("the ranks exchange over this link, and the card counts as busy meanwhile")
    waits = find_waits(scene)
    if not is_known(waits):
        return waits
    own = [wait.ratio for wait in waits if wait.rank.process.pid in card.pids]
    return max([idle, *own])


def judge_pcie(scene: Scene) -> Answer:
    """Suspect a downtrained PCIe link, under load, when its traffic would be faster on a whole one."""
    if not scene.gpus:
        return answer_without_cards(scene)
    loaded = [card for card in scene.gpus if is_loaded(card, LINK_LOAD_PCT)]
    if not loaded:
        return Unsure("PCIe link (no card under load: idle ones slow it down on purpose)")
    ratios = [(card, ratio) for card in loaded if is_known(ratio := _link_ratio(card))]
    if not ratios:
        return Unsure("PCIe link (not read)")
    card, ratio = min(ratios, key=lambda pair: pair[1])
    if ratio >= 1.0:
        return Cleared("PCIe link (full width and generation)")
    use = _link_use(card)
    last = card.last
    now = f"generation {last.pcie_generation} x{last.pcie_width}"
    best = f"generation {last.pcie_generation_max} x{last.pcie_width_max}"
    if is_known(use) and use < LINK_USE_RATIO:
        return Cleared(f"PCIe link ({now} of {best}, but only {format_pct(100 * use)} % of it is used)")
    if not is_known(use) and ratio >= LINK_RUIN_RATIO:
        return Unsure(f"PCIe link ({now} of {best}; how much goes over it: {use.reason})")
    felt = _felt_ratio(card, scene)
    if is_known(felt) and felt < HIDDEN_IDLE_RATIO:
        return Cleared(f"PCIe link ({now} of {best}, but copies cost at most {format_pct(100 * felt)} %)")
    cost = use * (1 - ratio) if is_known(use) else UNREAD_COST * (1 - ratio)
    age = scene.frame.ages_s.gpu
    evidence: tuple[Evidence, ...] = (
        reading("link speed of its best", 100 * ratio, "%", "NVML PCIe link", age),
    )
    if is_known(use):
        evidence += (reading("link in use", 100 * use, "%", "NVML PCIe counters", age),)
    return Suspicion(
        kind=Kind.GPU_THROTTLED,
        cause="pcie",
        weight=min(cost, known_or(felt, 1.0)),
        margin=use / LINK_USE_RATIO if is_known(use) else LINK_RUIN_RATIO / ratio,
        sources=frozenset(("NVML PCIe link", "NVML PCIe counters") if is_known(use) else ("NVML PCIe link",)),
        summary=f"card {card.index}'s PCIe link runs as {now}; it can do {best}",
        evidence=evidence,
        observed=frozenset((Need.LINK_DOWN,)),
        card=card.index,
        rank=rank_on(card, scene),
    )


RULES: tuple[Rule, ...] = (judge_pcie,)
