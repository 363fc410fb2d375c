"""Traces read and analysed in several processes: the same report, whatever becomes of a child."""

import json
import os
from functools import partial

import numpy as np
import psutil
import pytest

from tests.traces import TraceBuilder
from tpmon.commands import trace as command
from tpmon.commands.trace import TraceOptions, choose_jobs
from tpmon.errors import TpmonError, UsageError
from tpmon.model.codec import encode
from tpmon.trace import analysis
from tpmon.trace.analysis import ON_REQUEST, analyze
from tpmon.trace.reading.columns import Growing, group, percentile
from tpmon.trace.reading.forked import Forked, each_result
from tpmon.trace.timeline import KeptTraces


def a_rank(directory, rank: int, steps: int = 6) -> str:
    trace = TraceBuilder()
    for number in range(steps):
        at = number * 1000
        trace.step(number, at, 990).op("aten::mm", at + 10 * rank, 500).memory(at + 20, 512, 512)
        trace.kernel(at + 200, 300, launch=at + 150, name="gemm")
        said = {"Collective name": "allreduce", "Seq": number, "Process Group Name": "0", "Group size": 3}
        trace.kernel(at + 600 + 40 * rank, 90 - 40 * rank, launch=at + 160, name="ncclDevKernel_AllReduce", **said)
        trace.add("python_function", "train.py(3): step", at, 900)
    return trace.write(directory / f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 3})


def at_work() -> list[psutil.Process]:
    return psutil.Process().children()


def test_ranks_analysed_at_once_give_the_report_that_they_give_in_turn(tmp_path):
    paths = [a_rank(tmp_path, rank) for rank in range(3)]
    before, told = at_work(), []
    alone = analyze(paths, wanted=ON_REQUEST)
    for count in (2, 3, 64):
        jobs = partial(min, count)
        report = analyze(paths, lambda done, size: told.append(done / size), wanted=ON_REQUEST, jobs=jobs)
        assert encode(report) == encode(alone)
    assert told[:3] == sorted(told[:3])
    assert told[2] == 1
    assert [one for one in at_work() if one not in before] == []


def test_what_a_screen_asks_for_comes_back_from_the_children(tmp_path):
    paths = [a_rank(tmp_path, rank) for rank in range(2)]
    looks = []
    for count in (1, 2):
        kept = KeptTraces()
        analyze(paths, keep=kept.keep, jobs=lambda _, count=count: count)
        looks.append([(kept.find_line(file, "aten::mm"), kept.group(file, "lines")) for file in range(2)])
    assert looks[0] == looks[1]


def test_a_file_that_is_none_is_left_out_or_ends_it_all(tmp_path):
    broken = tmp_path / "a.json"
    broken.write_text("[1, 2]")
    paths = [str(broken), a_rank(tmp_path, 0), a_rank(tmp_path, 1)]
    before, left = at_work(), []

    def skip(path: str, error: TpmonError) -> bool:
        left.append((path, error.what))
        return True

    report = analyze(paths, skip=skip, jobs=lambda _: 2)
    assert [file.path for file in report.files] == paths[1:]
    assert left[0][0] == str(broken)
    assert "no trace of torch.profiler" in left[0][1]
    with pytest.raises(UsageError, match=r"no trace of torch\.profiler"):
        analyze(paths, jobs=lambda _: 2)
    assert [one for one in at_work() if one not in before] == []


def test_tables_made_in_a_child_are_the_same_and_made_here_where_it_is_killed(tmp_path, monkeypatch):
    path = a_rank(tmp_path, 0)
    alone = analyze([path], wanted=ON_REQUEST)
    assert encode(analyze([path], wanted=ON_REQUEST, jobs=lambda _: 2)) == encode(alone)
    own, tabulate = os.getpid(), analysis._tabulate

    def die_in_a_child(*given):
        if os.getpid() != own:
            os.kill(os.getpid(), 9)
        return tabulate(*given)

    monkeypatch.setattr(analysis, "_tabulate", die_in_a_child)
    assert encode(analyze([path], wanted=ON_REQUEST, jobs=lambda _: 2)) == encode(alone)


def test_no_more_children_work_at_a_time_than_are_wanted_and_none_is_left():
    most = 0
    before = at_work()
    results = each_result([lambda number=number: number for number in range(9)], 3)
    for number, result in enumerate(results):
        most = max(most, len([one for one in at_work() if one not in before]))
        assert result() == number
        if number == 5:
            break
    results.close()
    assert most == 3
    assert [one for one in at_work() if one not in before] == []


def test_a_child_ends_where_nobody_takes_its_result():
    child = Forked(lambda: np.zeros(10_000_000))
    pid = child._pid
    child._answer.close()  # as when the parent is killed
    assert os.waitpid(pid, 0)[0] == pid
    child._pid = -1
    child.end()


def test_several_processes_only_where_they_pay(monkeypatch):
    monkeypatch.setattr(command, "_count_cores", lambda: 8.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("tpmon.probe.host.machine.read_memory_left", lambda _pid: 1 << 40)
    four, default = choose_jobs(TraceOptions(jobs="4")), choose_jobs(TraceOptions())
    assert [four(size * 1_000_000) for size in (1, 19, 20, 1000)] == [1, 1, 2, 4]
    assert [default(size * 1_000_000) for size in (20, 199, 200, 5000)] == [1, 1, 2, 8]
    monkeypatch.setattr("tpmon.probe.host.machine.read_memory_left", lambda _pid: 500_000_000)
    assert default(1_000_000_000) == 1
    monkeypatch.setattr(command, "_count_cores", lambda: 1.0)
    assert four(1_000_000_000) == 1


@pytest.mark.parametrize("apart", [1, 10**12])
@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_groups_are_those_of_numpy(apart, count):
    keys = np.random.default_rng(count).integers(-20, 20, count) * apart
    found = group(keys)
    names, first, place, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    for one, other in zip(
        (found.keys, found.first, found.place, found.count), (names, first, place, counts), strict=True
    ):
        assert one.tolist() == other.tolist()


def test_percentiles_are_those_of_numpy():
    chance = np.random.default_rng(1)
    for count in range(1, 40):
        values = chance.lognormal(size=count)
        assert [percentile(values, pct) for pct in (50, 95)] == np.percentile(values, (50, 95)).tolist()


def test_a_column_holds_what_fits_it_and_counts_the_rest():
    column = Growing(np.int32, -1)
    assert column.add([1, 2]) == 0
    assert column.add([3, 2**40, -(2**70), 4]) == 2
    assert column.add(np.array([5], np.int64)) == 0
    assert column.join().tolist() == [1, 2, 3, -1, -1, 4, 5]
    times = Growing(np.float64)
    assert times.add([0.5, float("nan")]) == 0
    assert json.dumps(times.join().tolist()) == "[0.5, NaN]"
