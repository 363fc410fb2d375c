"""Paint which processes of a dump could not be read, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump import DumpError
from tpmon.model.units import clean_text
from tpmon.ui.kit.cells import cut, wrap_all
from tpmon.ui.monitor.state import Ink, Line
from tpmon.view.dump import Means, group_errors, name_failed, suggest

_TEXT_CHARS = 400
_LEAST_LINES = 3
"""Of one entry, so that it says what and why also on a low screen."""
_STOP = "R reads it with a short stop, and says its price first"


def paint_errors(errors: Sequence[DumpError], width: int, most: int, *, can_stop: bool) -> list[Line]:
    """Paint one entry for each reason, in at most ``most`` lines and at least one.

    ``can_stop`` tells whether the key of a look with a stop works now.
    """
    means = Means("again", _STOP if can_stop else "")
    texts: list[str] = []
    shown = 0
    for those in group_errors(errors):
        entry = _write_entry(those, suggest(those, means), max(1, width - 4))
        if texts and len(texts) + len(entry) > most:
            break
        texts += entry[: max(most, _LEAST_LINES)]
        shown += len(those)
    if shown < len(errors):
        texts.append(f" ! {len(errors) - shown} more not read; y copies why")
    return [((cut(text, width), Ink.WARN),) for text in texts]


def _write_entry(errors: Sequence[DumpError], tip: str, room: int) -> list[str]:
    said = wrap_all(clean_text(f"not read: {name_failed(errors)}: {errors[0].reason}", _TEXT_CHARS), room)
    tips = wrap_all(f"Try: {tip}", room) if tip else []
    return [f" ! {said[0]}", *(f"   {text}" for text in (*said[1:], *tips))]
