"""Judge errors and memory of cards, and write notes; a caching allocator fills a card on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Suspicion, Unsure, by_conditions, take_heaviest
from tpmon.judge.features import card_holds as holds
from tpmon.judge.features import card_use as use
from tpmon.judge.features.cards import BUSY_PCT, MOST_NAMED, CardScene, cards_of, is_sliced, list_samples
from tpmon.judge.features.data_wait import LEAST_SAMPLES
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.hook_needs import STEADY_STEPS, count_retries
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.features.standstill import find_silence, find_silences, goes_on, hangs_on, say_open
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.tracker import find_hook
from tpmon.model.figures import Figure
from tpmon.model.gpu import RESTART_XIDS, is_card_fault, list_processes, name_recovery
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known
from tpmon.model.units import format_bytes, say_bytes_s, say_pct, say_ratio
from tpmon.model.verdict import Kind

SILENCE = "NVML"
"""Source of a card's silence, which it does not report itself."""
_LATER = 0.2
_SERIOUS = 0.5


def _ecc_rise(card: CardScene, scene: Scene) -> int:
    """Return how many uncorrected memory errors came since attaching, or within the history."""
    now, uuid = card.last.ecc_uncorrected, card.last.uuid
    samples = list_samples(scene.history, uuid)
    first = next((one.ecc_uncorrected for one in samples if is_known(one.ecc_uncorrected)), now)
    first = dict(scene.watch.first_errors).get(uuid, first)
    return max(0, now - first) if is_known(now) and is_known(first) else 0


def _say_no_errors(scene: Scene) -> str:
    """Say what else is known where no card complains; V100 and T4 retire pages, which are not read."""
    counts = [(card.index, card.last.ecc_uncorrected) for card in scene.gpus]
    older = ", ".join(f"card {index}: {count}" for index, count in counts if known_or(count, 0))
    said = f"none new; uncorrected memory errors from before: {older}" if older else "none reported"
    rows = [one.reason for card in scene.gpus if isinstance(one := card.last.remapped_rows_failed, Missing)]
    return f"{said}; remapped rows and retired pages were not read: {rows[0]}" if rows else said


def _complaints(card: CardScene, scene: Scene) -> list[tuple[str, float, str]]:
    """Return what the card reports: words, weight, source."""
    last, rise = card.last, _ecc_rise(card, scene)
    silence, xids = find_silence(card, scene), dict.fromkeys(xid for xid in last.xids if is_card_fault(xid))
    action = known_or(last.recovery_action, 0)
    silent, remapped = "", "NVML remapped rows"
    if silence is not None and not hangs_on(silence, scene):
        goes = goes_on(scene, silence.pids, silence.sample.age_s)
        silent = silence.words + (", and the run goes on" if goes else "")
    rows = (
        (bool(silent), silent, _SERIOUS, SILENCE),
        (action != 0, f"{name_recovery(action)} wanted", _SERIOUS, "NVML recovery action"),
        (known_or(last.remapped_rows_failed, 0) > 0, "row remapping failed", _SERIOUS, remapped),
        (known_or(last.remapped_rows_pending, 0) > 0, "a row remapping waits for a reset", _LATER, remapped),
        (rise > 0, f"{rise} new uncorrected memory errors", _SERIOUS, "NVML ECC"),
        (bool(xids), f"Xid {', '.join(map(str, xids))}", _SERIOUS, "NVML events"),
    )
    return [(words, weight, source) for is_there, words, weight, source in rows if is_there]


@proves("errors of the cards")
def judge_unhealthy(errors: Proof, scene: Scene) -> Answer:
    """Suspect a card that reports errors of its own: remapping, ECC, a wanted reset, an Xid; or is silent."""
    holds.need_cards(scene)
    told = [(card, words) for card in scene.gpus if (words := _complaints(card, scene))]
    for last in (card.last for card in scene.gpus if not told):
        # Cards without ECC have no such figures.
        figures = (last.recovery_action, last.remapped_rows_failed, last.ecc_uncorrected)
        if not any(map(is_known, figures)):
            errors.known(figures[0])
    errors.clear(not told, _say_no_errors(scene))
    card, words = max(told, key=lambda pair: sum(weight for _, weight, _ in pair[1]))
    silent = [text for text, _, source in words if source == SILENCE]
    reports = "; ".join(text for text, _, source in words if source != SILENCE)
    for text, _, source in words:
        errors.add(Figure.GPU_FAULT, 1.0, float(1 + len(words)), of=card.index, text=text, source=source)
    return errors.suspect(
        Kind.GPU_UNHEALTHY,
        NOT_APPLICABLE,
        max(weight for _, weight, _ in words),
        "; ".join((*silent, f"card {card.index} reports: {reports}") if reports else silent),
        Need.CARD_ERRORS,
        card=card.index,
        rank=holds.rank_on(card, scene),
    )


CARD_FULL = 0.95
NEARLY_FULL = 0.9
LEAST_RETRIES = 2
LEAST_WEIGHT = 0.2
HELD_RATIO = 0.5
RAMP_RATIO = 0.5
SETTLED_AGE_S = 120.0
WORKS_PCT = 20.0
TRAINS_RATIO = 0.5


def _show_others(proof: Proof, card: CardScene) -> None:
    """Show what others have of the memory of a card, where the driver lists them."""
    sample = card.last
    theirs = [
        one.used_bytes
        for one in list_processes(sample)
        if one.pid not in known_or(sample.pids, ()) and not one.of_job and is_known(one.used_bytes)
    ]
    if theirs and is_known(sample.pids) and not is_sliced(sample):
        proof.show(Figure.GPU_MEMORY_OTHERS, sum(theirs) / (1 << 20))


@by_conditions
def _judge_retries(rank: RankScene, scene: Scene, retries: int, ooms: int) -> Answer:
    fills = [
        (ratio, card)
        for card in cards_of(rank.process.pid, scene.gpus)
        if is_known(card.memory_ratio) and is_known(ratio := use.find_fullest(scene.history, card.last.uuid))
    ]
    told = len(scene.ranks) > 1 and is_known(rank.process.rank)
    name = f"rank {rank.process.rank}" if told else "the job"
    why = Proof(f"why the allocator of {name} asks again", scene)
    why.doubt(not fills, "memory of its card was not read")
    ratio, card = max(fills, key=lambda one: one[0])
    most = f"GPU {card.index} was never fuller than {say_ratio(ratio)}"
    why.doubt(ratio < NEARLY_FULL, f"{most}; is its part of the memory limited?")
    said = [f"gave back its cache to find room {retries} times"] if retries else []
    said += [f"found none {ooms} times"] if ooms else []
    steps, span = _count_steps(scene, rank.process.pid), f"{scene.history_s:.0f}"
    why.margin = max(retries / LEAST_RETRIES, float(ooms))
    why.add(Figure.ALLOCATOR_RETRIES, float(retries), of=span)
    why.add(Figure.ALLOCATOR_OOMS, float(ooms), of=span)
    why.add(Figure.GPU_MEMORY_MOST, ratio)
    if is_known(allocator := use.find_allocator(scene.frame, rank.process.pid)):
        why.show(Figure.ALLOCATOR_SPLIT, allocator.inactive_split_bytes / (1 << 20))
    _show_others(why, card)
    in_steps = f" in {steps} steps" if steps else ""
    return why.suspect(
        Kind.MEMORY_PRESSURE,
        "gpu",
        min(1.0, max(LEAST_WEIGHT, (retries + ooms) / steps if steps else 0.0)),
        f"the allocator of {name} {' and '.join(said)}{in_steps}, "
        f"GPU {card.index} is {say_ratio(ratio)} full",
        *(Need.GPU_MEMORY_FULL, Need.ALLOCATOR_RETRIES),
        process=rank.process,
        card=card.index,
    )


def _count_steps(scene: Scene, pid: int) -> int:
    """Return the training steps that a rank took within the Window, 0 where no hook tells."""
    first, last = (find_hook(frame, pid) for frame in (scene.history[0], scene.frame))
    return max(0, last.counts.steps - first.counts.steps) if first is not None and last is not None else 0


def _trains(rank: RankScene, card: CardScene, scene: Scene) -> Known[bool]:
    """Tell whether a rank is past its start and computes: a card that is first filled grows as steadily."""
    before = find_hook(scene.history[0], rank.process.pid)
    if before is not None:
        return before.counts.steps >= STEADY_STEPS and _count_steps(scene, rank.process.pid) > 0
    if scene.age_s(rank.process) - scene.history_s < SETTLED_AGE_S:
        return False
    phases = rank.phases
    if is_known(phases) and phases.samples >= LEAST_SAMPLES:
        return phases.ratio(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER) >= TRAINS_RATIO
    works = card.busy_pct if is_known(card.busy_pct) else card.sm_active_pct
    return map_known(lambda pct: pct >= WORKS_PCT, works)


@by_conditions
def _judge_growth(card: CardScene, scene: Scene) -> Answer | None:
    """Answer by the growth of the job's memory on a card; None where it does not grow."""
    name, fill = f"memory of GPU {card.index}", use.read_fill(card.last)
    ranks = [rank for rank in scene.ranks if rank.process.pid in card.pids]
    trains = [_trains(rank, card, scene) for rank in ranks]
    may_train = any(isinstance(one, Missing) or one for one in trains)
    if not may_train or not is_known(fill.used) or not is_known(fill.total):
        return None
    room = max(0, fill.total - fill.used)
    growth = use.read_own_growth(scene, card.last.uuid, max(use.GROWTH_BYTES_S, room / use.ETA_S))
    if isinstance(growth, Missing):
        return Unsure(f"whether the job's {name} grows ({growth.reason})")
    if growth is None:
        return None
    memory, rate, eta_s = Proof(name, scene), say_bytes_s(growth.mean), room / growth.mean
    memory.clear(growth.grown_bytes >= RAMP_RATIO * growth.newest, f"it grows by {rate}, as at a start")
    memory.clear(eta_s >= use.ETA_S, f"it grows by {rate}, room for {use.say_about(eta_s)}")
    leak = Claim(f"whether the job's {name} leaks or is still being filled")
    leak.doubt(not any(is_known(one) and one for one in trains), f"it grows by {rate}")
    pids = [rank.process.pid for rank in ranks]
    alone = all(len(cards_of(pid, scene.gpus)) == 1 for pid in pids)
    held = use.read_held_growth(scene, pids) if alone else Missing("the ranks are on several cards")
    margin = min(min(growth.slopes) / use.GROWTH_BYTES_S, use.ETA_S / max(eta_s, 1.0))
    memory.add(Figure.GPU_MEMORY_GROWTH, growth.mean, margin)
    memory.add(Figure.GPU_MEMORY_GROWN, growth.grown_bytes / (1 << 20))
    if is_known(held):
        cached = held.mean < HELD_RATIO * growth.mean
        memory.clear(cached, "the cache of the allocator grows, what it holds does not")
        memory.add(Figure.TENSORS_GROWTH, held.mean)
    memory.add(Figure.GPU_MEMORY, fill.ratio)
    _show_others(memory, card)
    full = (Need.GPU_MEMORY_FULL,) if known_or(fill.ratio, 0.0) >= CARD_FULL else ()
    return memory.suspect(
        Kind.MEMORY_PRESSURE,
        "gpu",
        use.find_urgency(eta_s),
        f"the job's memory on GPU {card.index} grows by {rate}, its {format_bytes(fill.total)} are "
        f"full in {use.say_about(eta_s)}",
        *(Need.CARD_MEMORY_GROWS, *full),
        card=card.index,
        process=ranks[0].process if len(ranks) == 1 else None,
    )


def _list_fills(scene: Scene) -> list[tuple[float, CardScene]]:
    fills = [(ratio, card) for card in scene.gpus if is_known(ratio := card.memory_ratio)]
    return sorted(fills, key=lambda one: -one[0])


def judge_gpu_memory(scene: Scene) -> Answer:
    """Suspect a full card whose allocator asks again, or one that the job's growing memory fills soon."""
    # How full the fullest card is proves nothing by itself.
    if not scene.gpus:
        return Cleared("GPU memory (no GPU)")
    answers: list[Answer] = []
    for rank in scene.ranks:
        retries, ooms = count_retries(scene, rank.process.pid)
        if retries >= LEAST_RETRIES or ooms:  # one alone is chance
            answers.append(_judge_retries(rank, scene, retries, ooms))
    if any(isinstance(one, Suspicion) for one in answers):
        return take_heaviest(answers, "GPU memory")
    fills = _list_fills(scene)
    for _, card in fills:
        answer = _judge_growth(card, scene)
        if isinstance(answer, Suspicion):
            return answer  # ranks that leak do so alike; reading all of eight cards takes 3 ms
        answers += [answer] if answer is not None else []
    if answers:
        return take_heaviest(answers, "GPU memory")
    if not fills:
        return Unsure("GPU memory (memory of the cards was not read)")
    fill, card = fills[0]
    text = f"{say_ratio(fill)} of GPU {card.index}"
    pids = [rank.process.pid for rank in scene.ranks if rank.process.pid in card.pids]
    if fill < CARD_FULL:
        return Cleared(f"GPU memory ({text})")
    if pids and all(is_known(use.find_allocator(scene.frame, pid)) for pid in pids):
        return Cleared(f"GPU memory ({text}, and its allocator finds room)")
    return Unsure(f"whether the full memory of GPU {card.index} is a fault (the allocator is not seen)")


POWER_LIMITED_CLOCK_RATIO = 0.85


def _say_cards(indices: Sequence[int], one: str, several: str) -> str:
    return (
        f"cards {', '.join(map(str, indices))} {several}" if len(indices) > 1 else f"card {indices[0]} {one}"
    )


def note_power_limited(scene: Scene) -> str:
    """Return the note that cards run at their power limit, "" for none; that is normal under full load."""
    limited = [
        card.index
        for card in scene.gpus
        if holds.is_loaded(card, BUSY_PCT)
        and holds.is_at_limit(card)
        and known_or(card.clock_ratio, 1.0) < POWER_LIMITED_CLOCK_RATIO
    ]
    if not limited:
        return ""
    run = _say_cards(limited, "runs at its power limit", "run at their power limits")
    return f"power-limited: {run}; normal under full load"


def note_held(scene: Scene) -> str:
    """Return the note that heat or the power brake lowers a card's clocks and costs little, "" for none."""
    for words, reasons in (("a thermal reason", holds.THERMAL), ("the power brake", holds.BRAKE)):
        for card in scene.gpus:
            if not holds.is_loaded(card, holds.LOADED_PCT) or not holds.is_touched(card, reasons):
                continue
            lost = known_or(holds.lost_to(card, reasons, scene), holds.LEAST_LOSS)
            if lost < holds.LEAST_LOSS:
                held, cost = say_pct(holds.longest_held(card, reasons)), say_ratio(lost)
                return f"held: {words} held card {card.index} for {held} of 10 s; it costs about {cost}"
    return ""


def note_memory_full(scene: Scene) -> str:
    """Return the note that a card's memory is nearly all reserved, "" when it is not."""
    full = [(ratio, card.index) for ratio, card in _list_fills(scene) if ratio >= CARD_FULL]
    if not full:
        return ""
    most, indices = say_ratio(full[0][0]), sorted(index for _, index in full)
    have = _say_cards(indices, f"has {most}", f"have up to {most}")
    return f"memory-full: {have} reserved; a caching allocator does that, no fault by itself"


def note_hollow(scene: Scene) -> str:
    """Return the note that a card's 100 % is hollow, "" when none is; launch, comms and hang rules decide."""
    for card in scene.gpus:
        if known_or(use.judge_hollow(card), False):
            little = f"power {say_ratio(known_or(card.power_ratio, 0.0))} of its limit"
            if is_known(card.sm_active_pct):
                little = f"SM activity {say_pct(card.sm_active_pct)}"
            busy = say_pct(known_or(card.busy_pct, BUSY_PCT))
            return f"hollow: card {card.index} is {busy} busy by the driver, but {little}"
    return ""


def note_xids(scene: Scene) -> str:
    """Return the note that a card reported a fault which a restart of the program ends, "" for none."""
    for card in scene.gpus:
        xids = dict.fromkeys(xid for xid in card.last.xids if xid in RESTART_XIDS)
        named = ", ".join(map(str, [*xids][:MOST_NAMED]))
        if named:
            return (
                f"xid: card {card.index} told Xid {named}: a fault of the program, or one that it contained"
            )
    return ""


def note_shared(scene: Scene) -> str:
    """Return the note that others compute on a card of the job, "" when none does."""
    return next((f"shared: {card.shared}" for card in scene.gpus if card.shared), "")


def note_silent(scene: Scene) -> str:
    """Return the note that a card which the job may use does not answer, "" for none."""
    said = say_open(find_silences(scene))
    return f"silent: {said}" if said else ""


NOTES = (note_silent, note_power_limited, note_held, note_memory_full, note_hollow, note_shared, note_xids)
