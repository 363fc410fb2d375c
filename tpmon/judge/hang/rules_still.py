"""Jobs of which nothing moves, told by the readings alone: where stacks may not be read, or tell nothing.

Not before 25 s in which no main thread ran, no worker worked, and no line was written.
"""

from __future__ import annotations

from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure, reading
from tpmon.judge.features.rank_waits import find_waits
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.features.standstill import (
    INPUT_WAITS,
    Standstill,
    find_standstill,
    fresh_phase,
    name_rank,
    say_elsewhere,
)
from tpmon.judge.hang.detection import guess_patience, need_s
from tpmon.judge.hang.rules import (
    defer_to_stacks,
    held_ns_of,
    judge_blocked_io,
    judge_dead_worker,
    judge_gpu_lost,
    judge_stopped,
    say_patience,
    still_s_of,
)
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.hang_stances import SLEEP
from tpmon.model.known import is_known
from tpmon.model.verdict import Evidence, Kind

_EVENTS = "epoll"
ODD_RATIO = 0.5
"""How much less than every other rank one must wait in collectives to be the one that is named."""


def _serves(rank: RankScene, scene: Scene) -> bool:
    """Tell whether a rank waits for requests: as it was looked at last, or in an event loop all by itself."""
    if rank.process.pid == scene.watch.served:
        return True
    world = scene.frame.target.world_size
    alone = len(scene.ranks) == 1 and not (is_known(world) and world > 1)
    loads = bool(rank.workers) or rank.loader is not None
    return rank.process.waits_for == _EVENTS and alone and not loads and not scene.watch.trained


def _excuse(scene: Scene) -> str:
    """Return what a quiet rank does on purpose, "" for nothing: it may take minutes."""
    for rank in scene.ranks:
        if is_known(rank.process.waits_for) and rank.process.waits_for in INPUT_WAITS:
            return f"{name_rank(rank)} waits for input"
        if _serves(rank, scene):
            return f"{name_rank(rank)} waits for requests"
        waited = rank.process.waits_unchanged_s
        need = need_s(scene.watch, guess_patience(rank, scene))
        if is_known(waited) and waited < need:
            verb = "sleeps" if rank.process.waits_for == SLEEP else "waits, for what is not known"
            return f"{name_rank(rank)} {verb}, for {waited:.0f} s of the {need:.0f} s that it takes"
        if not is_known(rank.phases):
            continue
        if fresh_phase(rank.phases) is Phase.INPUT:
            return f"{name_rank(rank)} waits for input"
        patience = say_patience(rank)
        if patience:
            return patience
    return ""


def _explain(scene: Scene) -> str:
    """Name the cause that says more than "nothing moves", "" for none."""
    for rule in (judge_stopped, judge_blocked_io, judge_dead_worker, judge_gpu_lost):
        answer = rule(scene)
        if isinstance(answer, Suspicion):
            return answer.summary
    return ""


def judge_no_progress(scene: Scene) -> Answer:
    """Suspect a hang when for long no main thread ran, no worker worked and no line was written.

    The word of the readings alone, where no stacks may be read.
    """
    if not any(rank.process.state not in ("Z", "X") for rank in scene.ranks):
        return Cleared("no progress (no rank lives)")
    deferred = defer_to_stacks(scene, "no progress")
    if deferred is not None:
        return deferred
    still = find_standstill(scene, still_s_of(scene))
    if isinstance(still, str):
        return Cleared(f"no progress ({still})")
    if not is_known(still):
        return Unsure(f"no progress ({still.reason})")
    explained = _explain(scene)
    if explained:
        return Cleared(f"no progress ({explained})")
    excuse = _excuse(scene)
    if excuse:
        return Unsure(f"no progress ({excuse})")
    return _suspect_standstill(scene, still)


def _odd_one(scene: Scene) -> RankScene:
    """Return the rank that is not in the collective with the others, else the first."""
    waits = find_waits(scene)
    if is_known(waits) and len(waits) > 1 and waits[1].ratio - waits[0].ratio >= ODD_RATIO:
        return waits[0].rank
    return scene.ranks[0]


def _suspect_standstill(scene: Scene, still: Standstill) -> Suspicion:
    rank = _odd_one(scene)
    waited = rank.process.waits_unchanged_s
    words = rank.process.waits_for if is_known(rank.process.waits_for) else "unknown"
    where = rank.phases.where if is_known(rank.phases) and rank.phases.where else words
    world = scene.frame.target.world_size
    elsewhere = world - len(scene.ranks) if is_known(world) else 0
    others = f"; {say_elsewhere(elsewhere)}" if elsewhere > 0 else ""
    age = scene.frame.ages_s
    evidence: tuple[Evidence, ...] = (
        Evidence(
            "main threads",
            still.seconds,
            "s",
            f"none ran for {still.seconds:.0f} s",
            "schedstat",
            age.threads,
        ),
        reading(f"{name_rank(rank)} waits: {words}", waited, "s", "kernel wait", age.cpu),
    )
    if is_known(still.log_age_s):
        evidence += (reading("last log write", still.log_age_s, "s ago", "log file", 0.0),)
    return Suspicion(
        kind=Kind.HUNG,
        cause="no-progress",
        weight=0.5,
        margin=still.seconds / still_s_of(scene),
        sources=still.sources,
        summary=f"nothing has moved for {still.seconds:.0f} s; {name_rank(rank)} is in {where}{others}",
        evidence=evidence,
        pid=rank.process.pid,
        rank=rank.process.rank,
        held_ns=held_ns_of(scene, still.seconds),
    )
