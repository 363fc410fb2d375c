"""Judge errors and memory of cards, and write notes; a caching allocator fills a card on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, Suspicion, Unsure, by_conditions, take_heaviest
from tpmon.judge.features.card_holds import (
    BRAKE,
    CAP_PCT,
    CAPPED_POWER_RATIO,
    LEAST_LOSS,
    LOADED_PCT,
    THERMAL,
    is_loaded,
    is_touched,
    lost_to,
    need_cards,
    rank_on,
)
from tpmon.judge.features.card_use import (
    ETA_S,
    GROWTH_BYTES_S,
    find_fullest,
    find_urgency,
    judge_hollow,
    read_fill,
    read_held_growth,
    read_own_growth,
    say_about,
)
from tpmon.judge.features.cards import BUSY_PCT, UNLISTED, CardScene, cards_of, held_pct, is_sliced
from tpmon.judge.features.data_wait import LEAST_SAMPLES
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.hook_needs import STEADY_STEPS, count_risen, get_ooms, get_retries
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import find_silence, find_silences, goes_on, hangs_on, say_open
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.tracker import find_hook
from tpmon.model.figures import Figure
from tpmon.model.gpu import RESTART_XIDS, is_card_fault, list_processes, name_recovery
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known
from tpmon.model.units import format_bytes, format_pct, say_bytes_s
from tpmon.model.verdict import Kind

SILENCE = "NVML"
"""Source of a card's silence, which it does not report itself."""
_LATER = 0.2
_SERIOUS = 0.5


def _ecc_rise(card: CardScene, scene: Scene) -> int:
    """Return how many uncorrected memory errors came since attaching, or within the history."""
    now = card.last.ecc_uncorrected
    if not is_known(now):
        return 0
    for uuid, first in scene.watch.first_errors:
        if uuid == card.last.uuid:
            return max(0, now - first)
    for frame in scene.history:
        for sample in frame.gpus if is_known(frame.gpus) else ():
            if sample.uuid == card.last.uuid and is_known(sample.ecc_uncorrected):
                return max(0, now - sample.ecc_uncorrected)
    return 0


def _say_old_errors(scene: Scene) -> str:
    """Say which cards had uncorrected memory errors before tpmon came, "" for none."""
    counts = [(card.index, card.last.ecc_uncorrected) for card in scene.gpus]
    told = [f"card {index}: {count}" for index, count in counts if is_known(count) and count]
    return f"none new; uncorrected memory errors from before: {', '.join(told)}" if told else ""


def _say_unread(scene: Scene) -> str:
    """Say that row remapping was not read, "" where it was; V100 and T4 retire pages, which are not read."""
    for card in scene.gpus:
        rows = card.last.remapped_rows_failed
        if isinstance(rows, Missing):
            return f"; remapped rows and retired pages were not read: {rows.reason}"
    return ""


def _unread_health(card: CardScene) -> Known[bool]:
    """Return why nothing of a card's health was read; cards without ECC have no such figures."""
    last = card.last
    figures = (last.recovery_action, last.remapped_rows_failed, last.ecc_uncorrected)
    missing = [one for one in figures if isinstance(one, Missing)]
    return missing[0] if len(missing) == len(figures) else True


def _complaints(card: CardScene, scene: Scene) -> list[tuple[str, float, str]]:
    """Return what the card reports: words, weight, source."""
    last, rise = card.last, _ecc_rise(card, scene)
    silence, xids = find_silence(card, scene), dict.fromkeys(xid for xid in last.xids if is_card_fault(xid))
    action = known_or(last.recovery_action, 0)
    silent = ""
    if silence is not None and not hangs_on(silence, scene):
        goes = ", and the run goes on" if goes_on(scene, silence.pids, silence.sample.age_s) else ""
        silent = f"{silence.words}{goes}"
    rows = (
        (bool(silent), silent, _SERIOUS, SILENCE),
        (action != 0, f"{name_recovery(action)} wanted", _SERIOUS, "NVML recovery action"),
        (known_or(last.remapped_rows_failed, 0) > 0, "row remapping failed", _SERIOUS, "NVML remapped rows"),
        (
            known_or(last.remapped_rows_pending, 0) > 0,
            "a row remapping waits for a reset",
            _LATER,
            "NVML remapped rows",
        ),
        (rise > 0, f"{rise} new uncorrected memory errors", _SERIOUS, "NVML ECC"),
        (bool(xids), f"Xid {', '.join(map(str, xids))}", _SERIOUS, "NVML events"),
    )
    return [(words, weight, source) for is_there, words, weight, source in rows if is_there]


@by_conditions
def judge_unhealthy(scene: Scene) -> Answer:
    """Suspect a card that reports errors of its own: remapping, ECC, a wanted reset, an Xid; or is silent."""
    need_cards(scene)
    errors = Proof("errors of the cards", scene)
    told = [(card, words) for card in scene.gpus if (words := _complaints(card, scene))]
    for card in scene.gpus if not told else ():
        errors.known(_unread_health(card))
    errors.clear(not told, f"{_say_old_errors(scene) or 'none reported'}{_say_unread(scene)}")
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
        observed=frozenset((Need.CARD_ERRORS,)),
        card=card.index,
        rank=rank_on(card, scene),
    )


CARD_FULL = 0.95
NEARLY_FULL = 0.9
"""Peak fill within the Window above which an allocator may lack room: large pieces fail before 100 %."""
LEAST_RETRIES = 2
"""Retries within the Window that are no chance; a first validation or a long batch causes a single one."""
LEAST_WEIGHT = 0.2
HELD_RATIO = 0.5
"""Growth of the allocator's tensors over that of the job on the card above which it is no growing cache."""
RAMP_RATIO = 0.5
"""Growth within the Window over all that is there above which a card is being filled for the first time."""
SETTLED_AGE_S = 120.0
"""Age of a rank up to which its memory grows because it starts."""
WORKS_PCT = 20.0
"""U, or SM activity of a slice, above which a card with growing memory is past its loading."""
TRAINS_RATIO = 0.5
"""Share of stack samples in forward, backward and optimizer that shows the same."""


def _name(rank: RankScene, scene: Scene) -> str:
    return f"rank {rank.process.rank}" if len(scene.ranks) > 1 and is_known(rank.process.rank) else "the job"


def _show_others(proof: Proof, card: CardScene) -> None:
    """Show what others have of the memory of a card, where the driver lists them."""
    sample = card.last
    if not is_known(sample.pids) or is_sliced(sample):
        return
    theirs = [
        one.used_bytes
        for one in list_processes(sample)
        if one.pid not in sample.pids and not one.of_job and is_known(one.used_bytes)
    ]
    if theirs:
        proof.show(Figure.GPU_MEMORY_OTHERS, sum(theirs) / (1 << 20))


def _full_need(ratio: Known[float], least: float) -> frozenset[Need]:
    return frozenset((Need.GPU_MEMORY_FULL,)) if is_known(ratio) and ratio >= least else frozenset()


def _count_retries(rank: RankScene, scene: Scene) -> tuple[int, int]:
    """Return how often a rank's allocator retried, and found no room; (0, 0) where that is chance."""
    pid = rank.process.pid
    retries, ooms = count_risen(scene, pid, get_retries), count_risen(scene, pid, get_ooms)
    return (retries, ooms) if retries >= LEAST_RETRIES or ooms else (0, 0)


@by_conditions
def _judge_retries(rank: RankScene, scene: Scene, retries: int, ooms: int) -> Answer:
    fills = [
        (ratio, card)
        for card in cards_of(rank.process.pid, scene.gpus)
        if is_known(card.memory_ratio) and is_known(ratio := find_fullest(scene.history, card.last.uuid))
    ]
    why = Proof(f"why the allocator of {_name(rank, scene)} asks again", scene)
    why.doubt(not fills, "memory of its card was not read")
    ratio, card = max(fills, key=lambda one: one[0])
    most = f"GPU {card.index} was never fuller than {format_pct(100 * ratio)} %"
    why.doubt(ratio < NEARLY_FULL, f"{most}; is its part of the memory limited?")
    said = [f"gave back its cache to find room {retries} times"] if retries else []
    said += [f"found none {ooms} times"] if ooms else []
    steps, span = _count_steps(scene, rank.process.pid), f"{scene.history_s:.0f}"
    why.margin = max(retries / LEAST_RETRIES, float(ooms))
    why.add(Figure.ALLOCATOR_RETRIES, float(retries), of=span)
    why.add(Figure.ALLOCATOR_OOMS, float(ooms), of=span)
    why.add(Figure.GPU_MEMORY_MOST, ratio)
    hook = find_hook(scene.frame, rank.process.pid)
    if hook is not None and is_known(hook.settings) and is_known(hook.settings.allocator):
        why.show(Figure.ALLOCATOR_SPLIT, hook.settings.allocator.inactive_split_bytes / (1 << 20))
    _show_others(why, card)
    in_steps = f" in {steps} steps" if steps else ""
    return why.suspect(
        Kind.MEMORY_PRESSURE,
        "gpu",
        min(1.0, max(LEAST_WEIGHT, (retries + ooms) / steps if steps else 0.0)),
        f"the allocator of {_name(rank, scene)} {' and '.join(said)}{in_steps}, "
        f"GPU {card.index} is {format_pct(100 * ratio)} % full",
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
    """Tell whether a rank is past its start and computes: a card that is first filled grows as steadily."""
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


@by_conditions
def _judge_growth(card: CardScene, scene: Scene) -> Answer | None:
    """Answer by the growth of the job's memory on a card; None where it does not grow."""
    name, fill = f"memory of GPU {card.index}", read_fill(card.last)
    ranks = [rank for rank in scene.ranks if rank.process.pid in card.pids]
    trains = [_trains(rank, card, scene) for rank in ranks]
    may_train = any(isinstance(one, Missing) or one for one in trains)
    if not may_train or not is_known(fill.used) or not is_known(fill.total):
        return None
    room = max(0, fill.total - fill.used)
    growth = read_own_growth(scene, card.last.uuid, max(GROWTH_BYTES_S, room / ETA_S))
    if isinstance(growth, Missing):
        return Unsure(f"whether the job's {name} grows ({growth.reason})")
    if growth is None:
        return None
    memory, rate, eta_s = Proof(name, scene), say_bytes_s(growth.mean), room / growth.mean
    memory.clear(growth.grown_bytes >= RAMP_RATIO * growth.newest, f"it grows by {rate}, as at a start")
    memory.clear(eta_s >= ETA_S, f"it grows by {rate}, room for {say_about(eta_s)}")
    leak = Claim(f"whether the job's {name} leaks or is still being filled")
    leak.doubt(not any(is_known(one) and one for one in trains), f"it grows by {rate}")
    pids = [rank.process.pid for rank in ranks]
    alone = all(len(cards_of(pid, scene.gpus)) == 1 for pid in pids)
    held = read_held_growth(scene, pids) if alone else Missing("the ranks are on several cards")
    margin = min(min(growth.slopes) / GROWTH_BYTES_S, ETA_S / max(eta_s, 1.0))
    memory.add(Figure.GPU_MEMORY_GROWTH, growth.mean, margin)
    memory.add(Figure.GPU_MEMORY_GROWN, growth.grown_bytes / (1 << 20))
    if is_known(held):
        cached = held.mean < HELD_RATIO * growth.mean
        memory.clear(cached, "the cache of the allocator grows, what it holds does not")
        memory.add(Figure.TENSORS_GROWTH, held.mean)
    memory.add(Figure.GPU_MEMORY, fill.used / fill.total)
    _show_others(memory, card)
    one_rank = ranks[0].process if len(ranks) == 1 else None
    return memory.suspect(
        Kind.MEMORY_PRESSURE,
        "gpu",
        find_urgency(eta_s),
        f"the job's memory on GPU {card.index} grows by {rate}, its {format_bytes(fill.total)} are "
        f"full in {say_about(eta_s)}",
        observed=_full_need(fill.ratio, CARD_FULL) | {Need.CARD_MEMORY_GROWS},
        pid=one_rank.pid if one_rank is not None else NOT_APPLICABLE,
        rank=one_rank.rank if one_rank is not None else NOT_APPLICABLE,
        card=card.index,
    )


def _tells_allocator(card: CardScene, scene: Scene) -> bool:
    """Tell whether every rank on a card has a hook that reports its allocator's counters."""
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
    counts = [(rank, *_count_retries(rank, scene)) for rank in scene.ranks]
    answers = [_judge_retries(rank, scene, *asked) for rank, *asked in counts if any(asked)]
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


RULES: tuple[Rule, ...] = (judge_unhealthy,)
MEMORY_RULES: tuple[Rule, ...] = (judge_gpu_memory,)


POWER_LIMITED_CLOCK_RATIO = 0.85
"""C below which the power limit of a busy card is worth a word; normal under full load."""
MOST_NAMED = 3
"""Processes of others that one note names."""


def _name_cards(indices: Sequence[int]) -> str:
    return f"card{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def note_power_limited(scene: Scene) -> str:
    """Return the note that cards run at their power limit, "" for none; that is normal under full load."""
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
            if not (is_loaded(card, LOADED_PCT) and is_touched(card, reasons)):
                continue
            lost = lost_to(card, reasons, scene)
            if is_known(lost) and lost < LEAST_LOSS:
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
    """Return the note that a card reported a fault which a restart of the program ends, "" for none."""
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
    """Return the note that a card which the job may use does not answer, "" for none."""
    said = say_open(find_silences(scene))
    return f"silent: {said}" if said else ""


NOTES = (note_silent, note_power_limited, note_held, note_memory_full, note_hollow, note_shared, note_xids)
