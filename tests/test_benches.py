"""The benches: the estimate of ``make bench-harm`` on made-up windows, and what is said of processes beside one."""

import subprocess
import sys
from collections import Counter
from itertools import islice
from random import Random

import pytest

from tests.budget import measure
from tests.budget.bench_harm import Measured, Pair, Window, draw_pairs, estimate, is_counted, list_placebo, list_tpmon


def make_pairs(random: Random, count: int, tpmon: float, placebo: float = 1.0) -> list[Pair]:
    """Make windows of a host whose speed drifts, and that stalls now and then."""
    speed = 1200.0

    def measure(window: Window) -> Measured:
        nonlocal speed
        speed *= random.gauss(1.0, 0.02)
        stall = 0.6 if random.random() < 0.03 else 1.0
        effect = (tpmon if window.tpmon else 1.0) * (placebo if window.placebo else 1.0)
        return Measured(window, speed * effect * stall, 0.0)

    return [(measure(first), measure(second)) for first, second in islice(draw_pairs(random), count)]


def test_each_factor_runs_once_in_a_pair_and_every_two_pairs_hold_all_four_combinations():
    pairs = list(islice(draw_pairs(Random(1)), 400))
    for two in zip(pairs[::2], pairs[1::2], strict=True):
        assert {one for pair in two for one in pair} == {Window(t, p) for t in (0, 1) for p in (0, 1)}
    orders = Counter(pair[0] for pair in pairs)
    assert len(orders) == 4
    assert min(orders.values()) > 70


@pytest.mark.parametrize(("tpmon", "placebo"), [(1.0, 1.0), (0.97, 1.0), (1.0, 0.97), (0.97, 1.03)])
def test_the_effect_of_each_is_found_beside_that_of_the_other(tpmon, placebo):
    pairs = make_pairs(Random(7), 400, tpmon, placebo)
    for logs, truth in ((list_tpmon(pairs), tpmon), (list_placebo(pairs), placebo)):
        found = estimate(logs, 7)
        assert found.ratio == pytest.approx(truth, abs=0.005)
        assert found.half < 0.006


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    held = 0
    for seed in range(100):
        found = estimate(list_tpmon(make_pairs(Random(seed), 100, 0.99)), seed)
        held += found.low <= 0.99 <= found.high
    assert 88 <= held <= 99


def test_the_same_seed_draws_the_same_and_finds_the_same():
    one, other = (make_pairs(Random(3), 40, 1.0) for _ in range(2))
    assert one == other
    assert estimate(list_tpmon(one), 3) == estimate(list_tpmon(other), 3)


def test_a_pair_with_a_window_that_the_hypervisor_took_from_does_not_count():
    on, off = Window(True, False), Window(False, True)
    assert is_counted((Measured(on, 100.0, 0.02), Measured(off, 90.0, 0.0)))
    assert not is_counted((Measured(on, 100.0, 0.0), Measured(off, 90.0, 0.03)))
    assert not is_counted((Measured(on, 0.0, 0.0), Measured(off, 90.0, 0.0)))


def test_a_process_that_burns_a_core_is_named_and_a_sleeping_one_is_not(monkeypatch):
    monkeypatch.setattr(measure, "BUSY_BESIDE_PCT", 1.0)  # the test shares the machine: a core may be hard to get
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        said = measure.say_neighbours(2.0)
    finally:
        for one in (burning, sleeping):
            one.kill()
            one.wait()
    assert said.startswith("beside: ")
    assert f"({burning.pid})" in said
    assert f"({sleeping.pid})" not in said
