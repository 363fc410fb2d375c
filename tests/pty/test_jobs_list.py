"""The list of jobs on a real terminal: it opens, a job is watched and left again, and the end is clean."""

import shlex
import subprocess
import sys

import pytest

from tests.command_line import TPMON

pytestmark = pytest.mark.pty

PROGRAM = """
import mmap, signal, sys
with open(sys.argv[1] + "/libtorch_cpu.so", "wb") as file:
    file.write(bytes(4096))
with open(file.name, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
signal.alarm(300)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def jobs(tmp_path):
    started = []
    for name in ("qz_first", "qz_second"):
        script = tmp_path / f"{name}.py"
        script.write_text(PROGRAM)
        command = [sys.executable, str(script), str(tmp_path)]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert one.stdout.readline() == "ready\n"
        started.append(one)
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_a_name_that_two_jobs_go_by_opens_the_list_and_esc_comes_back_to_it(jobs, open_terminal):
    terminal = open_terminal(command=[*TPMON, "attach", "qz"])
    terminal.until(lambda: "filter: qz" in terminal.text() and "qz_second.py" in terminal.text())
    assert "qz_first.py" in terminal.text()
    terminal.press("/")
    terminal.press("_second\r")
    terminal.until(lambda: "qz_first.py" not in terminal.text())
    terminal.until(lambda: ">" in terminal.text())
    terminal.press("\r")
    terminal.until("esc back")
    assert "qz_second.py" in terminal.text()
    terminal.press("\x1b")
    terminal.until("filter: qz_second")
    jobs[1].kill()
    jobs[1].wait()
    terminal.until("ended")
    terminal.leave("q", 0)


def test_bare_tpmon_on_a_terminal_is_the_list_and_the_only_job_by_a_name_is_attached(jobs, open_terminal):
    terminal = open_terminal(command=[*TPMON])
    terminal.until("qz_first.py")
    terminal.leave("q", 0)
    terminal = open_terminal(command=[*TPMON, "attach", "qz_first"])
    terminal.until("qz_first.py")
    terminal.until("q quit")
    assert "esc back" not in terminal.text()
    terminal.leave("q", 0)


def test_without_a_terminal_two_jobs_are_named_and_none_is_chosen(jobs):
    done = subprocess.run([*TPMON, "attach", "qz"], capture_output=True, text=True, check=False)
    first, second = (one.pid for one in jobs)
    assert done.returncode == 2
    assert done.stderr == (
        f"tpmon: 2 training jobs go by qz: {first} (qz_first.py), {second} (qz_second.py)\n"
        "Try: one of these PIDs in its place, or more of the name\n"
    )
    table = subprocess.run([*TPMON], capture_output=True, text=True, check=True).stdout
    assert table.splitlines()[0].split()[0] == "PID"
    assert "qz_first.py" in table


def test_the_pid_of_a_wrapper_attaches_to_the_training_below_it_and_says_so(tmp_path, open_terminal):
    script = tmp_path / "qz_wrapped.py"
    script.write_text(PROGRAM)
    line = f"{shlex.quote(sys.executable)} {script} {tmp_path}; true"
    command = ["timeout", "300", "sh", "-c", line]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdout.readline() == "ready\n"
        terminal = open_terminal(command=[*TPMON, "attach", str(wrapper.pid)])
        terminal.until(f"{wrapper.pid} (timeout) started the job of")
        assert "(qz_wrapped.py)" in terminal.text()
        terminal.until("v verdict")
        terminal.until("(qz_wrapped.py)")  # on the screen, too
        terminal.leave("q", 0)
        wrapper.terminate()
        wrapper.communicate()
