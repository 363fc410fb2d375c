"""Write lines to a descriptor: whole lines, at once, in an encoding that its reader can show."""

from __future__ import annotations

import contextlib
import errno
import os
import select

from tpmon.errors import UsageError
from tpmon.model.units import LINE_WIDTH, clean_text

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
