"""Say what was not read that may cut a wait between ranks short. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.features.card_idle import find_unseen_cards
from tpmon.judge.features.rank_waits import Wait
from tpmon.judge.features.snapshot import Scene
from tpmon.model.known import Missing


def cards_unread(scene: Scene) -> tuple[str, ...]:
    """Say that cards, or how much of them works, were not read: a card at work waits for nobody."""
    unseen = find_unseen_cards(scene)
    if unseen:
        return (f"whether cards work meanwhile ({unseen})",)
    figures = [card.sm_active_pct for card in scene.gpus]
    silent = next((one for one in figures if isinstance(one, Missing)), None)
    return () if silent is None else (f"how much of the cards works meanwhile ({silent.reason})",)


def locks_unread(waits: Sequence[Wait]) -> tuple[str, ...]:
    """Say that only the kernel's word tells of a wait: its lock may be one of the program's own."""
    stacks = [one.rank.phases for one in waits]
    silent = next((one for one in stacks if isinstance(one, Missing)), None)
    return () if silent is None else (f"whether its locks are collectives ({silent.reason})",)
