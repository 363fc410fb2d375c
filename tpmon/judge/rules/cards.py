"""Judge what holds down a card's clocks and PCIe link, under load only: idle cards are slow on purpose."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Suspicion, by_conditions
from tpmon.judge.features.card_holds import (
    BRAKE,
    COUNTER_PCT,
    LEAST_LOSS,
    LOADED_PCT,
    LOW_CLOCK_RATIO,
    SET_CLOCKS,
    THERMAL,
    Reasons,
    find_capped_power,
    find_lost_clock,
    find_odd_cap,
    is_held_by_others,
    is_loaded,
    is_touched,
    lost_to,
    need_cards,
    rank_on,
)
from tpmon.judge.features.card_use import works_all_the_time
from tpmon.judge.features.cards import BUSY_PCT, CardScene, held_pct
from tpmon.judge.features.comms import exchanged_bytes_s, find_waits
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind

COOL_MARGIN_C = 10.0
"""Margin above which the core itself is not hot: other sensors set the same reason."""

UNREAD_COST = 0.2
"""Weight of a card's cause whose cost was not read."""


def _worst(cards: Iterable[CardScene]) -> CardScene | None:
    listed = list(cards)
    known = [card for card in listed if is_known(card.clock_ratio)]
    if known:
        return min(known, key=lambda card: card.clock_ratio if is_known(card.clock_ratio) else 1.0)
    return listed[0] if listed else None


def _show_reasons(proof: Proof, card: CardScene, reasons: Iterable[str]) -> None:
    for one in card.last.throttle_shares:
        if one.reason in reasons:
            source = f"NVML reason {one.source}"
            proof.add(Figure.CLOCK_REASON, one.pct / 100, of=one.reason, source=source)


def _throttled(
    proof: Proof, card: CardScene, cause: str, lost: Known[float], why: str, *, need: Need, alone: bool = True
) -> Suspicion:
    """Suspect what holds a card; ``alone``: nothing else explains its low clock."""
    ratio = known_or(card.clock_ratio, 1.0)
    slow = ratio < BUSY_PCT / 100
    clock = f" at {format_pct(100 * ratio)} % of its clock" if slow and alone else ""
    proof.add(Figure.GPU_CLOCK, card.clock_ratio)
    return proof.suspect(
        Kind.GPU_THROTTLED,
        cause,
        known_or(lost, UNREAD_COST),
        f"card {card.index} is held{clock}: {why}",
        observed=frozenset((need,)),
        share=lost if is_known(lost) and slow else NOT_APPLICABLE,
        card=card.index,
        rank=rank_on(card, proof.scene),
    )


def _need_reasons(scene: Scene, cause: Claim) -> None:
    """Leave a cause unsure where throttling was not read of any card."""
    need_cards(scene)
    known = [card.last.throttle_known for card in scene.gpus]
    if not any(map(is_known, known)):
        cause.known(known[0])


def _find_held(cause: Proof, reasons: Reasons, none: str) -> tuple[CardScene, Known[float]]:
    """Return the loaded card that loses most to these reasons and how much."""
    scene = cause.scene
    _need_reasons(scene, cause)
    touched = [one for one in scene.gpus if is_touched(one, reasons) and is_loaded(one, LOADED_PCT)]
    cause.clear(not touched, none)
    losses = [(card, lost_to(card, reasons, scene)) for card in touched]
    known = [(card, lost) for card, lost in losses if is_known(lost)]
    if not known:
        return losses[0]
    card, most = max(known, key=lambda pair: pair[1])
    if most >= LEAST_LOSS:
        return card, most
    unread = [pair for pair in losses if not is_known(pair[1])]
    cause.clear(not unread, f"it costs card {card.index} {format_pct(100 * most)} % of its time")
    return unread[0]


def _suspect_held(
    proof: Proof, found: tuple[CardScene, Known[float]], reasons: Reasons, cause: str, *, why: str, need: Need
) -> Suspicion:
    """Suspect what holds a card; the margin is the lesser of how long it holds and what it costs."""
    card, lost = found
    _show_reasons(proof, card, (*reasons, "HW slowdown") if reasons == BRAKE else reasons)
    if reasons == THERMAL:
        proof.show(Figure.GPU_TEMPERATURE, card.last.temperature_c)
    held = max(held_pct(card, reason) for reason in reasons) / COUNTER_PCT
    proof.margin = min(held, known_or(lost, LEAST_LOSS) / LEAST_LOSS)
    return _throttled(proof, card, cause, lost, why, need=need, alone=not is_held_by_others(card, reasons))


def _say_heat(card: CardScene) -> str:
    hardware = held_pct(card, "HW thermal") > 0
    margin_c = card.last.temperature_margin_c
    if is_known(margin_c) and margin_c >= COOL_MARGIN_C:
        reason = "hardware protection against heat" if hardware else "a thermal reason"
        return f"{reason}, though the core has {margin_c:.0f} C left: memory, hot spot or power stage"
    return "hardware protection against heat" if hardware else "it is hot"


@by_conditions
def judge_thermal(scene: Scene) -> Answer:
    """Suspect heat when it holds the clocks of a loaded card for 5 % of the window, and costs as much."""
    heat = Proof("heat of the cards", scene)
    found = _find_held(heat, THERMAL, "no thermal reason")
    return _suspect_held(heat, found, THERMAL, "thermal", why=_say_heat(found[0]), need=Need.CARD_HOT)


@by_conditions
def judge_brake(scene: Scene) -> Answer:
    """Suspect the power supply when the external brake holds a loaded card."""
    brake = Proof("power brake", scene)
    found = _find_held(brake, BRAKE, "not set")
    why = "the external power brake, so the power supply or the chassis"
    return _suspect_held(brake, found, BRAKE, "brake", why=why, need=Need.CARD_BRAKED)


@by_conditions
def judge_odd_cap(scene: Scene) -> Answer:
    """Suspect a cap that the card's own power limit does not explain."""
    caps = Proof("caps on the cards", scene)
    _need_reasons(scene, caps)
    card = _worst(one for one in scene.gpus if find_odd_cap(one, scene))
    if card is None:
        return Cleared(f"{caps.what} (none, or explained by the power limit)")
    reason = find_odd_cap(card, scene)
    _show_reasons(caps, card, (reason,))
    need = Need.CARD_CAPPED if reason in SET_CLOCKS else Need.CARD_SICK
    caps.margin = LOW_CLOCK_RATIO / max(known_or(card.clock_ratio, 1.0), 0.1)
    why = f"{reason}, not by power or heat"
    if reason == "power cap":
        power = known_or(card.power_ratio, 1.0)
        caps.margin = find_capped_power(held_pct(card, reason)) / max(power, 0.1)
        caps.add(Figure.GPU_POWER, power)
        need, drawn = Need.CARD_CAPPED_ABOVE, format_pct(100 * power)
        why = f"a power cap although it draws {drawn} % of its limit: that of its module, a rail or the rack"
    return _throttled(caps, card, "odd-cap", find_lost_clock(card, scene.frames), why, need=need)


LINK_LOAD_PCT = 50.0
LINK_USE_RATIO = 0.2
"""Share of the link's present capacity above which a faster one would be felt."""
LINK_RUIN_RATIO = 0.25
"""More than two generations, or three quarters of the lanes, lost: named even without traffic counters. Slots
of four lanes are sold for cards of sixteen."""
HIDDEN_IDLE_RATIO = 0.03
"""Share of time that a card idles, or its ranks wait for each other, below which no faster link is felt:
copies beside kernels are free, and a card with a full launch queue reads 97 to 100 %."""
LANE_BYTES_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""PCI Express payload per lane and direction by generation, after line coding."""


def _lane_speed(generation: Known[int], width: Known[int]) -> Known[float]:
    def speed(number: int, lanes: int) -> Known[float]:
        lane = LANE_BYTES_S.get(number)
        return lane * lanes if lane and lanes > 0 else Missing(f"PCIe generation {number} x{lanes}")

    return join_known(speed, generation, width)


def _lane_speed_of(card: CardScene) -> Known[float]:
    return _lane_speed(card.last.pcie_generation, card.last.pcie_width)


def _link_ratio(card: CardScene) -> Known[float]:
    best = _lane_speed(card.last.pcie_generation_max, card.last.pcie_width_max)
    return join_known(operator.truediv, _lane_speed_of(card), best)


def _felt_ratio(card: CardScene, scene: Scene) -> Known[float]:
    """Return the share of time, 0-1, that a faster link could give back: what the card or its ranks wait."""
    idle = map_known(lambda busy: max(0.0, 1 - busy / 100), card.busy_pct)
    world = scene.frame.target.world_size
    if not is_known(idle) or (len(scene.ranks) < 2 and (not is_known(world) or world < 2)):
        return idle
    # Collectives may use the link while their kernels count as busy: the host of ranks that exchange
    # gradients waits in no call of its own.
    now, exchanged = _lane_speed_of(card), exchanged_bytes_s(card.last.uuid, scene)
    much = is_known(now) and is_known(exchanged) and exchanged / 2 >= LINK_USE_RATIO * now
    if much and not works_all_the_time(card):
        return Missing("the ranks exchange over this link, and the card counts as busy meanwhile")
    waits = find_waits(scene)
    if not is_known(waits):
        return waits
    own = [wait.ratio for wait in waits if wait.rank.process.pid in card.pids]
    return max([idle, *own])


@by_conditions
def judge_pcie(scene: Scene) -> Answer:
    """Suspect a PCIe link below its best, under load, if its traffic would be faster on a whole one."""
    need_cards(scene)
    link = Proof("PCIe link", scene)
    loaded = [card for card in scene.gpus if is_loaded(card, LINK_LOAD_PCT)]
    link.doubt(not loaded, "no card under load: idle ones slow it down on purpose")
    ratios = [(card, ratio) for card in loaded if is_known(ratio := _link_ratio(card))]
    link.doubt(not ratios, "not read")
    card, ratio = min(ratios, key=lambda pair: pair[1])
    link.below(Figure.LINK_SPEED, ratio, 1.0)
    use = join_known(lambda most, used: min(1.0, used / most), _lane_speed_of(card), card.pcie_bytes_s)
    last = card.last
    now = f"generation {last.pcie_generation} x{last.pcie_width}"
    best = f"generation {last.pcie_generation_max} x{last.pcie_width_max}"
    link.margin, lost = LINK_RUIN_RATIO / ratio, UNREAD_COST * (1 - ratio)
    if is_known(use):
        link.clear(use < LINK_USE_RATIO, f"{now} of {best}, but only {format_pct(100 * use)} % of it is used")
        link.margin, lost = use / LINK_USE_RATIO, use * (1 - ratio)
        link.add(Figure.LINK_USE, use)
    elif ratio >= LINK_RUIN_RATIO:
        link.known(use, f"{now} of {best}; how much goes over it: ")
    felt = known_or(_felt_ratio(card, scene), 1.0)
    cost = f"{now} of {best}, but copies cost at most {format_pct(100 * felt)} %"
    link.clear(felt < HIDDEN_IDLE_RATIO, cost)
    return link.suspect(
        Kind.GPU_THROTTLED,
        "pcie",
        min(lost, felt),
        f"card {card.index}'s PCIe link runs as {now}; it can do {best}",
        observed=frozenset((Need.LINK_DOWN,)),
        card=card.index,
        rank=rank_on(card, scene),
    )


RULES: tuple[Rule, ...] = (judge_thermal, judge_brake, judge_odd_cap, judge_pcie)
