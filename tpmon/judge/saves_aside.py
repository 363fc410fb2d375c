"""Tell whether another thread of a rank writes a checkpoint, for which its loop may wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpmon.judge.frames import last_name, waits_for_others
from tpmon.judge.phase_kinds import Phase
from tpmon.judge.phase_stack import is_users, read_stack
from tpmon.model.stacks import StackCount

_SAVES = re.compile(r"(?:^|[^a-z])(?:ckpts?|checkpoints?|checkpointer|snapshots?)(?:$|[^a-z])", re.IGNORECASE)
"""In the name of a thread or a function: "async_ckpt_0" is one, "checkpointing" of activations none."""


def saves_aside(others: Iterable[StackCount]) -> bool:
    """Tell whether one of these threads is at work on a checkpoint, by its frames or by its names."""
    return any(_saves(stack) for stack in others if stack.frames and not waits_for_others(stack.frames))


def _saves(stack: StackCount) -> bool:
    if read_stack(stack.frames).phase is Phase.CHECKPOINT:
        return True
    names = [stack.thread, *(last_name(frame.function) for frame in stack.frames if is_users(frame))]
    return any(_SAVES.search(name) for name in names)
