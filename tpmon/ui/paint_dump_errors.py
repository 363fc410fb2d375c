"""Paint which processes of a dump could not be read, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.dump_words import list_numbers
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.model.units import clean_text
from tpmon.ui.cells import cut, wrap_all
from tpmon.ui.view import Ink, Line

_TEXT_CHARS = 400
_LEAST_LINES = 3
"""Of one entry, so that it says what and why also on a low screen."""
_TRY_AGAIN = (ErrorKind.BUSY, ErrorKind.LATE, ErrorKind.TRACED, ErrorKind.FAILED)


def paint_errors(errors: Sequence[DumpError], width: int, most: int, *, can_stop: bool) -> list[Line]:
    """Paint one entry for each reason, in at most ``most`` lines and at least one.

    ``can_stop`` tells whether the key of a look with a stop works now.
    """
    of_reason: dict[tuple[ErrorKind, str], list[DumpError]] = {}
    for error in errors:
        of_reason.setdefault((error.kind, error.reason), []).append(error)
    texts: list[str] = []
    shown = 0
    for (kind, reason), those in of_reason.items():
        entry = _write_entry(those, reason, suggest(kind, those, can_stop=can_stop), max(1, width - 4))
        if texts and len(texts) + len(entry) > most:
            break
        texts += entry[: max(most, _LEAST_LINES)]
        shown += len(those)
    if shown < len(errors):
        texts.append(f" ! {len(errors) - shown} more not read; y copies why")
    return [((cut(text, width), Ink.WARN),) for text in texts]


def _write_entry(errors: Sequence[DumpError], reason: str, tip: str, room: int) -> list[str]:
    said = wrap_all(clean_text(f"not read: {name_failed(errors)}: {reason}", _TEXT_CHARS), room)
    tips = wrap_all(f"Try: {tip}", room) if tip else []
    return [f" ! {said[0]}", *(f"   {text}" for text in (*said[1:], *tips))]


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


def suggest(kind: ErrorKind, errors: Sequence[DumpError], *, can_stop: bool) -> str:
    """Say what a person can do where stacks could not be read, "" where there is nothing to do."""
    if kind in (ErrorKind.DENIED, ErrorKind.NO_SPY, ErrorKind.UNKNOWN_PYTHON):
        return f"tpmon doctor {errors[0].pid} says what to allow or to install"
    if kind is ErrorKind.FAILED and can_stop:
        return "again; R reads it with a short stop, and says its price first"
    return "again" if kind in _TRY_AGAIN else ""
