"""Write stacks and samples in the formats of other tools: collapsed stacks and speedscope."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tpmon.model.dump import Dump, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, is_known
from tpmon.model.results.sample import FoldedStack, HotSample
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import name_processes
from tpmon.model.units import clean_text

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NAME_CHARS = 400
_WHO_CHARS = 120


@dataclass(frozen=True, slots=True)
class PartStack:
    """Hold one stack for these formats; ``frames`` are name, file and line, outermost first."""

    part: str
    frames: tuple[tuple[str, str, int], ...]
    weight: int


def name_frames(frames: Sequence[StackFrame]) -> tuple[tuple[str, str, int], ...]:
    """Return cleaned name, file and line of each frame."""
    return tuple(
        (
            clean_text(f"{frame.function} ({frame.file}:{frame.line})", _NAME_CHARS),
            clean_text(frame.file, _NAME_CHARS),
            frame.line,
        )
        for frame in frames
    )


def _stacks_of(dump: Dump) -> list[PartStack]:
    hosts = {thread.host for group in dump.groups for thread in group.threads}
    return [_stack_of(group, with_host=len(hosts) > 1) for group in dump.groups]


def _stack_of(group: StackGroup, *, with_host: bool) -> PartStack:
    """Return the stack of a group, with a made-up frame where there is none; its weight is its threads."""
    first = group.threads[0]
    frames = group.frames
    if is_known(frames) and frames:
        named = name_frames(frames)
    else:
        name = "[stack not read]" if isinstance(frames, Missing) else f"[native {first.name}]"
        named = ((clean_text(name, _NAME_CHARS), "", 0),)
    # Ranks are named, so that the odd one out is seen; the name is cut, for there may be many.
    who = clean_text(name_processes(group.threads, with_host=with_host), _WHO_CHARS)
    return PartStack(f"{who} {first.kind.value}", named, len(group.threads))


def write_collapsed(dump: Dump) -> list[str]:
    """Write a line for each group, for flame graph tools: "ranks 0-2 main;outermost;innermost 3"."""
    return collapse_stacks(_stacks_of(dump))


def write_speedscope(dump: Dump) -> str:
    """Write one JSON object for speedscope: a profile for each set of processes, weighted by threads."""
    name = f"{dump.script} on {dump.host}, {dump.taken.isoformat(timespec='seconds')}"
    return lay_speedscope(name, _stacks_of(dump))


def collapse_stacks(stacks: Iterable[PartStack]) -> list[str]:
    """Write a line for each stack."""
    lines = []
    for stack in stacks:
        names = [stack.part, *(name for name, _, _ in stack.frames)]
        # A semicolon divides frames, so none may be left in a name.
        lines.append(f"{';'.join(name.replace(';', ',') for name in names)} {stack.weight}")
    return lines


def lay_speedscope(name: str, stacks: Iterable[PartStack], seconds_each: float = 0.0) -> str:
    """Write one JSON object for speedscope, a profile a part; ``seconds_each`` turns weights into time."""
    numbers: dict[tuple[str, str, int], int] = {}
    parts: dict[str, list[PartStack]] = {}
    for stack in stacks:
        parts.setdefault(stack.part, []).append(stack)
    profiles = [_profile(part, those, numbers, seconds_each) for part, those in parts.items()]
    frames = [{"name": name, "file": file, "line": line} for name, file, line in numbers]
    document: Mapping[str, object] = {
        "$schema": _SCHEMA,
        "name": clean_text(name, _NAME_CHARS),
        "exporter": "tpmon",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _profile(
    name: str, stacks: Sequence[PartStack], numbers: dict[tuple[str, str, int], int], seconds_each: float
) -> Mapping[str, object]:
    samples = [[numbers.setdefault(frame, len(numbers)) for frame in stack.frames] for stack in stacks]
    weights = [round(stack.weight * (seconds_each or 1), 6) for stack in stacks]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds" if seconds_each else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _part_stack(stack: FoldedStack) -> PartStack:
    part = f"{stack.role.value} {'main' if stack.main else 'other threads'}"
    return PartStack(part, name_frames(stack.frames), stack.samples)


def write_collapsed_samples(stacks: Iterable[FoldedStack]) -> list[str]:
    """Write a line for each stack: "part;outermost;...;innermost samples"."""
    return collapse_stacks(map(_part_stack, stacks))


def write_speedscope_samples(hot: HotSample, stacks: Iterable[FoldedStack]) -> str:
    """Write one JSON object with a profile for each part of the job, in seconds summed over its threads."""
    name = f"{hot.script} on {hot.host}, {hot.taken.isoformat(timespec='seconds')}"
    return lay_speedscope(name, map(_part_stack, stacks), 1 / hot.rate_hz)
