"""Real programs that hang, beside each other, one that is slow and one that is held: who hangs, where and why is said.

They hang beside the tests of the screen and the units: most of it is waiting. Ten runs of each, fresh
and five minutes old: ``make hangs``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command_line import call
from tests.freezing import freezing
from tests.hangs.beside import NAMES, Beside
from tests.hangs.programs import start_trees
from tests.programs.causes.running import HERE, Running, start_program
from tests.programs.hangs.table import ROWS
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.probe.base.procread import read_stat, read_table
from tpmon.probe.job.job import find_descendants

pytestmark = [pytest.mark.torch, needs_torch]


@pytest.mark.parametrize("name", NAMES)
def test_who_hangs_and_why_is_said_and_nothing_else_is_called_hung(
    name: str, hung_programs: Beside, sampling_works: None
) -> None:
    result = hung_programs.wait_for(name)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.misses == (), (result.said, result.summary)


LIFE_S = 300.0
WAIT_S = 110
"""Longest wait for the verdict, which takes half a minute on a machine with nothing else to do."""
TELL = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
HUNG = 12


@pytest.mark.long
def test_a_watch_for_a_hang_ends_with_its_code_and_tells_a_command(tmp_path: Path, sampling_works: None) -> None:
    told = tmp_path / "told.jsonl"
    row = next(one for one in ROWS if one.name == "lock_held")
    command = f'{sys.executable} -c "{TELL}" {told}'
    with start_trees(row, 3, LIFE_S) as trees:
        trees.wait_until_ready()
        pid = trees.seen.pid
        watch = ("--until", "hung", "--for", f"{WAIT_S}s", "--on-change", command, "--json")
        done = call("diagnose", str(pid), *watch, code=HUNG)
        pids = {one.pid for one in trees.read_culprits()}
        alive = trees.seen.process.poll() is None
    verdicts = [json.loads(line) for line in told.read_text().splitlines()]
    assert (verdicts[-1]["kind"], verdicts[-1]["cause"]) == ("hung", "lock")
    assert verdicts[-1]["pid"] in pids
    assert [one["kind"] for one in verdicts].count("hung") == 1, "one verdict is told once"
    printed = json.loads(done.stdout)
    assert (printed["kind"], printed["cause"]) == ("hung", "lock")
    assert alive, "to watch a hang ends nothing of it"


LOOK_S = 40
"""Longest time for a verdict that takes seconds."""
TRACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, int(sys.argv[1]), 0, 0):  # PTRACE_ATTACH
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(int(sys.argv[1]), 0x40000000)  # __WALL
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def training() -> Iterator[Running]:
    """Train with loader workers for as long as the tests take."""
    with start_program((sys.executable, str(HERE / "light_workers.py")), 3, seconds=900.0) as running:
        running.wait_until_ready()
        yield running


def diagnose(pid: int) -> dict[str, object]:
    """Ask for the verdict until the training is said to hang."""
    return json.loads(call("diagnose", str(pid), "--until", "hung", "--for", f"{LOOK_S}s", "--json", code=HUNG).stdout)


def goes_on(training: Running) -> bool:
    before = training.read_truth().steps
    return wait_until(lambda: training.read_truth().steps > before, 60.0)


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_frozen_training_is_hung_by_its_group_and_told_how_it_is_thawed(training: Running, version: int) -> None:
    members = find_descendants(training.pid, read_table())
    with freezing(members, version) as group:
        said = diagnose(training.pid)
        dumped = call("dump", str(training.pid), "--json")
    knob = "freezer.state" if version == 1 else "cgroup.freeze"
    assert (said["kind"], said["cause"]) == ("hung", "stopped")
    assert said["summary"] == f"rank 0 is frozen by control group /{group.name}"
    assert f"{group}/{knob}" in str(said["try"])
    assert "CONT" not in str(said["try"])
    dump = json.loads(dumped.stdout)
    assert f"frozen by control group /{group.name}" in dump["summary"]
    threads = [thread for one in dump["groups"] for thread in one["threads"]]
    assert {thread["frozen"]["directory"] for thread in threads} == {str(group)}
    assert goes_on(training), "to look at what is frozen ends nothing of it"


@contextmanager
def traced_by(command: list[str], pid: int) -> Iterator[int]:
    """Have a program hold a process by ptrace; it is let go at the end."""
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if not wait_until(lambda: read_stat(pid).state == "t" or holder.poll() is not None, 60.0):
            pytest.fail("the tracer did not stop the process")
        if holder.poll() is not None:
            pytest.skip(f"ptrace is not permitted: {holder.stdout.read().decode()[-300:]}")
        yield holder.pid
    finally:
        holder.stdin.close()  # gdb ends with its input, and lets go
        holder.wait(60)
        holder.stdout.close()


def check_held(training: Running, holder: int, name: str, command: str) -> None:
    said = diagnose(training.pid)
    assert (said["kind"], said["cause"]) == ("hung", "stopped")
    assert said["summary"] == f"rank 0 is held by a debugger, {name} ({holder})"
    assert command in said["evidence"][0]["text"]
    assert f"-p {holder}" in str(said["try"])
    assert "CONT" not in str(said["try"])


def test_a_training_that_gdb_holds_names_gdb_its_pid_and_its_command(training: Running) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("no gdb here")
    command = [gdb, "-q", "-nx", "-iex", "set auto-solib-add off", "-p", str(training.pid)]
    with traced_by(command, training.pid) as holder:
        check_held(training, holder, "gdb", f"-p {training.pid}")
    assert goes_on(training)


@pytest.mark.long
def test_a_training_that_any_program_holds_names_it(training: Running) -> None:
    with traced_by([sys.executable, "-c", TRACE, str(training.pid)], training.pid) as holder:
        name = Path(f"/proc/{holder}/comm").read_text().strip()
        check_held(training, holder, name, os.path.basename(sys.executable))
    assert goes_on(training)
