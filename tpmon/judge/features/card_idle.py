"""Tell how much a rank's cards idle, and whether a wait is worth a word where that is not measured. Pure."""

from __future__ import annotations

from tpmon.judge.features.card_slices import is_sliced
from tpmon.judge.features.cards import cards_of, mean_busy_pct
from tpmon.judge.features.data_wait import DataWait
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.model.gpu import is_no_card
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, map_known

SLICE_WAIT = 0.5
"""Share of the time from which a wait beside a MIG slice, whose utilisation nobody knows, is told at all."""


def find_gpu_idle(rank: RankScene, scene: Scene) -> Applicable[float]:
    """Return the idle share (0-1) of the rank's own cards; not applicable to a job on CPUs.

    Missing where the rank may have a card that was not read: a full one would hide its wait.
    """
    own = cards_of(rank.process.pid, scene.gpus)
    if own:
        return map_known(lambda pct: max(0.0, 1 - pct / 100), mean_busy_pct(own))
    if scene.gpus:
        return Missing(f"the card of process {rank.process.pid} is not known")
    unseen = find_unseen_cards(scene)
    return Missing(unseen) if unseen else NOT_APPLICABLE


def may_starve(rank: RankScene, wait: DataWait, scene: Scene) -> bool:
    """Tell whether a MIG slice may well idle while its rank waits: at most as long as its SMs do.

    Such a slice has no utilisation; the wait must take half of the time, and find the queue empty.
    """
    own = cards_of(rank.process.pid, scene.gpus)
    if not own or not all(is_sliced(card.last) for card in own) or wait.share.low < SLICE_WAIT:
        return False
    active = [card.sm_active_pct for card in own]
    if not all(is_known(pct) and 1 - pct / 100 >= SLICE_WAIT for pct in active):
        return False
    loader = rank.loader
    if loader is None:
        return not rank.has_workers
    # A pin thread empties the pipe at once, so its emptiness says nothing.
    return not loader.pin_thread and is_known(loader.empty_ratio) and loader.empty_ratio >= SLICE_WAIT


def find_unseen_cards(scene: Scene) -> str:
    """Say why the job may compute on cards that were not read, "" when it uses none or they were."""
    gpus = scene.frame.gpus
    if isinstance(gpus, Missing):
        return "" if is_no_card(gpus.reason) else gpus.reason
    holders = [card.pids for card in gpus]
    unread = next((one for one in holders if isinstance(one, Missing)), None)
    if unread is not None and not any(is_known(one) for one in holders):
        return f"which processes are on the cards: {unread.reason}"
    return next((note for note in scene.frame.notes if note.startswith("GPUs not visible")), "")
