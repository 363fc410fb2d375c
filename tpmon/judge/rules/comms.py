"""Ranks that wait for each other: a late one, the transfer itself, or a wait of unknown reason. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, EarlyAnswer, Suspicion, Unsure, by_conditions
from tpmon.judge.features.card_holds import (
    CAP_PCT,
    CAPPED_POWER_RATIO,
    find_odd_cap,
    is_braked,
    is_hot,
    is_loaded,
)
from tpmon.judge.features.card_use import SLACK_RATIO, find_unseen_cards, gpu_figures, rank_slack
from tpmon.judge.features.cards import BUSY_PCT, STARVED_PCT, CardScene, held_pct, see_cards
from tpmon.judge.features.comms import (
    ALL_WAIT_RATIO,
    BEHIND_RATIO,
    LEAST_SAMPLES,
    RankWait,
    cards_unread,
    count_wakings,
    find_exchange,
    find_traffic,
    find_waits,
    is_traffic_read,
    locks_unread,
    nic_bytes_s,
    say_traffic,
)
from tpmon.judge.features.cpu import CROWDED_MARGIN
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, ranks_on
from tpmon.judge.features.standstill import find_pause, name_rank, say_elsewhere
from tpmon.judge.features.starvation import name_spot
from tpmon.judge.stacks.profile import Phase, share_of
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, join_known, known_or
from tpmon.model.units import format_bytes, format_pct
from tpmon.model.verdict import Kind
from tpmon.model.waits import RUNNING, describe_wait

WAITING_RATIO = 0.3
"""Share of its time that the typical rank must wait in collectives to be worth a cause."""
CROWDED_RATIO = 0.3
"""Share of demand that waits for a CPU above which ranks take turns, and so wait for each other."""
TURNS = 3.0
"""How many times its own wait for a CPU each rank waits for the others: for the latest of them."""
WORKS_MORE = 1.4
"""CPU time of a late rank over that of the others above which it has more to do. All make the same steps, so
neighbours change it little: beside a busy process equal work is 0.91 to 1.07, three more forward passes 1.49
to 2.04."""
CROWDED_GAP = 0.15
"""How much less than the others such a rank waits on crowded CPUs: a part of their wait for it is a wait for
a CPU, which leaves 0.25 to 0.44 of the time, against 0.43 on an idle machine."""
BEHIND_CLOCK_RATIO = 0.9
"""Clock of a card over the median of the job's cards below which it holds them back."""
SPREAD_CLOCK_RATIO = 0.8
"""Clock over the median above which a card at its power limit is one of many: chips and inlets differ."""
CARD_EXPLAINS = 0.5
"""Part of the wait for a late rank that its card's low clock must explain to be named instead."""
RESTING_RATIO = 0.1
"""Share of samples with a running main thread below which its wait says more than its stack."""
UNREAD = "how much moves was not read"
CROWDED = "the ranks wait for CPUs, and so for each other"
OBJECTS_RATIO = 0.25
"""Share of its time that each rank must be in collectives of Python objects to be held by them."""
MANY_WAKINGS = 2000.0
"""Times a second that a rank is put on a CPU above which its messages are many: 5,000 to 14,000 with a bucket
for each gradient, on crowded CPUs; 200 to 700 with large ones, and in ranks that mostly compute."""
SMALL_BYTES = 16384.0
"""Bytes moved each time below which they are small: 500 there, 250,000 and more with large buckets."""
STRAGGLER_SPAN_S = 20.0
"""How long a card must be slow: twice the span of the other rules."""


def _need_ranks(scene: Scene) -> None:
    """End a rule by conditions where there is nobody to wait for, or that is not known."""
    comms, world = Claim("comms"), scene.frame.target.world_size
    if len(scene.ranks) < 2:
        comms.known(world, "whether ranks run on other machines: ")
        comms.clear(known_or(world, 1) < 2, "one rank")


_DOINGS = {
    Phase.DATA_WAIT: "waits for its data",
    Phase.FORWARD: "computes (forward)",
    Phase.BACKWARD: "computes (backward)",
    Phase.OPTIMIZER: "computes (optimizer)",
    Phase.SYNC: "waits for its GPU",
    Phase.LOGGING: "logs",
    Phase.OTHER: "runs other Python code",
}


def _say_doing(rank: RankScene) -> str:
    waits = rank.process.waits_for
    if is_known(rank.main) and rank.main.running < RESTING_RATIO and is_known(waits) and waits != RUNNING:
        return (
            "waits for its data" if rank.main.batch_wait >= 0.5 else f"is in a wait ({describe_wait(waits)})"
        )
    if is_known(rank.phases):
        rest = {phase: share.ratio for phase, share in rank.phases.shares.items() if phase is not Phase.COMMS}
        if rest:
            phase = max(rest, key=lambda one: rest[one])
            return _DOINGS.get(phase, f"is in {phase.value}")
    if is_known(rank.main):
        if rank.main.batch_wait >= 0.5:
            return "waits for its data"
        if rank.main.io >= 0.5:
            return "waits for reads"
    return "runs"


def _origins(waits: Sequence[RankWait]) -> frozenset[Origin]:
    """Return the origins that all waits share: two ranks with one origin each do not make two."""
    common = frozenset.intersection(*(wait.origins for wait in waits))
    return common or waits[0].origins


_NAMES = {Origin.DRIVER: "NVML", Origin.PROC: "thread state", Origin.STACKS: "stacks"}


def _say_sources(wait: RankWait) -> str:
    return " and ".join(name for source, name in _NAMES.items() if source in wait.origins)


def _is_crowded(scene: Scene) -> bool:
    """Tell whether the ranks of a CPU job wait for CPUs, and only by that for each other."""
    return not scene.cards and is_known(scene.delay_ratio) and scene.delay_ratio >= CROWDED_RATIO


def _take_turns(scene: Scene, least: float) -> bool:
    """Tell whether waits for CPUs explain that each rank waits ``least`` of its time for the others.

    Ranks that rest in a collective want little CPU: whatever part of that they wait, it holds nobody up long.
    """
    if not _is_crowded(scene):
        return False
    waiting = median_known(rank.waiting for rank in scene.ranks)
    return not is_known(waiting) or TURNS * waiting >= least


def _work_ratio(late: RankScene, others: Sequence[RankScene]) -> Known[float]:
    none = Missing("the others took no CPU time")
    typical = median_known(one.ran for one in others)
    return join_known(lambda own, theirs: own / theirs if theirs > 0 else none, late.ran, typical)


def _find_late_rank(waits: Sequence[RankWait], scene: Scene) -> Suspicion | None:
    late, others = waits[0], waits[1:]
    if not others:
        return None
    typical = statistics.median(one.ratio for one in others)
    gap = typical - late.ratio
    more = _work_ratio(late.rank, [one.rank for one in others])
    is_crowded = _is_crowded(scene)
    # A neighbour takes more from one rank than from another; it gives none of them more to do.
    least = 2 * BEHIND_RATIO if is_crowded else BEHIND_RATIO
    # What was not read may be against it: waits for CPUs, or for the program's own locks.
    doubted = bool(locks_unread(waits)) or (not scene.cards and isinstance(scene.delay_ratio, Missing))
    waits_long = typical >= WAITING_RATIO and gap >= least
    works_more = is_crowded and is_known(more) and more >= WORKS_MORE and not find_unseen_cards(scene)
    if not waits_long and not (works_more and gap >= CROWDED_GAP):
        return None
    if late.high >= typical:
        return None
    name, count, proof = name_rank(late.rank), len(others), Proof("late rank", scene)
    waiting = "the other rank waits" if count == 1 else f"{count} other ranks wait"
    # What the late one does is no proof that it is waited for.
    proof.show(Figure.RANK_IN_COLLECTIVES, late.ratio, of=name, source=_say_sources(late))
    source, origins = _say_sources(others[0]), _origins(others)
    margin = min(typical / WAITING_RATIO, gap / least) if waits_long and not doubted else CROWDED_MARGIN
    proof.add(Figure.OTHERS_IN_COLLECTIVES, typical, margin, source=source, origins=origins)
    if works_more:
        proof.add(Figure.RANK_CPU_TIME, more, of=name)
    return proof.suspect(
        Kind.COMMS_BOUND,
        "straggler",
        gap,
        f"{name} {_say_doing(late.rank)} while {waiting} for it in a collective",
        unread=cards_unread(scene),
        share=gap,
        observed=frozenset((Need.RANK_BEHIND,)),
        pid=late.rank.process.pid,
        rank=late.rank.process.rank,
    )


def _behind(cards: Sequence[CardScene]) -> tuple[CardScene, float] | None:
    """Return the slowest card and its clock over the median, if it is behind and all are busy."""
    if len(cards) < 2 or not all(is_loaded(card, BUSY_PCT) for card in cards):
        return None
    clocks = [(card.clock_ratio, card) for card in cards if is_known(card.clock_ratio)]
    if len(clocks) < len(cards):
        return None
    ratio, card = min(clocks, key=lambda pair: pair[0])
    median = statistics.median(clock for clock, _ in clocks)
    if median <= 0 or ratio >= BEHIND_CLOCK_RATIO * median:
        return None
    return card, ratio / median


def _is_at_its_limit(card: CardScene, others: Sequence[CardScene], ratio: float) -> bool:
    """Tell whether a card's own power limit explains its low clock, ``ratio`` of the others' median.

    Either it has more to do, and the others wait for it at high clocks and little power; or all are at their
    limits, where no two chips clock alike.
    """
    own, theirs = card.power_ratio, median_known(one.power_ratio for one in others)
    if held_pct(card, "power cap") < CAP_PCT or not is_known(own) or own < CAPPED_POWER_RATIO:
        return False
    return ratio >= SPREAD_CLOCK_RATIO or (is_known(theirs) and theirs < BEHIND_CLOCK_RATIO * own)


def _find_late_card(scene: Scene) -> Suspicion | Cleared | None:
    """Suspect the one card with a low clock. Low power alone is no sign: waiting cards draw little."""
    if _behind(scene.gpus) is None:
        return None
    now_ns = scene.frame.taken_ns
    longer = [one for one in scene.history if now_ns - one.taken_ns <= STRAGGLER_SPAN_S * 1e9]
    found = _behind(see_cards(longer))
    if found is None:
        return None
    card, ratio = found
    if is_hot(card, scene) or is_braked(card, scene) or find_odd_cap(card, scene):
        return Cleared(f"late card (card {card.index} is held below its clocks: that is the cause)")
    if _is_at_its_limit(card, [one for one in scene.gpus if one.index != card.index], ratio):
        return None
    ranks, proof = ranks_on(card, scene), Proof("late card", scene)
    proof.below(Figure.CLOCK_OF_MEDIAN, ratio, BEHIND_CLOCK_RATIO)
    proof.show(Figure.GPU_TEMPERATURE, card.last.temperature_c)
    return proof.suspect(
        Kind.COMMS_BOUND,
        "straggler",
        1 - ratio,
        f"card {card.index} is slower than the others and holds them back: {format_pct(100 * ratio)} % of "
        "their clock",
        share=1 - ratio,
        observed=frozenset((Need.CARD_BEHIND,)),
        card=card.index,
        pid=ranks[0].pid if ranks else NOT_APPLICABLE,
        rank=ranks[0].rank if ranks else NOT_APPLICABLE,
    )


@by_conditions
def judge_straggler(scene: Scene) -> Answer:
    """Suspect the one rank, or the one card, that all others wait for."""
    _need_ranks(scene)
    by_card = _find_late_card(scene)
    pausing = next((rank for rank in scene.ranks if find_pause(rank) is not None), None)
    if pausing is not None:
        return by_card or Cleared(f"late rank ({name_rank(pausing)} pauses on purpose)")
    waits = find_waits(scene)
    if not is_known(waits):
        return by_card or Unsure(f"late rank ({waits.reason})")
    found = _find_late_rank(waits, scene)
    if found is None:
        alike = f"late rank (all wait about as long, {format_pct(100 * waits[0].ratio)} % at least)"
        return by_card or Cleared(alike)
    # A slow card explains a late rank if it may be that rank's, and explains most of the wait.
    if isinstance(by_card, Suspicion) and (not is_known(by_card.rank) or by_card.rank == found.rank):
        return by_card if by_card.weight >= CARD_EXPLAINS * found.weight else found
    return found


def _all_wait(cause: Proof) -> tuple[list[RankWait], float]:
    """Return the waits and the least of them, where even that is long."""
    scene = cause.scene
    _need_ranks(scene)
    waits = cause.known(find_waits(scene))
    least, source, origins = waits[0].ratio, _say_sources(waits[0]), _origins(waits)
    cause.at_least(Figure.ALL_IN_COLLECTIVES, least, ALL_WAIT_RATIO, source=source, origins=origins)
    cause.clear(_find_late_rank(waits, scene) is not None, f"{name_rank(waits[0].rank)} is late")
    return waits, least


def _suspect_all(
    proof: Proof, waits: Sequence[RankWait], cause: str, summary: str, *observed: Need
) -> Suspicion:
    least, unread = waits[0].ratio, cards_unread(proof.scene) + locks_unread(waits)
    needs = frozenset(observed)
    return proof.suspect(Kind.COMMS_BOUND, cause, least, summary, unread=unread, share=least, observed=needs)


def _suspect_spinning(scene: Scene) -> Suspicion | None:
    """Suspect a transfer that no stack shows: hosts run ahead of their cards, whose collectives spin.

    Every card is busy and does little while bytes move. The wait is a guess from their power: one origin.
    """
    slacks = [rank_slack(rank, scene) for rank in scene.ranks]
    world = known_or(scene.frame.target.world_size, 1)
    if max(world, len(scene.ranks)) < 2 or not slacks:
        return None
    if not all(is_loaded(card, STARVED_PCT) for card in scene.gpus):
        return None
    exchanged = find_exchange(scene)
    known = [slack.ratio for slack in slacks if is_known(slack)]
    if not exchanged or len(known) < len(slacks) or min(known) < SLACK_RATIO:
        return None
    if isinstance(judge_straggler(scene), Suspicion):
        return None
    proof = Proof("transfer", scene)
    proof.evidence, proof.shown = gpu_figures(scene), exchanged
    return proof.suspect(
        Kind.COMMS_BOUND,
        "transfer",
        min(known),
        f"the cards are busy and do little while the ranks exchange data{say_traffic(scene)}: their "
        "collectives wait for it, perhaps",
        observed=frozenset((Need.TRANSFER_SEEN,)),
    )


@by_conditions
def judge_transfer(scene: Scene) -> Answer:
    """Suspect the transfer: all ranks wait in collectives and data moves meanwhile."""
    transfer = Proof("transfer between ranks", scene)
    try:
        waits, least = _all_wait(transfer)
    except EarlyAnswer as early:
        return (_suspect_spinning(scene) if isinstance(early.answer, Cleared) else None) or early.answer
    margin, moves, rest = find_traffic(scene)
    # On crowded CPUs communication threads want a CPU whatever they move; bytes that moved are certain.
    is_certain = any(row.figure is Figure.NETWORK for row in moves)
    transfer.doubt(_take_turns(scene, least) and not is_certain, CROWDED)
    transfer.doubt(margin < 1 and not is_traffic_read(scene), UNREAD)
    transfer.clear(margin < 1, "little moves")
    transfer.evidence, transfer.shown = transfer.evidence + moves, rest
    text = f"all ranks spend {format_pct(100 * least)} % in collectives that move data{say_traffic(scene)}"
    return _suspect_all(transfer, waits, "transfer", text, Need.TRANSFER_SEEN)


@by_conditions
def judge_object_collectives(scene: Scene) -> Answer:
    """Suspect collectives of Python objects: every rank pickles and sends for a good part of its time.

    A rank that is late in them is told by its stacks as well: pickling is a part of the call, and computes.
    """
    _need_ranks(scene)
    objects, shares = Proof("collectives of Python objects", scene), []
    for rank in scene.ranks:
        phases = objects.known(rank.phases, f"{name_rank(rank)}: ")
        objects.doubt(phases.samples < LEAST_SAMPLES, f"too few stack samples of {name_rank(rank)}")
        count = round(phases.proven.get(Need.OBJECTS_IN_STACK, 0.0) * phases.samples)
        shares.append((share_of(count, phases.samples, phases.design), rank, phases))
    objects.clear(not shares, "no rank was read")
    share, _, phases = min(shares, key=lambda one: one[0].ratio)
    objects.at_least(Figure.ALL_IN_OBJECTS, share.ratio, OBJECTS_RATIO)
    objects.margin = share.low / OBJECTS_RATIO
    spot = phases.spots.get(Phase.COMMS)
    where = f" ({spot.where})" if spot is not None else ""
    objects.shown += name_spot(spot, scene) if spot is not None else ()
    return objects.suspect(
        Kind.COMMS_BOUND,
        "objects",
        share.ratio,
        f"every rank spends {format_pct(100 * share.ratio)} % of its time or more on sending Python objects: "
        f"each pickles, waits and unpickles what all have{where}",
        share=share.ratio,
        share_low=share.low,
        share_high=share.high,
        observed=frozenset((Need.OBJECTS_IN_STACK,)),
    )


@by_conditions
def judge_small_messages(scene: Scene) -> Answer:
    """Suspect the number of messages: all ranks wait for each other, wake up all the time and move little.

    Reductions within backward leave no frame: the main thread is in autograd, off the CPU.
    """
    small = Proof("small messages between ranks", scene)
    waits, least = _all_wait(small)
    small.clear(bool(scene.cards), "the job computes on a GPU")
    margin = small.margin
    wakings = small.at_least(Figure.RANK_SWITCHES, count_wakings(scene), MANY_WAKINGS)
    each = small.known(nic_bytes_s(scene)) / (wakings * len(scene.ranks))
    small.below(Figure.BYTES_A_WAKING, each, SMALL_BYTES)
    # How long they wait makes it sure, not how often they wake up.
    small.margin = min(margin, CROWDED_MARGIN) if _take_turns(scene, least) else margin
    text = (
        f"all ranks spend {format_pct(100 * least)} % of the time in exchanges of many small messages: each "
        f"wakes up {wakings:.0f} times a second and moves {format_bytes(int(each))} each time"
    )
    return _suspect_all(small, waits, "small-messages", text, Need.SMALL_MESSAGES)


@by_conditions
def judge_comms_unknown(scene: Scene) -> Answer:
    """Suspect a wait of unknown reason: all ranks in collectives, little moves, nobody here is late."""
    unknown = Proof("waits between ranks", scene)
    waits, least = _all_wait(unknown)
    unknown.doubt(_take_turns(scene, least), CROWDED)
    unknown.clear(find_traffic(scene)[0] >= 1, "they transfer")
    world = scene.frame.target.world_size
    elsewhere = world - len(scene.ranks) if is_known(world) else 0
    late = say_elsewhere(elsewhere) if elsewhere > 0 else "they are late in turn, or the latency is high"
    moves = "little moves" if is_traffic_read(scene) else UNREAD
    text = f"all ranks spend {format_pct(100 * least)} % waiting in collectives; {moves}: {late}"
    return _suspect_all(unknown, waits, "unknown", text)


RULES: tuple[Rule, ...] = (
    judge_straggler,
    judge_object_collectives,
    judge_small_messages,
    judge_transfer,
    judge_comms_unknown,
)
