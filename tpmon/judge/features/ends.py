"""Say which processes of a job have ended, and how: children, ranks, ranks that were never seen. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tpmon.model.dump import DeadChild
from tpmon.model.frame import Frame
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Outcome, ProcessEnd, ProcessSample, Role
from tpmon.model.text.redaction import MOST_DIGITS


def tell_ends(dead: Iterable[DeadChild], history: Sequence[Frame]) -> list[DeadChild]:
    """Add how dead processes were seen to end, which tells the OOM killer from any other SIGKILL."""
    seen = {end.pid: end.how for _, end in list_ends(history)}
    return [replace(one, how=seen.get(one.pid, one.how)) for one in dead]


def find_killed(parent: int, history: Sequence[Frame]) -> list[DeadChild]:
    """Return the children of a process that were seen to fail, and that it has reaped since."""
    failed = {end.pid: end.how for _, end in list_ends(history) if end.outcome is Outcome.FAILED}
    children = {one.pid: one for one in list_past(history) if one.parent == parent and one.pid in failed}
    return [
        DeadChild(pid, parent, one.name, failed[pid], one.role is not Role.LAUNCHER)
        for pid, one in children.items()
    ]


def say_rank_ends(numbers: Sequence[int], history: Sequence[Frame]) -> str:
    """Say how ranks ended: " (exit 1)", of several with their numbers; "" where nobody saw it."""
    ends = (end for _, end in list_ends(history) if end.role is Role.RANK)
    seen = {end.rank: end.how for end in ends if is_known(end.rank)}
    told = [f"rank {one}: {seen[one]}" if len(numbers) > 1 else seen[one] for one in numbers if one in seen]
    return f" ({', '.join(told)})" if told else ""


def list_past(history: Iterable[Frame]) -> Iterator[ProcessSample]:
    """Return every sample of a process in the history, oldest first."""
    return (one for frame in history for one in frame.processes)


def list_ends(history: Iterable[Frame]) -> list[tuple[int, ProcessEnd]]:
    """Return who ended in the history and when (CLOCK_MONOTONIC ns of the Frame), oldest first."""
    return [(frame.taken_ns, end) for frame in history for end in known_or(frame.ends, ())]


def find_ended(history: Sequence[Frame], numbers: Collection[int]) -> list[int]:
    """Return which ranks ran on this machine and are gone; ``numbers`` are all that were ever seen here."""
    if not history:
        return []
    frame = history[-1]
    living = [one for one in frame.processes if one.role is Role.RANK and one.state not in ("Z", "X")]
    here = {one.rank for one in living if is_known(one.rank)}
    local = [one.local_rank for one in living if is_known(one.local_rank)]
    size = frame.target.world_size
    # A job that goes on with fewer ranks does not wait for the numbers beyond.
    ended = {one for one in set(numbers) - here if not is_known(size) or one < size}
    if len(local) == len(living) == len(here) and local and _have_one_starter(frame, living):
        # A launcher numbers its ranks without a gap, on the machine as in the job.
        first = min(here) - min(local) if min(here) >= min(local) else 0
        started = max(*local, _started_here(frame, living, local))
        ended |= {first + number for number in range(started) if number not in local} - here
    return sorted(ended)


def _have_one_starter(frame: Frame, living: Sequence[ProcessSample]) -> bool:
    """Tell whether one process started the ranks here: a launcher, the first of them, or a step of Slurm."""
    # Ranks in a container each do not see the others, and the number of each looks like a gap before it.
    if _has_launcher(frame, living):
        return True
    pids, parents = {one.pid for one in living}, {one.parent for one in living}
    return not pids.isdisjoint(parents) or (len(living) > 1 and len(parents) == 1 and 1 not in parents)


def _has_launcher(frame: Frame, living: Sequence[ProcessSample]) -> bool:
    """Tell whether a launcher is here, or several ranks say that all were started here: it may be gone."""
    there = any(one.role is Role.LAUNCHER for one in frame.processes)
    return there or (len(living) > 1 and _tell_local_size(living) == frame.target.world_size)


def _started_here(frame: Frame, living: Sequence[ProcessSample], local: Sequence[int]) -> int:
    """Return how many ranks the launcher of this machine says it started, 0 where none says so."""
    # torchrun waits for the others when a rank with less data ends well. The variable alone shows nothing:
    # some set it for ranks that run in other containers.
    if len(set(local)) < len(local) or not _has_launcher(frame, living):
        return 0
    size, world = _tell_local_size(living), frame.target.world_size
    return size if is_known(world) and size <= world else 0


def _tell_local_size(living: Sequence[ProcessSample]) -> int:
    """Return how many ranks run on this machine, if all ranks that say so agree; else 0."""
    variables = (one for process in living for one in known_or(process.environment, ()))
    told = {one.value for one in variables if one.name == "LOCAL_WORLD_SIZE"}
    (value,) = told if len(told) == 1 else ("",)
    return int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else 0
