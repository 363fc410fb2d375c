"""Find what holds a card of the job below its clocks, and what that costs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable

from tpmon.judge.answers.result import Cleared, EarlyAnswer, Unsure
from tpmon.judge.features.card_use import find_unseen_cards
from tpmon.judge.features.cards import BUSY_PCT, CardScene, held_pct
from tpmon.judge.features.snapshot import Scene, ranks_on
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, join_known, known_or

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
SET_CLOCKS = ("application clocks", "display clocks")
"""What somebody set, and can set back."""
CAP_REASONS = (*SET_CLOCKS, "board limit", "reliability")


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


def find_lost_clock(card: CardScene, frames: Iterable[Frame]) -> Known[float]:
    """Return the share of its time that the card loses to its clock: U * (1 - C), C the mean of frames."""

    def lost(clock: float, busy_pct: float) -> float:
        return max(0.0, min(1.0, busy_pct / 100 * (1 - clock)))

    return join_known(lost, _mean_clock(card, frames), card.busy_pct)


def is_held_by_others(card: CardScene, reasons: Collection[str]) -> bool:
    """Tell whether a limit held the clocks for longer than these reasons did.

    Every data-centre card has application clocks a little below the maximum: only far lower ones count.
    """
    slow = is_known(card.clock_ratio) and card.clock_ratio < LOW_CLOCK_RATIO
    others = ("power cap", *CAP_REASONS) if slow else ("power cap",)
    return max(held_pct(card, one) for one in others) > max(held_pct(card, one) for one in reasons)


def _part_of(card: CardScene, reasons: Collection[str], lost: Known[float]) -> Known[float]:
    """Return what these reasons took of a lost clock: all, or only their time if a limit held longer."""
    if not is_known(lost) or not is_held_by_others(card, reasons):
        return lost
    return lost * min(1.0, max(held_pct(card, one) for one in reasons) / 100)


def lost_to(card: CardScene, reasons: Collection[str], scene: Scene) -> Known[float]:
    """Return the share of its time, 0-1, that heat or the power brake costs a card.

    Other cards of the job without these reasons give the clock that its power limit would have left it.
    """
    lost = _part_of(card, reasons, find_lost_clock(card, scene.frames))
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


def rank_on(card: CardScene, scene: Scene) -> Applicable[int]:
    """Return the rank that computes on a card, where there is one."""
    return next((rank.rank for rank in ranks_on(card, scene)), NOT_APPLICABLE)


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
        if card.power_ratio < find_capped_power(capped):
            return "power cap"
    return next((one for one in (*CAP_REASONS, "HW slowdown") if held_pct(card, one) >= CAP_PCT), "")


def find_capped_power(capped_pct: float) -> float:
    """Return the least P of a card whose capped share of the window was at its limit."""
    return CAPPED_POWER_RATIO * min(1.0, capped_pct / 100)
