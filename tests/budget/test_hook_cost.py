"""Hold what the hook promises in docs/overhead.md, and what reading it costs: CPU time, for this machine's speed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from tests.budget.bench_hook import (
    CLOCK_NS,
    HOT_TIMES,
    IMPORT_MS,
    RUN_MS,
    WARM_US,
    measure_clock,
    measure_hot,
    measure_import,
    measure_plain,
    measure_run,
    run_loop,
)
from tests.budget.measure import measure_import as measure_textual
from tests.budget.measure import slowness
from tests.frames import make_process
from tests.torch_build import needs_torch
from tpmon.hook.bus import wire
from tpmon.hook.bus.pages import Pages
from tpmon.probe.base.procread import read_stat
from tpmon.probe.hooked.step_pace import StepProbe

pytestmark = pytest.mark.budget

MARGIN = 1.5


def clock_slowness() -> float:
    """Return by how much this machine runs a hot loop slower than the one of the promises; never less than 1."""
    return max(measure_clock() / CLOCK_NS, 1.0)


def measure_beside(measure: Callable[[], float]) -> float:
    """Return what a start costs, for this machine's speed by the imports before and after it.

    Where others are busy its caches are cold, which a hot loop does not show.
    """
    before = measure_textual()
    cost = measure()
    return cost / slowness([before, measure_textual()])


def test_the_functions_of_a_step_are_cheap():
    pairs = [(measure_hot(rounds=3), measure_plain(rounds=3)) for _ in range(5)]
    assert statistics.median(hot_us / plain_us for hot_us, plain_us in pairs) <= HOT_TIMES * MARGIN, pairs


def test_the_import_is_quick():
    assert measure_beside(measure_import) <= IMPORT_MS * MARGIN


def test_a_program_is_started_hardly_later():
    assert measure_beside(measure_run) <= RUN_MS * MARGIN


@pytest.mark.torch
@pytest.mark.long
@needs_torch
@pytest.mark.parametrize("loop", ["linear", "linear, loader"])
def test_a_step_of_a_real_loop_is_hardly_dearer(loop):
    before = clock_slowness()
    found = run_loop(loop, 15)
    assert found["counted"] >= 15 * 11 * 40
    assert not found["problem"]
    assert found["least_us"] <= WARM_US * MARGIN * max(before, clock_slowness())


RANKS = 8
READ_US = 200.0
"""Of one rank whose steps take 50 ms: 20 records a second, of which each becomes a span."""
FAST_US = 700.0
"""Of one rank with more records a second than are read: 128 of them."""
LOOKS = 60


class Ring:
    """Write records into a page of this process, as the hook does."""

    def __init__(self) -> None:
        self.pages = Pages("1.0", "2.13", (0, 8, 0))
        self.words = [0] * wire.RECORD_WORDS

    def write(self, number: int) -> None:
        """Write so many records of one step each, 50 ms apart."""
        words = self.words
        for _ in range(number):
            count = words[wire.REC_STEPS]
            words[wire.REC_NUMBER] = words[wire.REC_NUMBER_AGAIN] = count
            words[wire.REC_STEPS] = count + 1
            words[wire.REC_TIME_NS] = words[wire.REC_ENDED_NS] = time.monotonic_ns()
            words[wire.REC_RULE] = wire.RULE_DATA_AFTER_UPDATE
            words[wire.REC_SAMPLES] += 32
            for word in range(wire.REC_DATA_NS, wire.REC_OTHER_NS + 1):
                words[word] += 10_000_000
            at = wire.record_offset(count)
            self.pages.page[at : at + wire.RECORD_BYTES] = wire.RECORD.pack(*words)
            self.pages.live[wire.LIVE_RECORDS] = count + 1
            self.pages.live[wire.LIVE_OPTIMIZER] = words[wire.REC_TIME_NS]


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    """Make one page for all tests of this module: the first that is found is the one that is read."""
    ring = Ring()
    yield ring
    ring.pages.close()


def measure_us(read: Callable[[], object], write: Callable[[], None]) -> float:
    """Return the CPU time of a read, the least of some dozens, in microseconds."""
    least = float("inf")
    for _ in range(LOOKS):
        write()
        before = time.thread_time_ns()
        read()
        least = min(least, (time.thread_time_ns() - before) / 1000)
    return least


@pytest.mark.parametrize(("records", "promise_us"), [(20, READ_US), (400, FAST_US)])
def test_reading_a_rank_is_cheap(ring: Ring, records: int, promise_us: float) -> None:
    before = clock_slowness()
    probe = StepProbe()
    own = make_process(os.getpid(), start_ticks=read_stat(os.getpid()).start_ticks)
    ring.write(2)
    cost_us = measure_us(lambda: probe.read([own]), lambda: ring.write(records))
    print(f"{records} records: {cost_us:.0f} us a rank, {RANKS} ranks at 1 Hz {RANKS * cost_us / 1e4:.2f} %")
    last = probe.read([own])
    probe.close()
    assert isinstance(last.hook, tuple)
    assert last.hook[0].counts.steps == ring.words[wire.REC_STEPS]
    assert cost_us <= promise_us * MARGIN * max(before, clock_slowness())


def test_a_rank_without_a_hook_costs_nothing_between_looks_for_one() -> None:
    probe = StepProbe()
    absent = make_process(1, start_ticks=1)
    probe.read([absent])
    cost_us = measure_us(lambda: probe.read([absent]), lambda: None)
    print(f"no hook: {cost_us:.0f} us a rank")
    assert cost_us <= 40 * MARGIN * clock_slowness()
