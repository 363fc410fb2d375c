"""Looks at main threads: what each finds, how often they come, and what real programs are found doing."""

import os
import platform
import signal
import time

import pytest

from tests.children import Child, child
from tests.waiting import wait_until
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity, MainThreadSample
from tpmon.probe.base.procread import read_stat
from tpmon.probe.base.worker import Pace
from tpmon.probe.proc.main_threads import (
    LEAST_HZ,
    MOST_HZ,
    MOST_RANKS,
    MainThreadProbe,
    classify_look,
    pick_rate,
    stretch,
)
from tpmon.probe.proc.wchan import ON_CPU, Syscall

X86 = "x86_64"
on_x86 = pytest.mark.skipif(platform.machine() != X86, reason="system call numbers of x86-64")
POLL_LOADER = Syscall(7, (0x7F00, 1, 5000), 1)
POLL_OTHER = Syscall(7, (0x7F00, 3, 5000), 1)
FUTEX = Syscall(202, (0x7F00, 0x189, 0, 0, 0, 0), 1)
TIMED_FUTEX = Syscall(202, (0x7F00, 0x89, 0, 0x7F10, 0, 0), 1)
READ = Syscall(0, (3, 0, 1), 1)
SLEEP = Syscall(230, (1, 0, 2, 0), 1)


@pytest.mark.parametrize(
    ("state", "wchan", "call", "doing"),
    [
        ("R", "0", ON_CPU, "running"),
        ("S", "do_sys_poll", POLL_LOADER, "batch_wait"),
        ("S", "do_sys_poll", POLL_OTHER, "other"),
        ("S", "futex_wait_queue", FUTEX, "lock"),
        ("S", "futex_do_wait", TIMED_FUTEX, "timed_lock"),
        ("D", "0", Syscall(-1, (), 0), "io"),
        ("S", "request_wait_answer", READ, "io"),
        ("S", "sk_wait_data", Syscall(45, (3, 0, 1), 1), "io"),
        ("S", "hrtimer_nanosleep", SLEEP, "other"),
        ("S", "anon_pipe_read", READ, "other"),
        ("S", "0", SLEEP, "other"),
        ("T", "do_signal_stop", SLEEP, "other"),
    ],
)
def test_what_a_look_finds(state, wchan, call, doing):
    assert classify_look(state, wchan, call, X86) is doing


def test_the_rate_falls_with_the_number_of_ranks_and_stays_within_forty_looks():
    assert [pick_rate(ranks, Pace.FULL) for ranks in (0, 1, 2)] == [MOST_HZ] * 3
    rates = [pick_rate(ranks, Pace.FULL) for ranks in range(1, MOST_RANKS + 1)]
    assert rates == sorted(rates, reverse=True)
    assert all(rate >= LEAST_HZ and rate * ranks <= 40 for ranks, rate in enumerate(rates, 1))
    assert pick_rate(2, Pace.SETTLED) == MOST_HZ / 2


def test_looks_are_in_step_with_nothing():
    pauses = [stretch(look) for look in range(1, 1001)]
    assert 0.5 <= min(pauses) < 0.51
    assert 1.49 < max(pauses) < 1.5
    assert sum(pauses) / 1000 == pytest.approx(1, abs=0.01)
    now, moments = 0.0, []
    for pause in pauses:
        now += pause
        moments.append(now)
    # Whatever the step time is in units of the pause, the looks fall evenly over the step.
    for period in (1.0, 0.5, 2.0, 1.618, 3.7):
        quarters = [0] * 4
        for moment in moments:
            quarters[int(moment % period / period * 4)] += 1
        assert min(quarters) > 150, period


def identity(pid: int) -> Identity:
    return Identity(pid, read_stat(pid).start_ticks)


def look_at(one: Child, times: int = 20) -> MainThreadSample:
    probe = MainThreadProbe()
    probe.watch([(identity(one.pid), 3)])
    for _ in range(times):
        probe.look()
        time.sleep(0.005)
    (sample,) = probe.take()
    probe.watch([])
    probe.look()
    assert (sample.pid, sample.rank, sample.looks) == (one.pid, 3, times)
    return sample


@on_x86
@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("say('up'); burn()", "running"),
        ("say('up'); time.sleep(60)", "other"),
        ("say('up'); l = threading.Lock(); l.acquire(); l.acquire()", "lock"),
        ("say('up'); l = threading.Lock(); l.acquire(); l.acquire(timeout=60)", "timed_lock"),
        (
            "import multiprocessing as mp\nr, w = mp.Pipe(False)\nsay('up')\nr.poll(5)\nr.poll(5)\nr.poll(60)",
            "batch_wait",
        ),
        ("import socket\na, b = socket.socketpair()\nsay('up')\na.recv(1)", "io"),
        ("say('up'); burn()", "other"),
    ],
)
def test_real_programs_are_found_doing_what_they_do(code, field):
    with child(code) as one:
        time.sleep(0.2)
        if "burn" in code and field == "other":  # one that is stopped in no call does not run
            os.kill(one.pid, signal.SIGSTOP)
            assert wait_until(lambda: read_stat(one.pid).state == "T"), "it stops when it is given a CPU"
        sample = look_at(one)
        assert getattr(sample, field) >= 18, sample


@on_x86
def test_threads_that_fight_for_the_interpreter_lock_wait_with_a_time_out():
    """Python's lock is waited for in a futex with a time-out: the sign of the verdict ``gil``."""
    fight = """
def spin():
    while True:
        sum(range(100))
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
say('up')
spin()
"""
    with child(fight) as one:
        sample = look_at(one, 200)
        assert sample.timed_lock > 60
        assert sample.timed_lock + sample.running > 190


def test_counts_are_those_since_the_last_time_and_the_dead_are_left_out():
    with child("say('up'); time.sleep(60)") as one, child("say('up'); time.sleep(60)") as two:
        probe = MainThreadProbe(machine=X86)
        assert probe.take() == Missing("no rank to sample yet")
        probe.watch([(identity(one.pid), 0), (identity(two.pid), 1)])
        assert not is_known(probe.take())
        for _ in range(3):
            probe.look()
        assert [sample.looks for sample in probe.take()] == [3, 3]
        two.kill()
        probe.look()
        assert [(sample.pid, sample.looks) for sample in probe.take()] == [(one.pid, 1)]
        probe.watch([(identity(one.pid), 0)])
        probe.look()
        assert [sample.rank for sample in probe.take()] == [0]
        probe.watch([])
        probe.look()
        assert not is_known(probe.take())


def test_it_looks_by_itself_ends_when_told_and_leaves_no_descriptor():
    with child("say('up'); time.sleep(60)") as one:
        held = len(os.listdir("/proc/self/fd"))
        probe = MainThreadProbe(machine=X86)
        probe.watch([(identity(one.pid), 0)])
        probe.start()
        looks = []

        def look():
            taken = probe.take()
            looks.extend(sample.looks for sample in (taken if is_known(taken) else ()))
            return sum(looks) >= 5

        assert wait_until(look, 10, every_s=0.1)
        probe.stop()
        assert wait_until(lambda: len(os.listdir("/proc/self/fd")) == held, 10)


@pytest.fixture
def written(tmp_path):
    """Give a probe of ranks from 7 on, each with what its file of the system call says."""

    def make(*calls, machine=X86, first=7):
        for pid, call in enumerate(calls, first):
            task = tmp_path / str(pid) / "task" / str(pid)
            task.mkdir(parents=True)
            (task / "stat").write_bytes(b"%d (py (x) S) S 1 1\n" % pid)
            (task / "wchan").write_bytes(b"futex_wait_queue")
            (task / "syscall").write_bytes(call)
        probe = MainThreadProbe(str(tmp_path), machine)
        probe.watch([(Identity(first + rank, 1), rank) for rank in range(len(calls))])
        return probe

    return make


def test_where_system_calls_may_not_be_read_or_a_wait_for_a_batch_not_be_told_nothing_is(written, monkeypatch):
    real = os.pread

    def refuse(fd, size, offset):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("syscall"):
            raise PermissionError(1, "Operation not permitted")
        return real(fd, size, offset)

    probe = written(b"73 0x1 0x1 0x0 0x0 0x0 0x0 0x1 0x2\n", machine="aarch64")
    probe.look()
    assert isinstance(probe.take(), Missing)
    probe = written(b"202 0x1 0x189 0x0 0x0 0x0 0x0 0x1 0x2\n", first=8)
    monkeypatch.setattr(os, "pread", refuse)
    probe.look()
    assert "may not be read" in probe.take().reason


def test_a_line_that_is_no_line_costs_that_rank_alone(written):
    probe = written(b"", b"running\n")
    probe.look()
    (sample,) = probe.take()
    assert (sample.rank, sample.running) == (1, 1)
