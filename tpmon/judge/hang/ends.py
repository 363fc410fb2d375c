"""Say which processes of a job have ended, and how: children, ranks, ranks that were never seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpmon.judge.features.snapshot import Scene
from tpmon.model.dump import DeadChild
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Outcome, ProcessEnd, ProcessSample, Role
from tpmon.model.text.redaction import MOST_DIGITS


def tell_ends(dead: Iterable[DeadChild], scene: Scene) -> list[DeadChild]:
    """Add how dead processes were seen to end, which tells the OOM killer from any other SIGKILL."""
    seen = {end.pid: end.how for _, end in list_ends(scene)}
    return [replace(one, how=seen.get(one.pid, one.how)) for one in dead]


def find_killed(parent: int, scene: Scene) -> list[DeadChild]:
    """Return the children of a process that were seen to fail, and that it has reaped since."""
    failed = {end.pid: end for _, end in list_ends(scene) if end.outcome is Outcome.FAILED}
    children = {
        one.pid: one
        for frame in scene.history
        for one in frame.processes
        if one.parent == parent and one.pid in failed
    }
    return [
        DeadChild(one.pid, parent, one.name, failed[one.pid].how, one.role is not Role.LAUNCHER)
        for one in children.values()
    ]


def say_rank_ends(numbers: Sequence[int], scene: Scene) -> str:
    """Say how ranks ended: " (exit 1)", of several with their numbers; "" where nobody saw it."""
    seen = {end.rank: end.how for _, end in list_ends(scene) if end.role is Role.RANK and is_known(end.rank)}
    several = len(numbers) > 1
    told = ", ".join(
        f"rank {number}: {seen[number]}" if several else seen[number] for number in numbers if number in seen
    )
    return f" ({told})" if told else ""


def list_ends(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return who ended in the history and when (CLOCK_MONOTONIC ns of the Frame), oldest first."""
    return [(frame.taken_ns, end) for frame in scene.history for end in known_or(frame.ends, ())]


def find_ended(scene: Scene) -> list[int]:
    """Return the numbers of ranks that ran on this machine and are gone."""
    living = [one for one in scene.frame.processes if one.role is Role.RANK and one.state not in ("Z", "X")]
    here = {one.rank for one in living if is_known(one.rank)}
    local = [one.local_rank for one in living if is_known(one.local_rank)]
    size = scene.frame.target.world_size
    # A job that goes on with fewer ranks does not wait for the numbers beyond.
    ended = {one for one in scene.watch.numbers - here if not is_known(size) or one < size}
    if len(local) == len(living) == len(here) and local and _have_one_starter(scene, living):
        # A launcher numbers its ranks without a gap, on the machine as in the job.
        first = min(here) - min(local) if min(here) >= min(local) else 0
        started = max(*local, _started_here(scene, living, local))
        ended |= {first + number for number in range(started) if number not in local} - here
    return sorted(ended)


def _have_one_starter(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether one process started the ranks here: a launcher, the first of them, or a step of Slurm.

    Ranks in a container each do not see the others, and the number of each looks like a gap before it.
    """
    if _has_launcher(scene, living):
        return True
    pids, parents = {one.pid for one in living}, {one.parent for one in living}
    return not pids.isdisjoint(parents) or (len(living) > 1 and len(parents) == 1 and 1 not in parents)


def _has_launcher(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether a launcher is here, or several ranks say that all were started here: it may be gone."""
    there = any(one.role is Role.LAUNCHER for one in scene.frame.processes)
    return there or (len(living) > 1 and _tell_local_size(living) == scene.frame.target.world_size)


def _started_here(scene: Scene, living: Sequence[ProcessSample], local: Sequence[int]) -> int:
    """Return how many ranks the launcher of this machine says it started, 0 where none says so.

    torchrun waits for the others when a rank with less data ends well. The variable alone shows nothing: some
    set it for ranks that run in other containers.
    """
    if len(set(local)) < len(local) or not _has_launcher(scene, living):
        return 0
    size, world = _tell_local_size(living), scene.frame.target.world_size
    return size if is_known(world) and size <= world else 0


def _tell_local_size(living: Sequence[ProcessSample]) -> int:
    """Return how many ranks run on this machine, if all ranks that say so agree; else 0."""
    told = {
        one.value
        for process in living
        if is_known(process.environment)
        for one in process.environment
        if one.name == "LOCAL_WORLD_SIZE"
    }
    (value,) = told if len(told) == 1 else ("",)
    return int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else 0
