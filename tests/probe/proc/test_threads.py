"""Measure demand on real threads that burn, wait, come and go, and on a /proc that a test writes."""

import os
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests.budget.measure import read_stolen_s
from tests.children import child
from tests.probe.collect.test_population import open_files
from tests.waiting import wait_until, wait_until_at_rest
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.probe.base.procread import read_stat
from tpmon.probe.proc.counters import read_cpu_clock, tell_no_clock
from tpmon.probe.proc.threads import (
    DIGITS,
    QUIET_RELIST_NS,
    QUIET_TICKS,
    RELIST_NS,
    RESTING_SAMPLES,
    Allowance,
    ThreadSet,
)


def count_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def kind_of(name):
    return ThreadKind.AUTOGRAD if name.startswith("pt_autograd") else ThreadKind.OTHER


@pytest.fixture
def watch():
    """Make ThreadSets that a test reads when it wants to, and close them all."""
    made = []

    def make(
        pid: int, descriptors: int = 1000, names: int = 1000, proc: str = "/proc", clock=tell_no_clock
    ) -> ThreadSet:
        made.append(ThreadSet(pid, kind_of, Allowance(descriptors, names), proc, cpu_clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read_now(threads: ThreadSet, *, moved: bool = True, skip: bool = False):
    return threads.read(time.monotonic_ns, count_threads(threads.pid), moved=moved, skip=skip)


def read_after(threads, pause_s):
    """Read the threads, and again after a pause."""
    read_now(threads)
    time.sleep(pause_s)
    return read_now(threads)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_demand_counts_the_threads_that_want_a_cpu_not_those_that_got_one(watch, count):
    with child(f"start_burning({count}); time.sleep(0.2); say('up'); hear()") as one:
        threads = watch(one.pid)
        first = read_now(threads)
        assert first.runnable == Missing("threads are read twice before they show demand")
        for _ in range(8):  # what the hypervisor takes the kernel counts neither as run nor as waited
            stolen_s = read_stolen_s()
            time.sleep(1.0)
            now = read_now(threads)
            stolen_s = read_stolen_s() - stolen_s
            if stolen_s <= 0.02:
                break
    assert 0.9 * count - stolen_s <= now.runnable <= 1.1 * count
    assert now.busy_threads == count
    assert now.running + now.waiting == pytest.approx(now.runnable, abs=2 * 10**-DIGITS), "each is rounded"
    assert now.running <= len(os.sched_getaffinity(0)) + 0.1
    assert {(group.kind, group.count) for group in now.groups} == {(ThreadKind.MAIN, 1), (ThreadKind.OTHER, count)}
    other = next(group for group in now.groups if group.kind is ThreadKind.OTHER)
    assert other.runnable == pytest.approx(now.runnable, abs=0.1)
    assert len(threads.busy_tids()) == count
    assert one.pid not in threads.busy_tids()


def test_a_sleeping_process_wants_no_cpu_and_is_put_on_none(watch):
    with child("say('up'); hear()") as one:
        time.sleep(0.1)
        now = read_after(watch(one.pid), 0.3)
    assert (now.runnable, now.busy_threads, now.switches_s) == (0.0, 0, 0.0)


def test_switches_count_how_often_threads_were_put_on_a_cpu(watch):
    code = "say('up')\nwhile True: time.sleep(0.005)"
    with child(code) as one:
        now = read_after(watch(one.pid), 0.6)
    assert 60 < now.switches_s < 220
    assert now.main_switches_s == now.switches_s


def test_a_thread_born_within_the_interval_counts_from_its_birth(watch):
    with child("say('up'); hear(); start_burning(2); say('born'); hear()") as one:
        threads = watch(one.pid)
        read_now(threads)
        time.sleep(0.3)
        one.ask("go")
        born = time.monotonic()
        time.sleep(0.4)
        now = read_now(threads)
        lived = time.monotonic() - born
        first_ns = now.taken_ns
        assert (now.busy_threads, now.runnable) == (2, pytest.approx(2 * lived / (0.3 + lived), rel=0.2))
        time.sleep(0.4)
        later = read_now(threads)
    assert later.taken_ns > first_ns
    assert later.runnable == pytest.approx(2, rel=0.1)


REPLACE = """
first, second = threading.Event(), threading.Event()
one = threading.Thread(target=burn, args=(first,)); one.start()
say('up'); hear()
two = threading.Thread(target=burn, args=(second,), daemon=True); two.start()
first.set(); one.join()
say('replaced'); hear(); second.set()
"""


def test_a_thread_that_takes_the_place_of_a_dead_one_counts_in_the_same_tick(watch):
    """As many threads as before: only the dead one's ESRCH tells that the list is old."""
    with child(REPLACE) as one:
        threads = watch(one.pid)
        read_now(threads)
        one.ask("go")
        time.sleep(0.5)
        now = read_now(threads)
        assert (now.busy_threads, now.runnable) == (1, pytest.approx(1.0, abs=0.35))
        time.sleep(0.5)
        assert read_now(threads).runnable == pytest.approx(1.0, rel=0.15)


def test_exec_by_another_thread_never_shows_negative_demand(watch):
    """That thread takes over the PID with its own, smaller counters."""
    code = """
say('up'); hear()
end = time.monotonic() + 0.6
while time.monotonic() < end: pass
say('burnt'); hear()
args = [sys.executable, '-c', 'print(1, flush=True); input()']
threading.Thread(target=os.execv, args=(sys.executable, args)).start()
time.sleep(60)
"""
    with child(code) as one:
        threads = watch(one.pid)
        read_now(threads)
        one.ask("go")
        read_now(threads)
        one.ask("exec")
        now = read_now(threads)
        assert now.runnable >= 0
        assert now.switches_s >= 0
        assert all(group.runnable >= 0 for group in now.groups)
        time.sleep(0.2)
        assert read_now(threads).runnable == pytest.approx(0.0, abs=0.05)


def test_descriptors_return_when_threads_die_and_when_the_set_is_closed(watch):
    code = "stop = threading.Event(); n=[threading.Thread(target=stop.wait) for _ in range(8)]\n"
    code += "[t.start() for t in n]; say('up'); hear(); stop.set(); [t.join() for t in n]; say('one'); hear()"
    before = open_files()
    with child(code) as one:
        pipes = open_files()
        threads = watch(one.pid)
        read_now(threads)
        assert threads.allowance.descriptors == 1000 - 9
        assert open_files() == pipes + 9 + 1
        one.ask("die")
        assert wait_until(lambda: count_threads(one.pid) == 1)
        read_now(threads)
        assert threads.allowance.descriptors == 1000 - 1
        threads.close()
        threads.close()
        assert threads.allowance.descriptors == 1000
        assert open_files() == pipes
    assert open_files() == before


def test_a_killed_process_raises_and_leaves_nothing_behind(watch):
    with child("start_burning(3); say('up'); hear()") as one:
        pipes = open_files()
        threads = watch(one.pid)
        read_now(threads)
        one.kill()
        with pytest.raises(ProcessLookupError):
            threads.read(time.monotonic_ns, 4, moved=True, skip=False)
        threads.close()
        assert threads.allowance.descriptors == 1000
        assert open_files() == pipes


def test_threads_beyond_the_allowance_are_read_by_opening_them_each_time(watch):
    with child("start_burning(2); time.sleep(0.1); say('up'); hear()") as one:
        pipes = open_files()
        threads = watch(one.pid, descriptors=1)
        assert read_after(threads, 0.5).runnable == pytest.approx(2, rel=0.15)
        assert open_files() == pipes + 2, "one schedstat and the task folder"
        assert threads.allowance.descriptors == 0


def test_names_beyond_the_ration_are_read_at_the_next_listing(watch):
    code = "n=[threading.Thread(target=time.sleep, args=(50,), daemon=True) for _ in range(6)]\n"
    code += "[t.start() for t in n]; say('up'); hear()"
    clock = [time.monotonic_ns()]
    with child(code) as one:
        threads = watch(one.pid, names=4)
        now = threads.read(lambda: clock[0], 7, moved=True, skip=False)
        kinds = {group.kind: group.count for group in now.groups}
        assert sum(kinds.values()) == 7
        assert kinds[ThreadKind.UNREAD] == 7 - 4
        threads.allowance.names = 100
        clock[0] += RELIST_NS
        now = threads.read(lambda: clock[0], 7, moved=True, skip=False)
        assert {group.kind: group.count for group in now.groups} == {ThreadKind.MAIN: 1, ThreadKind.OTHER: 6}


def test_a_thread_that_takes_its_name_late_gets_its_kind_at_the_next_listing(watch):
    code = """
libc = ctypes.CDLL(None)
go = threading.Event()
def late():
    go.wait()
    libc.prctl(15, b"pt_autograd_0", 0, 0, 0)
    say("named")
    time.sleep(50)
threading.Thread(target=late, daemon=True).start(); say("up"); hear(); go.set(); hear()
"""
    clock = [time.monotonic_ns()]
    with child(code) as one:
        threads = watch(one.pid)
        now = threads.read(lambda: clock[0], 2, moved=True, skip=False)
        assert [group.kind for group in now.groups] == [ThreadKind.MAIN, ThreadKind.OTHER]
        one.ask("go")
        clock[0] += RELIST_NS
        now = threads.read(lambda: clock[0], 2, moved=True, skip=False)
        assert [group.kind for group in now.groups] == [ThreadKind.MAIN, ThreadKind.AUTOGRAD]


def test_threads_that_live_shorter_than_the_listing_takes_break_nothing(watch):
    code = """
def spin():
    while True:
        t = threading.Thread(target=lambda: None); t.start(); t.join()
for _ in range(2): threading.Thread(target=spin, daemon=True).start()
say('up'); hear()
"""
    with child(code) as one:
        threads = watch(one.pid)
        for _ in range(20):
            now = read_now(threads)
            time.sleep(0.01)
    assert now.runnable >= 0
    threads.close()
    assert threads.allowance.descriptors == 1000


def test_reading_is_safe_while_this_process_itself_starts_threads(watch):
    threads = watch(os.getpid())
    stop = threading.Event()
    read_now(threads)
    started = [threading.Thread(target=stop.wait) for _ in range(3)]
    for one in started:
        one.start()
    assert sum(group.count for group in read_now(threads).groups) == count_threads(os.getpid())
    stop.set()
    for one in started:
        one.join()


SECOND = 1_000_000_000


def count_readings() -> Mock:
    """Give a clock that counts the readings that were taken: it is asked right at each."""
    return Mock(side_effect=time.monotonic_ns)


@pytest.mark.parametrize(("moved", "skip"), [(False, False), (True, True)])
def test_a_quiet_or_shed_process_is_read_at_least_every_fifth_tick(watch, moved, skip):
    with child("say('up'); hear()") as one:
        threads, clock = watch(one.pid), count_readings()
        threads.read(clock, 1, moved=True, skip=False)
        threads.read(clock, 1, moved=moved, skip=False)
        gap, gaps, taken = 0, [], clock.call_count
        for _ in range(4 * QUIET_TICKS):
            threads.read(clock, 1, moved=moved, skip=skip)
            gap += 1
            if clock.call_count > taken:
                gaps.append(gap)
                gap, taken = 0, clock.call_count
    assert gaps
    assert max(gaps) <= QUIET_TICKS
    assert sum(gaps) / len(gaps) > 2, "quiet processes are read less often"


@pytest.mark.parametrize("reason", ["moved", "more threads"])
def test_a_quiet_process_is_read_at_once_when_it_moves_or_grows(watch, reason):
    with child("say('up'); hear()") as one:
        threads, clock = watch(one.pid), count_readings()
        for _ in range(3):
            threads.read(clock, 1, moved=False, skip=False)
        before = clock.call_count
        threads.read(clock, 2 if reason == "more threads" else 1, moved=reason == "moved", skip=False)
        assert clock.call_count == before + 1


def test_quiet_processes_are_not_all_read_in_the_same_tick(watch, tmp_path):
    """137 processes at once are a spike of 30 ms every fifth second."""
    read_in = []
    for pid in range(50, 50 + QUIET_TICKS):
        threads, clock = Written(watch, tmp_path, pid).put((pid, "1000 0 5")).threads, count_readings()
        threads.read(clock, 1, moved=True, skip=False)
        threads.read(clock, 1, moved=False, skip=False)
        assert clock.call_count == 2, "the second tick gives the first rates"
        tick = 2
        while clock.call_count == 2:
            threads.read(clock, 1, moved=False, skip=False)
            tick += 1
        read_in.append(tick)
    assert len(set(read_in)) == QUIET_TICKS


class Written:
    """Write the task folder of process 77 and read it each second, so that a test chooses the kernel's numbers."""

    def __init__(self, watch, root, pid: int = 77) -> None:
        self.task = root / str(pid) / "task"
        self.task.mkdir(parents=True)
        self.threads = watch(pid, proc=str(root))
        self.at_ns = 4 * SECOND

    def put(self, *rows: tuple[int, str]):
        for tid, schedstat in rows:
            folder = self.task / str(tid)
            folder.mkdir(exist_ok=True)
            (folder / "comm").write_text("python\n")
            (folder / "schedstat").write_text(f"{schedstat}\n")
        return self

    def read(self, **fields):
        self.at_ns += SECOND
        count = len(list(self.task.iterdir()))
        return self.threads.read(lambda: self.at_ns, count, moved=True, skip=False, **fields)


def test_a_kernel_that_does_not_fill_schedstat_is_missing_and_never_zero(watch, tmp_path):
    job = Written(watch, tmp_path).put((77, "0 0 0"), (78, "0 0 0"))
    now = [job.read() for _ in range(3)][-1]
    for value in (now.runnable, now.waiting, now.running, now.busy_threads, now.switches_s):
        assert "schedstat" in value.reason
    assert (now.groups[0].count, is_known(now.groups[0].runnable)) == (1, False)


def test_time_from_before_the_interval_is_not_counted_into_it(watch, tmp_path):
    """A thread met late with more time than the interval has starts to count now."""
    job = Written(watch, tmp_path).put((77, "1000000000 0 10"))
    job.read()
    now = job.put((78, "900000000000 0 10"), (79, "200000000 100000000 10")).read()
    assert (now.running, now.waiting) == (pytest.approx(0.2), pytest.approx(0.1))
    now = job.put((78, "900500000000 0 10")).read()
    assert (now.running, now.waiting) == (pytest.approx(0.5), 0.0)


def test_busy_threads_come_busiest_first(watch, tmp_path):
    job = Written(watch, tmp_path).put(*((tid, "0 0 1") for tid in (77, 78, 79, 80)))
    job.read()
    now = job.put((78, "250000000 0 2"), (79, "100000000 800000000 2"), (80, "249999999 0 2")).read()
    assert (now.busy_threads, job.threads.busy_tids()) == (2, (79, 78))


class Rested(Written):
    """A process whose main thread works while two others rest, read until their rest is known."""

    def __init__(self, watch, root) -> None:
        super().__init__(watch, root)
        self.cpu_s, self.main_run = 10.0, 10 * SECOND
        self.put(*((tid, "10000000000 0 10") for tid in (77, 78, 79)))
        for _ in range(RESTING_SAMPLES + 1):
            self.tick()
        while (self.threads._ticks + 1 + 77) % QUIET_TICKS != 1:
            self.tick()

    def tick(self, main_s: float = 0.5, others_s: float = 0.0):
        """Let a second pass in which the main thread ran; ``others_s``: what others used, in stat."""
        self.main_run += int(main_s * SECOND)
        self.cpu_s += main_s + others_s
        return self.put((77, f"{self.main_run} 0 {self.main_run}")).read(cpu_s=self.cpu_s)


def test_a_resting_thread_that_runs_is_seen_in_the_same_tick_by_the_cpu_time_of_its_process(watch, tmp_path):
    job = Rested(watch, tmp_path)
    assert job.tick().runnable == pytest.approx(0.5)
    job.put((78, "10600000000 200000000 20"))
    now = job.tick(others_s=0.6)
    assert (now.runnable, now.busy_threads) == (pytest.approx(0.5 + 0.6 + 0.2), 2)
    assert sum(group.count for group in now.groups) == 3


def test_resting_threads_are_not_read_while_the_others_account_for_all_cpu_time(watch, tmp_path):
    job = Rested(watch, tmp_path)
    job.put((78, "10010000000 0 20"))
    seen = [job.tick(others_s=0.01 if i == 0 else 0.0).runnable for i in range(QUIET_TICKS)]
    assert seen[0] == pytest.approx(0.5), "10 ms of CPU are less than the clock tells"
    late = [value for value in seen if value > 0.501]
    assert len(late) == 1, "with the quiet ones, at the latest every fifth tick"
    assert sum(seen) == pytest.approx(0.5 * QUIET_TICKS + 0.01 / QUIET_TICKS, abs=0.002)


class Clocked(Rested):
    """The same process, with a CPU clock that knows what all of its threads ran."""

    def __init__(self, watch, root) -> None:
        self.ran_ns = 30 * SECOND
        super().__init__(lambda pid, **more: watch(pid, **more, clock=lambda _: self.ran_ns - 20 * SECOND), root)

    def tick(self, main_s: float = 0.5, others_s: float = 0.0):
        self.ran_ns += int((main_s + others_s) * SECOND)
        return super().tick(main_s, others_s)


def test_the_files_of_resting_threads_are_not_read_while_the_clock_of_the_process_says_that_they_rest(watch, tmp_path):
    job = Clocked(watch, tmp_path)
    for _ in range(QUIET_TICKS):
        job.tick()  # in one of them the clock is read for the first time
    (job.task / "78" / "schedstat").write_text("10600000000 200000000 20")  # which nobody looks at
    seen = [job.tick().runnable for _ in range(3 * QUIET_TICKS)]
    assert seen == [pytest.approx(0.5)] * len(seen)
    now = [job.tick().runnable for _ in range(QUIET_RELIST_NS // SECOND)]
    assert sum(value > 0.501 for value in now) == 1, "within a minute each file is read"


@pytest.mark.parametrize("ran_s", [0.000001, 0.3])
def test_a_resting_thread_that_ran_for_a_moment_is_read_at_the_next_turn_of_all(watch, tmp_path, ran_s):
    job, plain = Clocked(watch, tmp_path / "one"), Rested(watch, tmp_path / "other")
    for _ in range(QUIET_TICKS):
        job.tick(), plain.tick()
    for one in (job, plain):
        one.put((78, f"{10 * SECOND + int(ran_s * SECOND)} 0 20"))
    told = [[one.tick(others_s=ran_s if i == 0 else 0.0) for i in range(QUIET_TICKS)] for one in (job, plain)]
    assert [one.runnable for one in told[0]] == [one.runnable for one in told[1]]
    assert [one.switches_s for one in told[0]] == [one.switches_s for one in told[1]]


@pytest.mark.parametrize("apart_s", [-30.0, 1.0])
def test_a_clock_that_differs_from_the_cpu_time_of_the_process_is_not_believed(watch, tmp_path, apart_s):
    job = Clocked(watch, tmp_path)
    job.ran_ns += int(apart_s * SECOND)
    for _ in range(QUIET_TICKS):
        job.tick()
    job.put((78, "10010000000 0 20"))
    assert sum(job.tick().runnable > 0.501 for _ in range(QUIET_TICKS)) == 1


def test_the_clock_of_a_process_counts_what_its_threads_ran():
    with child("import threading; threading.Thread(target=hear, daemon=True).start(); say('on'); hear()") as one:
        total = 0
        for tid in os.listdir(f"/proc/{one.pid}/task"):
            with open(f"/proc/{one.pid}/task/{tid}/schedstat") as file:
                total += int(file.read().split()[0])
        wait_until(lambda: read_cpu_clock(one.pid) == total)
    assert read_cpu_clock(one.pid) == -1


def test_a_busy_thread_in_the_place_of_a_dead_resting_one_is_met_in_the_same_tick(watch, tmp_path):
    job = Rested(watch, tmp_path)
    for file in (job.task / "79").iterdir():
        file.write_text("")  # what an open file of a dead thread says to a reader
        file.unlink()
    (job.task / "79").rmdir()
    job.put((80, "400000000 0 3"))
    now = job.tick(others_s=0.4)
    assert (now.runnable, now.busy_threads) == (pytest.approx(0.9), 2)


def test_of_a_process_that_slept_all_the_time_no_thread_is_read(watch, monkeypatch):
    code = "for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()"
    with child(f"{code}\nsay('up'); hear(); start_burning(1); say('runs'); hear()") as one:
        threads = watch(one.pid, clock=read_cpu_clock)
        assert wait_until_at_rest(one.pid)

        def read(*, sleeps: bool, moved: bool = False):
            cpu_s = read_stat(one.pid).cpu_s
            count = read_stat(one.pid).threads
            return threads.read(time.monotonic_ns, count, moved=moved, skip=False, cpu_s=cpu_s, sleeps=sleeps)

        for _ in range(6 * QUIET_TICKS):
            before = read(sleeps=False)
        looked: list[int] = []
        look = threads._read_thread
        monkeypatch.setattr(ThreadSet, "_read_thread", lambda _, thread: looked.append(thread.tid) or look(thread))
        for _ in range(2 * QUIET_TICKS):
            now = read(sleeps=True)
        assert not looked
        assert replace(now, taken_ns=0) == replace(before, taken_ns=0)
        assert now.taken_ns > before.taken_ns
        for _ in range(2 * QUIET_TICKS):
            read(sleeps=False)
        assert looked == [one.pid] * 2
        read(sleeps=True)
        one.say("go")
        one.hear()
        time.sleep(0.5)
        ran = read(sleeps=True, moved=True)
        assert ran.runnable == pytest.approx(1.0, abs=0.5)
