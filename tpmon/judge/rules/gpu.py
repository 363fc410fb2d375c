"""Whether the job's GPUs are full, and whether they wait for their host.

The driver's utilisation says that a kernel runs, not that the card works; SM activity or power
must agree before a card is called full.
"""

from __future__ import annotations

from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.card_slices import is_sliced
from tpmon.judge.features.cards import BUSY_PCT, CardScene, mean_busy_pct
from tpmon.judge.features.comms import exchange_unread, find_exchange
from tpmon.judge.features.hollow import (
    FULL_SM_PCT,
    HOLLOW_POWER_RATIO,
    HOLLOW_SM_PCT,
    full_power_ratio,
    judge_hollow,
)
from tpmon.judge.features.silent_cards import goes_on
from tpmon.judge.features.slack import gpu_figures, median_over, works_all_the_time
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.rules import card_faults as rules_card_errors
from tpmon.judge.rules import cards as rules_cards
from tpmon.judge.rules import rules_launch, rules_link
from tpmon.judge.rules.cards import answer_without_cards, is_braked, is_hot
from tpmon.judge.stacks.profile import Phase
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Kind

DRAM_BOUND_PCT = 50.0
"""GPM DRAM activity from which memory is the limit: about 80 is all there is, matmuls read 18-21."""
TENSOR_WORKS_PCT = 25.0
"""Tensor activity from which the card multiplies matrices; a healthy H100 job reads 28."""
HIDDEN_WAIT_RATIO = 0.1
SLICE_SYNC = 0.5
"""Share of time that a host waits for its slice from which that is busy, where neither U nor SMs are read."""


def _full_margin(card: CardScene) -> Known[float]:
    """Return how far a card is past being full, by SM activity or power; Missing when neither was read.

    Power counts by what the card draws at its clock: a locked one draws less and is as full.
    """
    power = card.work_ratio if is_known(card.work_ratio) else card.power_ratio
    margins = [
        value / limit
        for value, limit in ((card.sm_active_pct, FULL_SM_PCT), (power, full_power_ratio(card)))
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


def _say_unread(card: CardScene) -> str:
    """Name what tells how full a card is and was not read: "power: not supported by this card"."""
    figures = {"power": card.power_ratio, "SM clock": card.clock_ratio, "SM activity": card.sm_active_pct}
    return next((f"{name}: {one.reason}" for name, one in figures.items() if isinstance(one, Missing)), "")


def _is_awaited(card: CardScene, scene: Scene) -> bool:
    """Tell whether the host of a slice mostly waits for it, so that kernels run there."""
    shares = [rank.phases for rank in scene.ranks if rank.process.pid in card.pids]
    waits = all(is_known(one) and one.ratio(Phase.SYNC) >= SLICE_SYNC for one in shares)
    return is_sliced(card.last) and bool(shares) and waits


def _weigh_card(card: CardScene, scene: Scene) -> Answer | float | Missing:
    """Return how far a card is past being full, below 1 for one that is busy and not hollow, else why not.

    Missing of one that is busy where nothing was read of how full it is.
    """
    name = f"GPU compute (card {card.index}"
    margin, active = _full_margin(card), card.sm_active_pct
    if not is_known(card.busy_pct):
        if is_known(active):  # those of a slice, which has no utilisation, are kernels that run
            full = is_sliced(card.last) and active >= FULL_SM_PCT and is_known(margin)
            return margin if full else Unsure(f"{name}: {card.busy_pct.reason})")
        reason = f"{card.busy_pct.reason}; SM activity: {active.reason}"
        return Missing(reason) if _is_awaited(card, scene) else Unsure(f"{name}: {reason})")
    if card.busy_pct < BUSY_PCT:
        return Cleared(f"{name} is busy {format_pct(card.busy_pct)} %)")
    if is_hot(card, scene) or is_braked(card, scene):
        return Cleared(f"{name} is held below its clocks)")
    hollow = judge_hollow(card)
    if not is_known(margin) or (margin < 1 and not is_known(card.clock_ratio)):
        low = known_or(card.power_ratio, 1.0) < HOLLOW_POWER_RATIO or known_or(active, 100.0) < HOLLOW_SM_PCT
        return Unsure(f"{name}: {_say_unread(card)})") if low else Missing(_say_unread(card))
    doubted = margin < 1 or (is_known(active) and active < HOLLOW_SM_PCT)
    if doubted and isinstance(hollow, Missing):
        return Unsure(f"{name}: {hollow.reason})")
    if margin < 1 and hollow:
        return Cleared(f"{name} is busy, but neither SM activity nor power is high)")
    return margin


def _exchanged(scene: Scene) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """Return what the ranks move that may keep their cards busy, and what was not read of it.

    The kernel of a collective counts as busy while it waits; SM activity and power tell how much is work.
    """
    world = scene.frame.target.world_size
    if all(map(works_all_the_time, scene.gpus)):
        return (), ()
    if len(scene.ranks) < 2 and isinstance(world, Missing):
        return (), (f"whether it exchanges data with other ranks ({world.reason})",)
    if max(known_or(world, 1), len(scene.ranks)) < 2:
        return (), ()
    found = find_exchange(scene)
    return found, () if found else exchange_unread(scene)


def judge_gpu_compute(scene: Scene) -> Answer:
    """Suspect, in the good sense, that the GPUs are full: every card busy, working, and not held.

    Cards that never run empty and are neither full nor hollow are bound by their kernels, too; that is
    all that is said of them, and of those of which nothing was read that tells how full they are.
    """
    if not scene.gpus:
        return answer_without_cards(scene)
    margins, missing = [], ""
    for card in scene.gpus:
        margin = _weigh_card(card, scene)
        if isinstance(margin, (Cleared, Unsure, Suspicion)):
            return margin
        if isinstance(margin, Missing):
            missing, margin = f"card {card.index}: {margin.reason}", 0.0
        margins.append(margin)
    exchanged, unread = _exchanged(scene)
    full = min(margins) >= 1
    if not full and exchanged:
        busy_at = missing or "busy at medium power"
        return Unsure(f"GPU compute ({busy_at}: the ranks may wait for each other meanwhile)")
    if missing and not goes_on(scene):  # a kernel that does not end looks the same
        return Unsure(f"GPU compute ({missing}; that the run gets on is not seen)")
    cause = _choose_compute(scene) if full else "gpu"
    active = median_over(card.sm_active_pct for card in scene.gpus)
    power = median_over(card.work_ratio for card in scene.gpus)
    busy = mean_busy_pct(scene.gpus)
    sources = {"NVML utilisation"} if is_known(busy) else set()
    if is_known(active) and active >= FULL_SM_PCT:
        sources.add("GPM")
    if is_known(power) and power >= max(map(full_power_ratio, scene.gpus)):
        sources.add("NVML power")
    words = {
        "gpu-memory-bandwidth": "full with moving data to and from their memory",
        "gpu-compute": "full with computing",
        "gpu": "full; whether with computing or memory traffic is not measured",
    }
    said = words[cause] if full else "never empty, and their kernels use a part of them"
    if missing:
        said, unread = "never empty; how full they are is not measured", (f"how full ({missing})", *unread)
    shown = f"{format_pct(active)} % of their SMs active" if is_known(active) else "their hosts wait for them"
    shown = f"{format_pct(busy)} % busy" if is_known(busy) else shown
    return Suspicion(
        kind=Kind.COMPUTE_BOUND,
        cause=cause,
        weight=min(1.0, known_or(busy, known_or(active, BUSY_PCT)) / 100),
        margin=min(margins) if full else 1.0,
        sources=frozenset(sources)
        if full
        else frozenset(("NVML utilisation" if is_known(busy) else "stacks",)),
        summary=f"the GPUs are {said}: {shown}",
        evidence=(*gpu_figures(scene), *_hidden_wait(scene)),
        against=exchanged,
        unread=unread,
    )


RULES: tuple[Rule, ...] = (
    judge_gpu_compute,
    *rules_launch.RULES,
    *rules_cards.RULES,
    *rules_link.RULES,
    *rules_card_errors.RULES,
)
