"""Sample real small programs for a second or two."""

import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import child
from tests.members import member
from tests.probe.spy.test_dump_odd_targets import NEWEST, find_python, running
from tests.probe.spy.test_dump_probe import FAILING, GARBAGE, HANGING, NAP, script, traced
from tests.spying import spies_of
from tests.waiting import wait_until
from tpmon.judge.folds.groups import DumpOrigin
from tpmon.judge.folds.hot import hot_functions
from tpmon.model.dump import ErrorKind
from tpmon.model.results.sample import CountedFunction, SampledProcess, SampleReading, SampleRequest
from tpmon.probe.base.procread import read_stat
from tpmon.probe.job.job import Member
from tpmon.probe.proc.access import parse_tracer
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy import sample
from tpmon.probe.spy.failure import find_spy
from tpmon.probe.spy.sample import Sampler

BURN = """
import struct
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
def much():
    spin(0.035)
def little():
    spin(0.015)
truth = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
spent = [0.0, 0.0]
before = time.perf_counter()
say("up")
while True:
    for which, step in enumerate((much, little)):
        step()
        now = time.perf_counter()
        spent[which] += now - before
        before = now
    os.pwrite(truth, struct.pack("dd", *spent), 0)
"""
ORIGIN = DumpOrigin(1, "train.py", 1)
pytestmark = pytest.mark.usefixtures("sampling_works")


def run(*members: Member, seconds: float = 1.0, spy=find_spy, progress=None, **fields) -> SampleReading:
    request = SampleRequest(seconds=seconds, **fields)
    return Sampler(lambda: members, request, spy=spy).run(progress)


def sampler_of(*pids: int, seconds: float = 60.0, **fields) -> Sampler:
    members = tuple(member(pid, rank) for rank, pid in enumerate(pids))
    return Sampler(lambda: members, SampleRequest(seconds=seconds, **fields))


def functions_of(process: SampledProcess) -> set[str]:
    return {stack.frames[-1].function for stack in process.stacks}


def test_the_share_of_a_known_function_is_found(tmp_path):
    truth = tmp_path / "truth"
    with child(BURN, str(truth)) as one:
        assert wait_until(lambda: truth.stat().st_size == 16)
        before = struct.unpack("dd", truth.read_bytes())
        reading = run(member(one.pid), seconds=3.0, rate_hz=40)
        after = struct.unpack("dd", truth.read_bytes())
    # On a crowded machine a step that lost its CPU takes longer than it says.
    much_s, little_s = (late - early for late, early in zip(after, before, strict=True))
    share = 100 * much_s / (much_s + little_s)
    (process,) = reading.processes
    assert (reading.errors, reading.ended, reading.asked) == ((), 0, 1)
    assert process.looks > 40
    assert process.lost < process.looks / 4
    assert process.cpu_s > 0
    (group,) = hot_functions(reading, ORIGIN).groups
    shares = {one.function: one.total_pct for one in group.functions}
    # Some 110 looks know it to 9 points, 95 times in 100; looks beside each other are not independent.
    assert shares["much"] == pytest.approx(share, abs=20)
    assert shares["much"] + shares["little"] == pytest.approx(100, abs=3)
    assert shares["<module>"] == pytest.approx(100, abs=3)
    (spin,) = [one for one in group.functions if one.function == "spin"]
    assert spin.self_pct > 80
    assert reading.spy_cpu_ms > 0


SPIN = """
import threading, time
def nap():
    time.sleep(60)
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
print("up", flush=True)
threading.Thread(target=nap, name="na;me \x1b[2J \xe9", daemon=True).start()
end = time.time() + 60
while time.time() < end:
    spin(0.04)
"""


@pytest.fixture(scope="module")
def spun(sampling_works):
    """Sample a program in each Python that is here, all at once: every thread, then who holds the GIL."""
    with ExitStack() as stack:
        pids = {
            minor: stack.enter_context(running([command, "-c", SPIN]))
            for minor in range(10, NEWEST + 1)
            if (command := find_python(minor)) is not None
        }
        members = [member(pid, minor) for minor, pid in pids.items()]
        reading = run(*members, seconds=2.0)
        holding = run(*members, counted=CountedFunction.GIL)
    assert reading.errors == holding.errors == ()
    assert [one.rank for one in reading.processes] == [one.rank for one in holding.processes] == list(pids)
    return {
        minor: (replace(reading, processes=(all_threads,)), of_gil)
        for minor, all_threads, of_gil in zip(pids, reading.processes, holding.processes, strict=True)
    }


@pytest.mark.parametrize("minor", range(10, NEWEST + 1))
def test_main_and_other_threads_of_each_python_are_told_apart(minor, spun):
    if minor not in spun:
        pytest.skip(f"no python3.{minor} here")
    reading, process = spun[minor]
    main, other = hot_functions(reading, ORIGIN).groups
    assert main.looks >= 10
    assert {one.function for one in main.functions} >= {"<module>", "spin"}
    assert other.functions[0].function == "nap"
    assert functions_of(process) <= {"spin", "<module>"}, "one that sleeps does not hold the GIL"
    assert sum(stack.samples for stack in process.stacks) >= process.looks / 2


def test_running_and_gil_leave_out_a_thread_that_sleeps():
    with child(NAP) as one, child(NAP) as two, child(NAP) as three:
        counts = {CountedFunction.RUNNING: one, CountedFunction.GIL: two, CountedFunction.ALL: three}
        with ThreadPoolExecutor(len(counts)) as pool:
            started = {
                counted: pool.submit(run, member(napping.pid), counted=counted) for counted, napping in counts.items()
            }
        found = {counted: one.result().processes for counted, one in started.items()}
        for counted in (CountedFunction.RUNNING, CountedFunction.GIL):
            (process,) = found[counted]
            assert process.looks >= 4, "three py-spy at once on a busy machine are slow to start"
            assert sum(stack.samples for stack in process.stacks) <= process.looks / 4
        (process,) = found[CountedFunction.ALL]
    assert functions_of(process) == {"nap"}
    assert process.cpu_s < process.watched_s / 2


def test_results_come_while_it_goes_on_and_no_more_than_four_run_at_once(monkeypatch):
    monkeypatch.setattr(sample, "_TICK_S", 0.05)
    parts: list[SampleReading] = []
    most = 0

    def look(part):
        nonlocal most
        parts.append(part)
        most = max(most, len(spies_of(os.getpid())))

    with ExitStack() as children:
        pids = [children.enter_context(child(NAP)).pid for _ in range(5)]
        members = [member(pid, rank) for rank, pid in enumerate(pids)]
        reading = run(*members, seconds=2.6, progress=look)
    assert [process.rank for process in reading.processes] == [0, 1, 2, 3, 4]
    assert 1 <= most <= 4
    assert any(len(part.processes) > 0 for part in parts[:-1])
    looks = [sum(process.looks for process in part.processes) for part in parts]
    assert looks == sorted(looks)


def test_a_worker_that_is_started_anew_is_met(monkeypatch):
    monkeypatch.setattr(sample, "REFRESH_EVERY_S", 0.1)
    with child(NAP) as one, child(NAP) as two:
        members = [member(one.pid)]
        sampler = Sampler(lambda: tuple(members), SampleRequest(seconds=1.6))
        threading.Timer(0.2, lambda: members.append(member(two.pid, 1))).start()
        reading = sampler.run()
    assert [process.rank for process in reading.processes] == [0, 1]
    assert reading.asked == 2


def test_a_process_that_ends_meanwhile_keeps_its_samples_and_ends_the_sampling(monkeypatch):
    monkeypatch.setattr(sample, "_TICK_S", 0.05)

    def end(part):
        if part.processes:
            one.process.kill()

    with child(NAP) as one:
        begun = time.monotonic()
        reading = run(member(one.pid), seconds=40.0, progress=end)
        assert time.monotonic() - begun < 30
    assert (reading.ended, reading.errors, functions_of(reading.processes[0])) == (1, (), {"nap"})


@contextmanager
def run_beside(sampler: Sampler) -> Iterator[list[SampleReading]]:
    """Run a sampler in a thread that is over when the block is left."""
    found: list[SampleReading] = []
    thread = threading.Thread(target=lambda: found.append(sampler.run()), daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert not thread.is_alive()


def test_finish_ends_early_and_keeps_what_there_is_and_at_once_is_no_error_of_py_spy():
    with child(NAP) as one:
        sampler = sampler_of(one.pid)
        with run_beside(sampler) as found:
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            time.sleep(0.7)
            sampler.finish()
        (process,) = found[0].processes
        assert 0 < process.looks < 60
        assert found[0].elapsed_s < 30
        assert wait_until(lambda: read_stat(one.pid).state == "S")
        assert spies_of(os.getpid()) == []
        sampler = sampler_of(one.pid)
        with run_beside(sampler) as found:
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            sampler.finish()
        assert found[0].errors == ()
        sampler = sampler_of(one.pid)
        sampler.finish()
        assert sampler.run().processes == ()
    assert wait_until(lambda: spies_of(os.getpid()) == [])


def test_the_target_is_never_stopped_nor_traced(tmp_path):
    with child(BURN, str(tmp_path / "truth")) as one:
        sampler = sampler_of(one.pid, seconds=1.0, rate_hz=50)
        states, tracers = set(), set()
        with run_beside(sampler) as found:
            while not found:
                states.add(read_stat(one.pid).state)
                tracers.add(parse_tracer(Path(f"/proc/{one.pid}/status").read_bytes()))
                time.sleep(0.001)
    assert found[0].processes[0].looks >= 20
    assert states <= set("RSD")
    assert tracers == {0}


def test_a_bug_on_the_way_leaves_no_py_spy():
    def fail(_part):
        raise ZeroDivisionError

    with child(NAP) as one, pytest.raises(ZeroDivisionError):
        run(member(one.pid), seconds=60.0, progress=fail)
    assert wait_until(lambda: spies_of(os.getpid()) == [])


def test_stop_kills_every_py_spy_and_leaves_nothing():
    with child(NAP) as one, child(NAP) as two:
        held = len(os.listdir("/proc/self/fd"))
        sampler = sampler_of(one.pid, two.pid)
        with run_beside(sampler) as found:
            assert wait_until(lambda: len(spies_of(os.getpid())) == 2)
            sampler.stop()
        assert found[0].errors == ()
        assert wait_until(lambda: spies_of(os.getpid()) == [])
        assert wait_until(lambda: len(os.listdir("/proc/self/fd")) == held)


def test_gone_zombie_and_traced_processes_are_said_and_the_others_are_sampled(monkeypatch):
    monkeypatch.setattr(sample, "HELD_S", 0.05)
    with child(NAP) as one, child(NAP) as two, child(NAP) as three:
        gone, zombie, held = member(one.pid), member(two.pid, 1), member(three.pid, 2)
        one.kill()
        two.process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: read_stat(two.pid).state == "Z")
        with traced(three.pid), child(NAP) as four:
            reading = run(gone, zombie, held, member(four.pid, 3))
    assert [process.rank for process in reading.processes] == [3]
    assert reading.ended == 2
    kinds = [ErrorKind.GONE, ErrorKind.GONE, ErrorKind.TRACED]
    assert [(error.rank, error.kind) for error in reading.errors] == list(enumerate(kinds))


def test_a_tracer_that_is_there_for_an_instant_ends_nothing(monkeypatch):
    looked = 0
    read = spy_failure.read_file

    def held_once(path, limit=65536):
        nonlocal looked
        looked += 1
        return b"TracerPid:\t7\n" if looked == 1 else read(path, limit)

    monkeypatch.setattr(sample, "HELD_S", 0.05)
    monkeypatch.setattr(spy_failure, "read_file", held_once)
    with child(NAP) as one:
        reading = run(member(one.pid))
    assert looked >= 2
    assert (reading.errors, functions_of(reading.processes[0])) == ((), {"nap"})


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        *FAILING,
        pytest.param(*HANGING, marks=pytest.mark.long),
        ("echo 'thread garbage (;;)) 12 x'; echo 7", ErrorKind.FAILED, GARBAGE),
        ("head -c 5000 /dev/urandom", ErrorKind.FAILED, GARBAGE),
        ("kill -9 $$", ErrorKind.FAILED, "py-spy was killed (out of memory?) (doctor: stacks)"),
    ],
)
def test_a_py_spy_that_fails_costs_its_process_alone(tmp_path, monkeypatch, text, kind, words):
    others_work = kind is not ErrorKind.LATE  # with so short a grace the other may be late too
    monkeypatch.setattr(sample, "GRACE_S", 20.0 if others_work else 0.2)
    monkeypatch.setattr(sample, "TRIES", 2)
    monkeypatch.setattr(spy_failure, "ENDING_S", 0.02)
    monkeypatch.setattr(sample, "_TICK_S", 0.02)

    def look(part):
        if part.errors and len(part.processes) == 1:
            sampler.finish()

    with child(NAP) as one, child(NAP) as two:
        begin = 'n=$(cat "$0.n" 2>/dev/null); echo "$n." > "$0.n"'
        works = 'exec $PYSPY "$@"'
        fake = script(tmp_path, f'case "$*" in *"--pid {one.pid}") {begin}; {text};; *) {works};; esac')
        members = (member(one.pid), member(two.pid, 1))[: 1 + others_work]
        sampler = Sampler(lambda: members, SampleRequest(seconds=30.0), spy=lambda: fake)
        reading = sampler.run(look)
    (error,) = reading.errors
    assert (error.pid, error.rank, error.kind) == (one.pid, 0, kind)
    assert words in error.reason
    assert [process.rank for process in reading.processes] == ([1] if others_work else [])
    again = kind in (ErrorKind.LATE, ErrorKind.FAILED) and "more stacks" not in words
    assert (tmp_path / "fake-spy.n").read_text().count(".") == (2 if again else 1)
    assert wait_until(lambda: spies_of(os.getpid()) == [])
