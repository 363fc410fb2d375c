"""Throughput after a named cut, marks on the bus, and the permission to read stacks."""

import math
import os
import random
import statistics

import pytest

from tests.hooks import run_program
from tpmon.hook import profiling as throughput
from tpmon.hook.profiling import ThroughputMeter

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 5 * MS

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throughput, "monotonic_ns", clock)
    return clock


def run(meter: ThroughputMeter, clock: Clock, latencies_ms: list[float], samples: int = 8) -> None:
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
    assert result.steps == 1050
    assert (result.p50_ms, result.mean_ms) == (3.0, pytest.approx((950 + 300) / 1050))


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
