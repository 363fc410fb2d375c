"""The screen lives through suspends, resizes, odd input and slow terminals, and writes little."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.pty.conftest import PROGRAM, ROOT, SECONDS, environment, open_shell

pytestmark = pytest.mark.pty


def lent(shell) -> bytes:
    """Ask bash which terminal settings a program gets; its own prompt has others."""
    before = len(shell.raw)
    shell.press("stty -g\n")
    shell.until(lambda: re.search(rb"[\r\n]([0-9a-f]+(?::[0-9a-f]+){20,})", shell.raw[before:]) is not None)
    return re.search(rb"[\r\n]([0-9a-f]+(?::[0-9a-f]+){20,})", shell.raw[before:])[1]


@pytest.fixture
def suspended(open_terminal):
    """Return a shell in which the screen was suspended, and the settings that programs got before."""
    shell = open_shell(open_terminal)
    settings = lent(shell)
    shell.press(" ".join(PROGRAM) + "\n")
    shell.until("second 0")
    shell.press("\x1a")
    shell.until(lambda: "Stopped" in shell.text() and shell.raw.endswith(b"$ "))
    return shell, settings


def test_ctrl_z_and_fg_repaint(suspended):
    shell, settings = suspended
    assert shell.raw.rfind(b"\x1b[?1049l") > shell.raw.rfind(b"\x1b[?1049h")
    assert shell.raw.rfind(b"\x1b[?25h") > shell.raw.rfind(b"\x1b[?25l")
    assert lent(shell) == settings
    before = len(shell.raw)
    shell.press("fg\n")
    shell.until(lambda: b"\x1b[?1049h" in shell.raw[before:])
    shell.screen.reset()  # what the terminal shows from now on, tpmon must have sent again
    shell.until(lambda: all(text in shell.text() for text in ("train.py", "second", "quit")))
    shell.press("q")
    shell.until(lambda: b"\x1b[?1049l" in shell.raw[before:] and shell.raw.endswith(b"$ "))
    shell.press("echo code=$?\n")
    shell.until(lambda: "code=0" in shell.text() and shell.raw.endswith(b"$ "))
    assert lent(shell) == settings


def test_nothing_of_a_picture_is_written_after_the_screen_was_left(open_terminal):
    """Suspended in the middle of its output and of a resize, it has left before a byte of a picture follows."""
    shell = open_shell(open_terminal)
    shell.press(" ".join((*PROGRAM, "--every", "0.02", "--judged", "--gpus", "8")) + "\n")
    for columns, rows in ((200, 50), (30, 20), (200, 50)):
        shell.until("DATA-BOUND")  # the verdict is in a picture of any size
        shell.resize(columns, rows)
        before = len(shell.raw)
        shell.press("jj\x1a")
        shell.until(lambda before=before: b"Stopped" in shell.raw[before:] and shell.raw.endswith(b"$ "))
        left = shell.raw.rpartition(b"\x1b[?1049l")[2].partition(b"[1]+")[0]
        assert left.strip() == b"\x1b[?25h\x1b[?1004l"
        shell.screen.reset()
        shell.press("fg\n")


def test_a_suspended_screen_ends_on_sigterm(suspended):
    shell, settings = suspended
    shell.press("kill %1; while kill -0 %1 2>/dev/null; do sleep 0.05; done\n")
    shell.until(lambda: "Exit 143" in shell.text() and shell.raw.endswith(b"$ "))
    assert lent(shell) == settings


def test_a_bare_stop_and_continue_keeps_the_first_attributes(open_terminal):
    terminal = open_terminal("--every", "0.2")
    terminal.until("second 1")
    terminal.signal(signal.SIGSTOP)
    os.waitpid(terminal.pid, os.WUNTRACED)
    terminal.signal(signal.SIGCONT)
    terminal.until("second 4")
    terminal.quit()


@pytest.mark.parametrize("exported", [{}, {"COLUMNS": "120", "LINES": "40"}], ids=["plain", "exported"])
def test_resize_to_20x5_and_back(open_terminal, exported):
    terminal = open_terminal(columns=120, rows=40, **exported)
    terminal.until("3 workers")
    terminal.resize(20, 5)
    fits = lambda: "4211" in terminal.screen.display[0] and "workers" not in terminal.text()  # noqa: E731
    terminal.until(fits)
    before = len(terminal.raw)
    terminal.until(lambda: len(terminal.raw) > before and fits())  # a second later it still fits
    terminal.resize(120, 40)
    terminal.until(lambda: "3 workers" in terminal.text() and "quit" in terminal.screen.display[39])
    for _ in range(3):
        terminal.resize(20, 5)
        terminal.resize(120, 40)  # the two signals may be handled in either order
    terminal.until(lambda: "3 workers" in terminal.text() and "quit" in terminal.screen.display[39])
    terminal.quit()


@pytest.mark.parametrize(
    "report",
    [
        b"\x1b[M \xa0!" * 3,  # X10 encoding, column 128
        b"\x1b[M \xff\xff",
        b"\x1b[48;40;120;0;0t\x1b[<0;10;10M",  # resize of 0x0 pixels, then a click
        b"\x1b[<35;200;10M\x1b[<64;10;10M",
        b"\xff\xfe\xfd",
        b"\x1b[O",  # focus lost: a side pane is watched all the same
        b"\x1b[200~" + b"q" * 5000 + b"\x1b[201~",  # a paste is not a key
    ],
    ids=["x10", "x10-end", "no-pixels", "sgr", "garbage", "blur", "paste"],
)
def test_odd_input_does_not_end_it(open_terminal, report):
    terminal = open_terminal("--every", "0.2")
    terminal.until("second 0")
    terminal.press(report)
    terminal.until("second 5")
    terminal.press("p")
    terminal.until("PAUSED")
    terminal.quit()


def test_a_bare_escape_closes_an_overlay(open_terminal):
    terminal = open_terminal()
    terminal.until("second 0")
    terminal.press("\x1bOP")  # F1
    terminal.until("others close it")
    terminal.press("\x1b")
    terminal.until(lambda: "others close it" not in terminal.text())
    terminal.quit()


def test_a_slow_terminal_gets_fewer_pictures_and_the_last_one(open_terminal):
    terminal = open_terminal("--every", "0.02", "--frames", "75", "--processes", "60", columns=200, rows=50)
    terminal.until("second 0")
    time.sleep(2)  # all 75 Frames come while nobody reads
    terminal.until("second 74")
    terminal.quit()


def test_ascii_without_colour_writes_no_other_glyph_and_no_colour(open_terminal):
    terminal = open_terminal("--ascii", "--gpus", "2", "--judged", NO_COLOR="1", COLORTERM="truecolor")
    terminal.until("! DATA-BOUND")
    terminal.press("j")
    terminal.until("> ")
    terminal.quit()
    assert styles(terminal.raw) == {0, 1, 7}, "reset, bold, reverse"
    assert terminal.raw.isascii()


def test_colours_are_those_of_the_terminal(open_terminal):
    terminal = open_terminal("--gpus", "2", "--judged", COLORTERM="truecolor")
    terminal.until("! DATA-BOUND")
    terminal.quit()
    assert styles(terminal.raw) - {0, 1, 2, 7}
    assert styles(terminal.raw) <= {0, 1, 2, 7, *range(30, 38), *range(40, 48)}
    for one in list_styles(terminal.raw):
        has_back, has_front = bool(one & {*range(40, 48)}), bool(one & {*range(30, 38)})
        assert has_front or not has_back, "text on a colour has a colour of its own, in any theme"


def list_styles(raw: bytes) -> list[set[int]]:
    found = re.findall(rb"\x1b\[([0-9;]*)m", raw)
    return [{int(number or 0) for number in parameters.split(b";")} for parameters in found]


def styles(raw: bytes) -> set[int]:
    return set().union(*list_styles(raw))


def test_a_terminal_without_a_size_gets_the_usual_one(open_terminal):
    terminal = open_terminal(columns=0, rows=0)
    terminal.until(lambda: b"second 1" in terminal.raw)
    terminal.quit()


def test_bytes_of_the_first_pictures_of_a_full_screen(open_terminal):
    terminal = open_terminal("--processes", "137", "--gpus", "8", "--every", "0.5", columns=200, rows=50)
    terminal.until("second 1")
    opening, _, loaded = terminal.raw.partition(b"\x1b[?1004h")  # which textual writes first
    assert len(opening) <= 3 * 16_384, "a picture, and what moves while textual loads"
    assert len(loaded) <= 3 * 16_384, "a full picture may be torn where there is no synchronised output"
    assert len(opening) + len(loaded) <= 4 * 16_384
    print(f"{len(opening)} bytes before textual is loaded, {len(loaded)} after")
    terminal.quit()


def test_a_40_column_pane_of_tmux(tmux, state):
    def run(*arguments):
        return subprocess.run(
            [*tmux, *arguments], env=environment(state), cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    def until(seen):
        deadline = time.monotonic() + SECONDS
        while True:
            text = run("capture-pane", "-p", "-t", "tpmon")
            if seen(text):
                return text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)

    program = f"exec {sys.executable} -m tests.pty.screen_program --judged"
    run(*["new-session", "-d", "-s", "tpmon", "-x", "40", "-y", "50"], program)
    text = until(lambda text: "! DATA-BOUND" in text)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "train.py" in text or "4211" in text
    words = " ".join(text.split())
    assert "### cpu-transform since 03:02 (" in words
    assert "DO (y copies) raise num_workers from 4 to 8: num_workers=8," in words
    run("send-keys", "-t", "tpmon", "?")
    until(lambda text: "freeze the picture" in text)
    run("send-keys", "-t", "tpmon", "Escape")
    until(lambda text: "freeze the picture" not in text)  # Escape and y at once would be alt-y
    run("send-keys", "-t", "tpmon", "y")
    until(lambda text: "tmux" in text or "copied" in text)
    copied = run("show-buffer")
    assert copied.startswith("raise num_workers from 4 to 8: num_workers=8,  # argument")
    run("send-keys", "-t", "tpmon", "q")
    deadline = time.monotonic() + SECONDS
    while subprocess.run([*tmux, "has-session", "-t", "tpmon"], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count_bells(raw: bytes) -> int:
    """Count BEL as a terminal hears it: one that ends a string of the terminal (a title) rings nothing."""
    return re.sub(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)", b"", raw).count(b"\x07")


@pytest.mark.parametrize(("flag", "bells"), [(("--bell",), 1), ((), 0)], ids=["asked for", "not asked for"])
def test_a_verdict_that_turns_bad_rings_once_and_only_where_it_is_asked_for(open_terminal, flag, bells):
    terminal = open_terminal("--every", "0.1", "--bad-at", "8", *flag)
    terminal.until("COMPUTE-BOUND")
    assert count_bells(terminal.raw) == 0
    terminal.until("! DATA-BOUND")
    terminal.until("second 25")  # it stays bad for many readings
    terminal.quit()
    assert count_bells(terminal.raw) == bells
    terminal.assert_restored()
