"""The small helpers of the hook: profiles with bounds, throughput after a cut, marks, the permission to read stacks."""

import gzip
import json
import math
import os
import random
import statistics
import sys
import types
from pathlib import Path

import pytest

from tests.hooks import run_program
from tests.torch_build import needs_torch
from tpmon.hook import profiling as throughput
from tpmon.hook.profiling import ThroughputMeter, export_trace, make_profiler, top_tables

PROGRAM = """
import json, os, sys, tpmon.hook, torch
from torch.profiler import tensorboard_trace_handler
folder = sys.argv[1]
model = torch.nn.Linear(8, 8)

def run(profiler):
    with profiler:
        for _ in range(12):
            model(torch.zeros(4, 8)).sum().backward()
            profiler.step()

told = {}
paths = []
run(tpmon.hook.make_profiler(3, wait=2, warmup=1, on_trace=lambda done: paths.append(tpmon.hook.export_trace(done, folder))))
profiler = tpmon.hook.make_profiler(2, wait=0, warmup=0, record_shapes=True)
run(profiler)
told["tables"] = {name: len(table) for name, table in tpmon.hook.top_tables(profiler).items()}
paths.append(tpmon.hook.export_trace(profiler, folder))
told["again"] = tpmon.hook.export_trace(profiler, folder)
handled = tpmon.hook.make_profiler(2, wait=0, warmup=0, on_trace=tensorboard_trace_handler(folder + "/tb"))
run(handled)
told["handled"] = tpmon.hook.export_trace(handled, folder)
told["kept"] = len(os.listdir(folder + "/tb"))
try:
    export = tpmon.hook.make_profiler(1, wait=0, warmup=0)
    run(export)
    tpmon.hook.export_trace(export, folder + "/file")
except OSError as error:
    told["error"] = type(error).__name__
told["paths"] = paths
told["problem"] = tpmon.hook.problem()
print(json.dumps(told))
"""


@pytest.mark.torch
@needs_torch
def test_a_profile_is_bounded_tabled_and_written_once_per_rank(tmp_path):
    (tmp_path / "file").write_text("no folder")
    flags = ["-W", "ignore"]
    told = json.loads(run_program(PROGRAM, str(tmp_path), flags=flags, silent=False, RANK="3", KINETO_LOG_LEVEL="99"))
    names = [os.path.basename(path) for path in told["paths"]]
    assert names == ["trace-rank3.json.gz", "trace-rank3-1.json.gz"]
    with gzip.open(told["paths"][0]) as file:
        whole = json.load(file)
    events, steps_around = whole["traceEvents"], whole["tpmon"]
    if "step_before_ms" in steps_around:
        assert (steps_around["steps_before"], steps_around["step_before_ms"] > 0) == (1, True)
        assert "missing" in steps_around["step_after_ms"]
    steps = {one["name"] for one in events if str(one.get("name", "")).startswith("ProfilerStep#")}
    assert len(steps) == 3
    assert set(told["tables"]) == {"cpu", "shapes"}
    assert (told["again"], told["handled"], told["kept"], told["error"]) == ("", "", 1, "FileExistsError")
    assert told["problem"] == ""
    assert sorted(os.listdir(tmp_path)) == ["file", "tb", *sorted(names)]


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": 101}, {"wait": -1}, {"warmup": -1}])
def test_a_profiler_without_bounds_is_refused(bad, monkeypatch):
    torch = types.ModuleType("torch")
    torch.profiler = types.ModuleType("torch.profiler")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.profiler", torch.profiler)
    with pytest.raises(ValueError, match="steps from 1 to 100"):
        make_profiler(**bad)


def test_a_trace_that_torch_did_not_write_or_record_is_an_error_and_leaves_nothing(tmp_path):
    def leave_half(path):
        Path(path).write_text("{")
        raise RuntimeError("no such thing")

    for export, error, words in (
        (lambda _: None, OSError, "torch wrote no trace"),
        (leave_half, RuntimeError, "no such thing"),
    ):
        with pytest.raises(error, match=words):
            export_trace(types.SimpleNamespace(export_chrome_trace=export), str(tmp_path))
        assert os.listdir(tmp_path) == []
    nothing = types.SimpleNamespace(profiler=None)  # as torch.profiler has it then
    assert top_tables(nothing) == {}
    with pytest.raises(OSError, match="nothing was recorded"):
        export_trace(nothing, str(tmp_path))
    assert os.listdir(tmp_path) == []


MS = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=5 * MS)
    monkeypatch.setattr(throughput, "monotonic_ns", lambda: clock.now)
    return clock


def run(meter: ThroughputMeter, clock: types.SimpleNamespace, latencies_ms: list[float], samples: int = 8) -> None:
    for latency in latencies_ms:
        clock.now += round(latency * MS)
        meter.step(samples)


def test_a_measurement_agrees_with_the_statistics_of_its_steps(clock):
    latencies = [random.Random(1).lognormvariate(1, 1) for _ in range(1000)]
    meter = ThroughputMeter(warmup_steps=20)
    run(meter, clock, [500.0] * 20 + latencies)
    result = meter.result()
    assert (result.steps, result.samples, result.warmup_steps) == (1000, 8000, 20)
    assert result.warmup_seconds == pytest.approx(10)
    assert result.seconds == pytest.approx(sum(latencies) / 1000, rel=1e-6)
    assert result.samples_per_s == pytest.approx(8000 / result.seconds)
    assert result.mean_ms == pytest.approx(statistics.fmean(latencies), rel=1e-5)
    assert result.std_ms == pytest.approx(statistics.stdev(latencies), rel=1e-5)
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    assert [result.p50_ms, result.p95_ms, result.p99_ms] == pytest.approx([cuts[49], cuts[94], cuts[98]], rel=1e-4)


def test_a_cut_by_name_leaves_out_all_before_it(clock):
    meter = ThroughputMeter(warmup_steps=3)
    run(meter, clock, [900.0] * 10)
    meter.cut("compiled")
    run(meter, clock, [10.0] * 5)
    result = meter.result()
    assert (result.cut, result.steps, result.warmup_steps, result.mean_ms) == ("compiled", 5, 10, 10.0)
    assert result.samples_per_s == pytest.approx(800)
    assert str(result) == (
        "800.0 samples/s over 5 steps in 0.1 s; step 10.000 ms mean, 0.000 std, "
        "10.000 p50, 10.000 p95, 10.000 p99; left out: 10 steps in 9.0 s, compiled"
    )


def test_nothing_measured_is_no_number(clock):
    meter = ThroughputMeter(warmup_steps=5)
    run(meter, clock, [1.0] * 5)
    result = meter.result()
    assert result.steps == 0
    numbers = [result.samples_per_s, result.mean_ms, result.std_ms, result.p50_ms, result.p99_ms]
    assert all(math.isnan(number) for number in numbers)
    assert str(result) == "no steps measured; left out: 5 steps, the first 5"
    run(meter, clock, [4.0])
    assert (meter.result().p99_ms, math.isnan(meter.result().std_ms)) == (4.0, True)


def test_memory_is_bounded_and_percentiles_are_of_the_newest(clock, monkeypatch):
    monkeypatch.setattr(throughput, "_KEPT", 100)
    meter = ThroughputMeter(warmup_steps=0)
    run(meter, clock, [1.0] * 950 + [3.0] * 100)
    result = meter.result()
    assert (result.steps, result.p50_ms, result.mean_ms) == (1050, 3.0, pytest.approx((950 + 300) / 1050))


MARKS = """
import tpmon.hook, sys
from tpmon.hook.bus import wire
from tpmon.hook.installation import HOOK
entered = []
class Profiler:
    class record_function:
        def __init__(self, name): self.name = name
        def __enter__(self): entered.append(self.name)
        def __exit__(self, *error): entered.append(error[0])
sys.modules["torch.autograd.profiler"] = Profiler
with tpmon.hook.mark("early"):
    pass
tpmon.hook.step()
for number in range(20):
    with tpmon.hook.mark("mark %d" % (number % 18)):
        pass
try:
    with tpmon.hook.mark("early"):
        raise ValueError("theirs")
except ValueError:
    pass
for mark in wire.parse_marks(HOOK.steps.pages.page):
    print(mark[0], mark[1], mark[2] >= mark[3] > 0)
print(entered[:2], entered[-2:], repr(tpmon.hook.problem()))
tpmon.hook.uninstall()
tpmon.hook.install()
tpmon.hook.step()
with tpmon.hook.mark("early"):
    pass
print(wire.parse_marks(HOOK.steps.pages.page)[0][:2])
"""


def test_marks_are_on_the_bus_and_in_profiles():
    lines = run_program(MARKS).splitlines()
    assert lines[:2] == ["mark 0 2 True", "mark 1 2 True"]
    assert lines[2:15] == [f"mark {number} 1 True" for number in range(2, 15)]
    assert lines[15] == "early 2 True"
    assert lines[16:] == ["['early', None] ['early', <class 'ValueError'>] ''", "('early', 3)"]


def test_stacks_are_allowed_where_yama_is_and_elsewhere_there_is_nothing_to_allow():
    has_yama = os.path.exists("/proc/sys/kernel/yama/ptrace_scope")
    assert run_program("import tpmon.hook; print(tpmon.hook.allow_stacks())") == f"{has_yama}\n"
