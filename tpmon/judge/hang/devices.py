"""Say whether a wait for a card or in a collective works or stands: by records, else stacks and timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.dumps.collective_words import find_backend
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.judge.features.card_use import MEDIUM_POWER, full_power_ratio, judge_hollow
from tpmon.judge.features.cards import BUSY_PCT, QUIET_LINK_BYTES_S, CardScene, cards_of, is_sliced
from tpmon.judge.features.comms import nic_bytes_s
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import IDLE_CARD_PCT, IDLE_SLICE_PCT, find_silence
from tpmon.judge.hang.sinks import Blame, End, Goes, Grace, Sink, blame
from tpmon.judge.hang.threads import find_camps, say_camps
from tpmon.judge.stacks.classify import is_native, is_users, package_of
from tpmon.judge.stacks.phases import TRAINING, Phase
from tpmon.judge.watch.picture import Picture
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.text.dump_words import name_rank

_AT_CARD = (*TRAINING, Phase.SYNC, Phase.COMMS, Phase.OTHER)
"""Phases in which a host may wait for its card; loading and compiling run on the host."""
_LEAVE_IT_TO_CARDS = frozenset(
    ("torch", "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "lightning_fabric")
)
"""Packages whose own code computes on the card; others, such as numpy, compute on the CPU."""
_WORKS = ""
_HOLLOW = "is busy and does next to nothing"


def may_card_spin(seen: ThreadSeen, scene: Scene) -> bool:
    """Tell whether a card of a rank is busy with anything, or may be, as one that cannot be seen."""
    cards = cards_of(seen.thread.pid, scene.gpus)
    return not cards or any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards)


def say_card_works(seen: ThreadSeen, scene: Scene) -> str:
    """Say that a card of a rank works, or may, "" where all of them are known not to."""
    for card in cards_of(seen.thread.pid, scene.gpus):
        state = _say_state(card, scene)
        if isinstance(state, Missing):
            return f"card {card.index} of it may work ({state.reason})"
        if state == _WORKS:
            return f"card {card.index} of it works"
    return ""


def is_network_busy(scene: Scene, picture: Picture) -> bool:
    """Tell whether bytes move over the network of a job that has ranks on other machines."""
    rate = nic_bytes_s(scene)
    return picture.scene.remote > 0 and is_known(rate) and rate >= QUIET_LINK_BYTES_S


def _say_state(card: CardScene, scene: Scene) -> Known[str]:
    """Say what an idle card does, "" for one that works; Missing where that is not known."""
    silence = find_silence(card, scene)
    if silence is not None:
        return silence.state
    if is_sliced(card.last) and is_known(card.sm_active_pct):
        return _WORKS if card.sm_active_pct >= IDLE_SLICE_PCT else "is idle"
    if not is_known(card.busy_pct):
        return card.busy_pct
    if card.busy_pct < IDLE_CARD_PCT:
        return "is idle"
    hollow, work = judge_hollow(card), card.work_ratio
    by_power = card.busy_pct >= BUSY_PCT and not is_known(card.sm_active_pct)
    if hollow is False and by_power and is_known(work) and work < full_power_ratio(card):
        return MEDIUM_POWER
    return map_known(lambda empty: _HOLLOW if empty else _WORKS, hollow)


def _is_alone(picture: Picture) -> bool:
    return len(picture.scene.ranks) + picture.scene.remote < 2


def _may_exchange(card: CardScene, scene: Scene, picture: Picture) -> bool:
    """Tell whether a busy card may be in a slow collective whose bytes no counter shows."""
    if _is_alone(picture) or not is_known(card.busy_pct) or card.busy_pct < IDLE_CARD_PCT:
        return False
    return is_network_busy(scene, picture) or not is_known(card.link_bytes_s)


def expand_card(seen: ThreadSeen, scene: Scene, picture: Picture) -> End:
    """Say that a rank waits for its card; one that works may be in a kernel that does not end.

    A collective over a slow network is as hollow as a kernel that does not end; the bytes tell them apart.
    """
    name = name_rank(seen.thread)
    cards = cards_of(seen.thread.pid, scene.gpus)
    states = [(card, _say_state(card, scene)) for card in cards]
    for card, state in states:
        moves = known_or(card.link_bytes_s, 0.0) >= QUIET_LINK_BYTES_S
        if state == _HOLLOW and moves and not _is_alone(picture):
            return Goes(f"{name} waits for card {card.index}, whose links move data")
    text = f"{name} waits for its card in {seen.doing.text}; card"
    untold = [
        f"{card.index} may work ({state.reason})" for card, state in states if isinstance(state, Missing)
    ]
    working = [f"{card.index} works" for card, state in states if state == _WORKS]
    grace = Grace.ENDLESS
    if working:
        grace = Grace.TRANSFER
    elif untold:
        grace = Grace.COMPUTE
    elif _is_alone(picture) and any(
        state == _HOLLOW and not is_known(card.sm_active_pct) for card, state in states
    ):
        # A slow kernel of few blocks draws as little power as one that does not end.
        grace = Grace.TIMED
    elif any(_may_exchange(one, scene, picture) for one in cards):
        grace = Grace.SLOW
    said = (*working, *untold, f"{cards[0].index} {states[0][1]}")[0]
    return blame(Sink.CARD, seen, f"{text} {said}", grace)


def expand_unseen_card(seen: ThreadSeen, picture: Picture) -> Blame | None:
    """Say that a rank may wait for a card that cannot be read; None where it does something else.

    NCCL's threads show that there is one: of AMD, or of another container. A host that waits for its card, or
    for a collective on it, spins at a line of the program.
    """
    names = (one.thread.name for one in picture.threads_of(seen.thread.pid))
    if _is_alone(picture) or _computes(seen, picture) or seen.doing.phase not in _AT_CARD:
        return None
    if find_backend(names) != "nccl":
        return None
    text = f"{name_rank(seen.thread)} computes, or waits for its card, in {seen.doing.text}"
    text = f"{text}; what its card does cannot be read"
    return blame(Sink.UNSEEN_CARD, seen, text)


def _computes(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a rank itself works: torch waits for the card without the GIL."""
    trait = picture.trait_of(seen)
    if trait is not None and trait.gil_ratio > 0:
        return True
    frames = [one for one in seen.frames if not is_native(one.file)]
    if not frames or is_users(frames[-1]):
        return False
    return package_of(frames[-1].file) not in _LEAVE_IT_TO_CARDS


def blame_cards(blames: Sequence[Blame]) -> Blame:
    """Join the blames of all ranks, each of which waits for its own card: none is the culprit."""
    found = max(blames, key=lambda one: one.grace)
    ranks = [one.seen for one in blames]
    also = tuple(one for one in ranks if one is not found.seen)
    head = f"all {len(blames)} ranks wait for their cards"
    if found.grace is Grace.TRANSFER:
        several = sum(one.grace is Grace.TRANSFER for one in blames) > 1
        return replace(found, text=f"{head}; {found.text}", also=also, is_of_all=several)
    none = "is known to do" if found.grace is Grace.COMPUTE else "does"
    text = f"{head}, none of which {none} anything: most likely in one collective"
    if len(find_camps(ranks)) > 1:
        # A host waits for its card at the line after the collective, perhaps another one in each rank.
        text = f"{text}, or in different ones: {say_camps(ranks)}"
    return replace(found, text=text, also=also, is_of_all=True)
