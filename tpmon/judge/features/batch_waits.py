"""Follow over the Window how much of each second the main thread of a rank waits for a batch. Pure."""

from __future__ import annotations

from tpmon.judge.features.once import Once
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.model.known import known_or


def see_pins(rank: RankScene) -> bool:
    """Tell whether a pin-memory thread stands between the rank and its workers."""
    return rank.loader is not None and rank.loader.pin_thread


def _see_all_waits(scene: Scene) -> dict[int, list[tuple[int, float]]]:
    pins = {rank.process.pid for rank in scene.ranks if see_pins(rank)}
    waits: dict[int, list[tuple[int, float]]] = {}
    for frame in scene.history:
        for one in known_or(frame.main_threads, ()):
            if one.looks:
                found = one.timed_lock if one.pid in pins else one.batch_wait
                waits.setdefault(one.pid, []).append((frame.taken_ns, found / one.looks))
    return waits


see_all_waits = Once(_see_all_waits)
"""Return by rank PID when each Frame was closed and the share of its looks that found the wait."""


def see_waits(rank: RankScene, scene: Scene) -> list[tuple[int, float]]:
    """Return the same of one rank."""
    return see_all_waits(scene).get(rank.process.pid, [])
