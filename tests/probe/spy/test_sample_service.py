"""Sample in the background with a sampler that answers when the test says so; whom, and what py-spy says of it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.members import made_up, member
from tests.probe.spy.test_dump_service import wait_for_state
from tests.samples import make_reading, make_sampled
from tpmon.model.dump import ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.sample import CountedFunction, SampleReading, SampleRequest, SampleState
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.job.job import Member
from tpmon.probe.spy.sample import (
    ALREADY,
    HELD,
    MOST_STACKS,
    NOBODY,
    NOTHING_YET,
    OFF,
    FindMembers,
    Sampler,
    SampleService,
    SampleSlice,
    SampleTally,
    choose_members,
    count_samples,
    fix_request,
    sample_arguments,
)
from tpmon.probe.spy.text import Remarks, Sampled, parse_remarks

PART = make_reading(make_sampled(0))
WHOLE = make_reading(make_sampled(0), make_sampled(1))


class SlowSampler:
    """Show one part, then answer when ``go`` is set."""

    def __init__(self, find: FindMembers, request: SampleRequest) -> None:
        self.find, self.request = find, request
        self.go = threading.Event()
        self.ends: list[str] = []
        self.fails = False

    def run(self, progress: Callable[[SampleReading], None]) -> SampleReading:
        progress(PART)
        self.go.wait(10)
        if self.fails:
            raise ZeroDivisionError("a bug")
        return WHOLE

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self.ends.append("hold")
        yield
        self.ends.append("go on")

    def finish(self) -> None:
        self.ends.append("finish")
        self.go.set()

    def stop(self) -> None:
        self.ends.append("stop")
        self.go.set()


class Bench:
    """Hold a service whose samplers are kept for the test."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.made: list[SlowSampler] = []
        self.members: list[Member] = [made_up(11), replace(made_up(12), rank=1)]
        self.changes = 0
        self.service = SampleService(lambda: tuple(self.members), self.make, enabled=enabled)
        self.service.on_change = self.count

    def count(self) -> None:
        self.changes += 1

    def make(self, find: FindMembers, request: SampleRequest) -> SlowSampler:
        self.made.append(SlowSampler(find, request))
        return self.made[-1]

    def wait(self, condition: Callable[[SampleState], bool]) -> SampleState:
        return wait_for_state(lambda: self.service.state, condition)


@pytest.fixture
def bench():
    return Bench()


def test_a_sampling_grows_and_ends(bench):
    assert bench.service.state is NOT_APPLICABLE
    request = SampleRequest(seconds=3)
    bench.service.ask(request)
    part = bench.wait(lambda state: is_known(state.reading))
    assert part == SampleState(request, PART, running=True, refused="")
    bench.made[0].go.set()
    assert bench.wait(lambda state: not state.running) == SampleState(request, WHOLE, running=False, refused="")
    assert bench.changes == 3


def test_the_lowest_rank_is_sampled_with_the_workers_that_it_has_at_the_time(bench):
    bench.service.ask(SampleRequest())
    bench.wait(lambda state: state.running)
    find = bench.made[0].find
    assert [one.identity.pid for one in find()] == [11]
    bench.members.append(replace(made_up(13), role=Role.WORKER, rank_pid=11))
    bench.members.insert(0, replace(made_up(10), rank=0))
    assert [one.identity.pid for one in find()] == [11, 13], "it stays with the rank that it began with"
    bench.service.stop()


def test_two_samplings_never_run_at_once(bench):
    first = SampleRequest(seconds=3)
    bench.service.ask(first)
    bench.wait(lambda state: is_known(state.reading))
    bench.service.ask(SampleRequest(everyone=True))
    state = bench.wait(lambda state: state.refused != "")
    assert (state.refused, state.running, state.request, len(bench.made)) == (ALREADY, True, first, 1)
    bench.made[0].go.set()
    bench.wait(lambda state: not state.running)
    bench.service.ask(SampleRequest(everyone=True))
    bench.wait(lambda state: state.request.everyone and is_known(state.reading))
    assert len(bench.made[1].find()) == 2
    bench.service.stop()


def test_nobody_there_and_stacks_switched_off_are_said(bench):
    bench.service.ask(SampleRequest(pids=(99,)))
    state = bench.wait(lambda state: not state.running)
    assert (state.refused, state.reading) == (NOBODY, NOTHING_YET)
    off = Bench(enabled=False)
    off.service.ask(SampleRequest())
    assert off.wait(lambda state: not state.running).refused == OFF
    assert (bench.made, off.made, off.changes) == ([], [], 1)


def test_a_failure_is_said_keeps_what_there_was_and_the_next_one_works(bench):
    bench.service.ask(SampleRequest())
    bench.wait(lambda state: is_known(state.reading))
    bench.made[0].fails = True
    bench.made[0].go.set()
    state = bench.wait(lambda state: not state.running)
    assert (state.refused, state.reading) == ("sampling failed: ZeroDivisionError: a bug", PART)
    bench.service.ask(SampleRequest())
    bench.made[1].go.set()
    assert bench.wait(lambda state: not state.running and not state.refused).reading == WHOLE


def test_a_hold_reaches_the_sampler_that_runs_and_no_other_begins_within(bench):
    with bench.service.suspend():
        bench.service.ask(SampleRequest())
        assert bench.wait(lambda state: not state.running).refused == HELD
    bench.service.ask(SampleRequest())
    with bench.service.suspend():
        assert bench.made[0].ends == ["hold"]
    bench.service.finish()
    bench.wait(lambda state: not state.running)
    assert bench.made[0].ends == ["hold", "go on", "finish"]


def test_what_was_sampled_stays_where_the_next_sampling_is_refused(bench):
    first = SampleRequest(seconds=3)
    bench.service.ask(first)
    bench.made[0].go.set()
    bench.wait(lambda state: not state.running)
    with bench.service.suspend():
        bench.service.ask(SampleRequest(everyone=True))
    assert bench.service.state == SampleState(first, WHOLE, running=False, refused=HELD)
    bench.members.clear()
    bench.service.ask(SampleRequest())
    assert bench.service.state == SampleState(first, WHOLE, running=False, refused=NOBODY)


def test_finish_and_stop_reach_the_sampler_that_runs_and_stop_is_for_good(bench):
    bench.service.finish()
    bench.service.ask(SampleRequest())
    bench.service.finish()
    bench.wait(lambda state: not state.running)
    assert bench.made[0].ends == ["finish"]
    bench.service.ask(SampleRequest())
    bench.service.stop()
    bench.wait(lambda state: not state.running)
    assert bench.made[1].ends == ["stop"]
    bench.service.ask(SampleRequest())
    assert len(bench.made) == 2


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


def test_a_missing_py_spy_is_said_for_each_process():
    for spy in (Missing("py-spy is not installed"), "/no/such/py-spy"):
        reading = Sampler(lambda: (member(os.getpid()),), SampleRequest(), spy=lambda spy=spy: spy).run()
        (error,) = reading.errors
        assert (error.kind, reading.processes) == (ErrorKind.NO_SPY, ())
        assert error.reason == getattr(spy, "reason", error.reason)
