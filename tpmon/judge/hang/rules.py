"""Judge jobs that stand still, by their stacks or by the readings alone.

Stopped processes are ``hung`` at once. Stacks decide where they were read; else a read that does not return,
or a worker that is gone, is named after 25 s in which no main thread ran, no worker worked and nothing was
logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    FigureReading,
    Suspicion,
    Unsure,
    reading,
    reading_aged,
)
from tpmon.judge.dumps.outlier import HANG_AFTER_S
from tpmon.judge.features.comms import find_waits
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, WorkerScene, once, ranks_on
from tpmon.judge.features.standstill import (
    HUNG_S,
    QUIET_WORKER_DEMAND,
    SILENT_S,
    STILL_S,
    Silence,
    Standstill,
    find_excuse,
    find_silences,
    find_standstill,
    fresh_phase,
    hangs_on,
    name_rank,
    say_elsewhere,
    stands_s,
    waits_for_batch,
    waits_for_workers,
)
from tpmon.judge.hang.detection import SLOW_S, guess_grace, is_looking, judge_hang, need_s
from tpmon.judge.hang.threads import need_of_wait
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.tracker import MOST_AGE_S, STOPPED_S, age_ns, is_stopped
from tpmon.model.figures import Figure, Origin
from tpmon.model.gpu import GpuState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.text.job_words import say_stop
from tpmon.model.verdict import Kind
from tpmon.model.waits import FILES, INPUTS, IO, Wait, WaitReason, describe_wait, is_wait, is_wait_in

SIBLINGS_S = 10.0
"""Time within which the workers of one loader start."""

_NO_CARD = ("lock", "dead-worker", "lost-batch")
"""Causes that stacks show and that involve no card: they outweigh a card that may only be held open."""


def held_ns_of(scene: Scene, unchanged_s: Known[float]) -> Applicable[int]:
    """Return since when a wait has not changed."""
    if not is_known(unchanged_s):
        return NOT_APPLICABLE
    return scene.frame.taken_ns - int(min(unchanged_s, MOST_AGE_S) * 1e9)


@once
def _list_members(scene: Scene) -> tuple[tuple[RankScene, ProcessSample, str], ...]:
    """Return every rank and worker with its rank and its name, ranks first."""
    names = {rank.process.pid: name_rank(rank) for rank in scene.ranks}
    found = [(rank, rank.process, names[rank.process.pid]) for rank in scene.ranks]
    workers = {process.pid: process for process in scene.frame.processes if process.role is Role.WORKER}
    for rank in scene.ranks:
        for worker in rank.workers:
            process = workers.get(worker.pid)
            if process is not None:
                number = f" {worker.number}" if is_known(worker.number) else ""
                name = f"worker{number} ({worker.pid}) of {names[rank.process.pid]}"
                found.append((rank, process, name))
    return tuple(found)


def _stopped_s(scene: Scene, pid: int) -> float:
    """Return for how long every reading found a process stopped, as far as the history reaches."""
    oldest_ns = scene.frame.taken_ns
    for frame in reversed(scene.history):
        process = next((one for one in frame.processes if one.pid == pid), None)
        if process is None or not is_stopped(process):
            break
        oldest_ns = frame.taken_ns
    return (scene.frame.taken_ns - oldest_ns) / 1e9


def _stop_origins(process: ProcessSample) -> frozenset[Origin]:
    quiet = is_known(process.runnable) and process.runnable < QUIET_WORKER_DEMAND
    told = Origin.CGROUP if is_known(process.frozen) else Origin.PROC
    return frozenset((told, Origin.PROC) if quiet else (told,))


def _add_place(
    shown: FigureReading, rank: RankScene, process: ProcessSample, seconds: float
) -> FigureReading:
    """Add where a stopped rank is by its newest stacks, from before or after the stop."""
    phases = rank.phases
    if process.role is not Role.RANK or not is_known(phases) or not phases.where:
        return shown
    place = f"{'in' if phases.newest_age_s <= seconds else 'last seen in'} {phases.where}"
    return replace(shown, text=f"{shown.text}; {place}", source=f"{shown.source}, stacks")


def _show_stop(
    process: ProcessSample, name: str, how: str, seconds: float, age_s: Known[float]
) -> FigureReading:
    """Show what stops a process, with the command of a debugger that does."""
    tracer, source = process.tracer, "/proc stat"
    text = f"{how}, state {process.state}, for {seconds:.0f} s at least"
    if is_known(process.frozen):
        text = f"{how}, for {seconds:.0f} s at least"
        source = "freezer.state" if process.frozen.version == 1 else "cgroup.events"
    elif is_known(tracer) and is_known(tracer.command):
        text, source = f"{text}: {tracer.command}", "/proc stat, TracerPid"
    elif isinstance(tracer, Missing):
        text += f"; {tracer.reason}"
    return reading_aged(Figure.PROCESS_STANDS, seconds, age_s, of=name, text=text, source=source)


@once
def judge_stopped(scene: Scene) -> Answer:
    """Suspect a stopped process: a rank, or a worker whose batch its rank waits for."""
    return _pick((_judge_stop(scene, *one) for one in _list_members(scene)), "stopped processes (none)")


def _pick(answers: Iterable[Answer | None], nothing: str) -> Answer:
    """Return the first suspicion, else what is unsure, else what was cleared."""
    found: Answer = Cleared(nothing)
    for answer in answers:
        if isinstance(answer, Suspicion):
            return answer
        if answer is not None and (isinstance(answer, Unsure) or isinstance(found, Cleared)):
            found = answer
    return found


def _judge_stop(scene: Scene, rank: RankScene, process: ProcessSample, name: str) -> Answer | None:
    how = say_stop(process)
    if not how:
        return None
    seconds = _stopped_s(scene, process.pid)
    if seconds < STOPPED_S:
        return Unsure(f"stopped ({name} is, for {seconds:.0f} s)")
    waits = waits_for_workers(rank) if process.role is Role.WORKER else True
    if not is_known(waits):
        return Unsure(f"stopped ({name} is; whether its rank waits for it: {waits.reason})")
    if not waits:
        return Cleared(f"stopped processes ({name} is; its rank goes on)")
    # A scheduler or a person may have suspended the job as a whole.
    together = len(scene.ranks) > 1 and all(is_stopped(one.process) for one in scene.ranks)
    shown = _show_stop(process, name, how, seconds, scene.frame.ages_s.cpu)
    need = Need.FROZEN if is_known(process.frozen) else Need.TRACED if process.state == "t" else Need.STOPPED
    return Suspicion(
        kind=Kind.HUNG,
        cause="stopped",
        weight=1.0,
        margin=1 + seconds / STOPPED_S,
        origins=_stop_origins(process),
        summary=f"all {len(scene.ranks)} ranks are {how}" if together else f"{name} is {how}",
        evidence=(_add_place(shown, rank, process, seconds),),
        observed=frozenset((need,)),
        pid=process.pid,
        rank=NOT_APPLICABLE if together else rank.process.rank,
        held_ns=held_ns_of(scene, seconds),
    )


_UNNAMED = Wait(WaitReason.OTHER, "an uninterruptible wait")


def _io_of(process: ProcessSample) -> Wait | None:
    """Return the I/O that a process is blocked in, None for none; a rank's sockets may wait for ranks."""
    if is_stopped(process):
        return None
    wait = known_or(process.waits_for, _UNNAMED)
    if process.state == "D":
        return wait
    return wait if wait.reason in (IO if process.role is Role.WORKER else FILES) else None


def _is_stuck(rank: RankScene, least_s: float) -> Known[bool]:
    unchanged = rank.process.waits_unchanged_s
    if not is_known(unchanged):
        return unchanged
    return waits_for_batch(rank) if unchanged >= least_s else False


def defer_to_stacks(scene: Scene, what: str) -> Answer | None:
    """Leave the verdict to the stacks of all processes, where they were read or are being read."""
    found = judge_hang(scene)
    if isinstance(found, Suspicion):
        return Cleared(f"{what} (the stacks tell more)")
    if scene.watch.picture is not None or is_looking(scene):
        return Unsure(f"{what} (decided by the stacks of all processes)")
    return None


def still_s_of(scene: Scene) -> float:
    """Return how long nothing may move, less the first readings, which have no rates."""
    return max(STILL_S, scene.watch.hang_after_s - (HANG_AFTER_S - STILL_S))


def judge_blocked_io(scene: Scene) -> Answer:
    """Suspect a read or write that has not returned for long, in a rank or in a worker it waits for.

    Where stacks were read they decide, except for a rank whose own could not be: its read may be for
    anything, so it has the time of a checkpoint.
    """
    deferred = defer_to_stacks(scene, "blocked reads")
    picture = scene.watch.picture
    unseen = {one.pid for one in picture.scene.unread} if picture is not None else set()
    if deferred is not None and (isinstance(deferred, Cleared) or not unseen):
        return deferred
    members = [one for one in _list_members(scene) if deferred is None or one[1].pid in unseen]
    found = _pick(
        (_judge_read(scene, *one, is_unseen=deferred is not None) for one in members), "blocked reads (none)"
    )
    return found if deferred is None or isinstance(found, Suspicion) else deferred


def _judge_read(
    scene: Scene, rank: RankScene, process: ProcessSample, name: str, *, is_unseen: bool
) -> Answer | None:
    """Judge one process; ``is_unseen``: its stack could not be read."""
    wait, unchanged = _io_of(process), process.waits_unchanged_s
    if wait is None:
        return None
    if not is_known(unchanged):
        return Unsure(f"blocked reads ({name}: {unchanged.reason})")
    stuck = True if process.role is Role.RANK else _is_stuck(rank, still_s_of(scene))
    if not is_known(stuck):
        return Unsure(f"blocked reads ({name}: {stuck.reason})")
    # A killed process does nothing more that may take long.
    killed = wait.reason in (WaitReason.KILLED, WaitReason.KILLED_IN_DRIVER)
    least_s = max(still_s_of(scene), SLOW_S if is_unseen and not killed else 0.0)
    if unchanged < least_s or not stuck:
        return None
    slow = say_slow_phase(rank) if process.role is Role.RANK and not killed else ""
    if slow:
        return Unsure(f"blocked reads ({slow})")
    state = "D, cannot be interrupted" if process.state == "D" else process.state
    words = f"{describe_wait(wait)} for {unchanged:.0f} s (state {state})"
    return Suspicion(
        kind=Kind.HUNG,
        cause="blocked-io",
        weight=1.0,
        margin=1 + unchanged / least_s,
        origins=frozenset((Origin.PROC,)),
        summary=f"{name} has been blocked for {unchanged:.0f} s: {describe_wait(wait)}",
        evidence=(reading(Figure.PROCESS_STANDS, unchanged, scene.frame, of=name, text=words),),
        observed=frozenset((need_of_wait(wait),)),
        pid=process.pid,
        rank=rank.process.rank,
        held_ns=held_ns_of(scene, unchanged),
    )


def say_slow_phase(rank: RankScene) -> str:
    """Return which slow thing a rank does on purpose, "" for none or when it takes far too long."""
    waited = rank.process.waits_unchanged_s
    if not is_known(rank.phases) or (is_known(waited) and waited >= SLOW_S):
        return ""
    return find_excuse(rank)


def _lost_workers(rank: RankScene, scene: Scene) -> list[int]:
    """Return the PIDs of a rank's workers that died within the history, or that are zombies."""
    workers: tuple[WorkerScene, ...] = rank.workers
    now = {worker.pid for worker in workers}
    zombies = [
        process.pid for process in scene.frame.processes if process.pid in now and process.state == "Z"
    ]
    started = {
        process.pid: process.started
        for frame in scene.history
        for process in frame.processes
        if process.role is Role.WORKER and process.rank_pid == rank.process.pid
    }
    # The workers of a loader start together: one whose siblings are gone ended with its loader, as those of a
    # validation do while the workers of the training stay.
    siblings = [started[pid] for pid in now if pid in started]
    gone = sorted(
        pid
        for pid, born in started.items()
        if pid not in now and any(abs(born - one).total_seconds() <= SIBLINGS_S for one in siblings)
    )
    # A whole generation that ended or was replaced is the end of an epoch.
    living = len(now) - len(zombies)
    replaced = any(worker.age_s < scene.history_s for worker in workers)
    return zombies + (gone if living and not replaced else [])


def judge_dead_worker(scene: Scene) -> Answer:
    """Suspect a worker that is gone while its rank has waited long for its batch."""
    deferred = defer_to_stacks(scene, "dead workers")
    if deferred is not None:
        return deferred
    for rank in scene.ranks:
        stuck = _is_stuck(rank, still_s_of(scene))
        if not (is_known(stuck) and stuck):
            continue
        lost = _lost_workers(rank, scene)
        if not lost:
            continue
        waited = rank.process.waits_unchanged_s
        names = ", ".join(map(str, lost))
        return Suspicion(
            kind=Kind.HUNG,
            cause="dead-worker",
            weight=1.0,
            margin=2.0,
            origins=frozenset((Origin.PROC,)),
            summary=f"{name_rank(rank)} waits for a batch of a worker that is gone ({names})",
            evidence=(
                reading(Figure.WORKERS_GONE, float(len(lost)), scene.frame, text=names),
                reading(Figure.WAITS_FOR_BATCH, waited, scene.frame),
            ),
            observed=frozenset((Need.WORKER_DIED, Need.WORKERS_PRESENT)),
            pid=rank.process.pid,
            rank=rank.process.rank,
            held_ns=held_ns_of(scene, waited),
        )
    return Cleared("dead workers (no rank waits for one)")


def _say_doubt(silence: Silence) -> tuple[str, ...]:
    index = silence.sample.index
    if not silence.sure:
        return (f"whether the job computes on card {index}, or only holds it open",)
    return () if silence.sample.state is GpuState.LOST else (f"whether card {index} works in its silence",)


def judge_gpu_lost(scene: Scene) -> Answer:
    """Suspect a card that the driver cannot reach, or that does not answer it, where the run stands."""
    silences = find_silences(scene)
    silence = next((one for one in silences if hangs_on(one, scene)), None)
    found = judge_hang(scene)
    told = isinstance(found, Suspicion) and found.cause in _NO_CARD
    if silence is None or (told and not silence.sure):
        return Cleared(f"lost cards ({'it is not seen that the run stands' if silences else 'none'})")
    index, silent_s = silence.sample.index, silence.sample.age_s
    card = next((one for one in scene.gpus if one.last.uuid == silence.sample.uuid), None)
    ranks = ranks_on(card, scene) if card is not None else ()
    stands = stands_s(scene) >= SILENT_S
    rows = [reading(Figure.GPU_SILENT, silent_s, scene.frame, of=index)]
    if stands:
        age_s = scene.frame.ages_s.gpu
        rows.append(
            reading_aged(Figure.NOTHING_MOVED, stands_s(scene), age_s, source="kernel wait and stacks")
        )
    return Suspicion(
        kind=Kind.HUNG,
        cause="gpu-lost",
        weight=1.0,
        margin=max(1.0, silent_s / HUNG_S),
        origins=frozenset((Origin.DRIVER, *((Origin.PROC, Origin.STACKS) if stands else ()))),
        summary=silence.words,
        evidence=tuple(rows),
        unread=_say_doubt(silence),
        observed=frozenset((Need.CARD_LOST,)),
        pid=ranks[0].pid if ranks else NOT_APPLICABLE,
        rank=ranks[0].rank if ranks else NOT_APPLICABLE,
        card=index,
        held_ns=scene.frame.taken_ns - age_ns(silent_s),
    )


def judge_stacks(scene: Scene) -> Answer:
    """Suspect a hang that the stacks of all processes show; a stop and a lost card say more."""
    for rule in (judge_stopped, judge_gpu_lost):
        answer = rule(scene)
        if isinstance(answer, Suspicion):
            return Cleared(f"hang ({answer.summary})")
    return judge_hang(scene)


RULES: tuple[Rule, ...] = (judge_stacks, judge_stopped, judge_blocked_io, judge_dead_worker, judge_gpu_lost)


ODD_RATIO = 0.5
"""How much less than every other rank one must wait in collectives to be named."""


def _serves(rank: RankScene, scene: Scene) -> bool:
    """Tell whether a rank waits for requests: by the last dumps, or alone in an event loop."""
    if rank.process.pid == scene.watch.served:
        return True
    world = scene.frame.target.world_size
    alone = len(scene.ranks) == 1 and not (is_known(world) and world > 1)
    loads = bool(rank.workers) or rank.loader is not None
    return (
        is_wait(rank.process.waits_for, WaitReason.EPOLL) and alone and not loads and not scene.watch.trained
    )


def _excuse(scene: Scene) -> str:
    """Return what a quiet rank does on purpose, "" for nothing; that may take minutes."""
    for rank in scene.ranks:
        if is_wait_in(rank.process.waits_for, INPUTS):
            return f"{name_rank(rank)} waits for input"
        if _serves(rank, scene):
            return f"{name_rank(rank)} waits for requests"
        waited = rank.process.waits_unchanged_s
        if all(is_wait(one.process.waits_for, WaitReason.SLEEP) for one in scene.ranks):
            return f"{name_rank(rank)} sleeps, and nobody waits for it"
        need = need_s(scene.watch, guess_grace(rank, scene))
        if is_known(waited) and waited < need:
            verb = (
                "sleeps"
                if is_wait(rank.process.waits_for, WaitReason.SLEEP)
                else "waits, for what is not known"
            )
            return f"{name_rank(rank)} {verb}, for {waited:.0f} s of the {need:.0f} s that it takes"
        if not is_known(rank.phases):
            continue
        if fresh_phase(rank.phases) is Phase.INPUT:
            return f"{name_rank(rank)} waits for input"
        slow = say_slow_phase(rank)
        if slow:
            return slow
    return ""


def judge_no_progress(scene: Scene) -> Answer:
    """Suspect a hang by readings alone: for long no main thread ran, no worker worked, nothing was logged."""
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
    rules = (judge_stopped, judge_blocked_io, judge_dead_worker, judge_gpu_lost)
    explained = next((one.summary for rule in rules if isinstance(one := rule(scene), Suspicion)), "")
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
    words = known_or(map_known(describe_wait, rank.process.waits_for), "unknown")
    where = rank.phases.where if is_known(rank.phases) and rank.phases.where else words
    world = scene.frame.target.world_size
    elsewhere = world - len(scene.ranks) if is_known(world) else 0
    others = f"; {say_elsewhere(elsewhere)}" if elsewhere > 0 else ""
    evidence: tuple[FigureReading, ...] = (
        reading(Figure.MAINS_STAND, still.seconds, scene.frame, text=f"none ran for {still.seconds:.0f} s"),
        reading(Figure.PROCESS_STANDS, waited, scene.frame, of=f"{name_rank(rank)} waits: {words}"),
    )
    if is_known(still.log_age_s):
        evidence += (reading_aged(Figure.LOG_WRITE, still.log_age_s, 0.0),)
    return Suspicion(
        kind=Kind.HUNG,
        cause="no-progress",
        weight=0.5,
        margin=still.seconds / still_s_of(scene),
        origins=still.origins,
        summary=f"nothing has moved for {still.seconds:.0f} s; {name_rank(rank)} is in {where}{others}",
        evidence=evidence,
        pid=rank.process.pid,
        rank=rank.process.rank,
        held_ns=held_ns_of(scene, still.seconds),
    )
