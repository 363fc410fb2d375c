"""Remarks about the job's cards that are true and no fault: power limit, full memory, hollow 100 %. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.features.card_users import UNLISTED
from tpmon.judge.features.cards import BUSY_PCT, held_pct
from tpmon.judge.features.hollow import judge_hollow
from tpmon.judge.features.silent_cards import find_silences, say_open
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.rules.cards import (
    BRAKE,
    CAP_PCT,
    CAPPED_POWER_RATIO,
    LEAST_LOSS,
    LOADED_PCT,
    THERMAL,
    is_loaded,
    is_touched,
    lost_to,
)
from tpmon.judge.rules.rules_card_memory import CARD_FULL
from tpmon.model.gpu import RESTART_XIDS
from tpmon.model.known import is_known
from tpmon.model.units import format_pct

POWER_LIMITED_CLOCK_RATIO = 0.85
"""C below which the power limit of a busy card is worth a word; normal under full load."""
MOST_NAMED = 3
"""Processes of others that one note names."""


def _name_cards(indices: Sequence[int]) -> str:
    return f"card{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def note_power_limited(scene: Scene) -> str:
    """Return the note that cards run at their power limit, "" when they do not: normal under full load."""
    limited = [
        card.index
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
    runs = "runs at its power limit" if len(limited) == 1 else "run at their power limits"
    return f"power-limited: {_name_cards(limited)} {runs}; normal under full load"


def note_held(scene: Scene) -> str:
    """Return the note that heat or the power brake lowers a card's clocks and costs little, "" for none."""
    for words, reasons in (("a thermal reason", THERMAL), ("the power brake", BRAKE)):
        for card in scene.gpus:
            lost = lost_to(card, reasons, scene)
            touched = is_loaded(card, LOADED_PCT) and is_touched(card, reasons)
            if touched and is_known(lost) and lost < LEAST_LOSS:
                held = format_pct(max(held_pct(card, one) for one in reasons))
                cost = format_pct(100 * lost)
                return f"held: {words} held card {card.index} for {held} % of 10 s; it costs about {cost} %"
    return ""


def note_memory_full(scene: Scene) -> str:
    """Return the note that a card's memory is nearly all reserved, "" when it is not."""
    full = [
        (card.index, ratio)
        for card in scene.gpus
        if is_known(ratio := card.memory_ratio) and ratio >= CARD_FULL
    ]
    if not full:
        return ""
    most = format_pct(100 * max(ratio for _, ratio in full))
    have = f"has {most} %" if len(full) == 1 else f"have up to {most} %"
    names = _name_cards([index for index, _ in full])
    return f"memory-full: {names} {have} reserved; a caching allocator does that, no fault by itself"


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


def note_xids(scene: Scene) -> str:
    """Return the note that a card told of a fault that a new start of the program ends, "" for none."""
    for card in scene.gpus:
        xids = dict.fromkeys(xid for xid in card.last.xids if xid in RESTART_XIDS)
        if xids:
            named = ", ".join(map(str, [*xids][:MOST_NAMED]))
            return (
                f"xid: card {card.index} told Xid {named}: a fault of the program, or one that it contained"
            )
    return ""


def note_shared(scene: Scene) -> str:
    """Return the note that others compute on a card of the job, "" when none does."""
    for card in scene.gpus:
        if card.others:
            pids = ", ".join(map(str, card.others[:MOST_NAMED]))
            more = len(card.others) - MOST_NAMED
            named = f"PID {pids}" + (f" and {more} more" if more > 0 else "")
            return f"shared: card {card.index} is not this job's alone, {named} has a part of it"
        if card.shares_unlisted:
            return f"shared: card {card.index} is not this job's alone, {UNLISTED} have a part of it"
    return ""


def note_silent(scene: Scene) -> str:
    """Return the note that a card does not answer which the job may compute on, "" for none."""
    said = say_open(find_silences(scene))
    return f"silent: {said}" if said else ""


NOTES = (note_silent, note_power_limited, note_held, note_memory_full, note_hollow, note_shared, note_xids)
