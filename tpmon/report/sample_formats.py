"""Write samples in the formats of other tools: collapsed stacks for flame graphs, and speedscope's JSON."""

from __future__ import annotations

from collections.abc import Iterable

from tpmon.model.sample import FoldedStack, HotSample
from tpmon.report.formats import PartStack, collapse_stacks, lay_speedscope, name_frames


def _part_stack(stack: FoldedStack) -> PartStack:
    part = f"{stack.role.value} {'main' if stack.main else 'other threads'}"
    return PartStack(part, name_frames(stack.frames), stack.samples)


def write_collapsed_samples(stacks: Iterable[FoldedStack]) -> list[str]:
    """Write a line for each stack: "part;outermost;...;innermost samples"."""
    return collapse_stacks(map(_part_stack, stacks))


def write_speedscope_samples(hot: HotSample, stacks: Iterable[FoldedStack]) -> str:
    """Write one JSON object with a profile for each part of the job, in seconds of its threads together."""
    name = f"{hot.script} on {hot.host}, {hot.taken.isoformat(timespec='seconds')}"
    return lay_speedscope(name, map(_part_stack, stacks), 1 / hot.rate_hz)
