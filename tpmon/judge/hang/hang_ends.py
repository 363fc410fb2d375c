"""Say how processes ended that a hang is about: as tpmon saw them end, or as the kernel keeps it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpmon.judge.features.snapshot import Scene
from tpmon.model.dump import DeadChild
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Outcome, ProcessEnd, Role


def tell_ends(dead: Iterable[DeadChild], scene: Scene) -> list[DeadChild]:
    """Say of dead processes what was seen when they ended, which tells the OOM killer from any SIGKILL."""
    seen = {end.pid: end.how for _, end in list_ends(scene)}
    return [replace(one, how=seen.get(one.pid, one.how)) for one in dead]


def find_killed(parent: int, scene: Scene) -> list[DeadChild]:
    """Return the children of a process that were seen to fail, and that it has asked about since."""
    failed = {end.pid: end for _, end in list_ends(scene) if end.outcome is Outcome.FAILED}
    children = {
        one.pid: one
        for frame in scene.history
        for one in frame.processes
        if one.parent == parent and one.pid in failed
    }
    return [DeadChild(one.pid, parent, one.name, failed[one.pid].how) for one in children.values()]


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
