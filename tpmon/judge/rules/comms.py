"""Ranks that wait for each other: a late one, the transfer itself, or a wait of unknown reason. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Cleared, EarlyAnswer, Suspicion, Unsure, by_conditions
from tpmon.judge.features import card_holds as holds
from tpmon.judge.features import comms
from tpmon.judge.features.card_use import SLACK_RATIO, find_unseen_cards, gpu_figures, rank_slack
from tpmon.judge.features.cards import BUSY_PCT, STARVED_PCT, CardScene, see_cards
from tpmon.judge.features.cpu import CROWDED_MARGIN
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.readings import all_known, median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, ranks_on
from tpmon.judge.features.standstill import find_pause, name_rank, say_elsewhere
from tpmon.judge.features.starvation import name_spot
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import share_of
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import Missing, is_known, known_or, map_known
from tpmon.model.units import format_bytes, say_ratio
from tpmon.model.verdict import Kind
from tpmon.model.waits import RUNNING, describe_wait

WAITING_RATIO = 0.3  # share of its time that the typical rank must wait in collectives to be worth a cause
CROWDED_RATIO = 0.3  # share of demand that waits for a CPU above which ranks wait for each other
TURNS = 3.0  # how many times its own wait for a CPU each rank waits for the others: for the latest of them
WORKS_MORE = 1.4  # CPU time of a late rank over that of the others above which it has more to do
CROWDED_GAP = 0.15  # how much less than the others such a rank waits on crowded CPUs
BEHIND_CLOCK_RATIO = 0.9  # clock of a card over the median of the job's cards below which it holds them back
SPREAD_CLOCK_RATIO = 0.8  # clock over the median above which a card at its power limit is one of many
CARD_EXPLAINS = 0.5  # of the wait for a late rank, that its card's low clock must explain to be named instead
RESTING_RATIO = 0.1  # of samples with a running main thread, below which its wait says more than its stack
UNREAD = "how much moves was not read"
CROWDED = "the ranks wait for CPUs, and so for each other"
OBJECTS_RATIO = 0.25  # share of its time that each rank must be in collectives of Python objects
MANY_WAKINGS = 2000.0  # times a second that a rank is put on a CPU above which its messages are many
SMALL_BYTES = 16384.0  # bytes moved each time below which they are small
STRAGGLER_SPAN_S = 20.0  # how long a card must be slow: twice the span of the other rules


def _need_ranks(scene: Scene) -> None:
    """End a rule by conditions where there is nobody to wait for, or that is not known."""
    claim, world = Claim("comms"), scene.frame.target.world_size
    if len(scene.ranks) < 2:
        claim.known(world, "whether ranks run on other machines: ")
        claim.clear(known_or(world, 1) < 2, "one rank")


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
    waits, main, phases = rank.process.waits_for, rank.main, rank.phases
    batches = "waits for its data" if is_known(main) and main.batch_wait >= 0.5 else ""
    if is_known(main) and main.running < RESTING_RATIO and is_known(waits) and waits != RUNNING:
        return batches or f"is in a wait ({describe_wait(waits)})"
    rest = [one for one in phases.shares if one is not Phase.COMMS] if is_known(phases) else []
    if is_known(phases) and rest:
        phase = max(rest, key=phases.ratio)
        return _DOINGS.get(phase, f"is in {phase.value}")
    return batches or ("waits for reads" if is_known(main) and main.io >= 0.5 else "runs")


def _origins(waits: Sequence[comms.RankWait]) -> frozenset[Origin]:
    """Return the origins that all waits share: two ranks with one origin each do not make two."""
    common = frozenset.intersection(*(wait.origins for wait in waits))
    return common or waits[0].origins


_NAMES = {Origin.DRIVER: "NVML", Origin.PROC: "thread state", Origin.STACKS: "stacks"}


def _say_sources(wait: comms.RankWait) -> str:
    return " and ".join(name for source, name in _NAMES.items() if source in wait.origins)


def _is_crowded(scene: Scene) -> bool:
    """Tell whether the ranks of a CPU job wait for CPUs, and only by that for each other."""
    return not scene.cards and known_or(scene.delay_ratio, 0.0) >= CROWDED_RATIO


def _take_turns(scene: Scene, least: float) -> bool:
    """Tell whether waits for CPUs explain that each rank waits ``least`` of its time for the others."""
    # Ranks that rest in a collective want little CPU: waiting for a part of that holds nobody up long.
    waiting = median_known(rank.waiting for rank in scene.ranks)
    return _is_crowded(scene) and TURNS * known_or(waiting, math.inf) >= least


def _find_late_rank(waits: Sequence[comms.RankWait], scene: Scene) -> Suspicion | None:
    late, others = waits[0], waits[1:]
    if not others or late.high >= (typical := statistics.median(one.ratio for one in others)):
        return None
    gap = typical - late.ratio
    own, theirs = known_or(late.rank.ran, 0.0), known_or(median_known(one.rank.ran for one in others), 0.0)
    more = own / theirs if theirs > 0 else 0.0
    is_crowded = _is_crowded(scene)
    # A neighbour takes more from one rank than from another; it gives none of them more to do.
    least = 2 * comms.BEHIND_RATIO if is_crowded else comms.BEHIND_RATIO
    # What was not read may be against it: waits for CPUs, or for the program's own locks.
    doubted = bool(comms.locks_unread(waits)) or (not scene.cards and isinstance(scene.delay_ratio, Missing))
    waits_long = typical >= WAITING_RATIO and gap >= least
    works_more = is_crowded and more >= WORKS_MORE and not find_unseen_cards(scene)
    if not waits_long and not (works_more and gap >= CROWDED_GAP):
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
    words = f"{name} {_say_doing(late.rank)} while {waiting} for it in a collective"
    told: dict[str, Any] = {"unread": comms.cards_unread(scene), "share": gap, "process": late.rank.process}
    return proof.suspect(Kind.COMMS_BOUND, "straggler", gap, words, Need.RANK_BEHIND, **told)


def _behind(cards: Sequence[CardScene]) -> tuple[CardScene, float] | None:
    """Return the slowest card and its clock over the median, if it is behind and all are busy."""
    if len(cards) < 2 or not all(holds.is_loaded(card, BUSY_PCT) for card in cards):
        return None
    clocks = all_known(card.clock_ratio for card in cards)
    if not is_known(clocks):
        return None
    ratio, median = min(clocks), statistics.median(clocks)
    if median <= 0 or ratio >= BEHIND_CLOCK_RATIO * median:
        return None
    return cards[clocks.index(ratio)], ratio / median


def _is_at_its_limit(card: CardScene, others: Sequence[CardScene], ratio: float) -> bool:
    """Tell whether a card's own power limit explains its low clock, ``ratio`` of the others' median."""
    # Either it has more to do, and the others wait for it at high clocks and little power; or all are at
    # their limits, where no two chips clock alike.
    own, theirs = card.power_ratio, median_known(one.power_ratio for one in others)
    if not holds.is_at_limit(card) or not is_known(own):
        return False
    return ratio >= SPREAD_CLOCK_RATIO or (is_known(theirs) and theirs < BEHIND_CLOCK_RATIO * own)


def _find_late_card(scene: Scene) -> Suspicion | Cleared | None:
    """Suspect the one card with a low clock. Low power alone is no sign: waiting cards draw little."""
    begun_ns = scene.frame.taken_ns - STRAGGLER_SPAN_S * 1e9
    longer = [one for one in scene.history if one.taken_ns >= begun_ns]
    if _behind(scene.gpus) is None or (found := _behind(see_cards(longer))) is None:
        return None
    card, ratio = found
    if holds.is_slowed(card, scene) or holds.find_odd_cap(card, scene):
        return Cleared(f"late card (card {card.index} is held below its clocks: that is the cause)")
    if _is_at_its_limit(card, [one for one in scene.gpus if one.index != card.index], ratio):
        return None
    ranks, proof = ranks_on(card, scene), Proof("late card", scene)
    proof.below(Figure.CLOCK_OF_MEDIAN, ratio, BEHIND_CLOCK_RATIO)
    proof.show(Figure.GPU_TEMPERATURE, card.last.temperature_c)
    words = (
        f"card {card.index} is slower than the others and holds them back: {say_ratio(ratio)} of their clock"
    )
    told: dict[str, Any] = {"share": 1 - ratio, "card": card.index, "process": next(iter(ranks), None)}
    return proof.suspect(Kind.COMMS_BOUND, "straggler", 1 - ratio, words, Need.CARD_BEHIND, **told)


@by_conditions
def judge_straggler(scene: Scene) -> Answer:
    """Suspect the one rank, or the one card, that all others wait for."""
    _need_ranks(scene)
    by_card = _find_late_card(scene)
    pausing = next((rank for rank in scene.ranks if find_pause(rank) is not None), None)
    if pausing is not None:
        return by_card or Cleared(f"late rank ({name_rank(pausing)} pauses on purpose)")
    waits = comms.find_waits(scene)
    if not is_known(waits):
        return by_card or Unsure(f"late rank ({waits.reason})")
    found, least = _find_late_rank(waits, scene), say_ratio(waits[0].ratio)
    if found is None:
        return by_card or Cleared(f"late rank (all wait about as long, {least} at least)")
    # A slow card explains a late rank if it may be that rank's, and explains most of the wait.
    if isinstance(by_card, Suspicion) and (not is_known(by_card.rank) or by_card.rank == found.rank):
        return by_card if by_card.weight >= CARD_EXPLAINS * found.weight else found
    return found


def _all_wait(cause: Proof) -> tuple[list[comms.RankWait], float]:
    """Return the waits and the least of them, where even that is long."""
    scene = cause.scene
    _need_ranks(scene)
    waits = cause.known(comms.find_waits(scene))
    least, source, origins = waits[0].ratio, _say_sources(waits[0]), _origins(waits)
    cause.at_least(Figure.ALL_IN_COLLECTIVES, least, comms.ALL_WAIT_RATIO, source=source, origins=origins)
    cause.clear(_find_late_rank(waits, scene) is not None, f"{name_rank(waits[0].rank)} is late")
    return waits, least


def _suspect_all(
    proof: Proof, waits: Sequence[comms.RankWait], cause: str, summary: str, *needs: Need
) -> Suspicion:
    least, unread = waits[0].ratio, comms.cards_unread(proof.scene) + comms.locks_unread(waits)
    return proof.suspect(Kind.COMMS_BOUND, cause, least, summary, *needs, unread=unread, share=least)


def _suspect_spinning(scene: Scene) -> Suspicion | None:
    """Suspect a transfer that no stack shows: hosts run ahead of their cards, whose collectives spin."""
    # Every card is busy and does little while bytes move. The wait is a guess from their power: one origin.
    exchanged = comms.find_exchange(scene)
    if scene.size < 2 or not exchanged:
        return None
    if not all(holds.is_loaded(card, STARVED_PCT) for card in scene.gpus):
        return None
    slacks = all_known(map_known(lambda one: one.ratio, rank_slack(rank, scene)) for rank in scene.ranks)
    least = min(known_or(slacks, []), default=0.0)
    if least < SLACK_RATIO or isinstance(judge_straggler(scene), Suspicion):
        return None
    proof = Proof("transfer", scene)
    proof.evidence, proof.shown = gpu_figures(scene), exchanged
    does = f"the cards are busy and do little while the ranks exchange data{comms.say_traffic(scene)}"
    words = f"{does}: their collectives wait for it, perhaps"
    return proof.suspect(Kind.COMMS_BOUND, "transfer", least, words, Need.TRANSFER_SEEN)


@proves("transfer between ranks")
def judge_transfer(transfer: Proof, scene: Scene) -> Answer:
    """Suspect the transfer: all ranks wait in collectives and data moves meanwhile."""
    try:
        waits, least = _all_wait(transfer)
    except EarlyAnswer as early:
        return (_suspect_spinning(scene) if isinstance(early.answer, Cleared) else None) or early.answer
    margin, moves, rest = comms.find_traffic(scene)
    # On crowded CPUs communication threads want a CPU whatever they move; bytes that moved are certain.
    is_certain = any(row.figure is Figure.NETWORK for row in moves)
    transfer.doubt(_take_turns(scene, least) and not is_certain, CROWDED)
    transfer.doubt(margin < 1 and not comms.is_traffic_read(scene), UNREAD)
    transfer.clear(margin < 1, "little moves")
    transfer.evidence, transfer.shown = transfer.evidence + moves, rest
    text = f"all ranks spend {say_ratio(least)} in collectives that move data{comms.say_traffic(scene)}"
    return _suspect_all(transfer, waits, "transfer", text, Need.TRANSFER_SEEN)


@proves("collectives of Python objects")
def judge_object_collectives(objects: Proof, scene: Scene) -> Answer:
    """Suspect collectives of Python objects: every rank pickles and sends for a good part of its time."""
    # A rank that is late in them is told by its stacks as well: pickling is a part of the call, and computes.
    _need_ranks(scene)
    shares = []
    for rank in scene.ranks:
        phases = objects.known(rank.phases, f"{name_rank(rank)}: ")
        objects.doubt(phases.samples < comms.LEAST_SAMPLES, f"too few stack samples of {name_rank(rank)}")
        count = round(phases.proven.get(Need.OBJECTS_IN_STACK, 0.0) * phases.samples)
        shares.append((share_of(count, phases.samples, phases.design), phases))
    objects.clear(not shares, "no rank was read")
    share, phases = min(shares, key=lambda one: one[0].ratio)
    objects.at_least(Figure.ALL_IN_OBJECTS, share.ratio, OBJECTS_RATIO)
    objects.margin = share.low / OBJECTS_RATIO
    words = (
        f"every rank spends {say_ratio(share.ratio)} of its time or more on sending Python objects: "
        "each pickles, waits and unpickles what all have"
    )
    if (spot := phases.spots.get(Phase.COMMS)) is not None:
        words += f" ({spot.where})"
        objects.shown += name_spot(spot, scene)
    return objects.suspect(Kind.COMMS_BOUND, "objects", share, words, Need.OBJECTS_IN_STACK)


@proves("small messages between ranks")
def judge_small_messages(small: Proof, scene: Scene) -> Answer:
    """Suspect the number of messages: all ranks wait for each other, wake up all the time and move little."""
    # Reductions within backward leave no frame: the main thread is in autograd, off the CPU.
    waits, least = _all_wait(small)
    small.clear(bool(scene.cards), "the job computes on a GPU")
    margin = small.margin
    wakings = small.at_least(Figure.RANK_SWITCHES, comms.count_wakings(scene), MANY_WAKINGS)
    each = small.known(comms.nic_bytes_s(scene)) / (wakings * len(scene.ranks))
    small.below(Figure.BYTES_A_WAKING, each, SMALL_BYTES)
    # How long they wait makes it sure, not how often they wake up.
    small.margin = min(margin, CROWDED_MARGIN) if _take_turns(scene, least) else margin
    text = (
        f"all ranks spend {say_ratio(least)} of the time in exchanges of many small messages: each "
        f"wakes up {wakings:.0f} times a second and moves {format_bytes(int(each))} each time"
    )
    return _suspect_all(small, waits, "small-messages", text, Need.SMALL_MESSAGES)


@proves("waits between ranks")
def judge_comms_unknown(unknown: Proof, scene: Scene) -> Answer:
    """Suspect a wait of unknown reason: all ranks in collectives, little moves, nobody here is late."""
    waits, least = _all_wait(unknown)
    unknown.doubt(_take_turns(scene, least), CROWDED)
    unknown.clear(comms.find_traffic(scene)[0] >= 1, "they transfer")
    late = "they are late in turn, or the latency is high"
    late = say_elsewhere(scene.elsewhere) if scene.elsewhere else late
    moves = "little moves" if comms.is_traffic_read(scene) else UNREAD
    text = f"all ranks spend {say_ratio(least)} waiting in collectives; {moves}: {late}"
    return _suspect_all(unknown, waits, "unknown", text)


RULES: tuple[Rule, ...] = (
    judge_straggler,
    judge_object_collectives,
    judge_small_messages,
    judge_transfer,
    judge_comms_unknown,
)
