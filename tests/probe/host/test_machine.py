"""Figures of the machine, the target's own /dev/shm, and tpmon's own cost, over whose budget it sheds load."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import child
from tpmon.model.known import Missing, is_known
from tpmon.probe.host import machine as own_cost
from tpmon.probe.host.machine import (
    BUDGET_MS_PER_S,
    RELIEF,
    CpuTicks,
    HostReader,
    OwnCostMeter,
    parse_loadavg,
    parse_meminfo,
    parse_ticks,
    read_shm,
)

DATA = Path(__file__).parents[2] / "data" / "host"


@pytest.fixture
def proc(tmp_path):
    shutil.copytree(DATA, tmp_path / "proc")
    return tmp_path / "proc"


def test_the_files_of_the_machine_are_parsed():
    ticks = parse_ticks((DATA / "stat").read_bytes())
    busy = 485300 + 1200 + 229300 + 8500
    assert ticks == CpuTicks(busy, 1400, busy + 15923300 + 64100 + 1400, 2), "without guest, idle and steal"
    with pytest.raises(ValueError):
        parse_ticks(b"intr 1 2 3\n")
    raw = (DATA / "meminfo").read_bytes()
    assert parse_meminfo(raw, b"MemTotal") == 24684084 * 1024
    assert parse_meminfo(raw, b"MemAvailable") == 20376760 * 1024
    assert parse_meminfo(b"MemTotal: 1 kB\n", b"MemAvailable") == Missing("this kernel does not tell MemAvailable:")
    assert parse_loadavg((DATA / "loadavg").read_bytes()) == 7.39


def test_reader_shares_the_ticks_of_the_interval_and_counters_that_step_back_give_no_negative_share(proc):
    reader = HostReader(str(proc))
    first = reader.read()
    assert first.used_cores == first.steal_pct == Missing("needs a second reading")
    assert (first.cores, first.load) == (2, 7.39)
    # 200 ticks later: 100 busy, 60 idle, 40 stolen, on two CPUs.
    text = (DATA / "stat").read_text()
    (proc / "stat").write_text(
        text.replace("485300", "485400").replace("15923300", "15923360").replace("1400 300", "1440 300")
    )
    second = reader.read()
    assert (second.used_cores, second.steal_pct) == (pytest.approx(1.0), pytest.approx(20.0))
    (proc / "stat").write_text(text.replace("485300", "485399").replace("15923300", "15923460"))
    assert reader.read().used_cores == 0.0
    reader.close()


@pytest.mark.parametrize("name", ["stat", "loadavg", "meminfo"])
def test_a_file_that_cannot_be_read_costs_its_own_figures_and_is_tried_again(proc, name):
    figures = {"stat": ("used_cores", "steal_pct"), "loadavg": ("load",), "meminfo": ("available_bytes", "total_bytes")}
    whole = (proc / name).read_bytes()
    (proc / name).unlink()
    reader = HostReader(str(proc))
    reader.read()
    if name != "stat":
        (proc / "stat").write_bytes(DATA.joinpath("stat").read_bytes().replace(b"485300", b"485400"))
    reading = reader.read()
    for one, names in figures.items():
        for figure in names:
            value = getattr(reading, figure)
            why = f"{proc / name}: no such file or directory"
            assert value == Missing(why) if one == name else is_known(value), figure
    assert reading.cores == (os.cpu_count() if name == "stat" else 2)
    (proc / name).write_bytes(b"nonsense\n" if name != "meminfo" else b"MemTotal: x\n")
    assert "not understood" in getattr(reader.read(), figures[name][0]).reason
    (proc / name).write_bytes(whole)
    reader.read()
    (proc / "stat").write_bytes(DATA.joinpath("stat").read_bytes().replace(b"485300", b"485500"))
    reading = reader.read()
    assert all(is_known(getattr(reading, figure)) for names in figures.values() for figure in names)
    reader.close()


@given(st.lists(st.integers(0, 1 << 40), min_size=10, max_size=10), st.integers(1, 300))
def test_shares_are_bounded_for_any_counters(numbers, cores):
    lines = ["cpu  " + " ".join(map(str, numbers)), *(f"cpu{i} 0 0" for i in range(cores)), "intr 5 cpu"]
    ticks = parse_ticks("\n".join(lines).encode())
    assert ticks.cores == cores
    assert 0 <= ticks.busy + ticks.steal <= ticks.total


def test_this_machine_is_read_and_its_load_seen():
    reader = HostReader()
    first = reader.read()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    second = reader.read()
    reader.close()
    assert first.cores == os.cpu_count()
    assert 0 < second.used_cores <= first.cores
    assert 0 <= second.steal_pct <= 100
    assert 0 < second.available_bytes <= second.total_bytes


def test_shm_of_the_target_grows_by_what_it_writes():
    if os.path.islink("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is not writable here")
    before = read_shm(os.getpid())
    program = "import tempfile\nf = tempfile.TemporaryFile(dir='/dev/shm')\nf.write(bytes(8 << 20))\nf.flush()\n"
    with child(f"{program}say('full')\nhear()") as writer:
        during = read_shm(writer.pid)
    assert (during.path, during.total_bytes) == ("/dev/shm", before.total_bytes)
    # Others may free some of it meanwhile; half of what was written is proof enough.
    assert during.used_bytes - before.used_bytes > 4 << 20


def test_shm_says_why_it_was_not_read(tmp_path):
    assert read_shm(7, str(tmp_path)) == Missing("the process is gone")
    (tmp_path / "7" / "root" / "dev").mkdir(parents=True)
    assert read_shm(7, str(tmp_path)) == Missing("the target has no /dev/shm")
    (tmp_path / "7" / "root" / "dev" / "shm").symlink_to("/dev")
    assert "link" in read_shm(7, str(tmp_path)).reason


def test_the_first_tick_may_be_expensive_without_shedding_and_the_cost_counts_per_second_and_not_per_tick():
    meter = feed(1, 500.0)
    assert not meter.shedding
    assert feed(1, 5 * BUDGET_MS_PER_S + 10, meter=meter).shedding
    assert feed(40, BUDGET_MS_PER_S * 0.8, 0.5).shedding
    assert not feed(40, BUDGET_MS_PER_S * 4, 5.0).shedding


def test_a_cost_over_budget_sheds_and_one_just_below_it_does_not_return_to_full_rates():
    meter = feed(30, BUDGET_MS_PER_S * 1.1)
    for _ in range(100):
        assert meter.shedding, "half of the threads read is half of the cost: that is no relief"
        feed(1, BUDGET_MS_PER_S * (RELIEF + 0.05), meter=meter)
    assert not feed(30, BUDGET_MS_PER_S * RELIEF * 0.9, meter=meter).shedding


@given(st.floats(0, BUDGET_MS_PER_S))
def test_a_steady_cost_within_budget_never_sheds(cost):
    meter = OwnCostMeter()
    for _ in range(60):
        meter.add_tick(cost, 1.0)
        assert not meter.shedding


@given(st.lists(st.floats(BUDGET_MS_PER_S * RELIEF, BUDGET_MS_PER_S), min_size=1, max_size=80), st.booleans())
def test_between_relief_and_budget_the_mode_stays_what_it_is(costs, shedding):
    meter = feed(40, BUDGET_MS_PER_S * (1.2 if shedding else 0.6))
    assert meter.shedding == shedding
    for cost in costs:
        feed(1, cost, meter=meter)
    assert meter.shedding == shedding


def feed(times: int, tick_ms: float, interval_s: float = 1.0, meter=None) -> OwnCostMeter:
    """Let a meter see as many equal ticks."""
    meter = meter or OwnCostMeter()
    for _ in range(times):
        meter.add_tick(tick_ms, interval_s)
    return meter


def test_our_own_figures_do_not_hang_on_our_number_and_those_that_cannot_be_read_are_missing(monkeypatch):
    """In a /proc of another PID namespace /proc/<getpid()> is another process, or none."""

    def refuse(*_):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "getpid", lambda: 1 << 22)
    told = OwnCostMeter().read([], 1.0, 0.0)
    assert told.rss_bytes > 1 << 20
    assert is_known(told.descriptors)
    monkeypatch.setattr(own_cost, "read_stat", refuse)
    monkeypatch.setattr(own_cost.os, "stat", refuse)
    told = OwnCostMeter().read([], 1.0, 0.0)
    monkeypatch.undo()
    assert told.rss_bytes == Missing("/proc/self/stat: No such file or directory")
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
    assert (second.cpu_pct, second.target_paused_ms) == (pytest.approx(expected, rel=0.15), 2.5)
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


def test_a_busy_child_is_counted_and_one_that_is_restarted_takes_nothing_away():
    meter = OwnCostMeter()
    with child("say('up')\nwhile True: pass") as first:
        meter.read([first.pid], 0.0, 0.0)
        time.sleep(0.5)
        assert meter.read([first.pid], 0.0, 0.0).cpu_pct > 1  # of a core that it may share with others
        gone = first.pid
    used = time.process_time()
    while time.process_time() - used < 0.1:
        pass
    now = meter.read([gone], 0.0, 0.0)
    assert now.cpu_pct > 1
    assert now.children_rss_bytes == 0
