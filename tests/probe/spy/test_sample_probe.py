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

import pytest

from tests.children import child
from tests.members import member
from tests.probe.spy.test_dump_odd_targets import NEWEST, find_python, running
from tests.probe.spy.test_dump_probe import FAILING, GARBAGE, HANGING, NAP, script, traced
from tests.spying import spies_of
from tests.waiting import wait_until
from tpmon.judge.dumps.groups import DumpOrigin
from tpmon.judge.dumps.hot import hot_functions
from tpmon.model.dump import ErrorKind
from tpmon.model.known import Missing
from tpmon.model.process import Role
from tpmon.model.results.sample import CountedFunction, SampledProcess, SampleReading, SampleRequest
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.base.procread import read_stat
from tpmon.probe.job.job import Member
from tpmon.probe.proc.access import parse_tracer
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy import sample
from tpmon.probe.spy.failure import find_spy
from tpmon.probe.spy.sample import (
    MOST_STACKS,
    Sampler,
    SampleSlice,
    SampleTally,
    choose_members,
    count_samples,
    fix_request,
    sample_arguments,
)
from tpmon.probe.spy.text import Remarks, Sampled, parse_remarks

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


def run(*members: Member, seconds: float = 1.0, spy=find_spy, progress=None, **fields) -> SampleReading:
    request = SampleRequest(seconds=seconds, **fields)
    return Sampler(lambda: members, request, spy=spy).run(progress)


def functions_of(process: SampledProcess) -> set[str]:
    return {stack.frames[-1].function for stack in process.stacks}


# whom


def test_without_a_pid_the_lowest_rank_here_is_meant_and_its_workers_come_with_it():
    me = member(os.getpid())
    one, two = replace(me, rank=5), replace(me, rank=2, identity=replace(me.identity, pid=2))
    mine = replace(me, role=Role.WORKER, rank=2, rank_pid=2, identity=replace(me.identity, pid=3))
    other = replace(mine, rank=5, rank_pid=me.identity.pid, identity=replace(me.identity, pid=4))
    helper = replace(me, role=Role.HELPER, rank_pid=2, identity=replace(me.identity, pid=5))
    members = (one, two, mine, other, helper)
    request = fix_request(members, SampleRequest())
    assert request.pids == (2,)
    assert choose_members(members, request) == (two, mine)
    assert choose_members(members, SampleRequest(pids=(4, 5))) == (other, helper)
    assert choose_members(members, SampleRequest(everyone=True)) == members
    assert fix_request((helper,), SampleRequest()) == SampleRequest()
    unnumbered = replace(me, rank=Missing("no place"))
    assert fix_request((unnumbered, two), SampleRequest()).pids == (2,)
    assert fix_request((unnumbered,), SampleRequest()).pids == (os.getpid(),)


def test_no_form_of_sampling_ever_stops_the_target():
    for counted in CountedFunction:
        arguments = sample_arguments(7, 50, 2, counted)
        assert "--nonblocking" in arguments
        assert ("--idle" in arguments) == (counted is not CountedFunction.RUNNING)
        assert ("--gil" in arguments) == (counted is CountedFunction.GIL)
        assert not {"--native", "--subprocesses", "--locals"}.intersection(arguments)


# what py-spy says beside the stacks


SAID = (
    b"py-spy> Sampling process 20 times a second for 4 seconds. Press Control-C to exit.\n\n"
    b"py-spy> 1.05s behind in sampling, results may be inaccurate. Try reducing the sampling rate\n"
    b"\x1b[1A\x1b[2K\rpy-spy> 2.45s behind in sampling, results may be inaccurate.\n"
    b"thread (1): Samples: 1 Errors: 9;f (9.99s behind in sampling:1) 3\n"
    b"py-spy> Wrote raw flamegraph data to '/dev/stdout'. Samples: 158 Errors: 7\n"
)


@pytest.mark.parametrize(
    ("said", "remarks"),
    [(SAID, Remarks(7, 2.45)), (b"", Remarks(0, 0.0)), (b"Samples: x Errors: y\n\xff\xfe", Remarks(0, 0.0))],
    ids=["told", "nothing", "garbage"],
)
def test_lost_and_late_samples_are_found_in_what_py_spy_says(said, remarks):
    assert parse_remarks(said) == remarks


@pytest.mark.parametrize(
    ("seen", "counted", "looks"),
    [(17, CountedFunction.ALL, 19), (17, CountedFunction.GIL, 39), (40, CountedFunction.RUNNING, 42)],
)
def test_looks_are_those_that_gave_a_stack_and_those_that_did_not(seen, counted, looks):
    assert count_samples(Sampled(seen, (), 0), Remarks(2, 0), counted, 39) == looks


def test_stacks_beyond_the_most_stay_counted():
    me = member(os.getpid())
    tally = SampleTally(me)
    stacks = tuple(
        StackCount(me.identity.pid, "MainThread", (StackFrame("f", "/a.py", line),), 2)
        for line in range(MOST_STACKS + 10)
    )
    seen = 2 * len(stacks)
    nothing = Missing("no schedstat")
    tally.add(SampleSlice(Sampled(seen, stacks, 0), Remarks(1, 0.5), seen + 1, 1.0, tally.loop_tid, nothing, nothing))
    tally.add(SampleSlice(Sampled(2, stacks[:1], 0), Remarks(0, 0.0), 2, 1.0, tally.loop_tid, nothing, nothing))
    total = tally.total(20)
    assert len(total.stacks) == MOST_STACKS + 1
    assert sum(one.samples for one in total.stacks) == seen + 2
    assert (total.looks, total.lost, total.behind_s) == (seen + 3, 1, 0.5)
    assert total.cpu_s == total.delay_s == Missing("the main thread's CPU time could not be read")


# real programs


@pytest.mark.usefixtures("sampling_works")
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


@pytest.mark.usefixtures("sampling_works")
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


@pytest.mark.usefixtures("sampling_works")
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


@pytest.mark.usefixtures("sampling_works")
def test_a_worker_that_is_started_anew_is_met(monkeypatch):
    monkeypatch.setattr(sample, "REFRESH_EVERY_S", 0.1)
    with child(NAP) as one, child(NAP) as two:
        members = [member(one.pid)]
        sampler = Sampler(lambda: tuple(members), SampleRequest(seconds=1.6))
        threading.Timer(0.2, lambda: members.append(member(two.pid, 1))).start()
        reading = sampler.run()
    assert [process.rank for process in reading.processes] == [0, 1]
    assert reading.asked == 2


@pytest.mark.usefixtures("sampling_works")
def test_a_process_that_ends_meanwhile_keeps_its_samples_and_ends_the_sampling(monkeypatch):
    monkeypatch.setattr(sample, "_TICK_S", 0.05)

    def end(part):
        if part.processes:
            one.process.kill()

    with child(NAP) as one:
        begun = time.monotonic()
        reading = run(member(one.pid), seconds=40.0, progress=end)
        assert time.monotonic() - begun < 30
    assert (reading.ended, reading.errors) == (1, ())
    assert functions_of(reading.processes[0]) == {"nap"}


@contextmanager
def sampling(sampler: Sampler) -> Iterator[list[SampleReading]]:
    """Run a sampler in a thread that is over when the block is left."""
    found: list[SampleReading] = []
    thread = threading.Thread(target=lambda: found.append(sampler.run()), daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.usefixtures("sampling_works")
def test_finish_ends_early_and_keeps_what_there_is():
    with child(NAP) as one:
        sampler = Sampler(lambda: (member(one.pid),), SampleRequest(seconds=60.0))
        with sampling(sampler) as found:
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            time.sleep(0.7)
            sampler.finish()
        (process,) = found[0].processes
        assert 0 < process.looks < 60
        assert found[0].elapsed_s < 30
        assert read_stat(one.pid).state == "S"
    assert spies_of(os.getpid()) == []


@pytest.mark.usefixtures("sampling_works")
def test_the_target_is_never_stopped_nor_traced(tmp_path):
    with child(BURN, str(tmp_path / "truth")) as one:
        sampler = Sampler(lambda: (member(one.pid),), SampleRequest(seconds=1.0, rate_hz=50))
        states, tracers = set(), set()
        with sampling(sampler) as found:
            while not found:
                states.add(read_stat(one.pid).state)
                with open(f"/proc/{one.pid}/status", "rb") as file:
                    tracers.add(parse_tracer(file.read()))
                time.sleep(0.001)
    assert found[0].processes[0].looks >= 20
    assert states <= set("RSD")
    assert tracers == {0}


@pytest.mark.usefixtures("sampling_works")
def test_finish_at_once_is_no_error_of_py_spy():
    with child(NAP) as one:
        sampler = Sampler(lambda: (member(one.pid),), SampleRequest(seconds=60.0))
        with sampling(sampler) as found:
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            sampler.finish()
        assert found[0].errors == ()
        sampler = Sampler(lambda: (member(one.pid),), SampleRequest(seconds=60.0))
        sampler.finish()
        assert sampler.run().processes == ()
    assert wait_until(lambda: spies_of(os.getpid()) == [])


@pytest.mark.usefixtures("sampling_works")
def test_a_bug_on_the_way_leaves_no_py_spy():
    def fail(_part):
        raise ZeroDivisionError

    with child(NAP) as one, pytest.raises(ZeroDivisionError):
        run(member(one.pid), seconds=60.0, progress=fail)
    assert wait_until(lambda: spies_of(os.getpid()) == [])


@pytest.mark.usefixtures("sampling_works")
def test_stop_kills_every_py_spy_and_leaves_nothing():
    with child(NAP) as one, child(NAP) as two:
        held = len(os.listdir("/proc/self/fd"))
        sampler = Sampler(lambda: (member(one.pid), member(two.pid, 1)), SampleRequest(seconds=60.0))
        with sampling(sampler) as found:
            assert wait_until(lambda: len(spies_of(os.getpid())) == 2)
            sampler.stop()
        assert found[0].errors == ()
        assert wait_until(lambda: spies_of(os.getpid()) == [])
        assert wait_until(lambda: len(os.listdir("/proc/self/fd")) == held)


@pytest.mark.usefixtures("sampling_works")
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
    assert [(error.rank, error.kind) for error in reading.errors] == [
        (0, ErrorKind.GONE),
        (1, ErrorKind.GONE),
        (2, ErrorKind.TRACED),
    ]


@pytest.mark.usefixtures("sampling_works")
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
    assert reading.errors == ()
    assert functions_of(reading.processes[0]) == {"nap"}


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
@pytest.mark.usefixtures("sampling_works")
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


def test_a_missing_py_spy_is_said_for_each_process():
    with child(NAP) as one:
        reading = run(member(one.pid), spy=lambda: Missing("py-spy is not installed"))
        assert [(error.kind, error.reason) for error in reading.errors] == [
            (ErrorKind.NO_SPY, "py-spy is not installed")
        ]
        absent = run(member(one.pid), spy=lambda: "/no/such/py-spy")
        assert [error.kind for error in absent.errors] == [ErrorKind.NO_SPY]
        assert absent.processes == ()
