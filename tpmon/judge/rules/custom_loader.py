"""Causes that only a loop's own code knows: a loader that is no DataLoader, a call that blocks. Pure.

Both need a step beside the wait: what waits without one starts, is paused or hangs.
"""

from __future__ import annotations

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Conditions, Suspicion, by_conditions, reading, take_heaviest
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.data_wait import LEAST_SAMPLES, is_behind
from tpmon.judge.features.snapshot import MainThreadScene, RankScene, Rule, Scene
from tpmon.judge.features.starvation import HIDDEN_IDLE, LEAST_WAIT, cap_share, find_named_wait, name_spot
from tpmon.judge.rules.python import others_demand
from tpmon.judge.stacks.phases import OUTSIDE, TRAINING, DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, Share, Spot, share_of
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind, Origin
from tpmon.model.waits import WaitReason, is_wait

LEAST_BLOCKED = 0.2
"""Lower end of the share of time asleep in calls of the program's own from which they hold the run: what
a balanced run may spend in any single wait."""
SURE_SPOT = 0.05
"""Share by which a function must take more than what may all be computing, so that it is named as what
sleeps: half of the interval of 100 samples."""
LEAST_SAID = 3
"""Readings of a wait that say what the sleep is for."""
_MAY_SLEEP = (
    Phase.DATA_WAIT,
    Phase.SYNC,
    Phase.COMMS,
    Phase.CHECKPOINT,
    Phase.VALIDATION,
    Phase.IMPORT,
    Phase.LOAD,
    Phase.COMPILE,
    Phase.INPUT,
)
"""Phases in which a main thread may sleep: no sleep of theirs is one of the program's own calls."""
_SLEEPS = {WaitReason.CHILD: "waits for a child process", WaitReason.SLEEP: "pauses (time.sleep or alike)"}
"""What the kernel says of a sleeping thread (``ProcessSample.waits_for``), as a verb."""
_OWN = Conditions("a loader of the program's own")
_CALL = Conditions("calls that block")


def _find_sleep(main: MainThreadScene) -> float:
    """Return the share of looks that found the main thread asleep, and not for the interpreter's lock."""
    return max(0.0, 1 - main.running - main.timed_lock)


def _idle_cost(rank: RankScene, scene: Scene, cause: Conditions) -> Applicable[float]:
    """Return how much of the time the rank's card idles, where a wait costs something."""
    idle = find_gpu_idle(rank, scene)
    cause.known(idle, "GPU: ")
    if is_known(idle):
        cause.clear(idle < HIDDEN_IDLE, f"hidden: the GPU is {100 * (1 - idle):.0f} % busy")
    return idle


def _stacks_of(rank: RankScene, cause: Conditions) -> RankPhases:
    """Return the stacks of a rank that takes steps."""
    phases = cause.known(rank.phases)
    cause.doubt(phases.samples < LEAST_SAMPLES, "too few stack samples yet")
    cause.doubt(phases.ratio(*TRAINING) <= 0, "no part of a step in the stacks")
    return phases


def _name_spot(phases: RankPhases) -> str:
    spot = phases.handed if is_known(phases.handed) else phases.spots.get(Phase.DATA_WAIT)
    return f": {spot.where.removeprefix(f'{Phase.DATA_WAIT.value}: ')}" if spot is not None else ""


def _queued(rank: RankScene, phases: RankPhases) -> float:
    """Return the share of samples at a queue of data that no DataLoader of torch fills, 0-1.

    Other loaders (DALI, FFCV, Ray Data, nodes of torchdata) and functions with the name of one have it.
    """
    if rank.has_workers or rank.loader is not None:
        return 0.0
    queue = phases.parts.get(DataPart.QUEUE)
    return (queue.ratio if queue is not None else 0.0) + find_named_wait(rank)


@by_conditions
def _judge_own_of(rank: RankScene, scene: Scene) -> Answer:
    phases = _stacks_of(rank, _OWN)
    behind = is_behind(rank.loader, [worker.idle_ratio for worker in rank.feeders])
    _OWN.clear(behind, "a DataLoader stands behind the queue")
    main, handed = rank.main, phases.handed_ratio + _queued(rank, phases)
    looked = is_known(main) and main.looks >= LEAST_SAMPLES
    if is_known(main) and looked:
        # To take from a queue may have a time-out.
        handed = min(handed, _find_sleep(main) + main.timed_lock)
    share = share_of(handed * phases.samples, phases.samples, phases.design)
    at_queue = f"at a queue {format_pct(100 * share.ratio)} %"
    _OWN.clear(share.ratio < LEAST_WAIT, at_queue)
    _OWN.doubt(share.low < LEAST_WAIT, f"{at_queue}: too close to call")
    idle = _idle_cost(rank, scene, _OWN)
    if is_known(idle):
        share = cap_share(share, idle)
    others = others_demand(rank, scene)
    return Suspicion(
        kind=Kind.DATA_BOUND,
        cause="own-loader",
        weight=share.ratio,
        margin=share.low / LEAST_WAIT,
        origins=frozenset((Origin.STACKS, Origin.PROC) if looked else (Origin.STACKS,)),
        summary=f"the loop waits {100 * share.ratio:.0f} % of its time for what other threads or processes "
        f"hand over{_name_spot(phases)}",
        evidence=(
            reading(
                Figure.AT_OWN_QUEUE,
                100 * share.ratio,
                scene.frame,
                text=f"{100 * share.ratio:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})",
            ),
            reading(Figure.OTHERS_OF_RANK_WANT, others, scene.frame),
        ),
        share=share.ratio,
        share_low=share.low,
        share_high=share.high,
        observed=frozenset((Need.OWN_QUEUE_WAIT,)),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def _is_alone(scene: Scene) -> bool:
    return len(scene.ranks) == 1 and known_or(scene.frame.target.world_size, 1) == 1


def _no_call(phases: RankPhases) -> float:
    """Return the share of samples (0-1) outside of the parts of a step that are known to be no call."""
    return phases.handed_ratio + phases.resting_ratio


def _own_sleep(rank: RankScene, main: MainThreadScene, phases: RankPhases, scene: Scene) -> float:
    """Return the share of its time (0-1) that the main thread surely sleeps in calls of its own.

    On cards and beside ranks the backward pass may be a wait for autograd's own thread: a futex, as no sleep
    for a disk, a socket or a child is.
    """
    # A wait with a time-out in a frame that is known to wait is none for the interpreter.
    asleep = _find_sleep(main) + min(main.timed_lock, phases.call_waits_ratio)
    own = max(0.0, asleep - phases.ratio(*_MAY_SLEEP) - _no_call(phases))
    alone = _is_alone(scene) and not scene.cards and find_gpu_idle(rank, scene) is NOT_APPLICABLE
    return own if alone else max(0.0, own - min(phases.ratio(Phase.BACKWARD), main.lock))


def _own_io(main: MainThreadScene, phases: RankPhases) -> float:
    """Return the share of its time (0-1) that it surely waits for a disk or a socket in calls of its own."""
    return max(0.0, main.io - phases.ratio(*_MAY_SLEEP))


def _find_certain(
    share: Share, main: MainThreadScene, phases: RankPhases, idle: Applicable[float], scene: Scene
) -> Known[float]:
    """Return how much of such a sleep is surely a call: all, where the kernel or the stacks tell.

    A wait for a card or for other ranks (``.item()``, ``Work.wait()``) has no frame of its own, and no disk
    or socket that the kernel shows.
    """
    if max(_own_io(main, phases), phases.calls_ratio) >= share.ratio / 2:
        return share.ratio
    if not _is_alone(scene):
        return Missing("a wait for other ranks leaves no frame either")
    # What it sleeps beyond the card's busy time is no wait for the card.
    certain = share.ratio + idle - 1 if is_known(idle) else share.ratio
    return certain if certain >= LEAST_BLOCKED else Missing("or it waits for the GPU, without a frame either")


def _spot_of_call(phases: RankPhases, share: Share) -> Applicable[Spot]:
    """Return the function that surely sleeps: one that waits by its frames, or too large to only compute."""
    if is_known(phases.calls) and phases.calls_ratio >= share.ratio / 2:
        return phases.calls
    spot = phases.spots.get(max(OUTSIDE, key=phases.ratio))
    computing = phases.ratio(*OUTSIDE) - _no_call(phases) - share.ratio
    return spot if spot is not None and spot.ratio > computing + SURE_SPOT else NOT_APPLICABLE


def _say_sleep(rank: RankScene, share: Share, io: float, scene: Scene) -> str:
    """Say what the main thread does while it sleeps, as far as the kernel tells; ``io`` as in ``_own_io``."""
    if io >= share.ratio / 2:
        return "waits for a disk or a socket"
    samples = [one for frame in scene.frames for one in frame.processes if one.pid == rank.process.pid]
    for reason, verb in _SLEEPS.items():
        if sum(is_wait(one.waits_for, reason) for one in samples) >= max(
            LEAST_SAID, len(samples) * share.ratio / 2
        ):
            return verb
    return "sleeps"


@by_conditions
def _judge_call_of(rank: RankScene, scene: Scene) -> Answer:
    phases, main = _stacks_of(rank, _CALL), _CALL.known(rank.main)
    _CALL.doubt(main.looks < LEAST_SAMPLES, "too few looks")
    outside = max(0.0, phases.ratio(*OUTSIDE) - _no_call(phases)) + phases.calls_in_step_ratio
    share = share_of(
        min(outside, _own_sleep(rank, main, phases, scene)) * phases.samples, phases.samples, phases.design
    )
    blocked = f"{format_pct(100 * share.ratio)} %"
    _CALL.clear(share.ratio < LEAST_BLOCKED, blocked)
    _CALL.doubt(share.low < LEAST_BLOCKED, f"{blocked}: too close to call")
    idle = _idle_cost(rank, scene, _CALL)
    certain = _CALL.known(_find_certain(share, main, phases, idle, scene))
    spot = _spot_of_call(phases, share)
    share = cap_share(share, min(certain, idle) if is_known(idle) else certain)
    where = f": {spot.where}" if is_known(spot) else ""
    is_loop = is_known(spot) and spot.is_loop
    needs = {Need.EVENT_LOOP_WAIT if is_loop else Need.BLOCKING_CALL}
    if is_known(spot) and spot.phase is Phase.LOGGING:
        needs.add(Need.LOGGING_IN_STACK)
    time = f"{100 * share.ratio:.0f} % of"
    does = _say_sleep(rank, share, _own_io(main, phases), scene)
    summary = f"the loop {does} {time} its time in a call of its own{where}"
    if is_loop:
        summary = f"the event loop has nothing to run {time} the time: all of its tasks await something"
    return Suspicion(
        kind=Kind.PYTHON_BOUND,
        cause="blocking-call",
        weight=share.ratio,
        margin=share.low / LEAST_BLOCKED,
        origins=frozenset((Origin.STACKS, Origin.PROC)),
        summary=summary,
        evidence=(
            reading(Figure.PYTHON_OUTSIDE, 100 * outside, scene.frame),
            reading(Figure.MAIN_ASLEEP, 100 * _find_sleep(main), scene.frame),
            reading(Figure.MAIN_IN_IO, 100 * main.io, scene.frame),
            *(name_spot(spot, scene) if is_known(spot) else ()),
        ),
        share=share.ratio,
        share_low=share.low,
        share_high=share.high,
        observed=frozenset(needs),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_own_loader(scene: Scene) -> Answer:
    """Suspect what fills a queue, a pipe or a pool of the program's own while the loop waits at its end."""
    return take_heaviest([_judge_own_of(rank, scene) for rank in scene.ranks], _OWN.what)


def judge_blocking_call(scene: Scene) -> Answer:
    """Suspect calls of the program itself in which the loop sleeps: a disk, a server, a child, a pause."""
    return take_heaviest([_judge_call_of(rank, scene) for rank in scene.ranks], _CALL.what)


RULES: tuple[Rule, ...] = (judge_own_loader, judge_blocking_call)
