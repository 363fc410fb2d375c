"""Read the stacks of a rank whose loop may wait for a checkpoint that another thread writes. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpmon.judge.stacks.classify import Reading, is_users, read_stack
from tpmon.judge.stacks.frames import last_name, waits_for_future, waits_for_others, waits_for_task
from tpmon.judge.stacks.phases import Phase
from tpmon.model.stacks import StackCount, StackFrame

_SAVES = re.compile(r"(?:^|[^a-z])(?:ckpts?|checkpoints?|checkpointer|snapshots?)(?:$|[^a-z])", re.IGNORECASE)
"""In the name of a thread or a function: "async_ckpt_0" is one, "checkpointing" of activations none."""


def read_beside(stacks: Sequence[StackCount], beside: Iterable[StackCount]) -> list[Reading]:
    """Read the stacks of a main thread as ``read_stack`` does, with an eye on the threads ``beside`` it.

    A wait for a future is one for the checkpoint where another thread writes one for half of that wait.
    """
    readings = [read_stack(stack.frames) for stack in stacks]
    waits = [
        index
        for index, (stack, reading) in enumerate(zip(stacks, readings, strict=True))
        if reading.phase is Phase.OTHER and waits_for_future(stack.frames)
    ]
    waited = sum(stacks[index].samples for index in waits)
    if waited and 2 * _count_saves(beside) >= waited:
        for index in waits:
            readings[index] = _as_checkpoint(readings[index])
    return readings


def _as_checkpoint(reading: Reading) -> Reading:
    name = Phase.CHECKPOINT.value
    place = (name, *reading.place[1:])
    return replace(reading, phase=Phase.CHECKPOINT, where=f"{name}: {reading.where}", place=place)


def _count_saves(beside: Iterable[StackCount]) -> int:
    """Count the samples in which a thread is at work on a checkpoint, by its frames or by its names.

    Of several threads that do the busiest one counts: it was looked at as often as the main one.
    """
    counts: Counter[int] = Counter()
    for stack in beside:
        if stack.frames and not _rests(stack.frames) and _saves(stack):
            counts[stack.tid] += stack.samples
    return max(counts.values(), default=0)


def _rests(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a thread waits for work, or for others."""
    return waits_for_task(frames, len(frames) - 1) or waits_for_others(frames)


def _saves(stack: StackCount) -> bool:
    if read_stack(stack.frames).phase is Phase.CHECKPOINT:
        return True
    names = [stack.thread, *(last_name(frame.function) for frame in stack.frames if is_users(frame))]
    return any(_SAVES.search(name) for name in names)
