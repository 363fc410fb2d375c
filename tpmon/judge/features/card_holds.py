"""Find what holds a card of the job below its clocks, and what that costs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable

from tpmon.judge.answers.result import Cleared, EarlyAnswer, Unsure
from tpmon.judge.features.card_use import find_unseen_cards
from tpmon.judge.features.cards import BUSY_PCT, CardScene, held_pct, list_samples, ratio_of
from tpmon.judge.features.snapshot import Scene, ranks_on
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, join_known, known_or

Reasons = tuple[str, ...]
THERMAL = ("SW thermal", "HW thermal")
BRAKE = ("power brake",)
LEAST_LOSS = 0.05
COUNTER_PCT = 5.0
THERMAL_BIT_PCT = 30.0
BRAKE_BIT_PCT = 20.0
LOADED_PCT = 30.0
CAP_PCT = 50.0
CAPPED_POWER_RATIO = 0.8
LOW_CLOCK_RATIO = 0.8
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


def is_touched(card: CardScene, reasons: Iterable[str]) -> bool:
    """Tell whether heat or the power brake lowers the card's clocks at all, whatever that costs."""
    bit_pct = BRAKE_BIT_PCT if reasons == BRAKE else THERMAL_BIT_PCT
    return any(
        one.reason in reasons and one.pct >= (COUNTER_PCT if one.source == "counter" else bit_pct)
        for one in card.last.throttle_shares
    )


def is_slowed(card: CardScene, scene: Scene) -> bool:
    """Tell whether heat or the external power brake costs the card clocks."""
    # Long hardware protection halves them, whatever they read.
    costs = (
        known_or(lost_to(card, reasons, scene), LEAST_LOSS) >= LEAST_LOSS
        for reasons in (THERMAL, BRAKE)
        if is_touched(card, reasons)
    )
    return held_pct(card, "HW thermal") >= THERMAL_BIT_PCT or any(costs)


def is_loaded(card: CardScene, least_pct: float) -> bool:
    """Tell whether a card's U was read and is at least ``least_pct``."""
    return is_known(card.busy_pct) and card.busy_pct >= least_pct


def is_at_limit(card: CardScene) -> bool:
    """Tell whether a card is at its own power limit, which lowers its clock under full load."""
    return held_pct(card, "power cap") >= CAP_PCT and known_or(card.power_ratio, 0.0) >= CAPPED_POWER_RATIO


def _mean_clock(card: CardScene, frames: Iterable[Frame]) -> Known[float]:
    """Return the mean clock of a card over its maximum; a mean, so that few slow seconds count."""
    samples = list_samples(frames, card.last.uuid)
    ratios = [ratio_of(one.sm_clock_mhz, one.sm_clock_max_mhz) for one in samples]
    known = [min(1.0, ratio) for ratio in ratios if is_known(ratio)]
    return sum(known) / len(known) if known and is_known(card.clock_ratio) else card.clock_ratio


def find_lost_clock(card: CardScene, frames: Iterable[Frame]) -> Known[float]:
    """Return the share of its time that the card loses to its clock: U * (1 - C), C the mean of frames."""

    def lost(clock: float, busy_pct: float) -> float:
        return max(0.0, min(1.0, busy_pct / 100 * (1 - clock)))

    return join_known(lost, _mean_clock(card, frames), card.busy_pct)


def longest_held(card: CardScene, reasons: Iterable[str]) -> float:
    """Return for how much of the window, in percent, one of these reasons held the clocks."""
    return max(held_pct(card, one) for one in reasons)


def is_held_by_others(card: CardScene, reasons: Collection[str]) -> bool:
    """Tell whether a limit held the clocks for longer than these reasons did."""
    # Every data-centre card has application clocks a little below the maximum: only far lower ones count.
    others = (
        ("power cap", *CAP_REASONS) if known_or(card.clock_ratio, 1.0) < LOW_CLOCK_RATIO else ("power cap",)
    )
    return longest_held(card, others) > longest_held(card, reasons)


def lost_to(card: CardScene, reasons: Collection[str], scene: Scene) -> Known[float]:
    """Return the share of its time, 0-1, that heat or the power brake costs a card."""
    # Only their own time where a limit held it for longer. Other cards of the job without these reasons give
    # the clock that its power limit would have left it.
    lost, clock = find_lost_clock(card, scene.frames), _mean_clock(card, scene.frames)
    if not is_known(lost) or not is_known(clock):
        return lost
    if is_held_by_others(card, reasons):
        lost *= min(1.0, longest_held(card, reasons) / 100)
    others = [
        one.clock_ratio
        for one in scene.gpus
        if one.index != card.index and is_loaded(one, LOADED_PCT) and not is_touched(one, reasons)
        if is_known(one.clock_ratio) and one.clock_ratio > 0
    ]
    below = max(0.0, 1 - clock / statistics.median(others)) if others else 1.0
    return min(lost, known_or(card.busy_pct, 0.0) / 100 * below)


def rank_on(card: CardScene, scene: Scene) -> Applicable[int]:
    """Return the rank that computes on a card, where there is one."""
    return next((rank.rank for rank in ranks_on(card, scene)), NOT_APPLICABLE)


def find_odd_cap(card: CardScene, scene: Scene) -> str:
    """Return what caps a busy card oddly, "" for none: a cap below the limit, clocks that someone set."""
    # A card that is at its limit in a part of each step draws less on the whole: its cap is odd only where
    # the capped seconds cannot have been at the limit. Some cards meet the limit of a memory rail, or of a
    # module shared with a CPU, a little before their own: a clock that is hardly lower does not count.
    if not is_loaded(card, BUSY_PCT) or known_or(card.clock_ratio, 1.0) >= LOW_CLOCK_RATIO:
        return ""
    if is_slowed(card, scene) or is_at_limit(card):
        return ""
    capped = held_pct(card, "power cap")
    if capped >= CAP_PCT and known_or(card.power_ratio, 1.0) < find_capped_power(capped):
        return "power cap"
    return next((one for one in (*CAP_REASONS, "HW slowdown") if held_pct(card, one) >= CAP_PCT), "")


def find_capped_power(capped_pct: float) -> float:
    """Return the least P of a card whose capped share of the window was at its limit."""
    return CAPPED_POWER_RATIO * min(1.0, capped_pct / 100)
