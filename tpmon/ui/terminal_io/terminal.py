"""Behave well on a terminal: check it, handle signals and hang-ups, end, report crashes.

Only this module handles signals. Knows nothing of textual: a stuck screen, or a terminal that takes no more
bytes, must not keep the process from ending.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, final

from tpmon import __version__
from tpmon.config import state_folder
from tpmon.errors import ExitCode, NoTerminalError, find_behind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, is_known
from tpmon.model.units import clean_text
from tpmon.record.crash import write_watched
from tpmon.supervisor import LEAVE_SCREEN, end

ADVICE = "use --once --json for one reading as JSON, or --plain for lines of text"

SIGNAL_CODES = {
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HANG_UP,
    signal.SIGINT: ExitCode.INTERRUPTED,  # sent from outside: the key ^C quits
}
_DEADLY = [
    *(signal.SIGQUIT, signal.SIGABRT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGXCPU, signal.SIGTRAP, signal.SIGSYS, signal.SIGIO),
]
"""Signals that end a process by default, some with a core file: here once the terminal is given back."""

LEAVE_SECONDS = 1.0
"""How long an orderly end may take."""

_STOP_SECONDS = 0.2
_WRITE_MS = 200
"""How long a terminal may refuse bytes of one write."""
_HANG_UP_POLL_MS = 1000

_IFLAG, _LFLAG = 0, 3
"""Places of input and local flags in what ``termios.tcgetattr`` returns."""

ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Alternate screen, no cursor, no line wrap, nothing on it; ``TerminalGuard.restore`` leaves it."""


def require_terminal(environ: Mapping[str, str] | None = None) -> None:
    """Raise NoTerminalError unless stdin, stdout and stderr are one terminal that can draw.

    The screen is written to stderr and keys come from stdin: ``2>file`` would eat the picture, a pipe on
    stdin would leave a screen without keys.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if not os.isatty(descriptor):
            raise NoTerminalError(f"{name} is not a terminal", ADVICE)
    kind = (os.environ if environ is None else environ).get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        said = f"TERM={kind} cannot draw a screen" if kind else "TERM is not set"
        raise NoTerminalError(said, ADVICE)


def has_terminal() -> bool:
    """Tell whether a screen can be drawn here."""
    try:
        require_terminal()
    except NoTerminalError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ScreenResult:
    """Hold how the screen ended: ``text`` for stdout, ``complaint`` for stderr."""

    exit_code: int
    text: str
    complaint: str
    asks_next: str = ""
    """What a key ended it for; "" for nothing."""
    goes_back: bool = False
    """Whether the list of jobs is wanted again."""


@final
class TerminalGuard:
    """End the process whatever happens: by signal, by hang-up, or late after an orderly end.

    ``leave`` asks the screen to end with an exit code and must return at once; ``stop`` asks the session to
    end. Both may be called from a signal handler.
    """

    def __init__(self, leave: Callable[[int], None], stop: Callable[[], None]) -> None:
        self._leave = leave
        self._stop = stop
        self._left = threading.Event()
        self._handlers: dict[int, object] = {}
        self._keeps_keys = False
        try:
            self._attributes: list[Any] | None = termios.tcgetattr(0)
        except termios.error:
            self._attributes = None

    def __enter__(self) -> TerminalGuard:
        """Install the signal handlers, over an ignored SIGHUP too, and watch for a hang-up."""
        for number in SIGNAL_CODES:
            self._handlers[number] = signal.signal(number, self._on_signal)
        for number in _DEADLY:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, self._die_of)
        threading.Thread(target=self._watch_hang_up, name="tpmon-hang-up", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the earlier handlers back; the screen has left the terminal."""
        self._left.set()
        self._set_line(self.release_line())
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def hand_to(self, leave: Callable[[int], None]) -> None:
        """Ask another screen to end from here on."""
        self._leave = leave

    def keep_keys(self) -> None:
        """Keep what is typed, without echo, for the screen that is being loaded; only ^C works."""
        if self._attributes is None or not in_foreground():
            return
        self._keeps_keys = True
        *flags, characters = self._attributes
        flags[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON)
        flags[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        kept = list(characters)
        # The key ^C becomes another signal, so that SIGINT only comes from outside.
        kept[termios.VQUIT], kept[termios.VINTR], kept[termios.VSUSP] = kept[termios.VINTR], b"\0", b"\0"
        self._set_line([*flags, kept])

    def release_line(self) -> list[Any] | None:
        """Return the line's first state, for the caller to restore; None where it was not changed."""
        kept, self._keeps_keys = self._keeps_keys, False
        return self._attributes if kept else None

    def restore(self) -> None:
        """Write the leaving sequences without blocking and restore the line discipline."""
        write_now(LEAVE_SCREEN, 0)
        self._set_line(self._attributes)

    @staticmethod
    def _set_line(attributes: list[Any] | None) -> None:
        if attributes is not None:
            with suppress(termios.error):  # hung up
                termios.tcsetattr(0, termios.TCSANOW, attributes)

    def leave_within(self, seconds: float, code: int) -> None:
        """End the process with ``code`` if it still runs after ``seconds``, whatever hangs."""

        def wait() -> None:
            time.sleep(seconds)
            self.end_now(code)

        threading.Thread(target=wait, name="tpmon-leave", daemon=True).start()

    def end_now(self, code: int, *, drawn: bool = True) -> None:
        """Stop the session, restore the terminal if it is ``drawn`` on, and end the process."""
        stopping = threading.Thread(target=self._stop, daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)
        if drawn and not self._left.is_set():
            self.restore()
        end(code)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        code = SIGNAL_CODES[signal.Signals(number)]
        poll = select.poll()
        poll.register(0, 0)  # POLLHUP and POLLERR are always reported
        if any(seen & select.POLLHUP for _, seen in poll.poll(0)):
            self.end_now(code)
        self.leave_within(LEAVE_SECONDS, code)
        self._leave(code)

    def _die_of(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGQUIT and self._keeps_keys:
            self.leave_within(LEAVE_SECONDS, ExitCode.OK)
            self._leave(ExitCode.OK)
            return
        write_now(LEAVE_SCREEN)
        self._set_line(self._attributes)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _watch_hang_up(self) -> None:
        """End the process on a hang-up without SIGHUP; a thread, for the loop may be stuck in a write."""
        poll = select.poll()
        poll.register(0, 0)  # POLLHUP and POLLERR are always reported
        while not self._left.is_set():
            for _, seen in poll.poll(_HANG_UP_POLL_MS):
                if seen & select.POLLNVAL:
                    return
                self.end_now(ExitCode.HANG_UP)


def in_foreground() -> bool:
    """Tell whether we may set the terminal: a background job of the shell must not."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # hung up
        return False


def write_now(data: bytes, most_ms: int = _WRITE_MS) -> bool:
    """Write to the terminal for at most ``most_ms``; return whether it took all.

    It opens the terminal anew, because the shell shares the flags of our description.
    """
    try:
        descriptor = os.open(os.ttyname(2), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # hung up, or of another namespace
        return False
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    end_s = time.monotonic() + most_ms / 1000
    try:
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                left_ms = (end_s - time.monotonic()) * 1000
                if left_ms <= 0 or not ready.poll(left_ms):
                    return False
    except OSError:  # hung up
        return False
    finally:
        os.close(descriptor)
    return True


def clear_screen() -> None:
    """Show an empty screen until the next one draws: between two of them nothing of the shell shows."""
    write_now(ENTER_SCREEN.encode())


@contextmanager
def lend_terminal() -> Iterator[None]:
    """Leave ^C and the like to another program on the terminal; our own handlers return afterwards.

    They are handled and not ignored: that program would inherit ignored signals.
    """
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def write_report(error: BaseException) -> str:
    """Write traceback and version to a new file of mode 0600 in XDG_STATE_HOME; return its path; or OSError.

    No locals, no environment, nothing of the target: the file may be attached to an issue.
    """
    folder = state_folder(os.environ)
    if not os.path.isabs(folder):
        raise OSError(errno.ENOENT, "no home folder is known")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, time.strftime(f"crash-%Y%m%d-%H%M%S-{os.getpid()}.txt"))
    text = f"tpmon {__version__}, Python {sys.version.split()[0]}\n" + "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def report_crash(error: BaseException) -> str:
    """Write the report, and a recording beside it; return two lines for stderr; never raise."""
    said = f"tpmon: bug: {type(error).__name__}: {clean_text(str(error))}"
    try:
        path = write_report(error)
    except OSError as failed:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return f"{trace}{said}\nTry: copy the lines above; no report file: {failed.strerror}."
    recording = write_watched(f"{path.removesuffix('.txt')}.tpmon")
    beside = ""
    if isinstance(recording, Missing):
        beside = f" (no whole recording beside it: {recording.reason})"
    elif is_known(recording):
        beside = f", and {recording} (tpmon replay shows it: the job as it was on the screen)"
    return f"{said}\nTry: attach {path} to an issue{beside}; --once --json may still work."


def tell_failure(error: Exception) -> ScreenResult:
    """Return how a screen ended that raised ``error``: as a signal asked it to, or by a bug."""
    left = find_behind(error, SystemExit)
    if left is not None and isinstance(left.code, int):
        return ScreenResult(left.code, "", "")
    return ScreenResult(ExitCode.BUG, "", report_crash(error))
