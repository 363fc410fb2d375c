"""Shared memory that is full, or has no room for another step of growth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure, reading
from tpmon.judge.features.snapshot import Scene
from tpmon.model.frame import Frame
from tpmon.model.host import ShmSample
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.model.units import format_bytes, format_pct
from tpmon.model.verdict import Kind

SHM_SMALL_BYTES = 1 << 30
SHM_LEAST_BYTES = 128 << 20
"""Free bytes below which a larger mount has no room for more workers: two batches of images in fp32."""
SHM_FULL = 0.5
"""Fill of a mount below 1 GiB from which the next batch may not fit: it failed at 75 %."""
SHM_STEPS = 2.0
"""Room for so many times the largest growth within a second that was seen."""
GAP_INTERVALS = 3.0
"""Intervals between two readings from which they are a gap: what grew in it, and when, is not known."""


def find_largest_step(frames: Sequence[Frame]) -> float:
    """Return the largest growth of /dev/shm in bytes per second, what grew over a gap left out.

    Two readings within a second may lie on both sides of one batch: less than a second counts as one.
    """
    used = [
        (frame.taken_ns / 1e9, frame.memory.shm.used_bytes, frame.interval_s)
        for frame in frames
        if is_known(frame.memory.shm)
    ]
    return max(
        (
            (new - old) / max(1.0, now_s - then_s)
            for (then_s, old, _), (now_s, new, interval_s) in itertools.pairwise(used)
            if now_s - then_s <= GAP_INTERVALS * max(1.0, interval_s)
        ),
        default=0.0,
    )


def is_shm_tight(shm: ShmSample, scene: Scene) -> bool:
    """Tell whether /dev/shm is small and half full, or has no room for two more steps of growth.

    Of one that does not grow, as in a hang, the room that is left must do.
    """
    step = find_largest_step(scene.history)
    has_little = shm.total_bytes - shm.used_bytes < SHM_LEAST_BYTES <= shm.total_bytes
    return has_little or _is_small_and_full(shm) or _lacks_room(shm, step)


def _is_small_and_full(shm: ShmSample) -> bool:
    return shm.total_bytes < SHM_SMALL_BYTES and shm.used_bytes > SHM_FULL * shm.total_bytes


def _lacks_room(shm: ShmSample, step: float) -> bool:
    """Tell whether there is no room for two more steps of growth, bytes in a second."""
    return step > 0 and shm.total_bytes - shm.used_bytes < SHM_STEPS * step


def judge_shm(scene: Scene) -> Answer:
    """Suspect /dev/shm when it is small and half full, or has no room for two more steps of growth."""
    shm = scene.frame.memory.shm
    if not is_known(shm):
        return Unsure(f"shared memory ({shm.reason})")
    if shm.total_bytes <= 0:
        return Unsure("shared memory (its size reads 0)")
    text = f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}"
    has_workers = any(process.role is Role.WORKER for process in scene.frame.processes)
    if not has_workers and len(scene.ranks) < 2:
        return Cleared(f"shared memory ({text}, nothing of the job needs it)")
    fill, free = shm.used_bytes / shm.total_bytes, shm.total_bytes - shm.used_bytes
    step = find_largest_step(scene.history)
    small, tight = _is_small_and_full(shm), _lacks_room(shm, step)
    if not small and not tight:
        return Cleared(f"shared memory ({text})")
    margins = [1.0]
    if small:
        margins.append(fill / SHM_FULL)
    if tight:
        margins.append(SHM_STEPS * step / max(free, 1))
    ages = scene.frame.ages_s
    return Suspicion(
        kind=Kind.MEMORY_PRESSURE,
        cause="shm",
        weight=fill,
        margin=max(margins),
        sources=frozenset(("statvfs",)),
        summary=f"{shm.path} is {format_pct(100 * fill)} % full ({text}): a batch that does not fit is lost",
        evidence=(
            reading("used of it", 100 * fill, "%", "statvfs", ages.memory),
            reading("largest growth in a second", step / (1 << 20), "MiB", "statvfs", ages.memory),
        ),
        observed=frozenset((Need.SHM_TIGHT,)),
    )
