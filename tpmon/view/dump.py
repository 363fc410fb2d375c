"""Say of the processes of a dump or a sample that could not be read: which, why, and what to try. Pure.

The one place of what to try: the screen and the commands say the same, each with its own keys or options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.model.text.dump_words import list_numbers

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
