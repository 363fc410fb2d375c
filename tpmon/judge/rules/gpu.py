"""Judge whether the job's GPUs are full, and whether their host holds them back.

The driver's utilisation says that a kernel runs, not that the card works: SM activity or power must agree
before a card is called full. Every accusation needs idle time of the GPU, since a host that waits over a full
launch queue costs nothing.
"""

from __future__ import annotations

from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, FigureReading, by_conditions
from tpmon.judge.features import card_use as use
from tpmon.judge.features.card_holds import is_slowed, need_cards
from tpmon.judge.features.cards import BUSY_PCT, CardScene, is_sliced, mean_busy_pct
from tpmon.judge.features.comms import are_links_read, exchange_unread, find_exchange
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import goes_on, name_rank, stack_moves
from tpmon.judge.stacks.phases import ELSEWHERE, OUTSIDE, TRAINING, DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.units import say_pct, say_ratio
from tpmon.model.verdict import Kind

DRIVING_DEMAND = 0.85
HELD_RATIO = 0.2
SYNC_SLACK_RATIO = 0.1
WORKING_RATIO = 0.5
OFFLOAD_DEMAND = 1.0
_FURTHER = (ThreadKind.POOL, ThreadKind.OTHER, ThreadKind.UNREAD)
"""How threads of an OpenMP pool are counted: they have no name of their own."""


@proves("launching of kernels")
def judge_launch_bound(launches: Proof, scene: Scene) -> Answer:
    """Suspect the host's launching when a GPU has slack while its main thread works all the time."""
    # "Works" needs stacks that move outside synchronises, ``.item()`` and collectives, which spin at 100 %,
    # too: until then a hollow GPU is undecided. A synchronise explains only its share of slack.
    need_cards(scene)
    deciding = "the GPU is hollow or idle, and why is not known yet: "
    rank, slack = launches.known(use.slackest(scene))
    launches.clear(slack.ratio < use.SLACK_RATIO, f"the GPUs have {say_ratio(slack.ratio)} slack")
    name = name_rank(rank)
    driving = rank.demand_by(ThreadKind.MAIN, ThreadKind.AUTOGRAD)  # they take turns
    launches.at_least(Figure.MAIN_DEMAND, driving, DRIVING_DEMAND)
    phases = launches.known(rank.phases, deciding)
    training, between = phases.ratio(*TRAINING), phases.ratio(*OUTSIDE)
    held, in_ranks = phases.ratio(Phase.SYNC, Phase.COMMS), phases.ratio(Phase.COMMS)
    waits = in_ranks >= HELD_RATIO or (held >= HELD_RATIO and slack.ratio - held < use.SLACK_RATIO)
    launches.clear(waits, f"{name} is {say_ratio(held)} in waits for GPU or ranks")
    may_wait = _say_may_wait(phases, slack, scene)
    launches.doubt(bool(may_wait), may_wait)
    offloaded = _find_offloaded(rank, phases, slack)
    launches.doubt(
        slack.ratio - offloaded < use.SLACK_RATIO,
        f"{name} is {say_ratio(offloaded)} in the optimizer while further threads of it compute: "
        "perhaps the optimizer runs on the CPU",
    )
    in_turn = _say_in_turn(rank, scene)
    launches.doubt(bool(in_turn), in_turn)
    launches.clear(training + between < WORKING_RATIO, f"{name} does something else")
    moves = launches.known(stack_moves(rank), deciding)
    launches.doubt(not moves, f"{name} spins and its stack does not move: hung, perhaps")
    cause, kernels, needs = "tiny-kernels", "its launches do not keep the GPU busy", [Need.GPU_PRESENT]
    if training < between:
        cause, kernels = "main-thread", "Python between launches takes longer, or waits for results (.item())"
        needs.append(Need.ONE_THREAD_BUSY)
    launching = min(1.0, training + between) - offloaded
    # What a wait explains is left to the wait; a few samples of one are part of every step.
    is_held = held >= HELD_RATIO
    unexplained = slack.ratio - offloaded - (held if is_held else 0.0)
    launches.margin = unexplained / use.SLACK_RATIO
    where = f"{say_ratio(training)} in the model, {say_ratio(between)} in other Python code"
    launches.add(Figure.WHERE_IT_IS, training, text=where)
    launches.evidence += use.gpu_figures(scene)
    shows_idle = slack.idle_ratio >= use.SLACK_RATIO
    return launches.suspect(
        Kind.LAUNCH_BOUND,
        cause,
        unexplained * launching,
        f"{name} launches {say_ratio(launching)} of the time and its GPU is not full: {kernels}",
        *needs,
        against=(launches.read(Figure.IN_WAITS, held),) if is_held else (),
        share=max(0.0, slack.idle_ratio - offloaded) * launching if shows_idle else NOT_APPLICABLE,
        process=rank.process,
    )


def _say_may_wait(phases: RankPhases, slack: use.Slack, scene: Scene) -> str:
    """Say what besides launching may keep a card busy that does little, "" for nothing."""
    # A collective's kernel spins while it waits, and its host is in no call of it. A host that waits in
    # ``.item()`` is in a line of its own, over a full queue: if it were slow, the card would run empty.
    training, between = phases.ratio(*TRAINING), phases.ratio(*OUTSIDE)
    if between > training and slack.idle_ratio < SYNC_SLACK_RATIO:
        text = f"{say_ratio(between)} in other Python code, and the card never runs empty"
        return f"{text}: perhaps it waits there for its GPU, as in .item()"
    if slack.idle_ratio >= use.SLACK_RATIO or scene.size < 2:
        return ""
    all_here = not scene.elsewhere and are_links_read(scene) and not find_exchange(scene)
    slacks = [use.card_slack(card) for card in scene.gpus]
    if all_here and all(is_known(one) and one.ratio >= use.SLACK_RATIO for one in slacks):
        return ""  # no rank works while others wait for it, and nothing moves
    return "the kernel of a collective counts as busy, too, and the ranks may wait for each other"


def _find_offloaded(rank: RankScene, phases: RankPhases, slack: use.Slack) -> float:
    """Return the share of time, 0-1, in which the optimizer may compute on the CPU; 0: hardly."""
    optimizer = phases.ratio(Phase.OPTIMIZER)
    if optimizer < slack.ratio / 2:
        return 0.0
    # Its main thread was read, so Missing says that it has no such threads.
    return optimizer if known_or(rank.demand_by(*_FURTHER), 0.0) >= OFFLOAD_DEMAND else 0.0


def _say_in_turn(rank: RankScene, scene: Scene) -> str:
    """Say that a rank's cards may work one after another (together as busy as one), "" if they cannot."""
    own = [card for card in scene.gpus if card.pids == (rank.process.pid,)]
    # A rank's slack is known only where all of its cards were read.
    busy = sum(known_or(card.busy_pct, 0.0) for card in own)
    if len(own) < 2 or busy < BUSY_PCT:
        return ""
    return (
        f"the {len(own)} cards of {name_rank(rank)} are {say_pct(busy)} busy in sum: perhaps they work "
        "one after another"
    )


def _copy_ratio(phases: RankPhases) -> float:
    """Return the share of samples in copies to a device; unpacking a batch is none."""
    share = phases.parts.get(DataPart.COPY)
    # Where needs were counted, an absent one was in no sample.
    most = phases.proven.get(Need.COPY_IN_STACK, 0.0 if phases.proven else 1.0)
    return min(share.ratio, most) if share is not None else 0.0


_EXPLICIT = frozenset((Need.SYNC_IN_STACK, Need.SCALER_IN_STACK, Need.NAN_CHECK_IN_STACK))
_COPIES = frozenset((Need.COPY_IN_STACK,))
_FREES = frozenset((Need.ALLOCATOR_IN_STACK,))


def _held_ratio(phases: RankPhases, needs: frozenset[Need]) -> float:
    """Return the share of samples that a kind of synchronise explains, 0 where it was not seen."""
    seen = needs & phases.needs
    if not seen:
        return 0.0
    # Two kinds in one step each have only their own samples.
    waits = min(phases.ratio(Phase.SYNC), sum(phases.proven.get(one, 1.0) for one in seen))
    if Need.COPY_IN_STACK in seen:
        return max(_copy_ratio(phases), 0.0 if _EXPLICIT & phases.needs else waits)
    return waits


@by_conditions
def _judge_sync(scene: Scene, *, cause: str, needs: frozenset[Need], words: str, least: float) -> Answer:
    """Suspect a kind of synchronise when the host is in it and the GPU idles between."""
    need_cards(scene)
    syncing = Proof(f"{cause} synchronising", scene)
    reason = Missing("no rank was read")
    found: list[tuple[float, float, RankScene, use.Slack]] = []
    for rank in scene.ranks:
        slack, phases = use.rank_slack(rank, scene), rank.phases
        if is_known(slack) and is_known(phases):
            copies = min(phases.ratio(Phase.DATA_WAIT), _copy_ratio(phases))
            # What the host does outside steps and copies explains as much of the idle time.
            idle = max(0.0, slack.idle_ratio - (phases.ratio(*ELSEWHERE) - copies))
            found.append((_held_ratio(phases, needs), idle, rank, slack))
        else:
            reason = (
                slack if isinstance(slack, Missing) else phases if isinstance(phases, Missing) else reason
            )
    if not found:
        syncing.known(reason)
    held, idle, rank, slack = max(found, key=lambda row: min(row[:2]))
    samples = f"{say_ratio(held)} of samples"
    syncing.clear(held < least, samples)
    is_free, elsewhere = idle < SYNC_SLACK_RATIO, slack.idle_ratio >= SYNC_SLACK_RATIO
    syncing.clear(is_free and elsewhere, "costs 0: the GPU idles while the host is elsewhere")
    syncing.doubt(is_free and slack.ratio >= use.SLACK_RATIO, f"{samples}; meanwhile the GPU is hollow")
    syncing.clear(is_free, "costs 0: the GPU is busy meanwhile")
    in_turn = _say_in_turn(rank, scene)
    syncing.doubt(bool(in_turn), f"{samples}; {in_turn}")
    # Without the wait the host still takes the time of its launches.
    share = min(held, idle)
    syncing.add(Figure.IN_SYNCS, held, held / least)
    syncing.at_least(Figure.GPU_IDLE_BESIDE, idle, SYNC_SLACK_RATIO)
    syncing.shown += use.gpu_figures(scene)
    return syncing.suspect(
        Kind.SYNC_BOUND,
        cause,
        share,
        f"{name_rank(rank)} {words}, and the GPU runs empty meanwhile",
        *(needs & rank.phases.needs if is_known(rank.phases) else ()),
        share=share,
        process=rank.process,
    )


judge_explicit_sync = partial(
    _judge_sync, cause="explicit", needs=_EXPLICIT, words="waits for the GPU in every step", least=HELD_RATIO
)
judge_implicit_sync = partial(
    _judge_sync, cause="implicit", needs=_COPIES, words="copies to the GPU and waits", least=SYNC_SLACK_RATIO
)
judge_allocator_sync = partial(
    _judge_sync,
    cause="allocator",
    needs=_FREES,
    words="frees and asks for GPU memory",
    least=SYNC_SLACK_RATIO,
)

DRAM_BOUND_PCT = 50.0
TENSOR_WORKS_PCT = 25.0
HIDDEN_WAIT_RATIO = 0.1
SLICE_SYNC = 0.5


def _choose_compute(scene: Scene) -> tuple[str, str]:
    """Return what cards that are full are full with, and the same in words."""
    dram = use.median_over(card.dram_pct for card in scene.gpus)
    tensor = use.median_over(card.tensor_pct for card in scene.gpus)
    active = use.median_over(card.sm_active_pct for card in scene.gpus)
    if is_known(dram) and is_known(tensor) and is_known(active):
        if dram >= DRAM_BOUND_PCT and tensor < TENSOR_WORKS_PCT:
            return "gpu-memory-bandwidth", "full with moving data to and from their memory"
        if active >= use.FULL_SM_PCT:
            return "gpu-compute", "full with computing"
    return "gpu", "full; whether with computing or memory traffic is not measured"


def _say_unread(card: CardScene) -> str:
    """Name the unread figure that would tell how full a card is: "power: not supported by this card"."""
    figures = {"power": card.power_ratio, "SM clock": card.clock_ratio, "SM activity": card.sm_active_pct}
    return next((f"{name}: {one.reason}" for name, one in figures.items() if isinstance(one, Missing)), "")


def _is_awaited(card: CardScene, scene: Scene) -> bool:
    """Tell whether the host of a slice mostly waits for it, so that kernels run there."""
    shares = [rank.phases for rank in scene.ranks if rank.process.pid in card.pids]
    waits = all(is_known(one) and one.ratio(Phase.SYNC) >= SLICE_SYNC for one in shares)
    return is_sliced(card.last) and bool(shares) and waits


def _weigh_card(card: CardScene, scene: Scene) -> Known[float]:
    """Return how far a busy card is past full, below 1 if it is not; Missing where nothing tells."""
    full, name = Claim("GPU compute"), f"card {card.index}"
    active, power = card.sm_active_pct, card.work_ratio if is_known(card.work_ratio) else card.power_ratio
    told = ((active, use.FULL_SM_PCT), (power, use.full_power_ratio(card)))
    margin = max((value / limit for value, limit in told if is_known(value)), default=power)
    if not is_known(card.busy_pct):
        if is_known(active):  # those of a slice, which has no utilisation, are kernels that run
            is_full = is_sliced(card.last) and active >= use.FULL_SM_PCT and is_known(margin)
            return margin if is_full else full.known(card.busy_pct, f"{name}: ")
        reason = Missing(f"{card.busy_pct.reason}; SM activity: {active.reason}")
        return reason if _is_awaited(card, scene) else full.known(reason, f"{name}: ")
    full.clear(card.busy_pct < BUSY_PCT, f"{name} is busy {say_pct(card.busy_pct)}")
    full.clear(is_slowed(card, scene), f"{name} is held below its clocks")
    hollow = use.judge_hollow(card)
    if not is_known(margin) or (margin < 1 and not is_known(card.clock_ratio)):
        low = known_or(card.power_ratio, 1.0) < use.HOLLOW_POWER_RATIO
        full.doubt(low or known_or(active, 100.0) < use.HOLLOW_SM_PCT, f"{name}: {_say_unread(card)}")
        return Missing(_say_unread(card))
    if margin < 1 or known_or(active, 100.0) < use.HOLLOW_SM_PCT:
        hollow = full.known(hollow, f"{name}: ")
    full.clear(margin < 1 and hollow is True, f"{name} is busy, but neither SM activity nor power is high")
    return margin


def _exchanged(scene: Scene) -> tuple[tuple[FigureReading, ...], tuple[str, ...]]:
    """Return what the ranks move that may keep their cards busy, and what was not read of it."""
    # A collective's kernel counts as busy while it waits; SM activity and power tell how much is work.
    world = scene.frame.target.world_size
    if all(map(use.works_all_the_time, scene.gpus)):
        return (), ()
    if len(scene.ranks) < 2 and isinstance(world, Missing):
        return (), (f"whether it exchanges data with other ranks ({world.reason})",)
    if scene.size < 2:
        return (), ()
    found = find_exchange(scene)
    return found, () if found else exchange_unread(scene)


@proves("GPU compute")
def judge_gpu_compute(compute: Proof, scene: Scene) -> Answer:
    """Suspect, in the good sense, that the GPUs are full: every card busy, working, and not held."""
    # Cards that never run empty are bound by their kernels, too, if they are neither full nor hollow, or if
    # nothing tells how full they are; no more is said of them.
    need_cards(scene)
    weighed = [(card.index, _weigh_card(card, scene)) for card in scene.gpus]
    margin = min(known_or(one, 0.0) for _, one in weighed)
    unweighed = [f"card {index}: {one.reason}" for index, one in weighed if isinstance(one, Missing)]
    missing = unweighed[-1] if unweighed else ""
    exchanged, unread = _exchanged(scene)
    full, busy_at = margin >= 1, missing or "busy at medium power"
    may_wait = not full and bool(exchanged)
    compute.doubt(may_wait, f"{busy_at}: the ranks may wait for each other meanwhile")
    # A kernel that does not end looks the same.
    compute.doubt(bool(missing) and not goes_on(scene), f"{missing}; that the run gets on is not seen")
    cause, said = "gpu", "never empty, and their kernels use a part of them"
    if full:
        cause, said = _choose_compute(scene)
    active = use.median_over(card.sm_active_pct for card in scene.gpus)
    busy = mean_busy_pct(scene.gpus)
    if missing:
        said, unread = "never empty; how full they are is not measured", (f"how full ({missing})", *unread)
    shown = f"{say_pct(active)} of their SMs active" if is_known(active) else "their hosts wait for them"
    shown = f"{say_pct(busy)} busy" if is_known(busy) else shown
    compute.margin = margin if full else 1.0
    compute.evidence = use.gpu_figures(scene)
    waits = [rank.phases.ratio(Phase.DATA_WAIT) for rank in scene.ranks if is_known(rank.phases)]
    if max(waits, default=0.0) >= HIDDEN_WAIT_RATIO:  # said so that nobody chases it
        text = f"{say_ratio(max(waits))} of the host's time, costs 0: the GPU is busy meanwhile"
        compute.show(Figure.HIDDEN_DATA_WAIT, max(waits), text=text)
    return compute.suspect(
        Kind.COMPUTE_BOUND,
        cause,
        min(1.0, known_or(busy, known_or(active, BUSY_PCT)) / 100),
        f"the GPUs are {said}: {shown}",
        # Where no figure of a card was read its host tells that it is waited for.
        origins=frozenset((Origin.DRIVER if full or is_known(busy) else Origin.STACKS,)),
        against=exchanged,
        unread=unread,
    )


RULES: tuple[Rule, ...] = (
    judge_gpu_compute,
    judge_launch_bound,
    judge_explicit_sync,
    judge_implicit_sync,
    judge_allocator_sync,
)
