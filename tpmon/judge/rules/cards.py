"""Judge what holds down a card's clocks and PCIe link, under load only: idle cards are slow on purpose."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Collection, Iterable

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, EarlyAnswer, Suspicion, Unsure, by_conditions
from tpmon.judge.features.card_use import find_unseen_cards, works_all_the_time
from tpmon.judge.features.cards import BUSY_PCT, CardScene, held_pct
from tpmon.judge.features.comms import exchanged_bytes_s, find_waits
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import Rule, Scene, ranks_on
from tpmon.model.figures import Figure
from tpmon.model.frame import Frame
from tpmon.model.known import (
    NOT_APPLICABLE,
    Applicable,
    Known,
    Missing,
    is_known,
    join_known,
    known_or,
    map_known,
)
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind

Reasons = tuple[str, ...]
THERMAL = ("SW thermal", "HW thermal")
BRAKE = ("power brake",)
LEAST_LOSS = 0.05
"""Share of its time that a card must lose to its clock before the reason is a cause, not a note."""
COUNTER_PCT = 5.0
"""Share of the window by the violation counter, which misses nothing."""
THERMAL_BIT_PCT = 30.0
"""Share of one-second readings of the reason bit: 3 s of the 10 s window."""
BRAKE_BIT_PCT = 20.0
"""2 s of the 10 s window."""
LOADED_PCT = 30.0
"""U below which a card mostly waits for its host: its clocks hold nothing back (starved)."""
CAP_PCT = 50.0
"""Share of the window at the power cap: half of it, so that a burst does not count."""
CAPPED_POWER_RATIO = 0.8
"""P below which the card's own limit does not explain its power cap (odd power cap)."""
LOW_CLOCK_RATIO = 0.8
"""C below which locked or application clocks cost; defaults of data-centre cards are 0.86 to 0.93."""
COOL_MARGIN_C = 10.0
"""Margin above which the core itself is not hot: other sensors set the same reason."""
SET_CLOCKS = ("application clocks", "display clocks")
"""What somebody set, and can set back."""
CAP_REASONS = (*SET_CLOCKS, "board limit", "reliability")

UNREAD_COST = 0.2
"""Weight of a card's cause whose cost was not read."""


def answer_without_cards(scene: Scene) -> Cleared | Unsure:
    """Say why no rule about cards can suspect anything: there is none, or none could be read."""
    unseen = find_unseen_cards(scene)
    return Unsure(f"GPU causes ({unseen})") if unseen else Cleared("GPU causes (the job uses no card)")


def need_cards(scene: Scene) -> None:
    """End a rule by conditions where there are no cards, or none could be read."""
    if not scene.gpus:
        raise EarlyAnswer(answer_without_cards(scene))


def _costs(lost: Known[float]) -> bool:
    return not is_known(lost) or lost >= LEAST_LOSS


def is_touched(card: CardScene, reasons: Iterable[str]) -> bool:
    """Tell whether heat or the power brake lowers the card's clocks at all, whatever that costs."""
    bit_pct = BRAKE_BIT_PCT if reasons == BRAKE else THERMAL_BIT_PCT
    return any(
        one.reason in reasons and one.pct >= (COUNTER_PCT if one.source == "counter" else bit_pct)
        for one in card.last.throttle_shares
    )


def is_hot(card: CardScene, scene: Scene) -> bool:
    """Tell whether heat costs the card clocks; long hardware protection halves them, whatever they read."""
    if held_pct(card, "HW thermal") >= THERMAL_BIT_PCT:
        return True
    return is_touched(card, THERMAL) and _costs(lost_to(card, THERMAL, scene))


def is_braked(card: CardScene, scene: Scene) -> bool:
    """Tell whether the external power brake costs the card clocks."""
    return is_touched(card, BRAKE) and _costs(lost_to(card, BRAKE, scene))


def is_loaded(card: CardScene, least_pct: float) -> bool:
    """Tell whether a card's U was read and is at least ``least_pct``."""
    return is_known(card.busy_pct) and card.busy_pct >= least_pct


def _mean_clock(card: CardScene, frames: Iterable[Frame]) -> Known[float]:
    """Return the mean clock of a card over its maximum; a mean, so that few slow seconds count."""
    ratios = [
        min(1.0, one.sm_clock_mhz / one.sm_clock_max_mhz)
        for frame in frames
        for one in known_or(frame.gpus, ())
        if one.uuid == card.last.uuid
        and is_known(one.sm_clock_mhz)
        and is_known(one.sm_clock_max_mhz)
        and one.sm_clock_max_mhz > 0
    ]
    return sum(ratios) / len(ratios) if ratios and is_known(card.clock_ratio) else card.clock_ratio


def _lost_clock(card: CardScene, frames: Iterable[Frame]) -> Known[float]:
    """Return the share of its time that the card loses to its clock: U * (1 - C), C the mean of frames."""

    def lost(clock: float, busy_pct: float) -> float:
        return max(0.0, min(1.0, busy_pct / 100 * (1 - clock)))

    return join_known(lost, _mean_clock(card, frames), card.busy_pct)


def _held_by_others(card: CardScene, reasons: Collection[str]) -> bool:
    """Tell whether a limit held the clocks for longer than these reasons did.

    Every data-centre card has application clocks a little below the maximum: only far lower ones count.
    """
    slow = is_known(card.clock_ratio) and card.clock_ratio < LOW_CLOCK_RATIO
    others = ("power cap", *CAP_REASONS) if slow else ("power cap",)
    return max(held_pct(card, one) for one in others) > max(held_pct(card, one) for one in reasons)


def _part_of(card: CardScene, reasons: Collection[str], lost: Known[float]) -> Known[float]:
    """Return what these reasons took of a lost clock: all, or only their time if a limit held longer."""
    if not is_known(lost) or not _held_by_others(card, reasons):
        return lost
    return lost * min(1.0, max(held_pct(card, one) for one in reasons) / 100)


def lost_to(card: CardScene, reasons: Collection[str], scene: Scene) -> Known[float]:
    """Return the share of its time, 0-1, that heat or the power brake costs a card.

    Other cards of the job without these reasons give the clock that its power limit would have left it.
    """
    lost = _part_of(card, reasons, _lost_clock(card, scene.frames))
    clock = _mean_clock(card, scene.frames)
    others = [
        one.clock_ratio
        for one in scene.gpus
        if one.index != card.index and is_loaded(one, LOADED_PCT) and not is_touched(one, reasons)
        if is_known(one.clock_ratio) and one.clock_ratio > 0
    ]
    if not others or not is_known(lost) or not is_known(clock) or not is_known(card.busy_pct):
        return lost
    below = max(0.0, 1 - clock / statistics.median(others))
    return min(lost, card.busy_pct / 100 * below)


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


def rank_on(card: CardScene, scene: Scene) -> Applicable[int]:
    """Return the rank that computes on a card, where there is one."""
    return next((rank.rank for rank in ranks_on(card, scene)), NOT_APPLICABLE)


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
    return _throttled(proof, card, cause, lost, why, need=need, alone=not _held_by_others(card, reasons))


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


def find_odd_cap(card: CardScene, scene: Scene) -> str:
    """Return what caps a busy card oddly, "" for none: a cap below the limit, clocks that someone set.

    A card that is at its limit in a part of each step draws less on the whole: its cap is odd only where the
    capped seconds cannot have been at the limit. Some cards meet the limit of a memory rail, or of a module
    shared with a CPU, a little before their own: a clock that is hardly lower does not count.
    """
    if not is_loaded(card, BUSY_PCT) or is_hot(card, scene) or is_braked(card, scene):
        return ""
    if not is_known(card.clock_ratio) or card.clock_ratio >= LOW_CLOCK_RATIO:
        return ""
    capped = held_pct(card, "power cap")
    if capped >= CAP_PCT and is_known(card.power_ratio):
        if card.power_ratio >= CAPPED_POWER_RATIO:
            return ""  # its own limit lowers the clock, below the one that someone set
        if card.power_ratio < _capped_power(capped):
            return "power cap"
    return next((one for one in (*CAP_REASONS, "HW slowdown") if held_pct(card, one) >= CAP_PCT), "")


def _capped_power(capped_pct: float) -> float:
    """Return the least P of a card whose capped share of the window was at its limit."""
    return CAPPED_POWER_RATIO * min(1.0, capped_pct / 100)


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
        caps.margin = _capped_power(held_pct(card, reason)) / max(power, 0.1)
        caps.add(Figure.GPU_POWER, power)
        need, drawn = Need.CARD_CAPPED_ABOVE, format_pct(100 * power)
        why = f"a power cap although it draws {drawn} % of its limit: that of its module, a rail or the rack"
    return _throttled(caps, card, "odd-cap", _lost_clock(card, scene.frames), why, need=need)


RULES: tuple[Rule, ...] = (judge_thermal, judge_brake, judge_odd_cap)


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


LINK_RULES: tuple[Rule, ...] = (judge_pcie,)
