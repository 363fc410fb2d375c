"""A host that holds its GPU back: launches that take longer than their kernels, and synchronising.

Idle time of the GPU is what every accusation needs: a host that waits over a full launch queue
costs nothing.
"""

from __future__ import annotations

from tpmon.judge.advice_needs import Need
from tpmon.judge.phase_kinds import ELSEWHERE, TRAINING
from tpmon.judge.phases import DataPart, Phase, RankPhases
from tpmon.judge.rules_cards import answer_without_cards
from tpmon.judge.scene import RankScene, Scene
from tpmon.judge.slack import SLACK_RATIO, Slack, gpu_figures, rank_slack, slackest
from tpmon.judge.stillness import name_rank, stack_moves
from tpmon.judge.suspicion import Answer, Cleared, Rule, Suspicion, Unsure, reading
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known, known_or
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence, Kind

DRIVING_DEMAND = 0.85
"""Demand of main plus autograd thread from which the host launches without a break."""
HELD_RATIO = 0.2
"""Share of samples in a synchronise or collective: below it launch-bound, from it sync or comms."""
SYNC_SLACK_RATIO = 0.1
"""GPU idle time that nothing but the synchronise explains; less is the noise of two samplings."""
WORKING_RATIO = 0.5
"""Share of samples in model or Python code that makes the host the one that works."""


def judge_launch_bound(scene: Scene) -> Answer:
    """Suspect the host's launching when a GPU has slack while its main thread works without a break.

    "Works" needs stacks that move and are not in a synchronise, ``.item()`` or collective: those
    spin at 100 % as well. Until that is known a hollow GPU is undecided.
    """
    if not scene.gpus:
        return answer_without_cards(scene)
    found = slackest(scene)
    if not is_known(found):
        return Unsure(f"launching of kernels ({found.reason})")
    rank, slack = found
    if slack.ratio < SLACK_RATIO:
        return Cleared(f"launching of kernels (the GPUs have {format_pct(100 * slack.ratio)} % slack)")
    name = name_rank(rank)
    if not is_known(rank.driving_demand):
        return Unsure(f"launching of kernels ({rank.driving_demand.reason})")
    if rank.driving_demand < DRIVING_DEMAND:
        return Cleared(
            f"launching of kernels ({name} runs {format_pct(100 * rank.driving_demand)} % of the time)"
        )
    if not is_known(rank.phases):
        return Unsure(f"launching of kernels (hollow or idle GPU: deciding; {rank.phases.reason})")
    held = rank.phases.ratio(Phase.SYNC, Phase.COMMS)
    if held >= HELD_RATIO:
        return Cleared(
            f"launching of kernels ({name} is {format_pct(100 * held)} % in waits for GPU or ranks)"
        )
    training, between = rank.phases.ratio(*TRAINING), rank.phases.ratio(Phase.OTHER, Phase.LOGGING)
    if training + between < WORKING_RATIO:
        return Cleared(f"launching of kernels ({name} is elsewhere)")
    moves = stack_moves(rank)
    if not is_known(moves):
        return Unsure(f"launching of kernels (hollow or idle GPU: deciding; {moves.reason})")
    if not moves:
        return Unsure(f"launching of kernels ({name} spins and its stack does not move: hung, perhaps)")
    return _suspect_launches(scene, rank, slack, training, between)


def _suspect_launches(
    scene: Scene, rank: RankScene, slack: Slack, training: float, between: float
) -> Suspicion:
    tiny = training >= between
    where = f"{format_pct(100 * training)} % in the model, {format_pct(100 * between)} % in other Python code"
    kernels = "kernels are shorter than their launches" if tiny else "Python between launches takes longer"
    weight = slack.ratio * min(1.0, training + between)
    age = scene.frame.ages_s
    return Suspicion(
        kind=Kind.LAUNCH_BOUND,
        cause="tiny-kernels" if tiny else "main-thread",
        weight=weight,
        margin=slack.ratio / SLACK_RATIO,
        sources=slack.sources | {"schedstat", "stacks"},
        summary=f"{name_rank(rank)} launches without a break and its GPU is not full: {kernels}",
        evidence=(
            reading(
                "main thread runs", 100 * known_or(rank.driving_demand, 0.0), "%", "schedstat", age.threads
            ),
            Evidence("where it is", 100 * training, "%", where, "stack samples", age.stacks),
            *gpu_figures(scene),
        ),
        share=slack.idle_ratio * min(1.0, training + between)
        if slack.idle_ratio >= SLACK_RATIO
        else NOT_APPLICABLE,
        pid=rank.process.pid,
        rank=rank.process.rank,
        observed=frozenset((Need.GPU_PRESENT,)),
    )


def _copy_ratio(phases: RankPhases) -> float:
    share = phases.parts.get(DataPart.COPY)
    return share.ratio if share is not None else 0.0


def _unexplained_idle(phases: RankPhases, slack: Slack) -> float:
    """Return the GPU's idle share that the host does not spend elsewhere than in steps and copies."""
    elsewhere = phases.ratio(*ELSEWHERE) - min(phases.ratio(Phase.DATA_WAIT), _copy_ratio(phases))
    return max(0.0, slack.idle_ratio - elsewhere)


def _held_ratio(phases: RankPhases, sight: Need) -> float:
    """Return the share of samples that a kind of synchronise accounts for, 0 where it was not seen."""
    if sight not in phases.sights:
        return 0.0
    if sight is Need.COPY_IN_STACK:
        return max(
            _copy_ratio(phases), 0.0 if Need.SYNC_IN_STACK in phases.sights else phases.ratio(Phase.SYNC)
        )
    return phases.ratio(Phase.SYNC)


def _judge_sync(scene: Scene, cause: str, sight: Need, words: str, least: float) -> Answer:
    if not scene.gpus:
        return answer_without_cards(scene)
    what = f"{cause} synchronising"
    reason = Missing("no rank was read")
    best: tuple[float, float, RankScene] | None = None
    for rank in scene.ranks:
        slack = rank_slack(rank, scene)
        if not is_known(slack):
            reason = slack
        elif not is_known(rank.phases):
            reason = rank.phases
        else:
            held = _held_ratio(rank.phases, sight)
            idle = _unexplained_idle(rank.phases, slack)
            if best is None or min(held, idle) > min(best[0], best[1]):
                best = held, idle, rank
    if best is None:
        return Unsure(f"{what} ({reason.reason})")
    held, idle, rank = best
    if held < least:
        return Cleared(f"{what} ({format_pct(100 * held)} % of samples)")
    if idle < SYNC_SLACK_RATIO:
        return Cleared(f"{what} (costs 0: the GPU is busy meanwhile)")
    age = scene.frame.ages_s.stacks
    return Suspicion(
        kind=Kind.SYNC_BOUND,
        cause=cause,
        weight=idle,
        margin=min(held / least, idle / SYNC_SLACK_RATIO),
        sources=frozenset(("stacks", "NVML utilisation")),
        summary=f"{name_rank(rank)} {words}, and the GPU runs empty meanwhile",
        evidence=(
            reading("in synchronising calls", 100 * held, "%", "stack samples", age),
            reading("GPU idle beside them", 100 * idle, "%", "NVML utilisation", scene.frame.ages_s.gpu),
            *gpu_figures(scene),
        ),
        share=min(idle, 1.0),
        pid=rank.process.pid,
        rank=rank.process.rank,
        observed=frozenset((sight,)),
    )


def judge_explicit_sync(scene: Scene) -> Answer:
    """Suspect synchronize() and .item() when the host is in them and the GPU idles between."""
    return _judge_sync(scene, "explicit", Need.SYNC_IN_STACK, "waits for the GPU in every step", HELD_RATIO)


def judge_implicit_sync(scene: Scene) -> Answer:
    """Suspect blocking copies when the host is in them and the GPU idles between."""
    return _judge_sync(scene, "implicit", Need.COPY_IN_STACK, "copies to the GPU and waits", SYNC_SLACK_RATIO)


def judge_allocator_sync(scene: Scene) -> Answer:
    """Suspect the GPU memory allocator when the host is in it and the GPU idles between."""
    need = Need.ALLOCATOR_IN_STACK
    return _judge_sync(scene, "allocator", need, "frees and asks for GPU memory", SYNC_SLACK_RATIO)


RULES: tuple[Rule, ...] = (
    judge_launch_bound,
    judge_explicit_sync,
    judge_implicit_sync,
    judge_allocator_sync,
)
