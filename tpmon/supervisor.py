"""Two processes for one command: the one that works, and a small one that the shell waits for.

Nothing ends a thread that waits for a mount that does not answer, and the kernel keeps its process, killed or
not (request_wait_answer of fs/fuse/dev.c). Any file of a job, and any that a user names, may lie there. So
the end of the working process is not waited for: it says its exit code, or a signal finds it stuck.
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import time
from contextlib import suppress

LEAVE_SCREEN = (
    b"\x1b[?2004l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[<u\x1b[?7h"
    b"\x1b[?1049l\x1b[?25h\x1b[0m"
)

TYPE_CHECKING = False  # to import typing takes as long as all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STILL_S = 0.6
"""How long the working process may stand in one uninterruptible wait after it was asked to end."""
_SLEEP_S = 2.5
"""How long it may sleep in one wait while it ends: there may be children that cannot be killed."""
_LOOK_S = 0.2
_LOOK_SELDOM_S = 5.0  # one that was killed from outside, and is kept, says nothing
_ASKED_S = 10.0
"""How long a signal is taken for a wish to end: an editor on the screen's terminal is sent ^C, too."""
_ORDERLY_S = 1.0
_LEFT = "tpmon: ended without process {}: it waits for a file or device that does not answer\n"
_UNPREPARED = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)
_AWAITED = ("pipe:", "socket:", "/dev/")

_link: list[int] = []
"""In the working process: the PID of the other one, and the descriptor that tells it the exit code."""


def hold_descriptors() -> None:
    """Occupy 0, 1 and 2 where the caller closed them, so that no file of ours is taken for them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest free number; writing to it fails with EBADF


def supervise() -> None:
    """Return in a new process that does the work; this one waits for it and never returns.

    Where no process can be started, the work is done in this one.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # trap '' CHLD: the kernel would reap it
    endings = {number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN}  # nohup
    watched = endings | {signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGURG}
    hold_descriptors()
    reader, writer = os.pipe()
    lives, holds = os.pipe()
    own = os.getpid()
    terminal = _read_terminal()  # before the work can change it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child > 0:
        os.close(writer)
        os.close(lives)
        _Supervisor(child, reader, holds, endings, terminal).wait(watched)
    os.close(reader)
    os.close(holds)
    if child == 0:
        _link.extend((own, writer))
        if signal.SIGINT in endings:
            signal.signal(signal.SIGINT, lambda number, _: end(128 + number))
        with suppress(RuntimeError):  # a limit on processes, which the command meets as well
            _thread.start_new_thread(_outlive, (lives,))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(run: Callable[[], int]) -> int:
    """Run a command to its end in the working process; return its exit code where there is no other."""
    try:
        code = run()
    except SystemExit as left:  # what argparse and the screen do
        code = left.code if isinstance(left.code, int) else int(bool(left.code))
    with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads
        sys.stdout.flush()
    return end(code) if _link else code


def end(code: int) -> NoReturn:
    """End this process with an exit code, also where the kernel keeps one of its threads."""
    try:
        if _link:
            _say_end(code, *_link)
    finally:
        os._exit(code)


def _say_end(code: int, supervisor: int, writer: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in filter(_is_awaited, range(3)):
        os.dup2(nowhere, descriptor)
    os.write(writer, bytes((code & 0xFF,)))
    if os.getppid() == supervisor:
        os.kill(supervisor, signal.SIGURG)
    # Only now: threads that still use them fail, and may end this process in their own way.
    for descriptor in filter(_is_awaited, map(int, os.listdir("/proc/self/fd"))):
        os.close(descriptor)


def _is_awaited(descriptor: int) -> bool:
    """Tell whether somebody may wait until it is closed; to close another file could block for that mount."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(_AWAITED)
    except OSError:
        return False  # closed meanwhile


def supervisors() -> tuple[int, ...]:
    """Return the PID of the process that waits for this one, where one does."""
    return tuple(_link[:1])


def _outlive(lives: int) -> None:
    """End this process when the other one was killed, in order; or gave it up, at once."""
    if not os.read(lives, 1):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY_S)
    end(128 + signal.SIGTERM)


class _Supervisor:
    """Wait for the end of one process; hand signals on, and leave it when it is stuck."""

    def __init__(
        self, child: int, reader: int, holds: int, endings: set[signal.Signals], terminal: list[Any]
    ) -> None:
        self._child = child
        self._reader = reader
        self._holds = holds
        self._endings = endings
        self._asked = 0
        """The signal that asks for the end, 0: none does."""
        self._asked_s = self._since_s = 0.0
        self._seen = ("", "")
        self._terminal = terminal
        os.set_blocking(reader, False)

    def wait(self, watched: set[signal.Signals]) -> NoReturn:
        """Wait for the end, and end this process with the same exit code."""
        while True:
            took = signal.sigtimedwait(watched, _LOOK_S if self._asked else _LOOK_SELDOM_S)
            if (code := self._read_end()) is not None:
                os._exit(code)
            number = took.si_signo if took is not None else 0
            if took is not None and number in self._endings:
                # A terminal sends ^C to both already, and a hang-up to the leader of the session alone.
                if took.si_code <= 0 or number == signal.SIGHUP:
                    self._send(number)
                self._asked, self._asked_s, self._seen = number, time.monotonic(), ("", "")
            elif number == signal.SIGCONT or (
                took is not None and number == signal.SIGTSTP and took.si_code <= 0
            ):
                self._send(number)  # its stop comes back as SIGCHLD
            elif number == signal.SIGCHLD:
                self._stop_with_it()
            elif self._is_stuck():
                self._leave()

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has just been reaped
            os.kill(self._child, number)

    def _read_end(self) -> int | None:
        """Return the exit code once it is known; None while the work goes on."""
        said = b""
        with suppress(BlockingIOError):
            said = os.read(self._reader, 1)
        if said:
            signal.sigtimedwait({signal.SIGCHLD}, _LOOK_S)  # mostly it is gone at once
        pid, status = os.waitpid(self._child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        if pid and not said and -code in _UNPREPARED:
            self._give_terminal_back()
        return said[0] if said else None if not pid else code if code >= 0 else 128 - code

    def _give_terminal_back(self) -> None:
        """Leave the screen of one that was killed: the shell takes what it finds for the norm."""
        import termios  # noqa: PLC0415 no start waits for it

        with suppress(OSError, termios.error):
            if self._terminal and os.tcgetpgrp(0) == os.getpgrp() and termios.tcgetattr(0) != self._terminal:
                termios.tcsetattr(0, termios.TCSANOW, self._terminal)
                os.write(0, LEAVE_SCREEN)

    def _stop_with_it(self) -> None:
        """Stop where the working process alone was stopped, which tells the shell, and go on with it."""
        for wait_s in (0.05, 0.0):  # one that fg wakes at this moment is none
            if self._asked or signal.SIGCONT in signal.sigpending():  # which a stop would discard
                self._send(signal.SIGCONT)
                return
            if not _read_status(self._child).get("State", "").startswith("T"):
                return
            time.sleep(wait_s)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _is_stuck(self) -> bool:
        """Tell whether the main thread stands in one wait since the end was asked for, or is gone."""
        status = _read_status(self._child)
        now_s = time.monotonic()
        seen = (status.get("State", " ")[0], status.get("voluntary_ctxt_switches", ""))
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        if now_s - self._asked_s > _ASKED_S:
            self._asked = 0
        # A command that ends ignores the signals that would end it once more.
        ends = self._asked and int(status.get("SigIgn", "0"), 16) >> (self._asked - 1) & 1
        in_kernel = seen[0] == "Z" or (self._asked and seen[0] == "D")
        return now_s - self._since_s >= (_STILL_S if in_kernel else _SLEEP_S if ends else math.inf)

    def _leave(self) -> NoReturn:
        """End without the working process; it lets go of pipes and terminal as far as it can."""
        with suppress(OSError):  # it was killed
            os.write(self._holds, b".")
        signal.sigtimedwait({signal.SIGURG}, _LOOK_S)
        self._send(signal.SIGKILL)
        with suppress(OSError):  # closed, or nobody reads
            os.write(2, _LEFT.format(self._child).encode())
        os._exit(128 + (self._asked or signal.SIGKILL))


def _read_terminal() -> list[Any]:
    """Return how the terminal is set, [] where standard input is none."""
    if os.isatty(0):
        import termios  # noqa: PLC0415 no start without a terminal waits for it

        with suppress(termios.error):
            return termios.tcgetattr(0)
    return []


def _read_status(pid: int) -> dict[str, str]:
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {}
