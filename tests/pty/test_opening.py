"""The picture before textual is loaded, on a real terminal: loading takes as long as a test says."""

import re
import shlex
import signal
import termios
import time
from pathlib import Path

import pytest

from tests.pty.conftest import PROGRAM

LOADING = b"\x1b[?1004h"
"""What textual alone writes, and writes first."""


def without_ages(text: str) -> list[list[str]]:
    """Return the words of each line, but for seconds, which grow, and blanks, which they move."""
    return [re.sub(r"[0-9.]+ s\b", "", line).split() for line in text.splitlines()]


def test_the_first_picture_comes_before_the_screen_is_loaded(open_terminal):
    terminal = open_terminal("--load-s", "4", "--every", "0.5")
    terminal.until("second 0")
    terminal.until("q quit")
    assert LOADING not in terminal.raw
    assert "5000" in terminal.text()
    terminal.until("second 2")
    assert LOADING not in terminal.raw, "readings are drawn while it loads"
    terminal.quit()


def test_both_pictures_are_the_same(open_terminal):
    terminal = open_terminal("--load-s", "2", "--frames", "1", "--judged")
    terminal.until("second 0")
    terminal.until("q quit")
    before = terminal.text()
    assert LOADING not in terminal.raw
    deadline = time.monotonic() + 30
    while LOADING not in terminal.raw:
        assert time.monotonic() < deadline
        terminal.read()
    terminal.read(0.1)
    while without_ages(terminal.text()) != without_ages(before) and time.monotonic() < deadline:
        terminal.read(0.1)
    assert without_ages(terminal.text()) == without_ages(before)
    terminal.quit()


def test_keys_are_kept_unseen_until_it_is_loaded(open_terminal):
    terminal = open_terminal("--load-s", "2")
    terminal.until("second 0")
    assert not termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    terminal.press("?")
    terminal.until("close")
    assert LOADING in terminal.raw
    terminal.press("q")
    terminal.quit()


def test_enter_is_enter_when_it_is_loaded(open_terminal):
    terminal = open_terminal("--load-s", "2")
    terminal.until("second 0")
    for key in "/rank\r":
        terminal.press(key)
    terminal.press("q")
    assert terminal.end() == 0, "the filter had been closed"
    terminal.assert_restored()


def test_behind_another_job_of_the_shell_the_terminal_is_left_alone(open_terminal):
    behind = f"{shlex.join(PROGRAM)} --load-s 20 & sleep 3; echo the other job; sleep 2; kill -9 %1"
    terminal = open_terminal(command=["bash", "--norc", "-mc", behind])
    terminal.until("the other job")
    assert b"\x1b[?1049h" not in terminal.raw
    now = termios.tcgetattr(terminal.child.child_fd)
    assert now == terminal.attributes


@pytest.mark.parametrize(
    ("way", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130), ("\x03", 0)]
)
@pytest.mark.parametrize("wrapped", [(), ("--wrap",)], ids=["as it is", "as another error"])
def test_a_signal_or_an_interrupt_key_while_it_loads_ends_it(open_terminal, state, way, code, wrapped):
    terminal = open_terminal("--load-s", "20", *wrapped)
    terminal.until("second 0")
    terminal.until((state / "loads").exists)
    terminal.leave(way, code)
    assert LOADING not in terminal.raw
    assert not (state / "tpmon").exists(), "that is no crash"


def test_a_hang_up_while_it_loads_leaves_no_process(open_terminal):
    terminal = open_terminal("--load-s", "20", "--block-hang-up")
    terminal.until("second 0")
    terminal.hang_up()


def test_a_suspend_key_waits_for_the_screen(open_terminal):
    terminal = open_terminal("--load-s", "2")
    terminal.until("second 0")
    terminal.press("\x1a")
    time.sleep(0.3)
    state = Path(f"/proc/{terminal.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state != "T"


def test_a_screen_that_cannot_be_loaded_is_reported(open_terminal, state):
    terminal = open_terminal("--no-textual")
    assert terminal.end() == 1
    terminal.assert_restored()
    assert b"ImportError: injected: no textual here" in terminal.raw
    assert len(list((state / "tpmon").iterdir())) == 1


def test_a_job_that_ends_before_it_is_read_is_no_crash(open_terminal, state):
    terminal = open_terminal("--no-target")
    assert terminal.end() == 3
    terminal.assert_restored(drawn=False)
    assert b"tpmon: the job ended" in terminal.raw
    assert not (state / "tpmon").exists()
