"""The processes of a job read together: what was born between two looks is known at the first."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from tests.children import child
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.probe.job import Member
from tpmon.probe.population import Population
from tpmon.probe.procread import read_stat

TICK_S = 0.02
"""The kernel tells births in steps of 10 ms."""
BURNS = "start_burning(1); time.sleep(0.4); say('up'); hear()"


def member_of(pid: int) -> Member:
    return Member(
        identity=Identity(pid, read_stat(pid).start_ticks),
        parent=1,
        role=Role.HELPER,
        rank=NOT_APPLICABLE,
        local_rank=NOT_APPLICABLE,
        worker=NOT_APPLICABLE,
        rank_pid=NOT_APPLICABLE,
        name="python",
        label="python",
        started=datetime.now(timezone.utc),
        environment=(),
    )


@pytest.fixture
def population():
    one = Population()
    yield one
    one.close()


def test_a_process_born_since_the_last_look_has_rates_at_once(population):
    population.read([], skip_threads=False)
    began = time.monotonic()
    time.sleep(TICK_S)
    with child(BURNS) as one:
        (reading,) = population.read([member_of(one.pid)], skip_threads=False)
        took_s = time.monotonic() - began
        now = reading.now
    assert now.rates.cpu_pct == pytest.approx(100 * now.stat.cpu_s / took_s, rel=0.1)
    assert now.rates.cpu_pct > 10
    assert now.threads.running == pytest.approx(now.rates.cpu_pct / 100, abs=0.1)
    assert now.rates.minor_faults_s == pytest.approx(now.stat.minor_faults / took_s, rel=0.1)
    assert now.rates.asked_read_bytes_s > 0


def test_one_that_was_there_before_needs_two_readings(population):
    with child(BURNS) as one:
        time.sleep(TICK_S)
        population.read([], skip_threads=False)
        time.sleep(0.05)
        (reading,) = population.read([member_of(one.pid)], skip_threads=False)
        assert reading.now.rates.cpu_pct == Missing("rates need two readings")
        assert not is_known(reading.now.threads.runnable)


def test_the_first_look_of_all_has_no_rates(population):
    with child(BURNS) as one:
        (reading,) = population.read([member_of(one.pid)], skip_threads=False)
    assert not is_known(reading.now.rates.cpu_pct)
