"""Stack slices of a real training: they tell how long it waits for data, and leave no trace on it."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.programs.chaos_watch import ask_once, watch
from tests.programs.conftest import run_program
from tests.programs.test_harmless import sampling
from tests.spying import spies_of
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.model.stacks import StackCount, StackSlice
from tpmon.probe.base.procread import read_stat, read_table
from tpmon.probe.proc.main_threads import MainThreadProbe
from tpmon.probe.spy.plan import BUDGET_MS_PER_S, CREDIT_MS, MET_MS, SpySubject
from tpmon.probe.spy.stacks import StackSampler

pytestmark = [pytest.mark.usefixtures("sampling_works"), pytest.mark.torch, needs_torch]

TRAIN = (sys.executable, "stack_train.py", "--ready", "{ready}")
SLICES_S = 10.0
SAMPLES = 100
PATIENCE_S = 60.0
"""Three slices are enough, 13 s where the machine is free; the share of a few samples says little."""
ERROR_POINTS = 5.0


class Truth:
    """Hold how long the program had waited for data at each moment."""

    def __init__(self, log: Path) -> None:
        lines = [line.split() for line in log.read_text().splitlines()[:-1]]
        self._times = [int(line[0]) for line in lines]
        self._waited = [float(line[1]) for line in lines]
        assert self._times == sorted(self._times)
        assert all(one <= other for one, other in pairwise(self._waited))

    def reaches(self, moment_ns: int) -> bool:
        return bool(self._times) and self._times[-1] > moment_ns

    def waited_s(self, moment_ns: int) -> float:
        after = bisect_right(self._times, moment_ns)
        assert 0 < after < len(self._times), "the moment is outside the log"
        begin, end = self._times[after - 1], self._times[after]
        part = (moment_ns - begin) / (end - begin)
        return self._waited[after - 1] + part * (self._waited[after] - self._waited[after - 1])

    def wait_pct(self, slices: list[StackSlice]) -> float:
        """Return the share of the slices' own time in which the program waited."""
        waited = seconds = 0.0
        for one in slices:
            begin_ns = one.ended_ns - round(one.seconds * 1e9)
            waited += self.waited_s(one.ended_ns) - self.waited_s(begin_ns)
            seconds += one.seconds
        return 100 * waited / seconds


def is_data_wait(stack: StackCount) -> bool:
    return any(frame.file.endswith("utils/data/dataloader.py") for frame in stack.frames)


@pytest.mark.long
@pytest.mark.parametrize(("fetch_s", "rounds"), [(0.3, 1), (0.0, 40)], ids=["data-bound", "compute-bound"])
def test_slices_tell_the_share_of_data_wait_and_nobody_ever_traces(tmp_path, fetch_s, rounds):
    pace = ("--fetch", str(fetch_s), "--rounds", str(rounds))
    with run_program((*TRAIN, *pace), tmp_path, 1) as program:
        (pid,) = program.trainers
        workers = [one.pid for one in read_table().values() if one.parent == pid]
        assert len(workers) == 1
        identity = Identity(pid, read_stat(pid).start_ticks)
        sampler, looks = StackSampler(), MainThreadProbe()
        slices: list[StackSlice] = []
        found = {"looks": 0, "batch_wait": 0}
        sampler.watch([SpySubject(identity, 0)])
        looks.watch([(identity, 0)])
        with sampling([pid, *workers]) as tracers:
            sampler.start()
            looks.start()
            began_ns = time.monotonic_ns()

            def has_enough() -> bool:
                taken, looked = sampler.take(), looks.take()
                assert is_known(taken), taken
                slices.extend(one for one in taken if one.seconds)
                for sample in looked if is_known(looked) else ():
                    found["looks"] += sample.looks
                    found["batch_wait"] += sample.batch_wait
                seconds = sum(one.seconds for one in slices)
                return seconds > SLICES_S and sum(one.samples for one in slices) > SAMPLES

            assert wait_until(has_enough, PATIENCE_S), slices
            ended_ns = time.monotonic_ns()
            sampler.stop()
            looks.stop()
        assert wait_until(lambda: spies_of(program.pid) == [])
        # On a busy machine the step that ends the last of this time may take seconds.
        assert wait_until(lambda: Truth(tmp_path / "truth").reaches(ended_ns))
        truth = Truth(tmp_path / "truth")
    samples = sum(one.samples for one in slices)
    waits = sum(stack.samples for one in slices for stack in one.stacks if stack.tid == pid and is_data_wait(stack))
    assert 100 * waits / samples == pytest.approx(truth.wait_pct(slices), abs=ERROR_POINTS)
    # The looks, by the system call alone, see the same of all the time.
    assert found["looks"] > 100
    watched_s = (ended_ns - began_ns) / 1e9
    waited_s = truth.waited_s(ended_ns) - truth.waited_s(began_ns)
    assert 100 * found["batch_wait"] / found["looks"] == pytest.approx(100 * waited_s / watched_s, abs=2 * ERROR_POINTS)
    # Each py-spy is charged what it used, so the budget holds whatever a sample costs; one may overdraw it.
    cpu_ms, _ = (1000 * value for value in sampler.cost())
    assert cpu_ms <= CREDIT_MS + MET_MS + BUDGET_MS_PER_S * (watched_s + 5) + 100
    assert set(tracers.tracers) == {"0"}
    assert set(tracers.states) <= {"R", "S", "D"}
    assert min(tracers.looks.values()) > 100


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Give the PID of a training that every test leaves as it is."""
    with run_program((*TRAIN, "--seconds", "600"), tmp_path_factory.mktemp("plain"), 1) as program:
        yield program.trainers[0]


def test_a_single_reading_knows_where_the_main_thread_is(trainer: int):
    (frame,) = ask_once([trainer])
    assert isinstance(frame["stacks"], list), frame["stacks"]  # a dict says why there are none
    (dump,) = [one for one in frame["stacks"] if one["samples"] == 1]
    main = next(stack for stack in dump["stacks"] if stack["tid"] == trainer)
    assert main["frames"][0]["function"] == "<module>"
    assert main["frames"][0]["file"].endswith("stack_train.py")
    assert frame["ages_s"]["stacks"] < 6
    assert frame["sources"]["stacks"].startswith("py-spy")
    assert frame["self"]["target_paused_ms"] == 0
    (looks,) = frame["main_threads"]
    assert looks["pid"] == trainer
    assert looks["looks"] > 2


def test_tpmon_counts_what_py_spy_costs_and_ends_with_it(trainer: int):
    with watch(trainer) as tpmon:
        tpmon.wait_for(lambda frame: frame["self"]["children_rss_bytes"] > 0)
        assert wait_until(lambda: len(spies_of(tpmon.pid)) == 1)
        spies = spies_of(tpmon.pid)
        assert tpmon.interrupt() == (130, "")
    assert wait_until(lambda: not {one.pid for one in read_table().values() if one.state != "Z"} & set(spies), 5)


def test_without_stacks_no_py_spy_is_started(trainer: int):
    with watch(trainer, "--no-stacks") as tpmon:
        off = {"missing": "stacks are off (--no-stacks)"}
        frame = tpmon.wait_for(lambda frame: isinstance(frame["main_threads"], list))
        assert frame["stacks"] == frame["ages_s"]["stacks"] == off
        assert frame["sources"]["stacks"] == off["missing"]
        assert spies_of(tpmon.pid) == []
