"""nsys in front of a run: the line that tpmon run --nsys writes, and what is told from a line that stands there."""

import json
import os
import subprocess
import sys

import pytest

from tests.commands.test_run import PROGRAM, environment, tpmon
from tests.hook.test_hook_install import torch_like
from tpmon.capture.nsys import judge_nsys, traces_cuda, write_nsys_command
from tpmon.commands import run
from tpmon.errors import UsageError

__all__ = ["torch_like"]

FAKE = """#!/bin/sh
# Play nsys: say how it was called, and run the program as a child.
echo "$@" > "$NSYS_SAID"
while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done
"$@"
"""


def test_the_line_that_is_written_is_one_that_is_accepted():
    words = write_nsys_command("/opt/nsys", ["torchrun", "--capture-range=none", "x.py"])
    assert words[-3:] == ["torchrun", "--capture-range=none", "x.py"]
    assert judge_nsys([words]) == ""
    assert traces_cuda([words])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("nsys profile -c cudaProfilerApi --capture-range-end=stop python x", ""),
        ("nsys profile --capture-range=cudaProfilerApi --capture-range-end repeat:3 python x", ""),
        ("/opt/nsys launch --capture-range=cudaProfilerApi --capture-range-end=repeat python x", ""),
        ("nsys profile -t cuda,nvtx -o report -c cudaProfilerApi --capture-range-end=repeat:3 python x", ""),
        ("nsys profile --trace cuda --capture-range cudaProfilerApi --capture-range-end stop python x", ""),
        ("/bin/sh /usr/bin/nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat python x", ""),
        ("nsys profile --capture-range=cudaProfilerApi python x", "can end the run"),
        ("nsys profile -c cudaProfilerApi --capture-range-end=stop-shutdown python x", "can end the run"),
        ("nsys profile -o report python --capture-range=cudaProfilerApi", "lacks --capture-range"),
        ("torchrun x.py", "cannot be added to a running process"),
    ],
)
def test_a_range_is_opened_only_where_nsys_lets_the_run_live(words, refusal):
    told = judge_nsys([["bash"], words.split(" ")])
    assert (told == "") == (refusal == "")
    assert refusal in told


def test_helpers_of_nsys_between_it_and_the_run_hide_nothing():
    helper = ["/opt/nsight/nsys-launcher", "python", "x"]
    nsys = ["/opt/nsight/nsys", "profile", "-c", "cudaProfilerApi", "--capture-range-end=repeat", "python", "x"]
    assert judge_nsys([helper, nsys]) == ""
    assert "lacks --capture-range" in judge_nsys([helper])
    assert "cannot be added" in judge_nsys([["sh", "-c", "nsys profile python x"], ["sh"], []])


def test_what_nsys_records_decides_who_has_the_gpu():
    assert traces_cuda([["bash"], ["nsys", "profile", "python", "x"]])
    assert traces_cuda([["nsys", "profile", "-t", "nvtx,cuda", "python", "x"]])
    assert not traces_cuda([["nsys", "profile", "--trace=osrt", "python", "x"]])
    assert not traces_cuda([["python", "nsys"]])


@pytest.fixture
def fake(tmp_path):
    """Return a folder with a program of that name in it."""
    place = tmp_path / "bin" / "nsys"
    place.parent.mkdir()
    place.write_text(FAKE)
    place.chmod(0o755)
    return place.parent


def test_run_nsys_starts_the_program_under_it_with_the_hook(fake, torch_like, tmp_path):
    said = tmp_path / "said"
    env = {**environment(torch_like), "PATH": f"{fake}:{os.environ['PATH']}", "NSYS_SAID": str(said)}
    command = tpmon("run", "--nsys", "--", sys.executable, "-c", PROGRAM, "--lr", "3")
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[:2] == [[9, ""], ["--lr", "3"]]
    assert "--capture-range=cudaProfilerApi --capture-range-end=repeat" in said.read_text()


def test_without_nsys_or_a_program_nothing_is_started(monkeypatch, fake):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="nsys is not in PATH"):
        run.become(run.parse_request(["--nsys", "python"]))
    monkeypatch.setenv("PATH", str(fake))
    for flag in ("--nsys", "--kineto"):
        with pytest.raises(UsageError, match="cannot run no-such-program"):
            run.become(run.parse_request([flag, "no-such-program"]))
