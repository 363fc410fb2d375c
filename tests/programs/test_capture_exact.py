"""Exactly the steps that were asked for, on each kind of run."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import ENVIRONMENT, HERE, capture, captured, run, run_json, started
from tests.programs.conftest import READY_S, TORCHRUN, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.hook.bus import wire_capture as w

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

RANKS = 4
TRIALS = 10
STEPS = 3


def test_four_ranks_record_the_same_steps_every_time_and_learn_the_same(tmp_path: Path) -> None:
    """The program's own number of each step is in the trace, so that the hook's need not be believed.

    Its losses are those of a run without a hook, bit for bit: of all steps, those after the last capture too.
    """
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS), "capture_ranks.py", "{ready}")
    with run_program(command, tmp_path / "ready", RANKS) as program:
        for trial in range(TRIALS):
            out = tmp_path / f"out{trial}"
            code, told, said = capture(program.pid, "--all-ranks", "--steps", str(STEPS), "--out", str(out))
            assert (code, told["state"], told["notes"]) == (0, "done", []), (trial, said)
            files = {file["rank"]: read_told(file["path"]) for file in told["files"]}
            assert sorted(files) == list(range(RANKS))
            own = {
                rank: sorted(name for name in one.names if name.startswith("own step")) for rank, one in files.items()
            }
            assert len(own[0]) == STEPS
            assert {rank: names for rank, names in own.items() if names != own[0]} == {}, trial
            for one in files.values():
                assert (one.marks, one.wrong) == (files[0].marks, ())
                assert (len(one.marks), one.optimizer) == (STEPS, STEPS)
        last = 1 + max(int(name.rpartition(" ")[2]) for name in own[0])
        assert wait_until(lambda: len(read_losses(tmp_path / "ready", 0)) > last + 20)
        captured = [read_losses(tmp_path / "ready", rank) for rank in range(RANKS)]
    assert all(len(losses) > last for losses in captured)
    steps = max(map(len, captured))
    (tmp_path / "plain").mkdir()
    plain = (*command[:-1], str(tmp_path / "plain"), str(steps))
    subprocess.run(plain, cwd=HERE, env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}, check=True, timeout=READY_S)
    for rank, losses in enumerate(captured):
        assert len(set(losses)) > steps // 2
        assert losses == read_losses(tmp_path / "plain", rank)[: len(losses)], rank


def read_losses(folder: Path, rank: int) -> list[str]:
    """Return the losses that a rank has written so far, without a line that is half written."""
    return (folder / f"losses-{rank}").read_text().split("\n")[:-1]


def test_a_compiled_run_is_captured_and_not_compiled_again(tmp_path: Path) -> None:
    report = run_json(sys.executable, "capture_loops.py", tmp_path / "out", "compiled")
    assert report["told"]["state"] == w.STATE_VERIFIED
    assert (report["file"]["marks"], report["file"]["optimizer"], report["file"]["wrong"]) == (5, 5, [])
    assert report["same_losses"] is True
    assert report["graphs"][0] == report["graphs"][1] == report["told_graphs"] > 0
    assert report["problem"] == ""


@pytest.mark.parametrize("first", [False, True], ids=["between", "before the first step"])
def test_a_capture_during_a_validation_waits_for_the_training(tmp_path: Path, first: bool) -> None:
    command = (sys.executable, "capture_ways.py", "{ready}", "validating-first" if first else "validating")
    with run_program(command, tmp_path / "ready", 1) as program:
        told, said = captured(program.pid, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
        assert told["notes"] == []
        assert first or "waits for the next training step, the loop evaluates now" in said
        found = read_told(told["files"][0]["path"])
        assert (len(found.marks), found.optimizer, found.wrong) == (STEPS, STEPS, ())
        assert found.conditions["mode"] == "training"


LATE = """
import sys, time
from tpmon.__main__ import main
from tpmon.capture import bus
from tpmon.capture.plan import parse_pace

post = bus.Bus.post

def post_late(self, request):
    while self.header.rank == 1 and 0 < request.start >= parse_pace(self.read_records()).steps:
        time.sleep(0.002)
    post(self, request)

bus.Bus.post = post_late
sys.exit(main())
"""


def test_a_rank_that_hears_too_late_misses_the_window_and_the_others_keep_their_files(tmp_path: Path) -> None:
    """tpmon is held up before it writes to one mailbox, until that rank is past the step."""
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", "capture_ranks.py", "{ready}")
    with run_program(command, tmp_path / "ready", 2) as program:
        out = tmp_path / "out"
        done = run(
            [sys.executable, "-c", LATE, "capture", str(program.pid), "--json", "--all-ranks", "--out", str(out)]
        )
        told = json.loads(done.stdout)
        assert (done.returncode, told["state"]) == (0, "partial"), done.stderr
        states = {rank["rank"]: rank["state"] for rank in told["ranks"]}
        assert states == {0: "verified", 1: "missed"}
        (file,) = told["files"]
        assert (file["rank"], file["steps"]) == (0, 5)
        assert read_told(file["path"]).wrong == ()
        assert all("the loop was at step" in note for note in told["notes"])
        captured(program.pid, "--all-ranks", "--out", str(tmp_path / "after"))


COMMAND = (sys.executable, "-W", "ignore", str(HERE / "kineto_train.py"), "--loader", "--dropout")
WARNED = "Memory block of unknown size was allocated before the profiling started"
"""What torch writes of its own accord while it records allocations of the host, once in a thousand of them."""


def test_shapes_stacks_memory_and_marks_are_in_the_trace_and_losses_are_the_same(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with started([*COMMAND, "--until", str(stop)]) as job:
        more = ("--shapes", "--stacks", "--memory", "--out", str(tmp_path / "out"))
        code, told, said = capture(job.pid, "--steps", str(STEPS), *more)
        stop.touch()
        printed, noise = job.communicate(timeout=READY_S)
    assert (code, told["state"], told["notes"]) == (0, "done", []), said
    assert [line for line in noise.splitlines() if WARNED not in line] == []
    assert "--memory: torch warns on the run's standard error" in said
    losses = json.loads(printed)
    (file,) = told["files"]
    found = read_told(file["path"])
    assert (len(found.marks), found.optimizer, found.wrong) == (STEPS, STEPS, ())
    with gzip.open(file["path"]) as packed:
        events = json.load(packed)["traceEvents"]

    # Shapes: the product of a batch in each of the two layers, in each step.
    products = [one["args"] for one in events if one["name"] == "aten::addmm"]
    assert sum([32, 64] in one["Input Dims"] for one in products) == 2 * STEPS
    assert all(one["Input type"][0] == "float" for one in products)

    # Stacks: the function of the program, in its own file, beneath which the product ran.
    python = [one for one in events if one.get("cat") == "python_function"]
    own = [one for one in python if one["name"].endswith("named_by_the_test")]
    assert len(own) == STEPS
    assert all("kineto_train.py(" in one["name"] for one in own)

    # Memory: what is allocated within the window, with addresses and sizes.
    memory = [one["args"] for one in events if one["name"] == "[memory]"]
    assert len(memory) > 10 * STEPS
    assert {one["Bytes"] > 0 for one in memory} == {True, False}

    # Marks: a range of that name in each step, of the thread and within the time of its step.
    named = [one for one in events if one["name"] == "named part"]
    steps = [one for one in events if one["name"].startswith("ProfilerStep#")]
    assert [one["cat"] for one in named] == ["user_annotation"] * STEPS
    inside = Counter(
        step["name"]
        for step in steps
        for one in named
        if one["tid"] == step["tid"] and step["ts"] <= one["ts"] <= step["ts"] + step["dur"] - one["dur"]
    )
    assert inside == {step["name"]: 1 for step in steps}

    plain = run([*COMMAND, "--steps", str(len(losses))])
    assert json.loads(plain.stdout.splitlines()[-1]) == losses
