"""What holds the clocks of a card down: heat, brakes, odd caps.

Judged under load only: an idle card lowers its clocks on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tpmon.judge.advice_needs import Need
from tpmon.judge.scene import Scene, ranks_on
from tpmon.judge.scene_gpu import BUSY_PCT, CardScene, held_pct
from tpmon.judge.suspicion import Answer, Cleared, Rule, Suspicion, Unsure, reading
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Kind

THERMAL = ("SW thermal", "HW thermal")
COUNTER_PCT = 5.0
"""Share of the window by the violation counter, which misses nothing."""
THERMAL_BIT_PCT = 30.0
"""Share of one-second looks at the reason bit: 3 s of the 10 s window."""
BRAKE_BIT_PCT = 20.0
"""2 s of the 10 s window."""
LOADED_PCT = 30.0
"""U below which a card mostly waits for its host, and its clocks hold nothing back (starved)."""
CAP_PCT = 50.0
"""Share of the window with the power cap: half of it, so a burst at its limit is none."""
CAPPED_POWER_RATIO = 0.8
"""P below which a card at its power cap has a cap that its limit does not explain (odd power cap)."""
LOW_CLOCK_RATIO = 0.8
"""C below which locked or application clocks cost; defaults of data-centre cards are 0.86 to 0.93."""
HOT_MARGIN_C = 3.0
CAP_REASONS = ("application clocks", "display clocks", "board limit", "reliability")

UNREAD_COST = 0.2
"""Weight of a cause of a card whose cost was not read."""


def find_unseen_cards(scene: Scene) -> str:
    """Say why the job may compute on cards that were not read, "" when it uses none or they were."""
    gpus = scene.frame.gpus
    if isinstance(gpus, Missing):
        return "" if "no NVIDIA driver" in gpus.reason else gpus.reason
    holders = [card.pids for card in gpus]
    unread = next((one for one in holders if isinstance(one, Missing)), None)
    if unread is not None and not any(is_known(one) for one in holders):
        return f"which processes are on the cards: {unread.reason}"
    return next((note for note in scene.frame.notes if note.startswith("GPUs not visible")), "")


def answer_without_cards(scene: Scene) -> Cleared | Unsure:
    """Say why no rule about cards can suspect anything: there is none, or none could be read."""
    unseen = find_unseen_cards(scene)
    return Unsure(f"GPU causes ({unseen})") if unseen else Cleared("GPU causes (the job uses no card)")


def _is_held(card: CardScene, reason: str, bit_pct: float) -> bool:
    return any(
        one.reason == reason and one.pct >= (COUNTER_PCT if one.source == "counter" else bit_pct)
        for one in card.last.throttle_shares
    )


def is_hot(card: CardScene) -> bool:
    """Tell whether heat holds the card's clocks."""
    return any(_is_held(card, reason, THERMAL_BIT_PCT) for reason in THERMAL)


def is_braked(card: CardScene) -> bool:
    """Tell whether the external power brake holds the card's clocks."""
    return _is_held(card, "power brake", BRAKE_BIT_PCT)


def is_loaded(card: CardScene, least_pct: float) -> bool:
    """Tell whether a card's U was read and is at least ``least_pct``."""
    return is_known(card.busy_pct) and card.busy_pct >= least_pct


def _lost_clock(card: CardScene) -> Known[float]:
    """Return the share of its time that the card loses to its clock: U * (1 - C)."""
    if not is_known(card.clock_ratio):
        return card.clock_ratio
    if not is_known(card.busy_pct):
        return card.busy_pct
    return max(0.0, min(1.0, card.busy_pct / 100 * (1 - card.clock_ratio)))


def _worst(cards: Iterable[CardScene]) -> CardScene | None:
    """Return the card with the lowest clock."""
    listed = list(cards)
    known = [card for card in listed if is_known(card.clock_ratio)]
    if known:
        return min(known, key=lambda card: card.clock_ratio if is_known(card.clock_ratio) else 1.0)
    return listed[0] if listed else None


def _shares(card: CardScene, reasons: Iterable[str], frame: Frame) -> tuple[Evidence, ...]:
    return tuple(
        reading(one.reason, one.pct, "% of 10 s", f"NVML reason {one.source}", frame.ages_s.gpu)
        for one in card.last.throttle_shares
        if one.reason in reasons
    )


def _clock(card: CardScene, frame: Frame) -> tuple[Evidence, ...]:
    if not is_known(card.clock_ratio):
        return ()
    return (reading("SM clock of its maximum", 100 * card.clock_ratio, "%", "NVML clock", frame.ages_s.gpu),)


def rank_on(card: CardScene, scene: Scene) -> Applicable[int]:
    """Return the rank that computes on a card, where that is one."""
    return next((rank.rank for rank in ranks_on(card, scene)), NOT_APPLICABLE)


def _throttled(
    scene: Scene, card: CardScene, cause: str, *, why: str, evidence: tuple[Evidence, ...], margin: float
) -> Suspicion:
    lost = _lost_clock(card)
    sources = {"NVML reasons"}
    slow = is_known(card.clock_ratio) and card.clock_ratio < BUSY_PCT / 100
    clock = ""
    if slow and is_known(card.clock_ratio):
        sources.add("NVML clock")
        clock = f" at {format_pct(100 * card.clock_ratio)} % of its clock"
    return Suspicion(
        kind=Kind.GPU_THROTTLED,
        cause=cause,
        weight=lost if is_known(lost) else UNREAD_COST,
        margin=margin,
        sources=frozenset(sources),
        summary=f"card {card.index} is held{clock}: {why}",
        evidence=(*evidence, *_clock(card, scene.frame)),
        share=lost if is_known(lost) and slow else NOT_APPLICABLE,
        card=card.index,
        rank=rank_on(card, scene),
    )


def _unread_reasons(scene: Scene) -> Known[bool]:
    """Return the reason why throttling could not be read of any card."""
    known = [card.last.throttle_known for card in scene.gpus]
    missing = [one for one in known if isinstance(one, Missing)]
    return missing[0] if missing and len(missing) == len(known) else True


def judge_thermal(scene: Scene) -> Answer:
    """Suspect heat when it holds the clocks of a loaded card for 5 % of the window."""
    if not scene.gpus:
        return answer_without_cards(scene)
    read = _unread_reasons(scene)
    if not is_known(read):
        return Unsure(f"heat of the cards ({read.reason})")
    card = _worst(one for one in scene.gpus if is_hot(one) and is_loaded(one, LOADED_PCT))
    if card is None:
        return Cleared("heat of the cards (no thermal reason)")
    held = max(held_pct(card, reason) for reason in THERMAL)
    margin_c = card.last.temperature_margin_c
    evidence = _shares(card, THERMAL, scene.frame)
    evidence += (reading("temperature", card.last.temperature_c, "C", "NVML", scene.frame.ages_s.gpu),)
    hardware = held_pct(card, "HW thermal") > 0
    why = "hardware protection against heat" if hardware else "it is hot"
    found = _throttled(scene, card, "thermal", why=why, evidence=evidence, margin=held / COUNTER_PCT)
    if is_known(margin_c) and margin_c <= HOT_MARGIN_C:
        found = replace(found, sources=found.sources | {"NVML temperature"})
    return replace(found, observed=frozenset((Need.CARD_HOT,)))


def judge_brake(scene: Scene) -> Answer:
    """Suspect the power supply when the external brake holds a loaded card."""
    if not scene.gpus:
        return answer_without_cards(scene)
    read = _unread_reasons(scene)
    if not is_known(read):
        return Unsure(f"power brake ({read.reason})")
    card = _worst(one for one in scene.gpus if is_braked(one) and is_loaded(one, LOADED_PCT))
    if card is None:
        return Cleared("power brake (not set)")
    found = _throttled(
        scene,
        card,
        "brake",
        why="the external power brake, so the power supply or the chassis",
        evidence=_shares(card, ("power brake", "HW slowdown"), scene.frame),
        margin=held_pct(card, "power brake") / COUNTER_PCT,
    )
    return replace(found, observed=frozenset((Need.CARD_BRAKED,)))


def find_odd_cap(card: CardScene) -> str:
    """Return what caps a busy card oddly, "" for none: a cap below the limit, clocks that someone set."""
    if not is_loaded(card, BUSY_PCT) or is_hot(card) or is_braked(card):
        return ""
    low_power = is_known(card.power_ratio) and card.power_ratio < CAPPED_POWER_RATIO
    if low_power and held_pct(card, "power cap") >= CAP_PCT:
        return "power cap"
    slow = is_known(card.clock_ratio) and card.clock_ratio < LOW_CLOCK_RATIO
    if slow:
        return next((one for one in (*CAP_REASONS, "HW slowdown") if held_pct(card, one) >= CAP_PCT), "")
    return ""


def judge_odd_cap(scene: Scene) -> Answer:
    """Suspect a cap that the card's own power limit does not explain."""
    if not scene.gpus:
        return answer_without_cards(scene)
    read = _unread_reasons(scene)
    if not is_known(read):
        return Unsure(f"caps on the cards ({read.reason})")
    card = _worst(one for one in scene.gpus if find_odd_cap(one))
    if card is None:
        return Cleared("caps on the cards (none, or explained by the power limit)")
    reason = find_odd_cap(card)
    evidence = _shares(card, (reason,), scene.frame)
    if reason == "power cap" and is_known(card.power_ratio):
        power = 100 * card.power_ratio
        evidence += (reading("power of its limit", power, "%", "NVML power", scene.frame.ages_s.gpu),)
        margin = CAPPED_POWER_RATIO / max(card.power_ratio, 0.1)
        why = f"a power cap although it draws {format_pct(power)} % of its limit"
    else:
        margin = LOW_CLOCK_RATIO / max(card.clock_ratio if is_known(card.clock_ratio) else 1.0, 0.1)
        why = f"{reason}, not by power or heat"
    found = _throttled(scene, card, "odd-cap", why=why, evidence=evidence, margin=margin)
    if reason == "power cap":
        found = replace(found, sources=found.sources | {"NVML power"})
    return replace(found, observed=frozenset((Need.CARD_CAPPED,)))


RULES: tuple[Rule, ...] = (judge_thermal, judge_brake, judge_odd_cap)
