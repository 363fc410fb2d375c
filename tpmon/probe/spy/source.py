"""Read the text of the busiest lines of a training's own files, at the time of a look.

A line is read once, from at most 512 KiB of its file, within half a second. A mount that does not answer ends
the reading of lines for good: one thread hangs in it, and no second one.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.stacks import SourceLine, StackCount
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, read_file, read_or
from tpmon.probe.base.worker import read_within

MOST_LINES = 3
MOST_BYTES = 512 << 10
MOST_KEPT = 256
TEXT_CHARS = 120
WAIT_S = 0.5
_OTHERS = ("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python")
_NO_TEXT = Missing("no text of the line could be read")


class _LinePlace(NamedTuple):
    pid: int
    file: str
    line: int


class SourceReader:
    """Remember the lines that were read; used by one thread."""

    def __init__(self, proc: str = PROC) -> None:
        """Read nothing yet."""
        self._proc = proc
        self._kept: dict[_LinePlace, Known[str]] = {}
        self._hangs = False

    def read(self, pid: int, stacks: Iterable[StackCount]) -> Applicable[tuple[SourceLine, ...]]:
        """Return the text of the lines that most of ``stacks`` are in; never raises."""
        counts: Counter[_LinePlace] = Counter()
        for stack in stacks:
            own = next((one for one in reversed(stack.frames) if _is_own(one.file)), None)
            if own is not None and own.line > 0:
                counts[_LinePlace(pid, own.file, own.line)] += stack.samples
        busiest = [place for place, _ in counts.most_common(MOST_LINES)]
        texts = ((place, self._text_of(place)) for place in busiest)
        found = tuple(
            SourceLine(place.file, place.line, text)
            for place, text in texts
            if isinstance(text, str) and text
        )
        return found or NOT_APPLICABLE

    def _text_of(self, place: _LinePlace) -> Known[str]:
        if place not in self._kept and not self._hangs:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            read = read_within(WAIT_S, lambda: _read_line(place, self._proc))
            self._hangs = isinstance(read, Missing)
            self._kept[place] = read
        return self._kept.get(place, _NO_TEXT)


def _is_own(file: str) -> bool:
    return file.endswith(".py") and not any(part in file for part in _OTHERS)


def _read_line(place: _LinePlace, proc: str) -> str:
    """Return the line, cleaned; "" where it cannot be read or is not there."""
    root = f"{proc}/{place.pid}/root" if place.file.startswith("/") else f"{proc}/{place.pid}/cwd/"
    path = f"{root}{place.file}"
    # A FIFO of that name would wait for its writer.
    if not read_or(False, lambda: stat.S_ISREG(os.stat(path).st_mode)):
        return ""
    lines = read_or(b"", lambda: read_file(path, MOST_BYTES)).splitlines()
    text = lines[place.line - 1].decode("utf-8", "replace") if place.line <= len(lines) else ""
    return admit_text(text.strip(), TEXT_CHARS)
