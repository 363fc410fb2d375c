"""Tell a card that computes from one that is busy by its driver and does next to nothing. Pure."""

from __future__ import annotations

from tpmon.judge.features.cards import BUSY_PCT, QUIET_LINK_BYTES_S, WORKING_CLOCK_RATIO, CardScene
from tpmon.model.known import Known, Missing, is_known, map_known

HOLLOW_SM_PCT = 25.0
"""SM activity below which 100 % busy is a lie; a healthy H100 job reads 91-93."""
HOLLOW_POWER_RATIO = 0.35
"""P below which 100 % busy is a lie: a quarter of the usable span above idle power (5-15 %)."""
FULL_SM_PCT = 60.0
"""SM activity from which a busy card truly computes."""
FULL_POWER_RATIO = 0.55
"""P from which a busy card truly computes, where no SM activity is read."""
SMALL_LIMIT_W = 150.0
"""Limit up to which a card may draw a third to half of it for nothing (T4, L4, A2, A10), by
what others report of them; none was read by us."""
FULL_SMALL_RATIO = 0.65
"""P from which such a card truly computes: a guess, above what a kernel that spins may take of it."""
SPIN_PCT = 1.0
"""Activity of tensor cores and of memory below which SMs that are active only look at one flag."""

MEDIUM_POWER = Missing("its power is between that of a card that spins and of one that computes")


def full_power_ratio(card: CardScene) -> float:
    """Return P from which a busy card truly computes, where no SM activity is read."""
    limit = card.last.power_limit_w
    return FULL_SMALL_RATIO if is_known(limit) and limit <= SMALL_LIMIT_W else FULL_POWER_RATIO


def _only_spins(card: CardScene) -> bool:
    """Tell whether active SMs do nothing: two collectives that do not end hold a third or half of them."""
    readings = (
        (card.sm_active_pct, FULL_SM_PCT),
        (card.tensor_pct, SPIN_PCT),
        (card.dram_pct, SPIN_PCT),
        (card.link_bytes_s, QUIET_LINK_BYTES_S),
        (card.work_ratio, HOLLOW_POWER_RATIO),
    )
    return all(is_known(value) and value < limit for value, limit in readings)


def judge_hollow(card: CardScene) -> Known[bool]:
    """Tell whether a card is busy by its driver and does next to nothing by its SMs or its power.

    SM activity decides where the card has it, unless the power contradicts it; else the power, measured by
    what a card draws at its clock. At a low clock both must agree. Missing where the readings do not decide.
    """
    if not is_known(card.busy_pct):
        return card.busy_pct
    if card.busy_pct < BUSY_PCT:
        return False
    if not is_known(card.clock_ratio):
        return card.clock_ratio
    if is_known(card.sm_active_pct):
        powerful = is_known(card.power_ratio) and card.power_ratio >= full_power_ratio(card)
        if powerful or (card.sm_active_pct >= HOLLOW_SM_PCT and not _only_spins(card)):
            return False
        work = card.work_ratio
        if card.clock_ratio < WORKING_CLOCK_RATIO and is_known(work) and work >= HOLLOW_POWER_RATIO:
            return Missing("SM activity is low, and the power is not for so low a clock")
        return True
    work = card.work_ratio
    small = full_power_ratio(card) == FULL_SMALL_RATIO
    if small and is_known(work) and HOLLOW_POWER_RATIO <= work < FULL_SMALL_RATIO:
        return MEDIUM_POWER
    return map_known(lambda ratio: ratio < HOLLOW_POWER_RATIO, work)
