"""Write the variables of a group's frames: once where all threads agree, else who has which value. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump import DumpThread, ShownFrame, StackGroup
from tpmon.model.known import is_known
from tpmon.model.text.dump_words import name_processes

MOST_VARIABLES = 12
"""Of one frame, in text; JSON has more."""
MOST_VALUES = 3


def locals_of(group: StackGroup, frames: Sequence[ShownFrame]) -> dict[int, list[str]]:
    """Return the lines below each shown frame, by its place in ``frames``; {} where none were read."""
    if not is_known(group.frames):
        return {}
    lines: dict[int, list[str]] = {}
    place = len(group.frames)
    # From the innermost outwards: the outermost may be left out, and a recursion shows one line often.
    for shown in range(len(frames) - 1, -1, -1):
        if not frames[shown].is_users:
            continue
        place = next(
            (index for index in range(place - 1, -1, -1) if group.frames[index] == frames[shown].frame), -1
        )
        if place < 0:
            break
        if found := _write_frame(group.threads, place):
            lines[shown] = found
    return lines


def _write_frame(threads: Sequence[DumpThread], place: int) -> list[str]:
    """Write the variables of one frame, in the order in which the function has them."""
    values: dict[str, dict[str, list[DumpThread]]] = {}
    for thread in threads:
        for one in thread.locals if is_known(thread.locals) else ():
            if one.frame == place:
                for variable in one.variables:
                    values.setdefault(variable.name, {}).setdefault(variable.value, []).append(thread)
    lines = [f"{name} = {_say_values(by_value)}" for name, by_value in list(values.items())[:MOST_VARIABLES]]
    rest = len(values) - MOST_VARIABLES
    return [*lines, f"... {rest} more"] if rest > 0 else lines


def _say_values(by_value: dict[str, list[DumpThread]]) -> str:
    if len(by_value) == 1:
        return next(iter(by_value))
    commonest = sorted(by_value.items(), key=lambda entry: -len(entry[1]))
    words = [f"{value} ({name_processes(those)})" for value, those in commonest[:MOST_VALUES]]
    rest = len(by_value) - MOST_VALUES
    return ", ".join([*words, f"{rest} more {'value' if rest == 1 else 'values'}"] if rest > 0 else words)
