"""Read real processes second by second: busy, sleeping, dead, zombie, foreign, and after exec."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import closing
from dataclasses import replace

import pytest

from tests.children import Child, child
from tests.probe.collect.test_population import open_files
from tests.waiting import wait_until
from tests.waits import wait_of
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.probe.base.procread import StatLine, read_stat
from tpmon.probe.collect.processes import REREAD_TICKS, ProcessProbe, ProcessRates, measure_rates, parse_allowed_cpus
from tpmon.probe.proc.counters import Io
from tpmon.probe.proc.threads import DIGITS, Allowance
from tpmon.probe.proc.wchan import RUNNING

SECOND = 1_000_000_000
STAT = StatLine(9, "python", "S", 1, False, 1, 5, 0, cpu_s=1.0, minor_faults=100, children_faults=7, major_faults=1)
IO = Io(1000, 2000, 3000, 4000, 500)
NOBODY = 65534


def kind_of(_name: str) -> ThreadKind:
    return ThreadKind.OTHER


@pytest.fixture
def probe():
    """Make ProcessProbes and close them all."""
    made = []

    def make(one):
        made.append(ProcessProbe(one if isinstance(one, int) else one.pid, kind_of, Allowance(100)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read(one: ProcessProbe, role: Role = Role.RANK):
    return one.read(role, skip_threads=False)


FIRST = Missing("rates need two readings")
DENIED = Missing("permission denied")
BACK = replace(STAT, cpu_s=0.2), Io(0, 0, 0, 0, 0), 2
LATER = replace(STAT, cpu_s=4.0, minor_faults=140, major_faults=3)
RATES = {
    "the first reading": (None, (STAT, IO, 5), ProcessRates(*[FIRST] * 8)),
    "two at one moment": ((STAT, IO, 5), (STAT, IO, 5), ProcessRates(*[FIRST] * 8)),
    "per second of the interval that passed": (
        (STAT, IO, 5),
        (LATER, Io(1200, 2600, 3000, 4001, 520), 7),
        ProcessRates(150.0, 20.0, 1.0, 100.0, 300.0, 0.0, 0.5, 10.0),
    ),
    "io that may not be read": ((STAT, DENIED, 1), (STAT, DENIED, 2), ProcessRates(*[0.0] * 3, *[DENIED] * 5)),
    "io that may be read now": ((STAT, DENIED, 1), (STAT, IO, 2), ProcessRates(*[0.0] * 3, *[FIRST] * 5)),
    "counters that went back": ((STAT, IO, 1), BACK, ProcessRates(*[0.0] * 8)),
}


@pytest.mark.parametrize(("old", "new", "rates"), RATES.values(), ids=RATES)
def test_rates_are_those_between_two_readings(old, new, rates):
    before, now = (one and (one[0], one[1], one[2] * SECOND) for one in (old, new))
    assert measure_rates(before, now) == rates


def test_a_busy_process_shows_what_it_uses_and_its_demand(probe):
    with child("start_burning(2); time.sleep(0.1); say('up'); hear()") as one:
        watched = probe(one)
        first = read(watched)
        assert not is_known(first.rates.cpu_pct)
        time.sleep(0.8)
        now = read(watched)
        assert now.threads.runnable == pytest.approx(2, rel=0.1)
        assert now.rates.cpu_pct / 100 == pytest.approx(now.threads.running, abs=0.1)
        assert now.stat.threads == 3
        assert now.stat.rss_bytes > 4 << 20


@pytest.mark.skipif(shutil.which("pidstat") is None, reason="pidstat is not installed")
def test_cpu_is_within_five_points_of_pidstat_over_the_same_second(probe):
    with child("start_burning(1); time.sleep(0.2); say('up'); hear()") as one:
        watched = probe(one)
        command = ["pidstat", "-u", "-p", str(one.pid), "1", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as pidstat:
            assert wait_until(lambda: read_stat(pidstat.pid).state == "S", every_s=0.001)
            read(watched)
            text = pidstat.stdout.read()
            now = read(watched)
    lines = [line.split() for line in text.splitlines()]
    from_right = next(len(line) - line.index("%CPU") for line in lines if "%CPU" in line)
    average = next(line for line in lines if line and line[0] == "Average:" and str(one.pid) in line)
    theirs = float(average[-from_right])
    assert now.rates.cpu_pct == pytest.approx(theirs, abs=5)


def test_bytes_asked_for_and_faults_are_rates_of_the_process_itself(probe):
    code = """
say('up')
while hear():
    with open('/dev/zero', 'rb', buffering=0) as f: f.read(8 << 20)
    say('read')
"""
    with child(code) as one:
        watched = probe(one)
        before = read(watched)
        one.say("go")
        one.hear()
        now = read(watched)
        elapsed_s = (now.taken_ns - before.taken_ns) / 1e9
    assert now.rates.asked_read_bytes_s * elapsed_s == pytest.approx(8 << 20, rel=0.01)
    assert now.rates.minor_faults_s > 0


def test_bytes_of_a_reaped_child_are_no_rate_of_its_parent(probe):
    """The kernel adds them to the parent in one step when it reaps (wait_task_zombie)."""
    code = """
pid = os.fork()
if pid == 0:
    with open('/dev/zero', 'rb', buffering=0) as f: f.read(64 << 20)
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
say('up'); hear(); os.waitpid(pid, 0); say('reaped'); hear()
"""
    with child(code) as one:
        watched = probe(one)
        read(watched)
        time.sleep(0.1)
        one.say("go")
        one.hear()
        now = read(watched)
        assert now.rates.asked_read_bytes_s == Missing("a reaped child's bytes were added in this interval")
        assert is_known(now.rates.cpu_pct)
        time.sleep(0.05)
        assert read(watched).rates.asked_read_bytes_s < 1 << 20


@pytest.mark.parametrize("watched_before", [False, True])
def test_a_zombie_keeps_its_row_and_says_so(probe, watched_before):
    code = "pid = os.fork()\nif pid == 0: time.sleep(50)\nsay(pid); hear()"
    with closing(Child(code)) as parent:
        pid = int(parent.hear())
        if watched_before:
            watched = probe(pid)
            read(watched)
        os.kill(pid, 9)
        assert wait_until(lambda: read_stat(pid).state == "Z")
        if not watched_before:
            watched = probe(pid)
            read(watched)
        now = read(watched)
        assert (now.stat.state, now.stat.rss_bytes, now.rates.cpu_pct, now.threads.groups) == ("Z", 0, 0.0, ())
        assert now.waits_for == wait_of("zombie: ended, not reaped by its parent")
        assert now.threads.runnable == Missing("zombie")


def test_a_process_killed_between_two_reads_raises_and_frees_every_descriptor():
    with child("start_burning(2); say('up'); hear()") as one:
        before = open_files()
        allowance = Allowance(100)
        watched = ProcessProbe(one.pid, kind_of, allowance)
        read(watched)
        assert open_files() > before
        one.kill()
        with pytest.raises(ProcessLookupError):
            read(watched)
        watched.close()
        watched.close()
        assert open_files() == before
        assert allowance.descriptors == 100
        with pytest.raises(OSError):
            ProcessProbe(one.pid, kind_of, allowance)
        assert open_files() == before


def test_processes_killed_at_any_moment_raise_os_error_and_nothing_else():
    before = open_files()
    for delay in range(12):
        one = Child("start_burning(3); say('up'); hear()")
        one.hear()
        watched = ProcessProbe(one.pid, kind_of, Allowance(100))
        one.process.kill()
        end = time.monotonic() + 2
        try:
            while time.monotonic() < end:
                read(watched)
                if delay % 3 == 0:
                    one.process.poll()
                if delay % 3 == 1 and read_stat(one.pid).state == "Z":
                    one.process.wait()
                if delay % 3 == 2:
                    one.process.wait()
        except OSError:
            pass
        else:
            pytest.fail("a reaped process was still read")
        finally:
            watched.close()
            one.close()
    assert open_files() == before


class Counted:
    """Count how often a file is read."""

    def __init__(self, file) -> None:
        self.file, self.reads = file, 0

    def read(self):
        self.reads += 1
        return self.file.read()

    def close(self) -> None:
        self.file.close()


def rest(watched: ProcessProbe, ticks: int) -> None:
    """Read a process that sleeps so often that its next readings find that its clock stood still.

    One that is preempted on its way into a wait sleeps already by its state, and waits for nothing so far.
    """

    def is_at_rest() -> bool:
        looks = []
        for _ in range(3):
            time.sleep(0.05)
            looks += [read(watched) for _ in range(REREAD_TICKS)]
        return {(one.stat.state, one.stat.cpu_s, one.wchan) for one in looks} == {
            ("S", looks[0].stat.cpu_s, looks[0].wchan)
        }

    assert wait_until(is_at_rest)
    for _ in range(2 + ticks):
        read(watched)


def test_a_process_that_did_not_run_is_read_again_only_now_and_then(probe):
    with child("say('up'); hear(); start_burning(1); say('runs'); hear()") as one:
        watched = probe(one)
        rest(watched, 0)
        watched._stat = counted = Counted(watched._stat)
        before, *others = [read(watched) for _ in range(4 * REREAD_TICKS)]
        assert counted.reads == 4
        same = (before.stat, before.wchan, 0.0)
        assert [(now.stat, now.wchan, now.rates.cpu_pct) for now in others] == [same] * len(others)
        one.say("go")
        one.hear()
        for _ in range(REREAD_TICKS):
            time.sleep(0.02)
            read(watched)
        assert counted.reads == 4 + REREAD_TICKS


def test_a_clock_that_may_be_of_another_process_is_not_believed(probe, monkeypatch):
    monkeypatch.setattr("tpmon.probe.collect.processes.read_cpu_clock", lambda _pid: 1000 * SECOND)
    with child("say('up'); hear()") as one:
        watched = probe(one)
        rest(watched, 0)
        watched._stat = counted = Counted(watched._stat)
        for _ in range(2 * REREAD_TICKS):
            read(watched)
        assert counted.reads == 2 * REREAD_TICKS


@pytest.mark.parametrize("ticks", range(REREAD_TICKS))
def test_the_stop_and_the_end_of_a_process_that_rests_are_seen_at_once(probe, ticks):
    with closing(Child("say('up'); hear(); hear()")) as one:
        one.hear()
        watched = probe(one)
        rest(watched, ticks)
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S"), (signal.SIGKILL, "Z")):
            os.kill(one.pid, number)
            assert wait_until(lambda state=state: read_stat(one.pid).state == state)
            assert read(watched).stat.state == state
        one.process.wait()
        with pytest.raises(ProcessLookupError):
            read(watched)


def test_exec_keeps_the_row_under_its_new_name(probe):
    code = "say('up'); hear(); os.execv('/bin/sleep', ['sleep', '50'])"
    with child(code) as one:
        watched = probe(one)
        assert read(watched).stat.name.startswith("python")
        one.say("go")
        assert wait_until(lambda: read(watched).stat.name == "sleep")
        now = read(watched)
        assert now.rates.cpu_pct >= 0
        assert is_known(now.rates.asked_read_bytes_s)
        assert now.threads.runnable >= 0


def read_until(watched: ProcessProbe, waits_for: str):
    end = time.monotonic() + 5
    while (now := read(watched)).waits_for != wait_of(waits_for) and time.monotonic() < end:
        time.sleep(0.01)
    return now


def test_how_long_a_wait_is_unchanged(probe):
    with child("say('up'); hear(); time.sleep(50)") as one:
        time.sleep(0.1)
        watched = probe(one)
        first = read_until(watched, "standard input (pipe)")
        assert first.waits_unchanged_s == 0.0
        time.sleep(0.2)
        now = read(watched)
        assert now.waits_unchanged_s == round((now.taken_ns - first.taken_ns) / 1e9, DIGITS)
        one.say("go")
        now = read_until(watched, "sleep")
        assert (now.waits_for, now.waits_unchanged_s) == (wait_of("sleep"), 0.0)
        assert now.syscall.isdecimal()


def test_a_wait_that_ends_and_begins_again_all_the_time_is_not_unchanged(probe):
    """A rank that waits for each batch in turn is not stuck, though every look finds it waiting."""
    with child("say('up')\nwhile True: time.sleep(0.02)") as one:
        watched = probe(one)
        read(watched)
        waits = 0
        for _ in range(4):
            time.sleep(0.15)
            now = read(watched)
            if is_known(now.waits_for) and now.waits_for != RUNNING:  # a look may meet it between two naps
                assert now.waits_unchanged_s == 0.0
                waits += 1
        assert waits or not is_known(now.waits_for)  # where the kernel tells nobody
        assert now.threads.main_switches_s > 3


def test_a_running_thread_has_no_wait_channel(probe):
    with child("say('up')\nwhile True: pass") as one:
        time.sleep(0.05)
        now = read(probe(one))
    assert (now.waits_for, now.wchan, now.syscall) == (RUNNING, Missing("running"), Missing("running"))


def as_nobody(task) -> list[object]:
    """Run ``task`` in a forked process of another user and return what it returned."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(task()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        raw = file.read()
    os.waitpid(pid, 0)
    return json.loads(raw)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_process_of_another_user_loses_io_and_wait_but_not_its_row():
    with child("start_burning(1); time.sleep(0.1); say('up'); hear()") as one:
        assert wait_until(lambda: read_stat(one.pid).state == "S")

        def look():
            watched = ProcessProbe(one.pid, kind_of, Allowance(100))
            read(watched)
            time.sleep(0.5)
            now = read(watched)
            rates, waits = now.rates, (now.wchan, now.waits_for, now.waits_unchanged_s)
            refused = (rates.device_read_bytes_s, rates.asked_read_bytes_s, now.syscall, *waits)
            return [rates.cpu_pct, now.threads.runnable, now.stat.rss_bytes, *(one.reason for one in refused)]

        cpu_pct, runnable, rss_bytes, *reasons = as_nobody(look)
    assert runnable == pytest.approx(1, rel=0.15)
    assert cpu_pct > 1  # of a core that it may share with others
    assert rss_bytes > 1 << 20
    io, syscall = "not permitted (doctor: io)", "not permitted (doctor: syscall)"
    assert reasons == [io, io, syscall, *["the kernel does not say (wchan is 0)"] * 3]


def test_a_process_that_dies_while_its_files_are_opened_leaves_no_descriptor(tmp_path):
    folder = tmp_path / "77"
    folder.mkdir()
    (folder / "stat").write_text("77 (python) S 1" + " 0" * 48)
    before = open_files()
    ProcessProbe(77, kind_of, Allowance(10), str(tmp_path)).close()
    (folder / "stat").write_text("")
    watched = ProcessProbe(77, kind_of, Allowance(10), str(tmp_path))
    with pytest.raises(ValueError):
        read(watched)
    watched.close()
    assert open_files() == before
    (folder / "stat").unlink()
    with pytest.raises(FileNotFoundError):
        ProcessProbe(77, kind_of, Allowance(10), str(tmp_path))
    assert open_files() == before


def test_the_cpus_on_which_a_process_may_run_are_told():
    with child("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); say('bound'); hear()") as bound:
        cpu = min(os.sched_getaffinity(0))
        probe = ProcessProbe(bound.pid, kind_of, Allowance(10))
        assert probe.read(Role.WORKER, skip_threads=True).allowed_cpus == str(cpu)
        probe.close()
    assert parse_allowed_cpus(b"Name:\tpython\nCpus_allowed_list:\t0-3,8\nMems_allowed:\t1\n") == "0-3,8"
    for raw in (b"", b"Cpus_allowed_list:\tall\n"):
        assert parse_allowed_cpus(raw) == Missing("/proc/PID/status has no list of CPUs")
