"""The hook on real loops of a real torch: what it counts, what it leaves behind, what tpmon reads of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hooks import list_pages
from tests.programs.capturing import PYTHON, run, training
from tests.programs.conftest import READY_S
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.hook.bus import wire
from tpmon.model.hook import StepReading, StepRule
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat, read_table
from tpmon.probe.hooked.page import NO_HOOK, StepReader

pytestmark = [pytest.mark.torch, needs_torch]

PROGRAM = Path(__file__).with_name("hook_loops.py")

BY_DATA, BY_UPDATE, BY_BATCH = wire.RULE_DATA_AFTER_UPDATE, wire.RULE_UPDATE, wire.RULE_BATCH

# rule, steps, eval_steps, batches, backwards, optimizer_calls, updates, skipped, samples, eval_samples
EXPECTED = {
    "plain": (BY_DATA, 10, 0, 10, 10, 10, 10, 0, 40, 0),
    "accumulation": (BY_DATA, 10, 0, 40, 40, 10, 10, 0, 40, 0),
    "workers": (BY_DATA, 20, 0, 20, 20, 20, 20, 0, 40, 0),
    "inner_loaders": (BY_DATA, 8, 0, 8, 8, 8, 8, 0, 0, 0),
    "inner_loaders_in_workers": (BY_DATA, 8, 0, 8, 8, 8, 8, 0, 0, 0),
    "two_optimizers": (BY_DATA, 10, 0, 10, 20, 20, 20, 0, 40, 0),
    "lbfgs": (BY_DATA, 5, 0, 5, 15, 5, 5, 0, 40, 0),
    "closure_around_all": (BY_DATA, 5, 0, 5, 5, 5, 5, 0, 40, 0),
    "evaluation": (BY_DATA, 20, 10, 30, 20, 20, 20, 0, 80, 80),
    "inference": (BY_BATCH, 0, 10, 10, 0, 0, 0, 0, 0, 40),
    "no_loader": (BY_UPDATE, 25, 0, 0, 25, 25, 25, 0, 0, 0),
    "scaler": (BY_DATA, 10, 0, 10, 10, 8, 10, 2, 40, 0),
    "optimizer_in_backward": (BY_DATA, 10, 0, 10, 10, 20, 10, 0, 40, 0),
    "checkpointed": (BY_DATA, 10, 0, 10, 10, 10, 10, 0, 40, 0),
    "error_in_the_loop": (BY_DATA, 9, 1, 10, 9, 9, 9, 0, 36, 4),
    "error_in_the_backward": (BY_DATA, 10, 0, 10, 10, 10, 10, 0, 40, 0),
    "forked_rank": (BY_DATA, 10, 0, 10, 10, 10, 10, 0, 40, 0),
}


def run_loops(*flags: str) -> dict[str, object]:
    """Run the loops; the program writes its report and nothing else."""
    done = run([PYTHON, "-W", "ignore", str(PROGRAM), *flags], 2 * READY_S)
    assert done.returncode == 0, done.stderr
    assert "--compile" in flags or done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["before", pytest.param("after", marks=pytest.mark.long)])
def report(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return what the loops reported, with the hook imported before and after torch."""
    return run_loops(f"--{request.param}")


def test_each_loop_has_its_steps_and_its_raw_counters(report: dict[str, object]) -> None:
    counted = {name: tuple(report[name].values()) for name in EXPECTED}
    assert counted == {name: (*numbers, 0, "") for name, numbers in EXPECTED.items()}


def test_the_training_learns_the_same(report: dict[str, object]) -> None:
    assert report["same_losses"] is True


def test_the_split_is_that_of_the_program(report: dict[str, object]) -> None:
    """Within 3 % of the step of what the program's own clock says, phase by phase."""
    truth, told = report["phases"]
    for true_s, told_s in zip(truth, told, strict=True):
        assert abs(true_s - told_s) <= 0.03 * sum(truth), (truth, told)


def test_a_forked_rank_has_a_page_of_its_own(report: dict[str, object]) -> None:
    inherited, counted, page_pid, pid = report["forked"]
    assert inherited == []
    assert (counted["steps"], counted["problem"]) == (5, "")
    assert page_pid == pid


def test_errors_of_the_loop_are_the_loops(report: dict[str, object]) -> None:
    """An alarm rings 300 times wherever the loop is, which is often within the hook."""
    assert report["raised"] == "no gradient"
    assert report["rung"] >= 295
    # On a slow machine no step may get to its end between two alarms; the 20 after them do.
    assert report["alarms"]["steps"] >= 20, report["alarms"]
    assert report["alarms"]["problem"] == ""


def test_a_hundred_times_in_and_out_leaves_nothing(report: dict[str, object]) -> None:
    assert report["cycles"] == {"same": True, "descriptors": 0, "threads": 0, "steps": 400}
    assert report["threads"] == 1


@pytest.mark.long
def test_five_hundred_times_in_and_out_leaves_nothing_either() -> None:
    report = run_loops("--cycles")
    assert report["cycles"] == {"same": True, "descriptors": 0, "threads": 0, "steps": 2000}


@pytest.mark.long
def test_a_compiled_optimizer_is_not_compiled_again_for_the_hook() -> None:
    report = run_loops("--compile")
    assert report["compiled_optimizer"]["steps"] == 10
    assert report["compiled_optimizer"]["problem"] == ""
    assert report["frames"] == report["frames_without"] > 0


@pytest.mark.long
def test_tpmon_reads_the_rank_and_takes_no_worker_for_one() -> None:
    with training(RANK="5") as pid:
        reader = StepReader()
        rank = Identity(pid, read_stat(pid).start_ticks)
        reading = read(reader, rank)
        assert wait_until(lambda: read(reader, rank).counts.steps > reading.counts.steps + 20, 240)
        reading = read(reader, rank)
        assert (reading.rank, reading.rule) == (5, StepRule.BATCH_AFTER_UPDATE)
        assert reading.batch_size == 2
        train = reading.ended.train
        assert train.data_ns > 0.5 * train.total_ns  # 10 ms a batch of 1 ms of work
        workers = [stat.pid for stat in read_table().values() if stat.parent == pid]
        assert len(workers) == 1
        worker = Identity(workers[0], read_stat(workers[0]).start_ticks)
        assert reader.read_steps([worker])[worker] == NO_HOOK
        assert list_pages(worker.pid) == []
        reader.close()


def read(reader: StepReader, rank: Identity) -> StepReading:
    reading = reader.read_steps([rank])[rank]
    assert is_known(reading), reading
    return reading
