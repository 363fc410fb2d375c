"""Two processes for one command: the one that works, and a small one that the shell waits for.

A thread that waits for a mount that does not answer cannot be interrupted, and the kernel keeps its process,
killed or not, until the answer comes (state D, request_wait_answer of fs/fuse/dev.c). Any file of a job and
any file that a user names may lie there. So nothing of the process that works is waited for: it says its exit
code and lets go of pipes and terminal, or a signal finds it stuck. It then ends when the mount answers.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # to import typing takes as long as all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

ENDINGS = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
STILL_S = 0.6
"""How long the working process may stand in one uninterruptible wait after it was asked to end."""
SLEEP_S = 2.5
"""How long it may sleep in one wait while it ends: for a child of its own that cannot be killed."""
_LOOK_S = 0.15
_LOOK_SELDOM_S = 5.0
"""One that was killed from outside, and is kept, says nothing."""
_ASKED_S = 10.0
"""How long a signal is taken for a wish to end: an editor on the screen's terminal is sent ^C, too."""
_REAP_S = 0.2
_STOPPED_S = 0.05
_ORDERLY_S = 1.0
_LEFT = (
    "tpmon: ended without process {}, which waits for a file or device that does not answer, and goes when"
    " it does\n"
)
_AWAITED = ("pipe:", "socket:", "/dev/")


class _Link:
    """Hold what the working process knows of the other one."""

    writer = -1
    supervisor = 0


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
    endings = {number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN}  # nohup
    watched = endings | {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG}
    hold_descriptors()
    reader, writer = os.pipe()
    lives, holds = os.pipe()
    own = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child > 0:
        os.close(writer)
        os.close(lives)
        _Supervisor(child, reader, holds, endings).wait(watched)
    os.close(reader)
    os.close(holds)
    if child == 0:
        _Link.writer, _Link.supervisor = writer, own
        if signal.SIGINT in endings:
            signal.signal(signal.SIGINT, lambda number, _: end(128 + number))
        _thread.start_new_thread(_outlive, (lives,))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(run: Callable[[], int]) -> int:
    """Run a command to its end in the working process, whatever is raised; return where there is no other."""
    if _Link.writer >= 0:
        code: object = 1
        try:
            code = run()
        except SystemExit as left:  # what argparse and the screen do
            code = left.code or 0
        except BaseException:  # noqa: BLE001  # as the interpreter would tell it
            sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads
                stream.flush()
        end(code if isinstance(code, int) else 1)
    return run()


def end(code: int) -> NoReturn:
    """End this process with an exit code, also where the kernel keeps one of its threads."""
    try:
        if _Link.writer >= 0:
            _say_end(code)
    finally:
        os._exit(code)


def _say_end(code: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in filter(_is_awaited, range(3)):
        os.dup2(nowhere, descriptor)
    os.write(_Link.writer, bytes((code & 0xFF,)))
    if os.getppid() == _Link.supervisor:
        os.kill(_Link.supervisor, signal.SIGURG)
    # Only now: threads that still use them fail, and may end this process in their own way.
    for descriptor in filter(_is_awaited, map(int, os.listdir("/proc/self/fd"))):
        os.close(descriptor)


def _is_awaited(descriptor: int) -> bool:
    """Tell whether a shell, a reader or a child of ours may wait until a descriptor is closed.

    To close another file could block for the same mount.
    """
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(_AWAITED)
    except OSError:
        return False  # closed meanwhile


def stop() -> None:
    """Stop both processes, as ctrl-z does: one that has a thread in the kernel never counts as stopped."""
    if _Link.supervisor:
        os.kill(_Link.supervisor, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


def _outlive(lives: int) -> None:
    """End this process when the other one was killed, in order; or gave it up, at once."""
    if not os.read(lives, 1):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY_S)
    end(128 + signal.SIGTERM)


class _Supervisor:
    """Wait for the end of one process; hand signals on, and leave it when it is stuck."""

    def __init__(self, child: int, reader: int, holds: int, endings: set[signal.Signals]) -> None:
        self._child = child
        self._reader = reader
        self._holds = holds
        self._endings = endings
        self._asked_s = 0.0
        self._seen = ("", "")
        self._since_s = 0.0
        os.set_blocking(reader, False)

    def wait(self, watched: set[signal.Signals]) -> NoReturn:
        """Wait for the end, and end this process with the same exit code."""
        number = 0
        while True:
            took = signal.sigtimedwait(watched, _LOOK_S if self._asked_s else _LOOK_SELDOM_S)
            self._end_with_it()
            if took is not None and took.si_signo in self._endings:
                number = took.si_signo
                self._pass_on(number, by_kernel=took.si_code > 0)
            elif took is not None and took.si_signo == signal.SIGCONT:
                self._send(signal.SIGCONT)
            elif took is not None and took.si_signo == signal.SIGCHLD:
                self._stop_with_it()
            elif took is None and _read_status(self._child).get("State", "").startswith("Z"):
                self._end_with_it()
                self._leave(signal.SIGKILL)
            if self._asked_s and self._is_stuck(number):
                self._leave(number)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has just been reaped
            os.kill(self._child, number)

    def _pass_on(self, number: int, *, by_kernel: bool) -> None:
        # A terminal sends ^C to both already, and a hang-up to the leader of the session alone.
        if not by_kernel or number == signal.SIGHUP:
            self._send(number)
        self._asked_s = self._since_s = time.monotonic()
        self._seen = ("", "")

    def _end_with_it(self) -> None:
        code = self._read_end()
        if code is not None:
            os._exit(code)

    def _read_end(self) -> int | None:
        """Return the exit code once it is known; None while the work goes on."""
        try:
            said = os.read(self._reader, 1)
        except BlockingIOError:
            said = b""
        code = self._reap()
        end_s = time.monotonic() + _REAP_S
        while said and code is None and time.monotonic() < end_s:
            signal.sigtimedwait({signal.SIGCHLD}, _REAP_S)
            code = self._reap()
        return said[0] if said else code

    def _reap(self) -> int | None:
        pid, status = os.waitpid(self._child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else None
        return 128 - code if code is not None and code < 0 else code

    def _stop_with_it(self) -> None:
        """Stop where the working process alone was stopped, which tells the shell, and go on with it."""
        for wait_s in (_STOPPED_S, 0.0):  # one that fg wakes at this moment is none
            state = os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if state is None:
                return
            time.sleep(wait_s)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _is_stuck(self, number: int) -> bool:
        """Tell whether the work stands in one wait since it was asked to end; of its main thread."""
        now_s = time.monotonic()
        if now_s - self._asked_s > _ASKED_S:
            self._asked_s = 0.0
            return False
        status = _read_status(self._child)
        seen = (status.get("State", "")[:1], status.get("voluntary_ctxt_switches", ""))
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
            return False
        ends = int(status.get("SigIgn", "0"), 16) >> (number - 1) & 1  # a command that ends ignores the next
        patience_s = STILL_S if seen[0] == "D" else SLEEP_S if ends else _ASKED_S
        return now_s - self._since_s >= patience_s

    def _leave(self, number: int) -> NoReturn:
        """End without the working process; it lets go of pipes and terminal as far as it can."""
        os.write(self._holds, b".")
        end_s = time.monotonic() + _REAP_S
        while self._read_end() is None and time.monotonic() < end_s:
            signal.sigtimedwait({signal.SIGURG, signal.SIGCHLD}, _LOOK_S)
        self._send(signal.SIGKILL)
        with suppress(OSError):  # closed, or nobody reads
            os.write(2, _LEFT.format(self._child).encode())
        os._exit(128 + number)


def _read_status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}
