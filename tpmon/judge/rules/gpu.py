"""Judge whether the job's GPUs are full, and whether their host holds them back.

The driver's utilisation says that a kernel runs, not that the card works: SM activity or power must agree
before a card is called full. Every accusation needs idle time of the GPU, since a host that waits over a full
launch queue costs nothing. Other explanations count against launching: waits for the GPU, an optimizer that
computes on the CPU, cards of one rank that work one after another.
"""

from __future__ import annotations

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, FigureReading, Suspicion, by_conditions, reading
from tpmon.judge.features.card_holds import is_braked, is_hot, need_cards
from tpmon.judge.features.card_use import (
    FULL_SM_PCT,
    HOLLOW_POWER_RATIO,
    HOLLOW_SM_PCT,
    SLACK_RATIO,
    Slack,
    card_slack,
    full_power_ratio,
    gpu_figures,
    judge_hollow,
    median_over,
    rank_slack,
    slackest,
    works_all_the_time,
)
from tpmon.judge.features.cards import BUSY_PCT, CardScene, is_sliced, mean_busy_pct
from tpmon.judge.features.comms import are_links_read, exchange_unread, find_exchange
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, demand_of
from tpmon.judge.features.standstill import goes_on, name_rank, stack_moves
from tpmon.judge.stacks.phases import ELSEWHERE, TRAINING
from tpmon.judge.stacks.profile import DataPart, Phase, RankPhases
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind

DRIVING_DEMAND = 0.85
"""Demand of main plus autograd thread above which the host launches all the time."""
HELD_RATIO = 0.2
"""Share of samples in a synchronise or collective above which a wait may be the cause, not launching."""
SYNC_SLACK_RATIO = 0.1
"""GPU idle time that only the synchronise explains; less is the noise of two samplings."""
WORKING_RATIO = 0.5
"""Share of samples in model or Python code above which the host is the one that works."""
OFFLOAD_DEMAND = 1.0
"""Demand of a rank's further threads, in threads, above which its optimizer may compute on the CPU: more than
a Python thread asks for beside a main thread that works."""
_FURTHER = (ThreadKind.POOL, ThreadKind.OTHER, ThreadKind.UNREAD)
"""How threads of an OpenMP pool are counted: they have no name of their own."""


@by_conditions
def judge_launch_bound(scene: Scene) -> Answer:
    """Suspect the host's launching when a GPU has slack while its main thread works all the time.

    "Works" needs stacks that move outside synchronises, ``.item()`` and collectives, which spin at 100 %,
    too: until then a hollow GPU is undecided. A synchronise explains only its share of slack.
    """
    need_cards(scene)
    launching = Proof("launching of kernels", scene)
    deciding = "the GPU is hollow or idle, and why is not known yet: "
    rank, slack = launching.known(slackest(scene))
    launching.clear(slack.ratio < SLACK_RATIO, f"the GPUs have {format_pct(100 * slack.ratio)} % slack")
    name = name_rank(rank)
    launching.at_least(Figure.MAIN_DEMAND, rank.driving_demand, DRIVING_DEMAND)
    phases = launching.known(rank.phases, deciding)
    held, in_ranks = phases.ratio(Phase.SYNC, Phase.COMMS), phases.ratio(Phase.COMMS)
    waits = in_ranks >= HELD_RATIO or (held >= HELD_RATIO and slack.ratio - held < SLACK_RATIO)
    launching.clear(waits, f"{name} is {format_pct(100 * held)} % in waits for GPU or ranks")
    may_wait = _say_may_wait(phases, slack, scene)
    launching.doubt(bool(may_wait), may_wait)
    offloaded = _find_offloaded(rank, phases, slack, scene)
    launching.doubt(
        slack.ratio - offloaded < SLACK_RATIO,
        f"{name} is {format_pct(100 * offloaded)} % in the optimizer while further threads of it compute: "
        "perhaps the optimizer runs on the CPU",
    )
    in_turn = _say_in_turn(rank, scene)
    launching.doubt(bool(in_turn), in_turn)
    works = phases.ratio(*TRAINING, Phase.OTHER, Phase.LOGGING) >= WORKING_RATIO
    launching.clear(not works, f"{name} does something else")
    moves = launching.known(stack_moves(rank), deciding)
    launching.doubt(not moves, f"{name} spins and its stack does not move: hung, perhaps")
    return _suspect_launches(launching, rank, slack, phases, offloaded)


def _say_may_wait(phases: RankPhases, slack: Slack, scene: Scene) -> str:
    """Say what besides launching may keep a card busy that does little, "" for nothing.

    A collective's kernel spins while it waits, and its host is in no call of it. A host that waits in
    ``.item()`` is in a line of its own, over a full queue; if it were slow itself, the card would run empty.
    """
    training, between = phases.ratio(*TRAINING), phases.ratio(Phase.OTHER, Phase.LOGGING)
    if between > training and slack.idle_ratio < SYNC_SLACK_RATIO:
        text = f"{format_pct(100 * between)} % in other Python code, and the card never runs empty"
        return f"{text}: perhaps it waits there for its GPU, as in .item()"
    world = known_or(scene.frame.target.world_size, 1)
    if slack.idle_ratio >= SLACK_RATIO or max(world, len(scene.ranks)) < 2:
        return ""
    all_here = world <= len(scene.ranks) and are_links_read(scene) and not find_exchange(scene)
    slacks = [card_slack(card) for card in scene.gpus]
    if all_here and all(is_known(one) and one.ratio >= SLACK_RATIO for one in slacks):
        return ""  # no rank works while others wait for it, and nothing moves
    return "the kernel of a collective counts as busy, too, and the ranks may wait for each other"


def _find_offloaded(rank: RankScene, phases: RankPhases, slack: Slack, scene: Scene) -> float:
    """Return the share of time, 0-1, in which the optimizer may compute on the CPU; 0 where it hardly does.

    It takes most of the GPU's slack, and the rank's further threads want CPUs meanwhile.
    """
    optimizer = phases.ratio(Phase.OPTIMIZER)
    if optimizer < slack.ratio / 2:
        return 0.0
    further = median_known(
        demand_of(process, _FURTHER)
        for frame in scene.frames
        for process in frame.processes
        if process.pid == rank.process.pid
    )
    # Its main thread was read, so Missing says that it has no such threads.
    return optimizer if known_or(further, 0.0) >= OFFLOAD_DEMAND else 0.0


def _say_in_turn(rank: RankScene, scene: Scene) -> str:
    """Say that a rank's cards may work one after another (together as busy as one), "" if they cannot."""
    own = [card for card in scene.gpus if card.pids == (rank.process.pid,)]
    # A rank's slack is known only where all of its cards were read.
    busy = sum(known_or(card.busy_pct, 0.0) for card in own)
    if len(own) < 2 or busy < BUSY_PCT:
        return ""
    return (
        f"the {len(own)} cards of {name_rank(rank)} are {format_pct(busy)} % busy in sum: perhaps they work "
        "one after another"
    )


def _suspect_launches(
    proof: Proof, rank: RankScene, slack: Slack, phases: RankPhases, offloaded: float
) -> Suspicion:
    training, between = phases.ratio(*TRAINING), phases.ratio(Phase.OTHER, Phase.LOGGING)
    held = phases.ratio(Phase.SYNC, Phase.COMMS)
    waits, tiny = held >= HELD_RATIO, training >= between
    where = f"{format_pct(100 * training)} % in the model, {format_pct(100 * between)} % in other Python code"
    kernels = "Python between launches takes longer, or waits for results (.item())"
    if tiny:
        kernels = "its launches do not keep the GPU busy"
    launching = min(1.0, training + between) - offloaded
    # What a wait explains is left to the wait; a few samples of one are part of every step.
    unexplained = slack.ratio - offloaded - (held if waits else 0.0)
    proof.margin = unexplained / SLACK_RATIO
    proof.add(Figure.WHERE_IT_IS, training, text=where)
    # Slack below its threshold, or of a card that is not known to be hollow, is shown alone.
    if slack.origins:
        proof.evidence += gpu_figures(proof.scene)
    else:
        proof.shown += gpu_figures(proof.scene)
    shows_idle = slack.idle_ratio >= SLACK_RATIO
    return proof.suspect(
        Kind.LAUNCH_BOUND,
        "tiny-kernels" if tiny else "main-thread",
        unexplained * launching,
        f"{name_rank(rank)} launches {format_pct(100 * launching)} % of the time and its GPU is not "
        f"full: {kernels}",
        against=(proof.read(Figure.IN_WAITS, held),) if waits else (),
        share=max(0.0, slack.idle_ratio - offloaded) * launching if shows_idle else NOT_APPLICABLE,
        pid=rank.process.pid,
        rank=rank.process.rank,
        observed=frozenset((Need.GPU_PRESENT,) if tiny else (Need.GPU_PRESENT, Need.ONE_THREAD_BUSY)),
    )


def _copy_ratio(phases: RankPhases) -> float:
    """Return the share of samples in copies to a device; unpacking a batch is none."""
    share = phases.parts.get(DataPart.COPY)
    # Where needs were counted, an absent one was in no sample.
    most = phases.proven.get(Need.COPY_IN_STACK, 0.0 if phases.proven else 1.0)
    return min(share.ratio, most) if share is not None else 0.0


_EXPLICIT = frozenset((Need.SYNC_IN_STACK, Need.SCALER_IN_STACK, Need.NAN_CHECK_IN_STACK))


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
def _judge_sync(scene: Scene, cause: str, needs: frozenset[Need], words: str, least: float) -> Answer:
    need_cards(scene)
    syncing = Proof(f"{cause} synchronising", scene)
    reason = Missing("no rank was read")
    best: tuple[float, float, RankScene, Slack] | None = None
    for rank in scene.ranks:
        slack = rank_slack(rank, scene)
        if not is_known(slack):
            reason = slack
        elif not is_known(rank.phases):
            reason = rank.phases
        else:
            held = _held_ratio(rank.phases, needs)
            copies = min(rank.phases.ratio(Phase.DATA_WAIT), _copy_ratio(rank.phases))
            # What the host does outside steps and copies explains as much of the idle time.
            idle = max(0.0, slack.idle_ratio - (rank.phases.ratio(*ELSEWHERE) - copies))
            if best is None or min(held, idle) > min(best[0], best[1]):
                best = held, idle, rank, slack
    held, idle, rank, slack = syncing.known(reason if best is None else best)
    samples = f"{format_pct(100 * held)} % of samples"
    syncing.clear(held < least, samples)
    is_free, elsewhere = idle < SYNC_SLACK_RATIO, slack.idle_ratio >= SYNC_SLACK_RATIO
    syncing.clear(is_free and elsewhere, "costs 0: the GPU idles while the host is elsewhere")
    syncing.doubt(is_free and slack.ratio >= SLACK_RATIO, f"{samples}; meanwhile the GPU is hollow")
    syncing.clear(is_free, "costs 0: the GPU is busy meanwhile")
    in_turn = _say_in_turn(rank, scene)
    syncing.doubt(bool(in_turn), f"{samples}; {in_turn}")
    # Without the wait the host still takes the time of its launches.
    share = min(held, idle)
    syncing.add(Figure.IN_SYNCS, held, held / least)
    syncing.at_least(Figure.GPU_IDLE_BESIDE, idle, SYNC_SLACK_RATIO)
    syncing.shown += gpu_figures(scene)
    return syncing.suspect(
        Kind.SYNC_BOUND,
        cause,
        share,
        f"{name_rank(rank)} {words}, and the GPU runs empty meanwhile",
        share=share,
        pid=rank.process.pid,
        rank=rank.process.rank,
        observed=needs & rank.phases.needs if is_known(rank.phases) else frozenset(),
    )


def judge_explicit_sync(scene: Scene) -> Answer:
    """Suspect synchronize() and .item() when the host is in them and the GPU idles between."""
    return _judge_sync(scene, "explicit", _EXPLICIT, "waits for the GPU in every step", HELD_RATIO)


def judge_implicit_sync(scene: Scene) -> Answer:
    """Suspect blocking copies when the host is in them and the GPU idles between."""
    need = frozenset((Need.COPY_IN_STACK,))
    return _judge_sync(scene, "implicit", need, "copies to the GPU and waits", SYNC_SLACK_RATIO)


def judge_allocator_sync(scene: Scene) -> Answer:
    """Suspect the GPU memory allocator when the host is in it and the GPU idles between."""
    need = frozenset((Need.ALLOCATOR_IN_STACK,))
    return _judge_sync(scene, "allocator", need, "frees and asks for GPU memory", SYNC_SLACK_RATIO)


LAUNCH_RULES: tuple[Rule, ...] = (
    judge_launch_bound,
    judge_explicit_sync,
    judge_implicit_sync,
    judge_allocator_sync,
)


DRAM_BOUND_PCT = 50.0
"""GPM DRAM activity above which memory is the limit: about 80 is the maximum, matmuls read 18-21."""
TENSOR_WORKS_PCT = 25.0
"""Tensor activity above which the card multiplies matrices; a healthy H100 job reads 28."""
HIDDEN_WAIT_RATIO = 0.1
SLICE_SYNC = 0.5
"""Share of time that a host waits for its slice above which that is busy, without U or SM activity."""


def _full_margin(card: CardScene) -> Known[float]:
    """Return how far a card is past full, by SM activity or by power at its clock; Missing without both."""
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


def _hidden_wait(scene: Scene) -> tuple[FigureReading, ...]:
    """Return the data wait that a busy GPU hides, so that nobody chases it."""
    waits = [rank.phases.ratio(Phase.DATA_WAIT) for rank in scene.ranks if is_known(rank.phases)]
    if not waits or max(waits) < HIDDEN_WAIT_RATIO:
        return ()
    text = f"{format_pct(100 * max(waits))} % of the host's time, costs 0: the GPU is busy meanwhile"
    return (reading(Figure.HIDDEN_DATA_WAIT, 100 * max(waits), scene.frame, text=text),)


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
    margin, active = _full_margin(card), card.sm_active_pct
    if not is_known(card.busy_pct):
        if is_known(active):  # those of a slice, which has no utilisation, are kernels that run
            is_full = is_sliced(card.last) and active >= FULL_SM_PCT and is_known(margin)
            return margin if is_full else full.known(card.busy_pct, f"{name}: ")
        reason = Missing(f"{card.busy_pct.reason}; SM activity: {active.reason}")
        return reason if _is_awaited(card, scene) else full.known(reason, f"{name}: ")
    full.clear(card.busy_pct < BUSY_PCT, f"{name} is busy {format_pct(card.busy_pct)} %")
    full.clear(is_hot(card, scene) or is_braked(card, scene), f"{name} is held below its clocks")
    hollow = judge_hollow(card)
    if not is_known(margin) or (margin < 1 and not is_known(card.clock_ratio)):
        low = known_or(card.power_ratio, 1.0) < HOLLOW_POWER_RATIO or known_or(active, 100.0) < HOLLOW_SM_PCT
        full.doubt(low, f"{name}: {_say_unread(card)}")
        return Missing(_say_unread(card))
    if margin < 1 or known_or(active, 100.0) < HOLLOW_SM_PCT:
        hollow = full.known(hollow, f"{name}: ")
    full.clear(margin < 1 and hollow is True, f"{name} is busy, but neither SM activity nor power is high")
    return margin


def _exchanged(scene: Scene) -> tuple[tuple[FigureReading, ...], tuple[str, ...]]:
    """Return what the ranks move that may keep their cards busy, and what was not read of it.

    A collective's kernel counts as busy while it waits; SM activity and power tell how much is work.
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


@by_conditions
def judge_gpu_compute(scene: Scene) -> Answer:
    """Suspect, in the good sense, that the GPUs are full: every card busy, working, and not held.

    Cards that never run empty are bound by their kernels, too, if they are neither full nor hollow, or if
    nothing tells how full they are; no more is said of them.
    """
    need_cards(scene)
    margins, missing = [], ""
    for card in scene.gpus:
        margin = _weigh_card(card, scene)
        if isinstance(margin, Missing):
            missing, margin = f"card {card.index}: {margin.reason}", 0.0
        margins.append(margin)
    exchanged, unread = _exchanged(scene)
    full, compute = min(margins) >= 1, Proof("GPU compute", scene)
    busy_at = missing or "busy at medium power"
    may_wait = not full and bool(exchanged)
    compute.doubt(may_wait, f"{busy_at}: the ranks may wait for each other meanwhile")
    # A kernel that does not end looks the same.
    compute.doubt(bool(missing) and not goes_on(scene), f"{missing}; that the run gets on is not seen")
    cause = _choose_compute(scene) if full else "gpu"
    active = median_over(card.sm_active_pct for card in scene.gpus)
    busy = mean_busy_pct(scene.gpus)
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
    compute.margin = min(margins) if full else 1.0
    compute.evidence, compute.shown = gpu_figures(scene), _hidden_wait(scene)
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


RULES: tuple[Rule, ...] = (judge_gpu_compute, *LAUNCH_RULES)
