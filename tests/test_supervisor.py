"""The shell waits for a small process that cannot be held by what the working one reads."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpmon.supervisor import LEAVE_SCREEN

ROOT = Path(__file__).parents[1]
BEGIN = "import os, signal, sys, time; from tpmon.supervisor import supervise, supervisors, work; supervise()\n"


def start(code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def read_state(pid: int) -> str:
    """Return the letter of a process's state; "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def start_and_hear(code: str, **options: object) -> tuple[subprocess.Popen[str], int]:
    """Return the command and the PID of the working process, once it has said it."""
    process = start(code, **options)
    return process, int(process.stdout.readline())


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        ("lambda: 0", 0, ""),
        ("lambda: 12", 12, ""),
        ("lambda: 5 if supervisors() == (os.getppid(),) else 1", 5, ""),
        ("lambda: sys.exit(3)", 3, ""),
        ("sys.exit", 0, ""),
        ("lambda: 1 / 0", 1, "ZeroDivisionError"),
        ("lambda: os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
        ("lambda: print('all of it') or 0", 0, ""),
    ],
)
def test_the_exit_code_is_that_of_the_work(run, code, said):
    process = start(f"sys.exit(work({run}))")
    output, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert said in errors
    assert output == ("all of it\n" if "all of it" in run else "")


COUNT = """
seen = []
def note(number, _frame):
    seen.append(number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, note)
print(os.getpid(), flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
work(lambda: len(seen) + 10)
"""


REST = "print(os.getpid(), flush=True); time.sleep(1.2); work(lambda: 5)"
EDIT = """
signal.signal(signal.SIGINT, lambda *_: None)
print(os.getpid(), flush=True)
import subprocess; work(lambda: subprocess.call(['sleep', '4']) or 9)
"""


@pytest.mark.parametrize(
    ("code", "number", "ignored", "end"),
    [
        *((COUNT, number, (), 11) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        pytest.param(REST, signal.SIGHUP, (signal.SIGHUP,), 5, id="one that was ignored stays ignored"),
        pytest.param(EDIT, signal.SIGINT, (), 9, id="^C of an editor on the terminal is not for the command"),
    ],
)
def test_a_signal_for_the_command_reaches_the_work_once(code, number, ignored, end):
    process, _ = start_and_hear(code, preexec_fn=lambda: [signal.signal(one, signal.SIG_IGN) for one in ignored])
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == end


def test_who_kills_the_command_ends_the_work_in_order(tmp_path):
    code = f"""
def leave(number, _frame):
    open({str(tmp_path / "ended")!r}, "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
print(os.getpid(), flush=True)
work(lambda: time.sleep(60))
"""
    process, child = start_and_hear(code)
    process.kill()
    process.communicate(timeout=30)
    assert wait_until(lambda: read_state(child) in ("", "Z"))
    assert (tmp_path / "ended").exists()


def test_work_that_cannot_end_is_left_with_its_pipes(tmp_path):
    """It ends, and sleeps on: as one that waits for a child of its own that the kernel keeps."""
    code = """
def begin(number, _frame):
    signal.signal(number, signal.SIG_IGN)
    time.sleep(60)
signal.signal(signal.SIGINT, begin)
print(os.getpid(), flush=True)
work(lambda: time.sleep(60))
"""
    process, child = start_and_hear(code)
    begun_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun_s < 9
    assert process.returncode == 130
    assert f"process {child}" in errors
    assert wait_until(lambda: read_state(child) in ("", "Z"))


def test_work_that_is_stopped_alone_stops_the_command_and_goes_on_with_it():
    process, child = start_and_hear("print(os.getpid(), flush=True); time.sleep(1); work(lambda: 6)")
    os.kill(child, signal.SIGSTOP)
    assert wait_until(lambda: read_state(process.pid) == "T")
    os.kill(process.pid, signal.SIGCONT)
    assert wait_until(lambda: read_state(child) != "T")
    process.communicate(timeout=30)
    assert process.returncode == 6


def test_a_stopped_pair_goes_on_where_only_the_command_is_told_to():
    """As when a connection drops after ctrl-z: the kernel wakes the leader of the session alone."""
    process, child = start_and_hear("print(os.getpid(), flush=True); time.sleep(60)")
    os.killpg(process.pid, signal.SIGSTOP)
    assert wait_until(lambda: read_state(process.pid) == read_state(child) == "T")
    os.kill(process.pid, signal.SIGCONT)
    assert wait_until(lambda: read_state(process.pid) == read_state(child) == "S")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


SLOW_FORK = """
import os, time
fork = os.fork
def late():
    pid = fork()
    time.sleep(0.5 if pid else 0)
    return pid
os.fork = late
"""
"""The work has set the terminal before the supervisor goes on, as on a busy machine."""


def test_the_terminal_of_work_that_was_killed_is_given_back():
    ours, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    killed = "import tty; tty.setraw(0); os.kill(os.getpid(), signal.SIGKILL)"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_FORK + BEGIN + killed],
        cwd=ROOT,
        stdin=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # no thread runs here
    )
    assert process.wait(timeout=30) == 137
    assert termios.tcgetattr(terminal) == before
    assert os.read(ours, 4096) == LEAVE_SCREEN
    os.close(ours)
    os.close(terminal)
