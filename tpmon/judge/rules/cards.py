"""Judge what holds down a card's clocks and PCIe link, under load only: idle cards are slow on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Suspicion, by_conditions
from tpmon.judge.features import card_holds as holds
from tpmon.judge.features.card_use import works_all_the_time
from tpmon.judge.features.cards import BUSY_PCT, CardScene, held_pct
from tpmon.judge.features.comms import find_pcie_bytes_s, find_waits, measure_card
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.units import say_ratio
from tpmon.model.verdict import Kind

COOL_MARGIN_C = 10.0
UNREAD_COST = 0.2


def _need_reasons(proof: Proof, scene: Scene) -> None:
    holds.need_cards(scene)
    known = [card.last.throttle_known for card in scene.gpus]
    if not any(map(is_known, known)):
        proof.known(known[0])


def _add_reasons(proof: Proof, card: CardScene, reasons: Iterable[str]) -> None:
    for one in card.last.throttle_shares:
        if one.reason in reasons:
            source = f"NVML reason {one.source}"
            proof.add(Figure.CLOCK_REASON, one.pct / 100, of=one.reason, source=source)


def _suspect(
    proof: Proof, card: CardScene, cause: str, lost: Known[float], why: str, *, need: Need, alone: bool = True
) -> Suspicion:
    """Suspect what holds a card; ``alone``: nothing else explains its low clock."""
    ratio = known_or(card.clock_ratio, 1.0)
    slow = ratio < BUSY_PCT / 100
    clock = f" at {say_ratio(ratio)} of its clock" if slow and alone else ""
    proof.add(Figure.GPU_CLOCK, card.clock_ratio)
    return proof.suspect(
        Kind.GPU_THROTTLED,
        cause,
        known_or(lost, UNREAD_COST),
        f"card {card.index} is held{clock}: {why}",
        need,
        share=lost if is_known(lost) and slow else NOT_APPLICABLE,
        card=card.index,
        rank=holds.rank_on(card, proof.scene),
    )


@by_conditions
def _judge_held(
    scene: Scene, *, name: str, cause: str, reasons: holds.Reasons, none: str, need: Need
) -> Answer:
    held = Proof(name, scene)
    _need_reasons(held, scene)
    touched = [
        (card, holds.lost_to(card, reasons, scene))
        for card in scene.gpus
        if holds.is_touched(card, reasons) and holds.is_loaded(card, holds.LOADED_PCT)
    ]
    held.clear(not touched, none)
    known = [(card, lost) for card, lost in touched if is_known(lost)]
    card, lost = max(known, key=lambda pair: pair[1], default=touched[0])
    if is_known(lost) and lost < holds.LEAST_LOSS:
        unread = [pair for pair in touched if not is_known(pair[1])]
        held.clear(not unread, f"it costs card {card.index} {say_ratio(lost)} of its time")
        card, lost = unread[0]
    _add_reasons(held, card, (*reasons, "HW slowdown") if reasons == holds.BRAKE else reasons)
    why = "the external power brake, so the power supply or the chassis"
    if reasons == holds.THERMAL:
        held.show(Figure.GPU_TEMPERATURE, card.last.temperature_c)
        why = _say_heat(card)
    held.margin = min(
        holds.longest_held(card, reasons) / holds.COUNTER_PCT,
        known_or(lost, holds.LEAST_LOSS) / holds.LEAST_LOSS,
    )
    return _suspect(held, card, cause, lost, why, need=need, alone=not holds.is_held_by_others(card, reasons))


def _say_heat(card: CardScene) -> str:
    reason, margin_c = "", card.last.temperature_margin_c
    if held_pct(card, "HW thermal") > 0:
        reason = "hardware protection against heat"
    if is_known(margin_c) and margin_c >= COOL_MARGIN_C:
        said = reason or "a thermal reason"
        return f"{said}, though the core has {margin_c:.0f} C left: memory, hot spot or power stage"
    return reason or "it is hot"


judge_thermal = partial(
    _judge_held,
    name="heat of the cards",
    cause="thermal",
    reasons=holds.THERMAL,
    none="no thermal reason",
    need=Need.CARD_HOT,
)
judge_brake = partial(
    _judge_held, name="power brake", cause="brake", reasons=holds.BRAKE, none="not set", need=Need.CARD_BRAKED
)


@proves("caps on the cards")
def judge_odd_cap(caps: Proof, scene: Scene) -> Answer:
    """Suspect a cap that the card's own power limit does not explain."""
    _need_reasons(caps, scene)
    capped = [(card, reason) for card in scene.gpus if (reason := holds.find_odd_cap(card, scene))]
    caps.clear(not capped, "none, or explained by the power limit")
    card, reason = min(capped, key=lambda pair: known_or(pair[0].clock_ratio, 1.0))
    _add_reasons(caps, card, (reason,))
    need = Need.CARD_CAPPED if reason in holds.SET_CLOCKS else Need.CARD_SICK
    caps.margin = holds.LOW_CLOCK_RATIO / max(known_or(card.clock_ratio, 1.0), 0.1)
    why = f"{reason}, not by power or heat"
    if reason == "power cap":
        power = known_or(card.power_ratio, 1.0)
        caps.margin = holds.find_capped_power(held_pct(card, reason)) / max(power, 0.1)
        caps.add(Figure.GPU_POWER, power)
        need, drawn = Need.CARD_CAPPED_ABOVE, say_ratio(power)
        why = f"a power cap although it draws {drawn} of its limit: that of its module, a rail or the rack"
    return _suspect(caps, card, "odd-cap", holds.find_lost_clock(card, scene.frames), why, need=need)


LINK_LOAD_PCT = 50.0
LINK_USE_RATIO = 0.2
LINK_RUIN_RATIO = 0.25
HIDDEN_IDLE_RATIO = 0.03
LANE_BYTES_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}


def _speed(number: int, lanes: int) -> Known[float]:
    lane = LANE_BYTES_S.get(number)
    return lane * lanes if lane and lanes > 0 else Missing(f"PCIe generation {number} x{lanes}")


def _compare(card: CardScene) -> Known[tuple[float, float]]:
    """Return the speed of a card's link over its best, and in bytes per second."""
    last = card.last
    now = join_known(_speed, last.pcie_generation, last.pcie_width)
    best = join_known(_speed, last.pcie_generation_max, last.pcie_width_max)
    return join_known(lambda now_s, best_s: (now_s / best_s, now_s), now, best)


def _felt_ratio(card: CardScene, now_s: float, scene: Scene) -> Known[float]:
    """Return the share of time, 0-1, that a faster link could give back: what the card or its ranks wait."""
    idle = map_known(lambda busy: max(0.0, 1 - busy / 100), card.busy_pct)
    if not is_known(idle) or scene.size < 2:
        return idle
    # Collectives may use the link while their kernels count as busy: the host of ranks that exchange
    # gradients waits in no call of its own.
    exchanged = measure_card(card.last.uuid, scene, find_pcie_bytes_s)
    much = is_known(exchanged) and exchanged / 2 >= LINK_USE_RATIO * now_s
    if much and not works_all_the_time(card):
        return Missing("the ranks exchange over this link, and the card counts as busy meanwhile")
    waits = find_waits(scene)
    if not is_known(waits):
        return waits
    own = [wait.ratio for wait in waits if wait.rank.process.pid in card.pids]
    return max([idle, *own])


@proves("PCIe link")
def judge_pcie(link: Proof, scene: Scene) -> Answer:
    """Suspect a PCIe link below its best, under load, if its traffic would be faster on a whole one."""
    holds.need_cards(scene)
    loaded = [card for card in scene.gpus if holds.is_loaded(card, LINK_LOAD_PCT)]
    link.doubt(not loaded, "no card under load: idle ones slow it down on purpose")
    ratios = [(card, both) for card in loaded if is_known(both := _compare(card))]
    link.doubt(not ratios, "not read")
    card, (ratio, now_s) = min(ratios, key=lambda pair: pair[1][0])
    link.below(Figure.LINK_SPEED, ratio, 1.0)
    use = map_known(lambda used: min(1.0, used / now_s), card.pcie_bytes_s)
    last = card.last
    now = f"generation {last.pcie_generation} x{last.pcie_width}"
    best = f"generation {last.pcie_generation_max} x{last.pcie_width_max}"
    link.margin, lost = LINK_RUIN_RATIO / ratio, UNREAD_COST * (1 - ratio)
    if is_known(use):
        link.clear(use < LINK_USE_RATIO, f"{now} of {best}, but only {say_ratio(use)} of it is used")
        link.margin, lost = use / LINK_USE_RATIO, use * (1 - ratio)
        link.add(Figure.LINK_USE, use)
    elif ratio >= LINK_RUIN_RATIO:
        link.known(use, f"{now} of {best}; how much goes over it: ")
    felt = known_or(_felt_ratio(card, now_s, scene), 1.0)
    link.clear(felt < HIDDEN_IDLE_RATIO, f"{now} of {best}, but copies cost at most {say_ratio(felt)}")
    return link.suspect(
        Kind.GPU_THROTTLED,
        "pcie",
        min(lost, felt),
        f"card {card.index}'s PCIe link runs as {now}; it can do {best}",
        Need.LINK_DOWN,
        card=card.index,
        rank=holds.rank_on(card, scene),
    )


RULES: tuple[Rule, ...] = (judge_thermal, judge_brake, judge_odd_cap, judge_pcie)
