"""How long each rank waits in collectives, and what tells it. Pure.

Its stacks tell and, on CPU, how often its main thread was found in a lock: the longer counts. A
GPU rank also waits while its collective's kernel spins: its card is busy and hollow, and its main
thread sits in a synchronise. How hollow the card is says nothing of how long: the main thread does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.features.cards import QUIET_LINK_BYTES_S, CardScene, cards_of
from tpmon.judge.features.hollow import HOLLOW_POWER_RATIO, judge_hollow
from tpmon.judge.features.slack import SLACK_RATIO, rank_slack
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.features.standstill import fresh_phase, name_rank
from tpmon.judge.stacks.phase_shares import share_of
from tpmon.judge.stacks.profile import Phase, RankPhases
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.model.process import ThreadKind

LEAST_SAMPLES = 10
"""Stack samples of a rank below which they say nothing of its waits."""
AGREE_RATIO = 0.15
"""Difference up to which stacks and looks say the same; both are samples of a few dozen."""
SPINNING_RATIO = 0.2
"""Share in a synchronise or collective that makes a hollow card one that waits, not one of launches."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold the share of a rank's time in collectives, the upper end of its interval, and what tells it."""

    rank: RankScene
    ratio: float
    high: float
    sources: frozenset[str]


def _has_comm_threads(rank: RankScene) -> bool:
    return any(group.kind is ThreadKind.COMM for group in rank.process.thread_groups)


def _by_stacks(rank: RankScene) -> Known[Wait]:
    if not is_known(rank.phases):
        return rank.phases
    if rank.phases.samples < LEAST_SAMPLES:
        return Missing(f"{rank.phases.samples} stack samples are too few")
    share = rank.phases.share(Phase.COMMS)
    return Wait(rank, share.ratio, share.high, frozenset(("stacks",)))


def _by_looks(rank: RankScene, scene: Scene) -> Known[Wait]:
    """Read the lock waits of a CPU rank; with cards or a pin thread a lock may mean something else."""
    main = rank.main
    if not is_known(main):
        return main
    if scene.cards or (rank.loader is not None and rank.loader.pin_thread):
        return Missing("a lock of the main thread has other reasons here")
    if not _has_comm_threads(rank):
        return Missing("the rank has no communication threads")
    share = share_of(round((main.lock + main.timed_lock) * main.looks), main.looks)
    return Wait(rank, share.ratio, share.high, frozenset(("kernel looks",)))


def _may_be_collective(rank: RankScene, phases: RankPhases, cards: Sequence[CardScene]) -> bool:
    """Tell whether anything but a synchronise shows collectives: frames, threads, or links at rest."""
    links = [card.link_bytes_s for card in cards]
    return (
        phases.ratio(Phase.COMMS) > 0
        or _has_comm_threads(rank)
        or all(is_known(one) and one < QUIET_LINK_BYTES_S for one in links)
    )


def _by_card(rank: RankScene, scene: Scene) -> Known[Wait] | None:
    """Read a collective that spins on the card: busy, hollow, and the host waits for it.

    None where the card tells of no wait: there is none, or it does little as well while the host does not
    wait, as one does that computes tiny kernels.
    """
    cards = cards_of(rank.process.pid, scene.gpus)
    if not cards:
        return None
    hollow = [judge_hollow(card) for card in cards]
    unread = next((one for one in hollow if isinstance(one, Missing)), None)
    if unread is not None:
        return unread
    if not all(hollow):
        return None
    if not is_known(rank.phases):
        return Missing(f"hollow: deciding; {rank.phases.reason}")
    slack = rank_slack(rank, scene)
    held = rank.phases.share(Phase.SYNC, Phase.COMMS)
    if held.ratio < SPINNING_RATIO or not is_known(slack) or slack.ratio - held.ratio >= SLACK_RATIO:
        return None
    if not _may_be_collective(rank, rank.phases, cards):
        return None
    sources = slack.sources | {"stacks"}
    return Wait(rank, min(held.ratio, slack.ratio), min(held.high, slack.ratio), sources)


def _within_backward(looks: Wait) -> Wait:
    """Count a lock for a collective only as far as the stacks are in one, or in backward.

    DDP waits for its gradients in C, within backward: no frame tells, but the lock does. Any other lock is
    the program's own, also when the rank was in backward before it came there.
    """
    phases = looks.rank.phases
    if not is_known(phases):
        return looks
    stays = phases.same_place_s > 0
    if stays and fresh_phase(phases) not in (Phase.COMMS, Phase.BACKWARD):
        return replace(looks, ratio=0.0, high=0.0)
    most = phases.share(Phase.COMMS, Phase.BACKWARD)
    return replace(looks, ratio=min(looks.ratio, most.ratio), high=min(looks.high, most.high))


def _wait_of(rank: RankScene, scene: Scene) -> Known[Wait]:
    by_card = _by_card(rank, scene)
    if by_card is not None:
        return by_card
    stacks, looks = _by_stacks(rank), _by_looks(rank, scene)
    if not is_known(stacks) or not is_known(looks):
        return stacks if is_known(stacks) or not is_known(looks) else looks
    looks = _within_backward(looks)
    longer = max(stacks, looks, key=lambda one: one.ratio)
    if abs(stacks.ratio - looks.ratio) < AGREE_RATIO:
        return replace(longer, sources=stacks.sources | looks.sources)
    return longer


def _left_undone(card: CardScene) -> Known[float]:
    """Return for which share of the time, 0-1, at most, a busy card may have waited for other ranks.

    By its SMs what they leave; by its power what it is below its limit, of what lies between that of a
    kernel that spins and the limit.
    """
    if is_known(card.sm_active_pct):
        return max(0.0, 1 - card.sm_active_pct / 100)
    return map_known(lambda work: max(0.0, (1 - work) / (1 - HOLLOW_POWER_RATIO)), card.work_ratio)


def _as_far_as_cards_wait(wait: Wait, scene: Scene) -> Wait:
    """Count a wait of the host in a collective only as far as its cards had nothing else to do.

    Some collectives synchronise: the host is in their frames while the card does the work before them.
    """
    cards = cards_of(wait.rank.process.pid, scene.gpus)
    left = []
    for card in cards:
        hollow, undone = judge_hollow(card), _left_undone(card)
        if not is_known(card.busy_pct) or not is_known(hollow) or not is_known(undone):
            return wait
        left.append(1.0 if hollow else max(undone, 1 - card.busy_pct / 100))
    most = max(left, default=1.0)
    return replace(wait, ratio=min(wait.ratio, most), high=min(wait.high, most))


def find_waits(scene: Scene) -> Known[list[Wait]]:
    """Return the waits of all ranks of this machine, least first; Missing when one is not known."""
    waits = []
    for rank in scene.ranks:
        wait = _wait_of(rank, scene)
        if not is_known(wait):
            return Missing(f"{name_rank(rank)}: {wait.reason}")
        waits.append(_as_far_as_cards_wait(wait, scene))
    return sorted(waits, key=lambda one: one.ratio) if waits else Missing("no rank was read")
