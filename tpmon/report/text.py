"""Lay out plain text and CSV, and write lines to a descriptor."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import select
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tpmon.errors import UsageError
from tpmon.model.known import Applicable, Missing, NotApplicable, is_known
from tpmon.model.units import LINE_WIDTH, clean_text, count_cells
from tpmon.view.table import Figures, Row, Where

T = TypeVar("T")

WIDTH = LINE_WIDTH
LABEL_WIDTH = 9
MOST_REASONS = 12


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to ``width`` cells, with a sign that it was shortened."""
    if count_cells(text) <= width:
        return text
    return _head_of(text, max(width - 1, 0)) + "…"


def _head_of(text: str, width: int) -> str:
    taken = text[:width]
    while count_cells(taken) > width:
        taken = taken[:-1]
    return taken


def lay_columns(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Iterable[str] = (),
    indent: int = 0,
    width: int = WIDTH,
) -> list[str]:
    """Align rows under their headers: numbers right, the columns named in ``left`` left.

    The last column takes what is left of ``width`` and is cut there.
    """
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(count_cells(row[i]) for row in table) for i in range(len(headers))]
    is_left = [header in set(left) for header in headers]
    lines = []
    for row in table:
        cells = [
            _pad(cell, cells, to_left) for cell, cells, to_left in zip(row, widths, is_left, strict=True)
        ]
        lines.append(cut((" " * indent + "  ".join(cells)).rstrip(), width))
    return lines


def lay_figures(
    figures: Figures[Row], rows: Sequence[Row], top: int | None = None, more: str = "", indent: int = 0
) -> list[str]:
    """Lay the first rows of a table, and say how many more there are and where; nothing without rows."""
    if not rows:
        return []
    shown = [one for one in figures if one.where is not Where.SCREEN]
    headers = [one.text_head or one.head for one in shown]
    left = [head for head, one in zip(headers, shown, strict=True) if one.left]
    cells = ([one.tell(row) for one in shown] for row in rows[:top])
    hidden = len(rows) - top if more and top is not None else 0
    lines = lay_columns(headers, cells, left=left, indent=indent)
    return [*lines, f"  {hidden} more ({more})"] if hidden > 0 else lines


def _pad(text: str, cells: int, to_left: bool) -> str:
    spaces = " " * (cells - count_cells(text))
    return text + spaces if to_left else spaces + text


def wrap_cells(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` cells, and within longer words."""
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False)
    lines: list[str] = []
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and count_cells(joined) <= width:
            lines[-1] = joined
            continue
        rest = word
        if lines and count_cells(word) > width:  # a long word begins in the line before, as in textwrap
            taken = _head_of(word, max(width - count_cells(lines[-1]) - 1, 0))
            lines[-1] += f" {taken}" if taken else ""
            rest = word[len(taken) :]
        while count_cells(rest) > width:
            taken = _head_of(rest, width) or rest[:1]
            lines.append(taken)
            rest = rest[len(taken) :]
        lines.append(rest)
    return [line.rstrip() for line in lines if line.strip()]


def lay_paragraph(label: str, text: str, width: int = WIDTH) -> list[str]:
    """Wrap ``text`` beside a label: the label stands in the first line alone."""
    lines = wrap_cells(text, max(width - LABEL_WIDTH, 1)) or [""]
    first = label.ljust(LABEL_WIDTH) if len(label) < LABEL_WIDTH else label + " "
    rest = [" " * LABEL_WIDTH + line for line in lines[1:]]
    return [first + lines[0], *rest]


def lay_phrases(label: str, phrases: Iterable[str]) -> list[str]:
    """Join ``phrases`` by commas beside a label and wrap between phrases where they fit a line."""
    room = WIDTH - LABEL_WIDTH - 2
    # textwrap breaks at ASCII spaces alone, so a phrase with no-break spaces stays in one piece.
    whole = [
        phrase.replace(" ", "\N{NO-BREAK SPACE}") if len(phrase) < room else phrase for phrase in phrases
    ]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lay_paragraph(label, ", ".join(whole))]


def write_runnable(value: float) -> str:
    """Write a number of runnable threads: 14.2."""
    return f"{value:.1f}"


def sum_known(values: list[float | Missing]) -> float | Missing:
    """Add the values that were read; the reason of the first that was not when none was."""
    read = [value for value in values if is_known(value)]
    if read or not values:
        return sum(read)
    return values[0]


class TextReading:
    """Turn readings into text and remember the name and reason of each that was not read."""

    def __init__(self) -> None:
        """Start with nothing missed."""
        self._reasons: dict[str, dict[str, None]] = {}

    def show(self, name: str, value: Applicable[T], write: Callable[[T], str] = str) -> str:
        """Write ``value``; "?" where it was not read, "-" where it does not apply."""
        if isinstance(value, Missing):
            self.miss(name, value)
            return "?"
        return "-" if isinstance(value, NotApplicable) else write(value)

    def miss(self, name: str, missing: Missing) -> None:
        """Remember that ``name`` was not read."""
        self._reasons.setdefault(missing.reason, {})[name] = None

    def missed(self) -> str:
        """Say once what was not read and why, the names of one reason together; "" for nothing."""
        groups = [f"{', '.join(names)} ({reason})" for reason, names in self._reasons.items()]
        if len(groups) > MOST_REASONS:
            groups = [*groups[:MOST_REASONS], f"and for {len(groups) - MOST_REASONS} more reasons"]
        return "; ".join(groups)


COMPLAINT_CHARS = 4000
"""Of each line; a command that is to be pasted has to fit."""
_ASCII = str.maketrans("·…–—×→µ°±▁▂▃▄▅▆▇█░", "|~--x>u +_.:-=+*#:")  # noqa: RUF001


def to_ascii(text: str) -> str:
    """Replace what ASCII does not have: known signs by a likeness, the rest by "?"."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


class ReaderGone(Exception):  # noqa: N818  # no error: the reader had enough
    """Say that nobody reads the output any more: a closed pipe, or a closed standard output."""


class Output:
    """Write text to one descriptor, without a buffer that could fail again at the exit."""

    def __init__(self, descriptor: int, ascii_only: bool) -> None:
        """Write to ``descriptor``, which stays the caller's to close."""
        self._descriptor = descriptor
        self._ascii_only = ascii_only

    @property
    def width(self) -> int:
        """The columns of a line: those of the terminal, at most ``LINE_WIDTH``, which is what a pipe gets."""
        with contextlib.suppress(OSError):
            return min(os.get_terminal_size(self._descriptor).columns or LINE_WIDTH, LINE_WIDTH)
        return LINE_WIDTH

    def write_lines(self, *lines: str) -> None:
        """Write ``lines``, each with its newline, in one call where the pipe has room.

        Raises:
            ReaderGone: when nobody reads any more.
            UsageError: when the file cannot take it (disk full).
        """
        text = "".join(f"{line}\n" for line in lines)
        if self._ascii_only:
            text = "\n".join(to_ascii(line) for line in text.split("\n"))
        self._write(text.encode("utf-8", "replace"))

    def write_json(self, line: str) -> None:
        """Write one line of JSON: always UTF-8, whatever the locale says (RFC 8259).

        Raises:
            ReaderGone: when nobody reads any more.
            UsageError: when the file cannot take it.
        """
        self._write(line.encode("utf-8", "replace") + b"\n")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except BlockingIOError:
            self._wait_for_room()
            self._write(bytes(rest))
        except OSError as error:
            if error.errno == errno.EBADF:
                raise ReaderGone from None
            raise UsageError(
                f"cannot write to standard output: {error.strerror or error}",
                "send the output to a file or pipe that can take it",
            ) from error

    def _wait_for_room(self) -> None:
        room = select.poll()
        room.register(self._descriptor, select.POLLOUT)
        room.poll()

    def check_reader(self) -> None:
        """Notice between two lines that the reader of a pipe has gone.

        Raises:
            ReaderGone: when it has.
        """
        gone = select.poll()
        gone.register(self._descriptor, 0)
        if any(event & select.POLLERR for _, event in gone.poll(0)):
            raise ReaderGone


def complain(text: str) -> None:
    """Write lines to standard error; one that is closed or full is no reason to fail.

    File names and command lines come with the text, so no escape sequence passes here.
    """
    said = "\n".join(clean_text(line, COMPLAINT_CHARS) for line in text.split("\n"))
    with contextlib.suppress(OSError):
        os.write(2, f"{said}\n".encode("utf-8", "replace"))


def write_csv_rows(header: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Write a header and rows; a value that is not known is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_safe, row) for row in rows)
    return out.getvalue().splitlines()


def _safe(value: object) -> object:
    """Keep a name from being a formula where the file is opened in a spreadsheet."""
    if not is_known(value):
        return ""
    if isinstance(value, tuple):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
