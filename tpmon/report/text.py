"""Write lines, JSON and CSV to a descriptor, and complaints to standard error."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tpmon.errors import UsageError
from tpmon.model.known import is_known
from tpmon.model.units import LINE_WIDTH, clean_text

T = TypeVar("T")

COMPLAINT_CHARS = 4000
"""Of each line, which may hold a command to paste."""


class ReaderGone(Exception):  # noqa: N818  # no error: the reader had enough
    """Report that nobody reads the output any more: a closed pipe, or a closed standard output."""


class Output:
    """Write text to a descriptor of the caller, without a buffer that could fail again at the exit."""

    def __init__(self, descriptor: int, ascii_only: bool) -> None:
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
            UsageError: when writing fails (disk full).
        """
        text = "".join(f"{line}\n" for line in lines)
        if self._ascii_only:
            from tpmon.view.layout import to_ascii  # noqa: PLC0415  # --help does without it

            text = "\n".join(to_ascii(line) for line in text.split("\n"))
        self._write(text.encode("utf-8", "replace"))

    def write_json(self, line: str | bytes) -> None:
        """Write one line of JSON, always in UTF-8 (RFC 8259); raise as ``write_lines``."""
        data = line if isinstance(line, bytes) else line.encode("utf-8", "replace")
        self._write(data + b"\n")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except BlockingIOError:
            room = select.poll()
            room.register(self._descriptor, select.POLLOUT)
            room.poll()
            self._write(bytes(rest))
        except OSError as error:
            if error.errno == errno.EBADF:
                raise ReaderGone from None
            raise UsageError(
                f"cannot write to standard output: {error.strerror or error}",
                "send the output to a file or pipe that can take it",
            ) from error

    def check_reader(self) -> None:
        """Raise ReaderGone where the reader of a pipe has gone."""
        gone = select.poll()
        gone.register(self._descriptor, 0)
        if any(event & select.POLLERR for _, event in gone.poll(0)):
            raise ReaderGone


def complain(text: str) -> None:
    """Write lines to standard error without escape sequences, unless it is closed or full."""
    said = "\n".join(clean_text(line, COMPLAINT_CHARS) for line in text.split("\n"))
    with contextlib.suppress(OSError):
        os.write(2, f"{said}\n".encode("utf-8", "replace"))


def write_csv_rows(header: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Write a header and rows; an unknown value is an empty cell."""
    import csv  # noqa: PLC0415  # --help does without them
    import io  # noqa: PLC0415

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_safe, row) for row in rows)
    return out.getvalue().splitlines()


def _safe(value: object) -> object:
    """Keep a name from becoming a formula in a spreadsheet."""
    if not is_known(value):
        return ""
    if isinstance(value, tuple):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
