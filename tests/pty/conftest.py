"""A terminal for tests: a pty of any size, its picture by pyte, its bytes, its line discipline."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.command_line import TPMON

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""Longest wait for anything: generous, because the machine may be busy; nothing waits it out."""
END_S = 15.0
"""How long a program may take to end."""

CACHE = ROOT / ".venv" / "pyz-cache"
"""Where the one file of make test-pyz is laid out, for all tests."""
SCREEN = """\
#!{python}
import sys, runpy
sys.path[:] = [{layout!r}, {root!r}, *sys.path[1:]]
runpy.run_module("tests.pty.screen_program", run_name="__main__", alter_sys=True)
"""


def choose_program() -> list[str]:
    """Return how the scripted screen is started; with TPMON_CALL by the Python and the modules of the one file."""
    if os.environ.get("TPMON_CALL") is None:
        return [sys.executable, "-m", "tests.pty.screen_program"]
    environment = {"XDG_CACHE_HOME": str(CACHE), "PATH": os.environ["PATH"]}
    subprocess.run([*TPMON, "--version"], env=environment, check=True, stdout=subprocess.DEVNULL)
    layout = max((CACHE / "tpmon").iterdir(), key=lambda one: one.stat().st_mtime)
    program = CACHE / "screen"
    program.write_text(SCREEN.format(python=TPMON[0], layout=str(layout), root=str(ROOT)))
    program.chmod(0o755)
    return [str(program)]


PROGRAM = choose_program()


def environment(state: Path, **changes: str) -> dict[str, str]:
    """Return a small environment: a UTF-8 terminal outside tmux, reports under ``state``."""
    plain = {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(state),
        "PYTHONPATH": str(ROOT),
    }
    if PROGRAM[0] != sys.executable:
        plain["XDG_CACHE_HOME"] = str(CACHE)
    return plain | changes


class Terminal:
    """Run one command in a pty of its own and look at it as a person does."""

    def __init__(self, command: list[str], env: dict[str, str], columns: int = 120, rows: int = 40) -> None:
        self.screen = pyte.Screen(columns or 80, rows or 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._hung_up = False
        self.child = pexpect.spawn(
            command[0], command[1:], env=env, dimensions=(rows, columns), timeout=SECONDS, cwd=str(ROOT)
        )
        self.child.delaybeforesend = None
        self.attributes = termios.tcgetattr(self.child.child_fd)

    @property
    def pid(self) -> int:
        return self.child.pid

    def read(self, seconds: float = 0.1) -> bool:
        """Take what has come for up to ``seconds``; False once the other end is closed."""
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def unread(self) -> int:
        answer = fcntl.ioctl(self.child.child_fd, termios.FIONREAD, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, seen: str | Callable[[], bool]) -> None:
        check = seen if callable(seen) else lambda: seen in self.text()
        deadline = time.monotonic() + SECONDS
        while not check():
            open_still = self.read()
            if time.monotonic() > deadline or not (open_still or check()):
                raise AssertionError(f"not seen: {seen!r}\n{self.text()}\n{self.raw[-400:]!r}")

    def press(self, keys: str | bytes) -> None:
        self.child.send(keys)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def end(self, seconds: float = END_S) -> int:
        """Wait for the end of the process and return its exit status, 128 + N after a signal."""
        deadline = time.monotonic() + seconds
        while self.child.isalive():
            self.read(0.05)
            if time.monotonic() > deadline:
                raise AssertionError(f"still there after {seconds} s\n{self.text()}")
        while self.read(0.05):
            pass
        if self.child.signalstatus is not None:
            return 128 + self.child.signalstatus
        return self.child.exitstatus

    def leave(self, way: str | int, code: int, seconds: float = END_S) -> None:
        """Leave by a key or a signal, and check how it ends and that the shell gets back what it lent."""
        self.press(way) if isinstance(way, str) else self.signal(way)
        assert self.end(seconds) == code
        self.assert_restored()

    def quit(self) -> None:
        self.leave("q", 0)

    def assert_restored(self, *, drawn: bool = True) -> None:
        """Check that the shell gets back what it lent: attributes, and where it was ``drawn`` on, screen and cursor."""
        now = termios.tcgetattr(self.child.child_fd)
        assert now == self.attributes
        assert (b"\x1b[?1049h" in self.raw) == drawn
        if not drawn:
            return
        assert self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h")
        assert self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        assert self.raw.rfind(b"\x1b[?2004l") > self.raw.rfind(b"\x1b[?2004h")
        assert b"\x1b[?1000h" not in self.raw

    def hang_up(self) -> int:
        """Close the terminal under the process and return its exit status."""
        self.child.ptyproc.fileobj.close()
        self._hung_up = True
        deadline = time.monotonic() + SECONDS
        while self.child.isalive():
            assert time.monotonic() < deadline, "an orphan is left"
            time.sleep(0.02)
        return self.child.exitstatus

    def close(self) -> None:
        if self.child.isalive():
            os.kill(self.pid, signal.SIGKILL)
        if not self._hung_up:
            self.child.close(force=True)


def open_shell(open_terminal, **changes):
    shell = open_terminal(command=["/bin/bash", "--norc", "--noprofile", "-i"], PS1="$ ", **changes)
    shell.until("$")
    return shell


@pytest.fixture
def state(tmp_path):
    return tmp_path


@pytest.fixture
def open_terminal(state):
    """Open terminals that are closed after the test, whatever came of it."""
    opened: list[Terminal] = []

    def open_one(*arguments, command=None, columns=120, rows=40, **changes):
        run = command if command is not None else [*PROGRAM, *arguments]
        opened.append(Terminal(run, environment(state, **changes), columns, rows))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


@pytest.fixture
def tmux(tmp_path):
    """Start a tmux server of our own; skip where there is none."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux on this machine")
    command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    yield command
    os.spawnvp(os.P_WAIT, "tmux", [*command, "kill-server"])
