"""Which threads are left unread for some ticks, and that nothing is lost by it; on a /proc tree that a test writes."""

import time
from pathlib import Path

import pytest

from tests.children import child
from tests.thread_sets import making_sets
from tpmon.model.known import is_known
from tpmon.probe.proc.threads import QUIET_TICKS, RESTING_SAMPLES

SECOND = 1_000_000_000


@pytest.fixture
def watch():
    with making_sets() as make:
        yield make


class Clock:
    """Count the readings that were taken: ``now`` is called right at each."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return time.monotonic_ns()


@pytest.mark.parametrize(("moved", "skip"), [(False, False), (True, True)])
def test_a_quiet_or_shed_process_is_read_at_least_every_fifth_tick(watch, moved, skip):
    with child("say('up'); hear()") as one:
        threads, clock = watch(one.pid), Clock()
        threads.read(clock, 1, moved=True, skip=False)
        threads.read(clock, 1, moved=moved, skip=False)
        gap, gaps, taken = 0, [], clock.calls
        for _ in range(4 * QUIET_TICKS):
            threads.read(clock, 1, moved=moved, skip=skip)
            gap += 1
            if clock.calls > taken:
                gaps.append(gap)
                gap, taken = 0, clock.calls
    assert gaps
    assert max(gaps) <= QUIET_TICKS
    assert sum(gaps) / len(gaps) > 2, "quiet processes are read less often"


@pytest.mark.parametrize("reason", ["moved", "more threads"])
def test_a_quiet_process_is_read_at_once_when_it_moves_or_grows(watch, reason):
    with child("say('up'); hear()") as one:
        threads, clock = watch(one.pid), Clock()
        for _ in range(3):
            threads.read(clock, 1, moved=False, skip=False)
        before = clock.calls
        threads.read(clock, 2 if reason == "more threads" else 1, moved=reason == "moved", skip=False)
        assert clock.calls == before + 1


def test_quiet_processes_are_not_all_read_in_the_same_tick(watch, tmp_path):
    """137 processes at once are a spike of 30 ms every fifth second."""
    read_in = []
    for pid in range(50, 50 + QUIET_TICKS):
        FakeProc(tmp_path, pid).put(pid, "1000 0 5\n")
        threads, clock = watch(pid, proc=str(tmp_path)), Clock()
        threads.read(clock, 1, moved=True, skip=False)
        threads.read(clock, 1, moved=False, skip=False)
        assert clock.calls == 2, "the second tick gives the first rates"
        tick = 2
        while clock.calls == 2:
            threads.read(clock, 1, moved=False, skip=False)
            tick += 1
        read_in.append(tick)
    assert len(set(read_in)) == QUIET_TICKS


class FakeProc:
    """Write the task folder of one process, so that a test chooses the kernel's numbers."""

    def __init__(self, root: Path, pid: int = 77) -> None:
        self.root, self.pid = root, pid
        self.task = root / str(pid) / "task"
        self.task.mkdir(parents=True)

    def put(self, tid: int, schedstat: str) -> None:
        folder = self.task / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text("python\n")
        (folder / "schedstat").write_text(schedstat)


def test_a_kernel_that_does_not_fill_schedstat_is_missing_and_never_zero(watch, tmp_path):
    fake = FakeProc(tmp_path)
    fake.put(77, "0 0 0\n")
    fake.put(78, "0 0 0\n")
    threads, clock = watch(77, proc=str(tmp_path)), [5 * SECOND]
    for _ in range(3):
        now = threads.read(lambda: clock[0], 2, moved=True, skip=False)
        clock[0] += SECOND
    for value in (now.runnable, now.waiting, now.running, now.busy_threads, now.switches_s):
        assert not is_known(value)
        assert "schedstat" in value.reason
    assert now.groups[0].count == 1
    assert not is_known(now.groups[0].runnable)


def test_time_from_before_the_interval_is_not_counted_into_it(watch, tmp_path):
    """A thread met late with more time than the interval has starts to count now."""
    fake = FakeProc(tmp_path)
    fake.put(77, "1000000000 0 10\n")
    threads, clock = watch(77, proc=str(tmp_path)), [5 * SECOND]
    threads.read(lambda: clock[0], 1, moved=True, skip=False)
    clock[0] += SECOND
    fake.put(78, "900000000000 0 10\n")
    fake.put(79, "200000000 100000000 10\n")
    now = threads.read(lambda: clock[0], 3, moved=True, skip=False)
    assert (now.running, now.waiting) == (pytest.approx(0.2), pytest.approx(0.1))
    clock[0] += SECOND
    fake.put(78, "900500000000 0 10\n")
    now = threads.read(lambda: clock[0], 3, moved=True, skip=False)
    assert (now.running, now.waiting) == (pytest.approx(0.5), 0.0)


def test_busy_threads_come_busiest_first(watch, tmp_path):
    fake = FakeProc(tmp_path)
    for tid in (77, 78, 79, 80):
        fake.put(tid, "0 0 1\n")
    threads, clock = watch(77, proc=str(tmp_path)), [5 * SECOND]
    threads.read(lambda: clock[0], 4, moved=True, skip=False)
    clock[0] += SECOND
    fake.put(78, "250000000 0 2\n")
    fake.put(79, "100000000 800000000 2\n")
    fake.put(80, "249999999 0 2\n")
    now = threads.read(lambda: clock[0], 4, moved=True, skip=False)
    assert now.busy_threads == 2
    assert threads.busy_tids() == (79, 78)


class Rested:
    """A process whose main thread works while two others rest, read until their rest is known."""

    def __init__(self, watch, tmp_path) -> None:
        self.fake, self.cpu_s, self.at_ns = FakeProc(tmp_path), 10.0, 5 * SECOND
        for tid in (77, 78, 79):
            self.fake.put(tid, "10000000000 0 10\n")
        self.threads = watch(77, proc=str(tmp_path))
        self.main_run = 10 * SECOND
        for _ in range(RESTING_SAMPLES + 1):
            self.tick()
        while (self.threads._ticks + 1 + 77) % QUIET_TICKS != 1:
            self.tick()

    def tick(self, main_s: float = 0.5, others_s: float = 0.0):
        """Let a second pass in which the main thread ran; ``others_s``: what others used, in stat."""
        self.at_ns += SECOND
        self.main_run += int(main_s * SECOND)
        self.cpu_s += main_s + others_s
        self.fake.put(77, f"{self.main_run} 0 {self.main_run}\n")
        return self.threads.read(lambda: self.at_ns, 3, moved=True, skip=False, cpu_s=self.cpu_s)


def test_a_resting_thread_that_runs_is_seen_in_the_same_tick_by_the_cpu_time_of_its_process(watch, tmp_path):
    job = Rested(watch, tmp_path)
    assert job.tick().runnable == pytest.approx(0.5)
    job.fake.put(78, "10600000000 200000000 20\n")
    now = job.tick(others_s=0.6)
    assert now.runnable == pytest.approx(0.5 + 0.6 + 0.2)
    assert now.busy_threads == 2
    assert sum(group.count for group in now.groups) == 3


def test_resting_threads_are_not_read_while_the_others_account_for_all_cpu_time(watch, tmp_path):
    job = Rested(watch, tmp_path)
    job.fake.put(78, "10010000000 0 20\n")
    seen = [job.tick(others_s=0.01 if i == 0 else 0.0).runnable for i in range(QUIET_TICKS)]
    assert seen[0] == pytest.approx(0.5), "10 ms of CPU are less than the clock tells"
    late = [value for value in seen if value > 0.501]
    assert len(late) == 1, "with the quiet ones, at the latest every fifth tick"
    assert sum(seen) == pytest.approx(0.5 * QUIET_TICKS + 0.01 / QUIET_TICKS, abs=0.002)


def test_a_busy_thread_in_the_place_of_a_dead_resting_one_is_met_in_the_same_tick(watch, tmp_path):
    job = Rested(watch, tmp_path)
    for file in (job.fake.task / "79").iterdir():
        file.write_text("")  # what an open file of a dead thread says to a reader
        file.unlink()
    (job.fake.task / "79").rmdir()
    job.fake.put(80, "400000000 0 3\n")
    now = job.tick(others_s=0.4)
    assert now.runnable == pytest.approx(0.9)
    assert now.busy_threads == 2
