"""Whether the job's GPUs are full, and whether they wait for their host.

The driver's utilisation says that a kernel runs, not that the card works; SM activity or power
must agree before a card is called full.
"""

from __future__ import annotations

from tpmon.judge import rules_card_errors, rules_cards, rules_launch, rules_link
from tpmon.judge.phases import Phase
from tpmon.judge.rules_cards import answer_without_cards, is_braked, is_hot
from tpmon.judge.scene import Scene
from tpmon.judge.scene_gpu import (
    BUSY_PCT,
    FULL_POWER_RATIO,
    FULL_SM_PCT,
    STARVED_PCT,
    CardScene,
    mean_busy_pct,
)
from tpmon.judge.slack import gpu_figures, median_over
from tpmon.judge.suspicion import Answer, Cleared, Rule, Suspicion, Unsure
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Kind

DRAM_BOUND_PCT = 50.0
"""GPM DRAM activity from which memory is the limit: about 80 is all there is, matmuls read 18-21."""
TENSOR_WORKS_PCT = 25.0
"""Tensor activity from which the card multiplies matrices; a healthy H100 job reads 28."""
HIDDEN_WAIT_RATIO = 0.1


def is_starved(scene: Scene) -> Known[bool]:
    """Tell whether the job's GPUs wait for their host: U below 70 %; Missing without cards.

    Long gaps show as a sawtooth in the driver's samples, gaps shorter than a sample (1/6 s) as a
    low mean without one; both are idle time.
    """
    return map_known(lambda busy: busy < STARVED_PCT, mean_busy_pct(scene.gpus))


def gpu_idle_ratio(scene: Scene) -> Known[float]:
    """Return the share of time, 0-1, in which no kernel runs on the job's GPUs; Missing without cards."""
    return map_known(lambda busy: max(0.0, 1 - busy / 100), mean_busy_pct(scene.gpus))


def _full_margin(card: CardScene) -> Known[float]:
    """Return how far a card is past being full, by SM activity or power; Missing when neither was read."""
    margins = [
        value / limit
        for value, limit in ((card.sm_active_pct, FULL_SM_PCT), (card.power_ratio, FULL_POWER_RATIO))
        if is_known(value)
    ]
    if margins:
        return max(margins)
    return card.power_ratio if isinstance(card.power_ratio, Missing) else Missing("power not read")


def _choose_compute(scene: Scene) -> str:
    dram = median_over(card.dram_pct for card in scene.gpus)
    tensor = median_over(card.tensor_pct for card in scene.gpus)
    active = median_over(card.sm_active_pct for card in scene.gpus)
    if not (is_known(dram) and is_known(tensor) and is_known(active)):
        return "gpu"
    if dram >= DRAM_BOUND_PCT and tensor < TENSOR_WORKS_PCT:
        return "gpu-memory-bandwidth"
    return "gpu-compute" if active >= FULL_SM_PCT else "gpu"


def _hidden_wait(scene: Scene) -> tuple[Evidence, ...]:
    """Return the data wait that a busy GPU hides, so that nobody hunts it."""
    waits = [rank.phases.ratio(Phase.DATA_WAIT) for rank in scene.ranks if is_known(rank.phases)]
    if not waits or max(waits) < HIDDEN_WAIT_RATIO:
        return ()
    text = f"{format_pct(100 * max(waits))} % of the host's time, costs 0: the GPU is busy meanwhile"
    age = scene.frame.ages_s.stacks
    return (Evidence("hidden data wait", 100 * max(waits), "%", text, "stack samples", age),)


def judge_gpu_compute(scene: Scene) -> Answer:
    """Suspect, in the good sense, that the GPUs are full: every card busy, working, and not held."""
    if not scene.gpus:
        return answer_without_cards(scene)
    margins = []
    for card in scene.gpus:
        name = f"GPU compute (card {card.index}"
        if not is_known(card.busy_pct):
            return Unsure(f"{name}: {card.busy_pct.reason})")
        if card.busy_pct < BUSY_PCT:
            return Cleared(f"{name} is busy {format_pct(card.busy_pct)} %)")
        if is_hot(card) or is_braked(card):
            return Cleared(f"{name} is held below its clocks)")
        margin = _full_margin(card)
        if not is_known(margin):
            return Unsure(f"{name}: {margin.reason})")
        if margin < 1:
            return Cleared(f"{name} is busy, but neither SM activity nor power is high)")
        margins.append(margin)
    cause = _choose_compute(scene)
    active = median_over(card.sm_active_pct for card in scene.gpus)
    power = median_over(card.power_ratio for card in scene.gpus)
    sources = {"NVML utilisation"}
    if is_known(active) and active >= FULL_SM_PCT:
        sources.add("GPM")
    if is_known(power) and power >= FULL_POWER_RATIO:
        sources.add("NVML power")
    busy = known_or(mean_busy_pct(scene.gpus), BUSY_PCT)
    words = {
        "gpu-memory-bandwidth": "full with moving data to and from their memory",
        "gpu-compute": "full with computing",
        "gpu": "full; whether with computing or memory traffic is not measured",
    }
    return Suspicion(
        kind=Kind.COMPUTE_BOUND,
        cause=cause,
        weight=min(1.0, busy / 100),
        margin=min(margins),
        sources=frozenset(sources),
        summary=f"the GPUs are {words[cause]}: {format_pct(busy)} % busy",
        evidence=(*gpu_figures(scene), *_hidden_wait(scene)),
    )


RULES: tuple[Rule, ...] = (
    judge_gpu_compute,
    *rules_launch.RULES,
    *rules_cards.RULES,
    *rules_link.RULES,
    *rules_card_errors.RULES,
)
