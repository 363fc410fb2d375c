"""Make nodes of the graph from the readings alone: what the kernel holds, and whose stack was not read. Pure.

A process that is stopped, or whose read does not return, is a sink whatever the others do. Any other without
a stack has its kernel wait, its state and its children, and the time that what it may wait for takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.dumps.camps import Camp, DumpScene, ThreadSeen, say_place
from tpmon.judge.dumps.collectives import WORLD
from tpmon.judge.dumps.describe import StackDoing
from tpmon.judge.features.comms import find_waits, nic_bytes_s
from tpmon.judge.features.ends import list_past
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.features.standstill import (
    find_excuse,
    find_silences,
    fresh_phase,
    name_rank,
    say_elsewhere,
    waits_for_batch,
    waits_for_workers,
)
from tpmon.judge.hang.graph import Blame, End, Goes, Grace, Sink, WaitFacts, blame
from tpmon.judge.hang.threads import need_of_wait
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import Picture
from tpmon.judge.watch.tracker import is_stopped, sight
from tpmon.model.dump import DeadChild
from tpmon.model.figures import Figure
from tpmon.model.host import LOOPBACK
from tpmon.model.known import Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.text.job_words import say_stop
from tpmon.model.waits import FILES, IO, SOCKETS, Wait, WaitReason, describe_wait, is_wait, is_wait_in

SIBLINGS_S = 10.0
ODD_RATIO = 0.5
_UNNAMED = Wait(WaitReason.OTHER, "an uninterruptible wait")
_KILLED = (WaitReason.KILLED, WaitReason.KILLED_IN_DRIVER)


def _list_members(scene: Scene) -> Iterator[tuple[RankScene, ProcessSample, str]]:
    """Return every rank and worker with its rank and its name, ranks first."""
    for rank in scene.ranks:
        yield rank, rank.process, name_rank(rank)
    processes = {one.pid: one for one in scene.frame.processes}
    for rank in scene.ranks:
        for worker in rank.workers:
            number = f" {worker.number}" if is_known(worker.number) else ""
            yield rank, processes[worker.pid], f"worker{number} ({worker.pid}) of {name_rank(rank)}"


def find_held(scene: Scene, unseen: Collection[int] = ()) -> End | Missing | None:
    """Return the rank, or worker whose batch its rank waits for, that the kernel holds longest; else None.

    It is stopped, or its read does not return: of those, only ``unseen`` where stacks were read.
    """
    excuse: Goes | Missing | None = None
    found: list[tuple[float, Blame]] = []
    for rank, process, name in _list_members(scene):
        how, wait = say_stop(process), _io_of(process)
        is_seen = scene.watch.picture is not None and process.pid not in unseen
        if not how and (wait is None or is_seen):
            continue
        is_rank = process.role is Role.RANK
        waits = is_rank or (waits_for_workers(rank) if how else waits_for_batch(rank))
        seconds = process.waits_unchanged_s
        if not is_known(waits) or not is_known(seconds):
            why = next(one.reason for one in (waits, seconds) if isinstance(one, Missing))
            excuse = Missing(f"{name} is held by the kernel: {why}")
        elif not waits:
            excuse = Goes(f"{name} is {how or 'blocked'}; its rank goes on")
        elif how:
            found.append((seconds, _blame_stop(scene, process, name, how)))
        elif wait is not None:
            # A killed process does nothing more that may take long.
            slow = is_rank and (find_excuse(rank) or scene.watch.picture is not None)
            grace = Grace.SLOW if slow and wait.reason not in _KILLED else Grace.ENDLESS
            text, need = f"{name} is blocked: {describe_wait(wait)}", need_of_wait(wait)
            found.append((seconds, blame(Sink.READ, see_process(process, rank), text, grace, needs=(need,))))
    return max(found, key=lambda one: one[0])[1] if found else excuse


def _io_of(process: ProcessSample) -> Wait | None:
    """Return the I/O that a process is blocked in, None for none; a rank's sockets may wait for ranks."""
    wait = known_or(process.waits_for, _UNNAMED)
    blocked = process.state == "D" or wait.reason in (IO if process.role is Role.WORKER else FILES)
    return wait if blocked and not is_stopped(process) else None


def _blame_stop(scene: Scene, process: ProcessSample, name: str, how: str) -> Blame:
    # A scheduler or a person may have suspended the job as a whole.
    together = len(scene.ranks) > 1 and all(is_stopped(one.process) for one in scene.ranks)
    need = Need.FROZEN if is_known(process.frozen) else Need.TRACED if process.state == "t" else Need.STOPPED
    text = f"all {len(scene.ranks)} ranks are {how}" if together else f"{name} is {how}"
    return blame(Sink.STOPPED, see_process(process), text, needs=(need,), is_of_all=together)


def show_process(process: ProcessSample, scene: Scene) -> FigureReading:
    """Show what the kernel says of a process: its wait, or what stops it, with the command of a debugger."""
    rank, name = next((one, name) for one, member, name in _list_members(scene) if member.pid == process.pid)
    how, seconds, source = say_stop(process), process.waits_unchanged_s, ""
    wait = known_or(map_known(describe_wait, process.waits_for), "unknown")
    text = f"{how or wait}, state {process.state}"
    if is_known(process.frozen):
        text, source = how, "freezer.state" if process.frozen.version == 1 else "cgroup.events"
    elif how:
        source = "/proc stat"
    if is_known(seconds):
        text += f", for {seconds:.0f} s at least"
    if is_known(process.tracer) and is_known(process.tracer.command) and not is_known(process.frozen):
        text, source = f"{text}: {process.tracer.command}", "/proc stat, TracerPid"
    elif isinstance(process.tracer, Missing):
        text += f"; {process.tracer.reason}"
    # The newest stacks may be from before or after a stop.
    if process.role is Role.RANK and is_known(rank.phases) and rank.phases.where:
        since = "in" if rank.phases.newest_age_s <= known_or(seconds, 0.0) else "last seen in"
        text += f"; {since} {rank.phases.where}"
        source = f"{source or 'kernel wait'}, stacks"
    return reading(Figure.PROCESS_STANDS, seconds, scene.frame, of=name, text=text, source=source)


def draw_readings(scene: Scene) -> Picture:
    """Draw what the readings of this second show of every process; the rank that is odd comes first."""
    odd = _find_odd(scene)
    ranks = sorted(scene.ranks, key=lambda one: one is not odd)
    of_ranks = [see_process(one.process, one) for one in ranks]
    others = [see_process(one) for one in scene.frame.processes if one.role is not Role.RANK]
    workers = tuple(one for one in others if one.thread.role is Role.WORKER)
    camps = tuple(Camp(one.doing, (one,)) for one in of_ranks)
    return Picture(
        first_ns=scene.frame.taken_ns,
        last_ns=scene.frame.taken_ns,
        looks=0,
        scene=DumpScene(camps, (), workers, scene.frame.target.world_size),
        threads=(*of_ranks, *others),
        traits={},
        errors=(),
        dead=tuple(one for rank in ranks for one in _list_lost(rank, scene)),
    )


def see_process(process: ProcessSample, rank: RankScene | None = None) -> ThreadSeen:
    """Return the node of a process whose stacks were not read; a rank's phases are by samples."""
    phase, where = Phase.OTHER, ""
    if rank is not None and process.role is Role.RANK and is_known(rank.phases):
        phase, where = fresh_phase(rank.phases) or Phase.OTHER, rank.phases.where
    text = where or "a call that was not read"
    return ThreadSeen(sight(process, ()), StackDoing(text, WaitReason.OTHER, phase, (text, "", 0)))


def _find_odd(scene: Scene) -> RankScene | None:
    """Return the rank that is not in the collective with the others, None where that is not seen."""
    waits = known_or(find_waits(scene), [])
    return waits[0].rank if len(waits) > 1 and waits[1].ratio - waits[0].ratio >= ODD_RATIO else None


def _list_lost(rank: RankScene, scene: Scene) -> Iterator[DeadChild]:
    """Return a rank's workers that died within the history, or that are zombies."""
    now = {worker.pid for worker in rank.workers}
    workers = (one for one in list_past(scene.history) if one.role is Role.WORKER)
    mine = (one for one in workers if one.rank_pid == rank.process.pid)
    cast = {one.pid: one for one in mine}
    zombies = {pid for pid in now if cast[pid].state == "Z"}
    # The workers of a loader start together: one whose siblings are gone ended with its loader, as those of a
    # validation do while the workers of the training stay.
    siblings = [cast[pid].started for pid in now]
    gone = {
        pid
        for pid, one in cast.items()
        if any(abs(one.started - other).total_seconds() <= SIBLINGS_S for other in siblings)
    } - now
    # A whole generation that ended or was replaced is the end of an epoch.
    replaced = any(worker.age_s < scene.history_s for worker in rank.workers)
    lost = zombies | (set() if replaced or now <= zombies else gone)
    for pid in sorted(lost):
        how = "a zombie" if pid in zombies else "gone"
        yield DeadChild(pid, rank.process.pid, cast[pid].name, how, python=True)


def draw_facts(scene: Scene, picture: Picture) -> WaitFacts:
    """Return what a graph of waits is drawn from, of a picture and the readings of this second."""
    ranks = scene.ranks if not picture.looks else ()
    return WaitFacts(
        picture,
        may_run_elsewhere(scene),
        scene.history,
        scene.gpus,
        find_silences(scene),
        nic_bytes_s(scene) if picture.scene.remote else Missing("no rank is elsewhere"),
        scene.watch,
        {rank.process.pid: _blame_unseen(rank, scene) for rank in ranks},
    )


def may_run_elsewhere(scene: Scene) -> bool:
    """Tell whether ranks may run on other machines because nobody says how many there are.

    A program that starts its ranks itself sets no WORLD_SIZE. Ranks on several machines are connected.
    """
    if not isinstance(scene.frame.target.world_size, Missing) or _are_all_recorded(scene):
        return False
    # NCCL holds the InfiniBand ports of any host open.
    ports = [one for one in known_or(scene.frame.network, ()) if one.kind != "ib"]
    here = [is_known(one.used_by_job) and (not one.used_by_job or one.interface == LOOPBACK) for one in ports]
    return not (here and all(here))


def _are_all_recorded(scene: Scene) -> bool:
    """Tell whether the job's records, or NCCL, count as many ranks as run here."""
    calls = scene.watch.calls
    if calls is None:
        return False
    groups = (group for record in calls.records for group in record.groups if group.description == WORLD)
    sizes = [len(group.ranks) for group in groups if is_known(group.ranks)]
    sizes += [report.processes for report in calls.ras if is_known(report.processes)]
    return max(sizes, default=0) == len(scene.ranks)


def guess_grace(rank: RankScene, scene: Scene) -> Grace:
    """Say how long a rank may rest by its kernel wait alone, where no stack tells what it does.

    It may have asked a service, or wait for a rank elsewhere that saves alone, or for a thread that uploads.
    """
    talks = is_known(rank.phases) and fresh_phase(rank.phases) is Phase.COMMS
    if scene.elsewhere or (may_run_elsewhere(scene) if len(scene.ranks) > 1 else talks):
        return Grace.REMOTE
    if is_known(rank.phases) or known_or(waits_for_batch(rank), False):
        return Grace.ENDLESS
    asks = is_wait_in(rank.process.waits_for, SOCKETS | {WaitReason.EPOLL})
    return Grace.SLOW if asks else Grace.TIMED


def find_server(scene: Scene) -> Goes | None:
    """Return the rank that is alone in an event loop and trained nothing: it waits for requests."""
    rank, alone = scene.ranks[0], len(scene.ranks) == 1 and not scene.elsewhere
    trains = scene.watch.trained or rank.workers or rank.loader is not None
    serves = alone and not trains and is_wait(rank.process.waits_for, WaitReason.EPOLL)
    return Goes(f"{name_rank(rank)} waits for requests") if serves else None


def _blame_unseen(rank: RankScene, scene: Scene) -> Blame:
    """Say where a rank rests of which no stack tells what it waits for, and which ranks are not here."""
    seen = see_process(rank.process, rank)
    others = f"; {say_elsewhere(scene.elsewhere)}" if scene.elsewhere else ""
    return blame(Sink.UNSEEN, seen, f"{name_rank(rank)} {say_place(seen)}{others}", guess_grace(rank, scene))
