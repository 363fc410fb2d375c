"""Every way out leaves a usable terminal, the right exit status, and no process."""

import os
import re
import signal
import stat
import time

import pytest

from tests.pty.conftest import PROGRAM, open_shell

pytestmark = pytest.mark.pty


@pytest.mark.parametrize(
    ("way", "code", "arguments"),
    [
        ("q", 0, ()),
        ("\x03", 0, ()),
        (signal.SIGTERM, 143, ()),
        (signal.SIGHUP, 129, ()),
        (signal.SIGHUP, 129, ("--ignore-hang-up",)),
        (signal.SIGINT, 130, ()),
    ],
)
def test_keys_and_signals_restore_the_terminal(open_terminal, way, code, arguments):
    terminal = open_terminal(*arguments)
    terminal.until("second 0")
    terminal.leave(way, code)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGABRT])
def test_a_deadly_signal_ends_it_as_ever_and_restores_the_terminal(open_terminal, number):
    terminal = open_terminal()
    terminal.press("?")
    terminal.until("close")
    terminal.leave(number, 128 + number)


@pytest.mark.parametrize("arguments", [(), ("--ignore-hang-up",)])
def test_a_hang_up_leaves_no_process(open_terminal, arguments):
    terminal = open_terminal(*arguments)
    terminal.until("second 0")
    assert terminal.hang_up() == 129


def test_a_hang_up_is_noticed_without_any_signal(open_terminal):
    """SIGHUP blocked as well as ignored: only the state of the terminal tells."""
    terminal = open_terminal(command=["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *PROGRAM, "--block-hang-up"])
    terminal.until("second 0")
    assert terminal.hang_up() == 129


@pytest.mark.parametrize("how", [("q", 0), (signal.SIGTERM, 143)])
def test_a_stuck_session_does_not_keep_the_process(open_terminal, how):
    terminal = open_terminal("--frames", "2", "--every", "0.1", "--stuck")
    terminal.until("second 1")
    terminal.leave(*how, 3.0)


def test_a_stop_that_blocks_does_not_keep_the_process(open_terminal):
    terminal = open_terminal("--stop-blocks")
    terminal.until("second 0")
    terminal.leave("q", 0, 3.0)


def test_a_loop_that_is_stuck_gives_the_terminal_back_on_sigterm(open_terminal, state):
    terminal = open_terminal("--every", "0.1", "--block-at", "9")
    terminal.until((state / "blocked").exists)
    terminal.leave(signal.SIGTERM, 143, 3.0)


def test_a_terminal_that_takes_no_bytes_does_not_keep_the_process(open_terminal):
    terminal = open_terminal("--every", "0.02", "--processes", "60", columns=200, rows=50)
    terminal.until("second 0")
    # Nobody reads: the pty fills until the writer of the screen, which has fifty pictures a second, blocks.
    held = [terminal.unread()]
    while len(held) < 20 or held[-20] != held[-1]:
        time.sleep(0.02)
        held.append(terminal.unread())
    assert held[-1] > 4000
    terminal.press("q")
    deadline = time.monotonic() + 3
    while os.path.exists(f"/proc/{terminal.pid}/exe"):
        assert time.monotonic() < deadline, "q did not end it"
        time.sleep(0.02)


def test_a_crash_names_its_report(open_terminal, state):
    terminal = open_terminal("--crash-at", "3")
    assert terminal.end() == 1
    terminal.assert_restored()
    said = terminal.raw[terminal.raw.rfind(b"\x1b[?25h") :].decode()
    (report,) = (state / "tpmon").iterdir()
    assert "bug: RuntimeError: injected?[31m failure" in said
    assert str(report) in said
    assert "Traceback" not in said
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    assert text.startswith("tpmon 0.")
    assert "in paint" in text
    assert "PATH=" not in text


@pytest.mark.parametrize("option", ["--crash-input", "--crash-run", "--crash-leave"])
def test_a_crash_outside_the_loop_is_no_success(open_terminal, state, option):
    terminal = open_terminal(option)
    if option != "--crash-input":
        terminal.until("second 0")
        terminal.press("q")
    assert terminal.end() == 1
    terminal.assert_restored()
    assert b"bug: RuntimeError: injected failure" in terminal.raw
    assert len(list((state / "tpmon").iterdir())) == 1


def test_a_crash_without_a_place_for_the_report_says_the_traceback(open_terminal, state):
    (state / "tpmon").write_text("a file where the folder should be")
    terminal = open_terminal("--crash-at", "1")
    assert terminal.end() == 1
    terminal.assert_restored(drawn=False)
    assert b"no report file" in terminal.raw
    assert b"in paint" in terminal.raw


def test_the_last_copy_is_printed_on_exit(open_terminal):
    terminal = open_terminal()
    terminal.until("second 0")
    terminal.press("y")
    terminal.until("copied the facts")
    assert b"\x1b]52;c;" in terminal.raw
    terminal.quit()
    assert b"train.py on node-07" in terminal.raw[terminal.raw.rfind(b"\x1b[?1049l") :]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RUN </dev/null", "stdin is not a terminal"),
        ("RUN | cat; (exit ${PIPESTATUS[0]})", "stdout is not a terminal"),
        ("RUN 2>err; (left=$?; cat err; exit $left)", "stderr is not a terminal"),
        ("TERM=dumb RUN", "TERM=dumb cannot draw"),
        ("TERM= RUN", "TERM is not set"),
    ],
)
def test_where_no_screen_can_be_drawn_it_is_refused_with_what_can_be(open_terminal, state, line, said):
    shell = open_shell(open_terminal)
    shell.press(f"cd {state} && {line.replace('RUN', ' '.join(PROGRAM))}; echo code=$?\n")
    shell.until(lambda: re.search(rb"\ncode=\d", shell.raw) is not None)
    assert b"\x1b[?1049h" not in shell.raw, "it drew a screen"
    shown = " ".join(shell.text().split())
    assert f"tpmon: {said}" in shown
    assert "Try: use --once --json for one reading as JSON, or --plain for lines of text" in shown
    assert "code=5" in shown
