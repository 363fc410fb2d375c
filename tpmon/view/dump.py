"""Describe unread processes of a dump and the variables of its frames.

The one place of what to try: the screen and the commands say the same, each with its own keys or options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.dump import DumpError, DumpThread, ErrorKind, ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.model.text.dump_words import list_numbers, name_processes

_DOCTORS = (ErrorKind.DENIED, ErrorKind.NO_SPY, ErrorKind.UNKNOWN_PYTHON)
"""What does not pass by itself."""
_PASSING = (ErrorKind.BUSY, ErrorKind.TRACED)
_SPYS_OWN = (ErrorKind.LATE, ErrorKind.FAILED)
"""It may pass, and it may be py-spy that does not work here."""


@dataclass(frozen=True, slots=True)
class Means:
    """Say how the caller lets a person try ``again``, and with a ``stop``, "" for none.

    "{pid}" in them becomes that of the process.
    """

    again: str
    stop: str = ""


def group_errors(errors: Iterable[DumpError]) -> list[tuple[DumpError, ...]]:
    """Group processes that could not be read for one reason, in the order in which the reasons come."""
    of_reason: dict[tuple[ErrorKind, str], list[DumpError]] = {}
    for error in errors:
        of_reason.setdefault((error.kind, error.reason), []).append(error)
    return [tuple(those) for those in of_reason.values()]


def name_failed(errors: Sequence[DumpError]) -> str:
    """Name processes together: "ranks 0-3", "8 workers", "helper 4711"."""
    words = []
    for role in Role:
        those = [error for error in errors if error.role is role]
        ranks = [error.rank for error in those if is_known(error.rank)]
        if role is Role.RANK and len(ranks) == len(those) > 0:
            words.append(f"rank{'s' if len(those) > 1 else ''} {list_numbers(ranks)}")
        elif len(those) == 1:
            words.append(f"{role.value} {those[0].pid}")
        elif those:
            words.append(f"{len(those)} {role.value}s")
    return " and ".join(words)


def suggest(errors: Sequence[DumpError], means: Means) -> str:
    """Say what to do about processes that could not be read for one reason, "" for nothing."""
    kind, pid = errors[0].kind, str(errors[0].pid)
    again, doctor = means.again.replace("{pid}", pid), f"tpmon doctor {pid}"
    if kind in _DOCTORS:
        return f"{doctor} says what to allow or to install"
    if kind in _PASSING:
        return again
    if kind not in _SPYS_OWN:
        return ""
    stop = f"; {means.stop.replace('{pid}', pid)}" if means.stop and kind is ErrorKind.FAILED else ""
    return f"{again}{stop}; if it stays so, {doctor} tries py-spy"


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
