"""Remarks about the job's cards that are true and no fault: power limit, full memory, hollow 100 %. Pure."""

from __future__ import annotations

from tpmon.judge.rules_cards import CAP_PCT, CAPPED_POWER_RATIO, is_loaded
from tpmon.judge.scene import Scene
from tpmon.judge.scene_gpu import BUSY_PCT, held_pct, judge_hollow
from tpmon.model.known import is_known
from tpmon.model.units import format_pct

POWER_LIMITED_CLOCK_RATIO = 0.85
"""C below which the power limit of a busy card is worth a word; normal under full load."""
MEMORY_FULL_RATIO = 0.95
"""Caching allocators fill cards, so it is a note."""


def note_power_limited(scene: Scene) -> str:
    """Return the note that cards run at their power limit, "" when they do not: normal under full load."""
    limited = [
        str(card.index)
        for card in scene.gpus
        if is_loaded(card, BUSY_PCT)
        and held_pct(card, "power cap") >= CAP_PCT
        and is_known(card.power_ratio)
        and card.power_ratio >= CAPPED_POWER_RATIO
        and is_known(card.clock_ratio)
        and card.clock_ratio < POWER_LIMITED_CLOCK_RATIO
    ]
    if not limited:
        return ""
    return f"power-limited: card {', '.join(limited)} runs at its power limit; normal under full load"


def note_memory_full(scene: Scene) -> str:
    """Return the note that a card's memory is nearly all reserved, "" when it is not."""
    full = [
        (card.index, ratio)
        for card in scene.gpus
        if is_known(ratio := card.memory_ratio) and ratio >= MEMORY_FULL_RATIO
    ]
    if not full:
        return ""
    names = ", ".join(str(index) for index, _ in full)
    most = format_pct(100 * max(ratio for _, ratio in full))
    return (
        f"memory-full: card {names} has {most} % reserved; a caching allocator does that, no fault by itself"
    )


def note_hollow(scene: Scene) -> str:
    """Return the note that a card's 100 % is hollow, "" when none is; launch, comms and hang rules decide."""
    for card in scene.gpus:
        hollow = judge_hollow(card)
        if not (is_known(hollow) and hollow):
            continue
        if is_known(card.sm_active_pct):
            little = f"SM activity {format_pct(card.sm_active_pct)} %"
        elif is_known(card.power_ratio):
            little = f"power {format_pct(100 * card.power_ratio)} % of its limit"
        else:
            continue
        busy = format_pct(card.busy_pct) if is_known(card.busy_pct) else "?"
        return f"hollow: card {card.index} is {busy} % busy by the driver, but {little}"
    return ""


NOTES = (note_power_limited, note_memory_full, note_hollow)
