"""Measure tpmon's own cost, and shed load over budget without flickering."""

import errno
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import child
from tpmon.model.known import Missing, is_known
from tpmon.probe.host import machine as own_cost
from tpmon.probe.host.machine import BUDGET_MS_PER_S, RELIEF, OwnCostMeter


def test_the_first_tick_may_be_expensive_without_shedding():
    meter = OwnCostMeter()
    meter.add_tick(500.0, 1.0)
    assert not meter.shedding
    meter.add_tick(5 * BUDGET_MS_PER_S + 10, 1.0)
    assert meter.shedding


def test_a_cost_over_budget_sheds_and_one_just_below_it_does_not_return_to_full_rates():
    meter = OwnCostMeter()
    for _ in range(30):
        meter.add_tick(BUDGET_MS_PER_S * 1.1, 1.0)
    assert meter.shedding
    for _ in range(100):
        meter.add_tick(BUDGET_MS_PER_S * (RELIEF + 0.05), 1.0)
        assert meter.shedding, "half of the threads read is half of the cost: that is no relief"
    for _ in range(30):
        meter.add_tick(BUDGET_MS_PER_S * RELIEF * 0.9, 1.0)
    assert not meter.shedding


@given(st.floats(0, BUDGET_MS_PER_S))
def test_a_steady_cost_within_budget_never_sheds(cost):
    meter = OwnCostMeter()
    for _ in range(60):
        meter.add_tick(cost, 1.0)
        assert not meter.shedding


@given(st.lists(st.floats(BUDGET_MS_PER_S * RELIEF, BUDGET_MS_PER_S), min_size=1, max_size=80), st.booleans())
def test_between_relief_and_budget_the_mode_stays_what_it_is(costs, shedding):
    meter = OwnCostMeter()
    for _ in range(40):
        meter.add_tick(BUDGET_MS_PER_S * (1.2 if shedding else 0.6), 1.0)
    assert meter.shedding == shedding
    for cost in costs:
        meter.add_tick(cost, 1.0)
    assert meter.shedding == shedding


def test_the_cost_counts_per_second_and_not_per_tick():
    often, seldom = OwnCostMeter(), OwnCostMeter()
    for _ in range(40):
        often.add_tick(BUDGET_MS_PER_S * 0.8, 0.5)
        seldom.add_tick(BUDGET_MS_PER_S * 4, 5.0)
    assert often.shedding
    assert not seldom.shedding


def test_our_own_figures_do_not_hang_on_our_number(monkeypatch):
    """In a /proc of another PID namespace /proc/<getpid()> is another process, or none."""
    monkeypatch.setattr(os, "getpid", lambda: 1 << 22)
    told = OwnCostMeter().read([], 1.0, 0.0)
    assert told.rss_bytes > 1 << 20
    assert is_known(told.descriptors)


def test_figures_of_ours_that_cannot_be_read_are_missing(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(own_cost, "open", refuse, raising=False)
    monkeypatch.setattr(own_cost.os, "stat", refuse)
    told = OwnCostMeter().read([], 1.0, 0.0)
    monkeypatch.undo()
    assert isinstance(told.rss_bytes, Missing)
    assert told.descriptors == Missing("/proc/self/fd: No such file or directory")


def test_own_cpu_and_memory_are_those_of_this_process():
    meter = OwnCostMeter()
    first = meter.read([], 3.0, 0.0)
    assert first.cpu_pct == Missing("needs two readings")
    assert (first.tick_ms, first.target_paused_ms, first.children_rss_bytes) == (3.0, 0.0, 0)
    started, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.15:
        pass
    second = meter.read([], 1.0, 2.5)
    expected = 100 * (time.process_time() - used) / (time.monotonic() - started)
    assert second.cpu_pct == pytest.approx(expected, rel=0.15)
    assert second.target_paused_ms == 2.5
    with open("/proc/self/statm") as file:
        assert second.rss_bytes == pytest.approx(int(file.read().split()[1]) * 4096, rel=0.05)
    assert abs(second.descriptors - len(os.listdir("/proc/self/fd"))) <= 2


def test_a_child_costs_what_it_uses_while_it_is_ours():
    """The GPU child is there after the first reading: what it used before is no cost of this second."""
    code = "end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\nsay('up'); hear()"
    with child(code) as one:
        meter = OwnCostMeter()
        meter.read([], 0.0, 0.0)
        time.sleep(0.2)
        now = meter.read([one.pid], 0.0, 0.0)
        assert now.cpu_pct < 60
        assert now.children_rss_bytes > 4 << 20
        time.sleep(0.2)
        assert meter.read([one.pid], 0.0, 0.0).cpu_pct < 60


def test_a_busy_child_is_counted():
    with child("say('up')\nwhile True: pass") as one:
        meter = OwnCostMeter()
        meter.read([one.pid], 0.0, 0.0)
        time.sleep(0.5)
        assert meter.read([one.pid], 0.0, 0.0).cpu_pct > 20


def test_a_child_that_is_restarted_takes_nothing_away():
    busy = "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nsay('up'); hear()"
    meter = OwnCostMeter()
    with child(busy) as first:
        meter.read([first.pid], 0.0, 0.0)
        gone = first.pid
    used = time.process_time()
    while time.process_time() - used < 0.1:
        pass
    now = meter.read([gone], 0.0, 0.0)
    assert now.cpu_pct > 10
    assert now.children_rss_bytes == 0
