"""How much of the time the job's GPUs do nothing useful: idle, or busy with next to nothing. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from tpmon.judge.answers.result import reading
from tpmon.judge.features.cards import BUSY_PCT, CardScene, cards_of
from tpmon.judge.features.hollow import HOLLOW_POWER_RATIO, HOLLOW_SM_PCT, full_power_ratio, judge_hollow
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.verdict import Evidence

ALL_SM_PCT = 80.0
"""SM activity from which a card has no time left in which it could wait for other ranks."""
ALL_POWER_RATIO = 0.8
"""P from which it has none; by the power of a kernel that spins, two thirds of the rest may be waits."""
SLACK_RATIO = 0.3
"""Share of time a GPU must do nothing useful: the other side of starved (U < 70)."""


def median_over(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median over cards; Missing as soon as one card was not read."""
    listed = list(values)
    known = [value for value in listed if is_known(value)]
    if len(known) < len(listed) or not known:
        return next((one for one in listed if isinstance(one, Missing)), Missing("no card"))
    return statistics.median(known)


def gpu_figures(scene: Scene) -> tuple[Evidence, ...]:
    """Return what the cards do as evidence: the median over the cards of what was read."""
    age, cards = scene.frame.ages_s.gpu, scene.gpus
    rows = (
        ("GPU busy", median_over(card.busy_pct for card in cards), 1.0, "NVML utilisation"),
        ("SM activity", median_over(card.sm_active_pct for card in cards), 1.0, "GPM"),
        ("tensor activity", median_over(card.tensor_pct for card in cards), 1.0, "GPM"),
        ("DRAM activity", median_over(card.dram_pct for card in cards), 1.0, "GPM"),
        ("power of its limit", median_over(card.power_ratio for card in cards), 100.0, "NVML power"),
        ("SM clock of its maximum", median_over(card.clock_ratio for card in cards), 100.0, "NVML clock"),
    )
    return tuple(
        reading(name, scale * value, "%", source, age)
        for name, value, scale, source in rows
        if is_known(value)
    )


@dataclass(frozen=True, slots=True)
class Slack:
    """Hold how much of the time a card does nothing useful, 0-1, and what shows it.

    ``idle_ratio`` is the part of it in which no kernel runs at all.
    """

    ratio: float
    idle_ratio: float
    sources: frozenset[str]


def works_all_the_time(card: CardScene) -> bool:
    """Tell whether a card has no time left in which it could wait for anybody."""
    active, work = card.sm_active_pct, card.work_ratio
    return (is_known(active) and active >= ALL_SM_PCT) or (is_known(work) and work >= ALL_POWER_RATIO)


def card_slack(card: CardScene) -> Known[Slack]:
    """Return the slack of one card; Missing where a hollow card cannot be told from a full one."""
    if not is_known(card.busy_pct):
        return card.busy_pct
    idle = max(0.0, 1 - card.busy_pct / 100)
    sources = {"NVML utilisation"} if idle >= SLACK_RATIO else set()
    ratio = idle
    hollow = judge_hollow(card)
    if is_known(hollow) and not hollow and card.busy_pct >= BUSY_PCT:
        return Slack(idle, idle, frozenset(sources))
    if isinstance(hollow, Missing):
        return hollow
    powerful = is_known(card.power_ratio) and card.power_ratio >= full_power_ratio(card)
    if is_known(card.sm_active_pct) and card.sm_active_pct < HOLLOW_SM_PCT and not powerful:
        ratio = max(ratio, 1 - card.sm_active_pct / 100)
        sources.add("GPM")
    work = card.work_ratio if hollow else card.power_ratio
    if is_known(work) and work < HOLLOW_POWER_RATIO:
        if hollow:
            ratio = max(ratio, 1 - work / full_power_ratio(card))
        sources.add("NVML power")
    return Slack(ratio, idle, frozenset(sources))


def rank_slack(rank: RankScene, scene: Scene) -> Known[Slack]:
    """Return the slack of the busiest card of a rank."""
    best: Known[Slack] = Missing("its card is not known")
    for card in cards_of(rank.process.pid, scene.gpus):
        slack = card_slack(card)
        if not is_known(slack):
            return slack
        if not is_known(best) or slack.ratio < best.ratio:
            best = slack
    return best


def slackest(scene: Scene) -> Known[tuple[RankScene, Slack]]:
    """Return the rank whose GPU has the most slack; Missing when none could be told."""
    found: list[tuple[RankScene, Slack]] = []
    reason = Missing("no rank was read")
    for rank in scene.ranks:
        slack = rank_slack(rank, scene)
        if is_known(slack):
            found.append((rank, slack))
        else:
            reason = slack
    return max(found, key=lambda pair: pair[1].ratio) if found else reason
