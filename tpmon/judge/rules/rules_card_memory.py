"""Full cards: a fault where the allocator asks again and again, or where the job's memory grows to the end.

A caching allocator fills a card on purpose, so that a full one alone proves nothing.
"""

from __future__ import annotations

from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure, reading, take_heaviest
from tpmon.judge.features.card_slices import is_sliced
from tpmon.judge.features.card_use import (
    find_fullest,
    read_fill,
    read_held_growth,
    read_own_growth,
)
from tpmon.judge.features.cards import CardScene, cards_of
from tpmon.judge.features.data_wait import LEAST_SAMPLES
from tpmon.judge.features.growth import ETA_S, GROWTH_BYTES_S, Growth, find_urgency, say_about
from tpmon.judge.features.hook_needs import STEADY_STEPS, count_risen, get_ooms, get_retries
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.hook_progress import HOOK, find_hook
from tpmon.model.card_use import list_processes
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, map_known
from tpmon.model.units import format_bytes, format_pct, say_bytes_s
from tpmon.model.verdict import Evidence, Kind

CARD_FULL = 0.95
NEARLY_FULL = 0.9
"""Fill, at its highest within the Window, that goes with an allocator that finds no room: a large piece does
not fit long before the last byte is taken."""
LEAST_RETRIES = 2
"""Retries within the Window that are no chance; a single one comes of a first validation or a long batch."""
LEAST_WEIGHT = 0.2
HELD_RATIO = 0.5
"""Growth of what the allocator holds for tensors, over that of the job on the card, from which it is no cache
that grows."""
RAMP_RATIO = 0.5
"""Growth within the Window over all that is there from which a card is being filled for the first time."""
SETTLED_AGE_S = 120.0
"""Age of a rank up to which its memory grows as it starts."""
WORKS_PCT = 20.0
"""U, or SM activity of a slice, from which a card whose memory grows is not just being loaded."""
TRAINS_RATIO = 0.5
"""Share of stack samples in forward, backward and optimizer that says the same."""
SOURCE = "memory of the card"


def _cards_of(rank: RankScene, scene: Scene) -> tuple[CardScene, ...]:
    return cards_of(rank.process.pid, scene.gpus)


def _name(rank: RankScene, scene: Scene) -> str:
    return f"rank {rank.process.rank}" if len(scene.ranks) > 1 and is_known(rank.process.rank) else "the job"


def _others_row(card: CardScene, scene: Scene) -> tuple[Evidence, ...]:
    """Say what others have of the memory of a card, where the driver lists them."""
    sample = card.last
    if not is_known(sample.pids) or is_sliced(sample):
        return ()
    theirs = [
        one.used_bytes
        for one in list_processes(sample)
        if one.pid not in sample.pids and not one.of_job and is_known(one.used_bytes)
    ]
    if not theirs:
        return ()
    return (
        reading("memory of others on it", sum(theirs) / (1 << 20), "MiB", "NVML", scene.frame.ages_s.gpu),
    )


def _full_need(ratio: Known[float], least: float) -> frozenset[Need]:
    return frozenset((Need.GPU_MEMORY_FULL,)) if is_known(ratio) and ratio >= least else frozenset()


def _judge_retries(rank: RankScene, scene: Scene) -> Answer | None:
    """Answer by the counters of a rank's allocator; None where they do not rise."""
    pid = rank.process.pid
    retries, ooms = count_risen(scene, pid, get_retries), count_risen(scene, pid, get_ooms)
    if retries < LEAST_RETRIES and not ooms:
        return None
    fills = [
        (ratio, card)
        for card in _cards_of(rank, scene)
        if is_known(card.memory_ratio) and is_known(ratio := find_fullest(scene.history, card.last.uuid))
    ]
    if not fills:
        return Unsure(
            f"why the allocator of {_name(rank, scene)} asks again (memory of its card was not read)"
        )
    ratio, card = max(fills, key=lambda one: one[0])
    if ratio < NEARLY_FULL:
        return Unsure(
            f"why the allocator of {_name(rank, scene)} asks again (GPU {card.index} was never fuller than "
            f"{format_pct(100 * ratio)} %; is its part of the memory limited?)"
        )
    return _suspect_retries(rank, card, scene, ratio, retries=retries, ooms=ooms)


def _suspect_retries(
    rank: RankScene, card: CardScene, scene: Scene, ratio: float, *, retries: int, ooms: int
) -> Suspicion:
    ages = scene.frame.ages_s
    said = [f"gave back its cache to find room {retries} times"] if retries else []
    said += [f"found none {ooms} times"] if ooms else []
    steps = _count_steps(scene, rank.process.pid)
    evidence = [
        reading("allocator retries", float(retries), f"in {scene.history_s:.0f} s", HOOK, ages.hook),
        reading("out of memory", float(ooms), f"in {scene.history_s:.0f} s", HOOK, ages.hook),
        reading("memory of the card, at most", 100 * ratio, "%", "NVML", ages.gpu),
    ]
    hook = find_hook(scene.frame, rank.process.pid)
    if hook is not None and is_known(hook.settings) and is_known(hook.settings.allocator):
        split = hook.settings.allocator.inactive_split_bytes / (1 << 20)
        evidence.append(reading("free in pieces of the cache", split, "MiB", HOOK, ages.hook))
    in_steps = f" in {steps} steps" if steps else ""
    return Suspicion(
        kind=Kind.MEMORY_PRESSURE,
        cause="gpu",
        weight=min(1.0, max(LEAST_WEIGHT, (retries + ooms) / steps if steps else 0.0)),
        margin=max(retries / LEAST_RETRIES, float(ooms)),
        sources=frozenset((HOOK, SOURCE)),
        summary=f"the allocator of {_name(rank, scene)} {' and '.join(said)}{in_steps}, "
        f"GPU {card.index} is {format_pct(100 * ratio)} % full",
        evidence=(*evidence, *_others_row(card, scene)),
        observed=_full_need(ratio, NEARLY_FULL) | {Need.ALLOCATOR_RETRIES},
        pid=rank.process.pid,
        rank=rank.process.rank,
        card=card.index,
    )


def _count_steps(scene: Scene, pid: int) -> int:
    """Return the training steps that a rank took within the Window, 0 where no hook tells."""
    hooks = [find_hook(frame, pid) for frame in (scene.history[0], scene.frame)]
    first, last = (one.counts.steps if one is not None else 0 for one in hooks)
    return max(0, last - first) if hooks[0] is not None else 0


def _trains(rank: RankScene, card: CardScene, scene: Scene) -> Known[bool]:
    """Tell whether a rank is past its start and computes: what fills a card at first grows as steadily."""
    before = find_hook(scene.history[0], rank.process.pid)
    if before is not None:
        return before.counts.steps >= STEADY_STEPS and _count_steps(scene, rank.process.pid) > 0
    if (scene.now - rank.process.started).total_seconds() - scene.history_s < SETTLED_AGE_S:
        return False
    phases = rank.phases
    if is_known(phases) and phases.samples >= LEAST_SAMPLES:
        return phases.ratio(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER) >= TRAINS_RATIO
    works = card.busy_pct if is_known(card.busy_pct) else card.sm_active_pct
    return map_known(lambda pct: pct >= WORKS_PCT, works)


def _judge_growth(card: CardScene, scene: Scene) -> Answer | None:
    """Answer by the growth of the job's memory on a card; None where it does not grow."""
    name, fill = f"memory of GPU {card.index}", read_fill(card.last)
    ranks = [rank for rank in scene.ranks if rank.process.pid in card.pids]
    trains = [_trains(rank, card, scene) for rank in ranks]
    if not any(isinstance(one, Missing) or one for one in trains):
        return None
    if not is_known(fill.used) or not is_known(fill.total):
        return None
    room = max(0, fill.total - fill.used)
    growth = read_own_growth(scene, card.last.uuid, max(GROWTH_BYTES_S, room / ETA_S))
    if isinstance(growth, Missing):
        return Unsure(f"whether the job's {name} grows ({growth.reason})")
    if growth is None:
        return None
    grows = f"it grows by {say_bytes_s(growth.mean)}"
    if growth.grown_bytes >= RAMP_RATIO * growth.newest:
        return Cleared(f"{name} ({grows}, as at a start)")
    eta_s = room / growth.mean
    if eta_s >= ETA_S:
        return Cleared(f"{name} ({grows}, room for {say_about(eta_s)})")
    if not any(is_known(one) and one for one in trains):
        return Unsure(f"whether the job's {name} leaks or is still being filled ({grows})")
    pids = [rank.process.pid for rank in ranks]
    alone = all(len(cards_of(pid, scene.gpus)) == 1 for pid in pids)
    held = read_held_growth(scene, pids) if alone else Missing("the ranks are on several cards")
    if is_known(held) and held.mean < HELD_RATIO * growth.mean:
        return Cleared(f"{name} (the cache of the allocator grows, what it holds does not)")
    row = reading("memory of the card", 100 * fill.used / fill.total, "%", "NVML", scene.frame.ages_s.gpu)
    grown = _suspect_growth(card, scene, growth, held, eta_s)
    one_rank = ranks[0].process if len(ranks) == 1 else None
    return replace(
        grown,
        summary=f"{grown.summary}, its {format_bytes(fill.total)} are full in {say_about(eta_s)}",
        evidence=(*grown.evidence, row, *_others_row(card, scene)),
        observed=_full_need(fill.ratio, CARD_FULL) | {Need.CARD_MEMORY_GROWS},
        pid=one_rank.pid if one_rank is not None else NOT_APPLICABLE,
        rank=one_rank.rank if one_rank is not None else NOT_APPLICABLE,
    )


def _suspect_growth(
    card: CardScene, scene: Scene, growth: Growth, held: Known[Growth], eta_s: float
) -> Suspicion:
    ages = scene.frame.ages_s
    evidence = [
        reading("growth of the job's memory", growth.mean, "bytes/s", "NVML", ages.gpu),
        reading("grown", growth.grown_bytes / (1 << 20), "MiB in 45 s", "NVML", ages.gpu),
    ]
    if is_known(held):
        evidence.append(reading("growth of what is held for tensors", held.mean, "bytes/s", HOOK, ages.hook))
    return Suspicion(
        kind=Kind.MEMORY_PRESSURE,
        cause="gpu",
        weight=find_urgency(eta_s),
        margin=min(min(growth.slopes) / GROWTH_BYTES_S, ETA_S / max(eta_s, 1.0)),
        sources=frozenset((SOURCE, HOOK) if is_known(held) else (SOURCE,)),
        summary=f"the job's memory on GPU {card.index} grows by {say_bytes_s(growth.mean)}",
        evidence=tuple(evidence),
        card=card.index,
    )


def _tells_allocator(card: CardScene, scene: Scene) -> bool:
    """Tell whether the hook of every rank on a card tells the counters of its allocator."""
    hooks = [
        find_hook(scene.frame, rank.process.pid) for rank in scene.ranks if rank.process.pid in card.pids
    ]
    return bool(hooks) and all(
        one is not None and is_known(one.settings) and is_known(one.settings.allocator) for one in hooks
    )


def _say_fill(scene: Scene) -> Answer:
    """Say how full the fullest card is, which proves nothing by itself."""
    fills = [(ratio, card) for card in scene.gpus if is_known(ratio := card.memory_ratio)]
    if not fills:
        return Unsure("GPU memory (memory of the cards was not read)")
    fill, card = max(fills, key=lambda one: one[0])
    text = f"{format_pct(100 * fill)} % of GPU {card.index}"
    if fill < CARD_FULL:
        return Cleared(f"GPU memory ({text})")
    if _tells_allocator(card, scene):
        return Cleared(f"GPU memory ({text}, and its allocator finds room)")
    return Unsure(f"whether the full memory of GPU {card.index} is a fault (the allocator is not seen)")


def judge_gpu_memory(scene: Scene) -> Answer:
    """Suspect a full card whose allocator asks again, or one that the job's growing memory fills soon."""
    if not scene.gpus:
        return Cleared("GPU memory (no GPU)")
    told = [_judge_retries(rank, scene) for rank in scene.ranks]
    answers = [one for one in told if one is not None]
    found = [one for one in answers if isinstance(one, Suspicion)]
    if found:
        return max(found, key=lambda one: one.weight)
    fills = [(ratio, card) for card in scene.gpus if is_known(ratio := card.memory_ratio)]
    for _, card in sorted(fills, key=lambda one: -one[0]):
        answer = _judge_growth(card, scene)
        if isinstance(answer, Suspicion):
            return answer  # ranks that leak do so alike; reading all of eight cards takes 3 ms
        answers += [answer] if answer is not None else []
    return take_heaviest(answers, "GPU memory") if answers else _say_fill(scene)
