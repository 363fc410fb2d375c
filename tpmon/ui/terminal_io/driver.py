"""Read keys from and write pictures to a terminal that may be slow, odd or stopped.

A thin layer for what textual's driver does not survive in version 8.2.8.
"""

from __future__ import annotations

import os
import select
import signal
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Any

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

_ESCAPE_MS = 20
"""The wait for the rest of an escape sequence: without it, it is a lone ESC."""
_READ_BYTES = 4096


def starts_with_esc_key(text: str) -> bool:
    """Tell whether what was read at once is esc and then another key: no key here is typed with Alt.

    A slow line joins the two. The sequences of other keys begin with ESC [ or ESC O.
    """
    follows = text[1:] if text.startswith("\x1b") else ""
    return follows.startswith("\x1b") or (len(follows) == 1 and follows not in "[O")


class ScreenDriver(LinuxDriver):
    """Survive what terminals really send, and count the writes that a slow one has not taken."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._input_ends = -1

    def disable_input(self) -> None:
        """End the input thread at once; textual waits for its next turn."""
        if self._input_ends >= 0:
            os.eventfd_write(self._input_ends, 1)
        super().disable_input()
        with suppress(BlockingIOError):
            if self._input_ends >= 0:
                os.eventfd_read(self._input_ends)

    def start_application_mode(self) -> None:
        """Take the terminal, at first or again."""
        if self._input_ends < 0:
            self._input_ends = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Let go of what the screen held: another one may follow in this process."""
        super().close()
        if self._input_ends >= 0:
            os.close(self._input_ends)
            self._input_ends = -1

    def run_input_thread(self) -> None:
        """Read keys until ``disable_input``; textual's own loop wakes ten times a second, 1 ms each."""
        ready = select.poll()
        ready.register(self.fileno, select.POLLIN)
        ready.register(self._input_ends, select.POLLIN)
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")().decode
        while not self.exit_event.is_set():
            unfinished = parser._timeout_time is not None  # noqa: SLF001
            ends = dict(ready.poll(_ESCAPE_MS if unfinished else None))
            if self._input_ends in ends:
                return
            if self.fileno in ends:
                data = os.read(self.fileno, _READ_BYTES)
                if not data:
                    return  # the terminal has ended, and the hang-up signal with it
                text = decode(data)
                if not unfinished and starts_with_esc_key(text):
                    self.process_message(events.Key("escape", None))
                    text = text[1:]
                for event in parser.feed(text):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)

    def _run_input_thread(self) -> None:
        # A legacy mouse report right of column 95 is no UTF-8 (textual issue 6668), and a mouse
        # report after a resize of 0x0 pixels divides by zero: drop that input, keep reading.
        while not self.exit_event.is_set():
            try:
                self.run_input_thread()
            except (UnicodeDecodeError, ZeroDivisionError):
                continue
            except Exception as error:  # noqa: BLE001  # the app ends with a report
                self._loop.call_soon_threadsafe(self._app._handle_exception, error)  # noqa: SLF001
            return

    def _sigtstp_application(self, *_: object) -> None:
        # textual stops one process; the shell waits for another of the group
        if os.getpgrp() == os.getsid(0):
            return  # no shell could wake it: ssh -t HOST tpmon, kubectl exec -it
        if self._auto_restart:
            self.suspend_application_mode()
            self._must_signal_resume = True
        os.kill(0, signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        # SIGCONT after a bare SIGSTOP: the screen was never left. Starting it again would start a second
        # input thread and take raw mode for the first attributes. In the background there is no screen yet.
        if self.suspended or (self._auto_restart and self._writer_thread is None):
            super()._sigcont_application()

    def _get_terminal_size(self) -> tuple[int, int]:
        # textual believes exported COLUMNS and LINES, and misses resizes then
        with suppress(OSError):
            width, height = os.get_terminal_size(self.fileno)
            if width and height:  # a pty that was never given a size has 0x0
                return width, height
        return super()._get_terminal_size()

    def check_size(self) -> None:
        """Send the app the size of the terminal if it is another: nested handlers of SIGWINCH swap sizes."""
        width, height = self._get_terminal_size()
        if (width, height) != tuple(self._app.size):
            self.process_message(events.Resize.from_dimensions((width, height), None))

    @property
    def suspended(self) -> bool:
        """Tell whether ctrl-z has given the terminal back to the shell."""
        return self._must_signal_resume

    @property
    def away(self) -> bool:
        """Tell whether the shell or an editor has the terminal now."""
        return self.suspended or not self._auto_restart

    @property
    def takes_writes(self) -> bool:
        """Tell whether we may write on the screen."""
        return self._writer_thread is not None and not self.suspended

    @property
    def terminal_size(self) -> tuple[int, int]:
        """Return the columns and rows of the terminal now."""
        return self._get_terminal_size()

    @property
    def waiting_writes(self) -> int:
        """Count the writes that the terminal has not taken yet."""
        return 0 if self._writer_thread is None else self._writer_thread._queue.qsize()  # noqa: SLF001
