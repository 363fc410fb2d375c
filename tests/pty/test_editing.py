"""The editor gets the terminal as the shell gave it, and the screen comes back whole."""

import os
import signal
import stat
import sys

import pyte
import pytest

pytestmark = pytest.mark.pty

EDITOR = f"""#!{sys.executable}
import signal, sys, termios
lines = termios.tcgetattr(0)[3]
cooked = bool(lines & termios.ICANON and lines & termios.ECHO)
default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
try:
    print("EDITOR", sys.argv[1], sys.argv[2].rsplit("/")[-1], "cooked" if cooked else "raw", default, flush=True)
    answer = input()
except KeyboardInterrupt:
    answer = "interrupted"
print("LEFT", answer, flush=True)
sys.exit(answer == "fail")
"""


@pytest.fixture
def editor(tmp_path):
    path = tmp_path / "my-editor"
    path.write_text(EDITOR)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    source = tmp_path / "checkpoint.py"
    source.write_text("one\ntwo\nthree\n")
    return {"EDITOR": str(path)}, str(source)


def picture_of(raw: bytes) -> str:
    """Return what a terminal shows that got nothing but these bytes."""
    screen = pyte.Screen(120, 40)
    pyte.ByteStream(screen).feed(raw)
    return "\n".join(screen.display)


def open_editor(open_terminal, editor, *more):
    environ, source = editor
    terminal = open_terminal("--source", source, *more, **environ)
    terminal.until("second 0")
    terminal.press("d")
    terminal.until("7 of 8 ranks wait")
    terminal.press("o")
    terminal.until("EDITOR +3 checkpoint.py cooked True")
    assert terminal.raw.rfind(b"\x1b[?1049l") > terminal.raw.rfind(b"\x1b[?1049h"), "not on our screen"
    return terminal


@pytest.mark.parametrize(("answer", "said"), [("done\n", "was at"), ("fail\n", "ended with 1")])
def test_the_editor_has_the_terminal_and_gives_it_back(open_terminal, editor, answer, said):
    terminal = open_editor(open_terminal, editor)
    before = len(terminal.raw)
    terminal.press(answer)
    wanted = ("7 of 8 ranks", "6 stacks", "q quit", said)
    terminal.until(lambda: all(text in picture_of(terminal.raw[before:]) for text in wanted))
    terminal.quit()


def test_an_interrupt_belongs_to_the_editor(open_terminal, editor):
    terminal = open_editor(open_terminal, editor)
    terminal.press("\x03")
    terminal.until(lambda: b"LEFT interrupted" in terminal.raw)
    terminal.until("6 stacks")
    terminal.quit()


def test_a_terminate_ends_tpmon_while_the_editor_is_open(open_terminal, editor):
    terminal = open_editor(open_terminal, editor)
    os.kill(terminal.pid, signal.SIGTERM)
    terminal.press("done\n")
    assert terminal.end() == 143
