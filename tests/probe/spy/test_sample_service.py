"""Sample in the background with a sampler that answers when the test says so."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.members import made_up
from tests.probe.spy.test_dump_service import wait_for_state
from tests.samples import make_reading, make_sampled
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role
from tpmon.model.results.sample import SampleReading, SampleRequest, SampleState
from tpmon.probe.job.job import Member
from tpmon.probe.spy.sample import ALREADY, HELD, NOBODY, NOTHING_YET, OFF, FindMembers, SampleService

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


def test_a_sampling_grows_and_ends():
    bench = Bench()
    assert bench.service.state is NOT_APPLICABLE
    request = SampleRequest(seconds=3)
    bench.service.ask(request)
    part = bench.wait(lambda state: is_known(state.reading))
    assert part == SampleState(request, PART, running=True, refused="")
    bench.made[0].go.set()
    assert bench.wait(lambda state: not state.running) == SampleState(request, WHOLE, running=False, refused="")
    assert bench.changes == 3


def test_the_lowest_rank_is_sampled_with_the_workers_that_it_has_at_the_time():
    bench = Bench()
    bench.service.ask(SampleRequest())
    bench.wait(lambda state: state.running)
    find = bench.made[0].find
    assert [one.identity.pid for one in find()] == [11]
    bench.members.append(replace(made_up(13), role=Role.WORKER, rank_pid=11))
    bench.members.insert(0, replace(made_up(10), rank=0))
    assert [one.identity.pid for one in find()] == [11, 13], "it stays with the rank that it began with"
    bench.service.stop()


def test_two_samplings_never_run_at_once():
    bench = Bench()
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


def test_nobody_there_and_stacks_switched_off_are_said():
    bench = Bench()
    bench.service.ask(SampleRequest(pids=(99,)))
    state = bench.wait(lambda state: not state.running)
    assert (state.refused, state.reading) == (NOBODY, NOTHING_YET)
    off = Bench(enabled=False)
    off.service.ask(SampleRequest())
    assert off.wait(lambda state: not state.running).refused == OFF
    assert (bench.made, off.made, off.changes) == ([], [], 1)


def test_a_failure_is_said_keeps_what_there_was_and_the_next_one_works():
    bench = Bench()
    bench.service.ask(SampleRequest())
    bench.wait(lambda state: is_known(state.reading))
    bench.made[0].fails = True
    bench.made[0].go.set()
    state = bench.wait(lambda state: not state.running)
    assert (state.refused, state.reading) == ("sampling failed: ZeroDivisionError: a bug", PART)
    bench.service.ask(SampleRequest())
    bench.made[1].go.set()
    assert bench.wait(lambda state: not state.running and not state.refused).reading == WHOLE


def test_a_hold_reaches_the_sampler_that_runs_and_no_other_begins_within():
    bench = Bench()
    with bench.service.suspend():
        bench.service.ask(SampleRequest())
        assert bench.wait(lambda state: not state.running).refused == HELD
    bench.service.ask(SampleRequest())
    with bench.service.suspend():
        assert bench.made[0].ends == ["hold"]
    bench.service.finish()
    bench.wait(lambda state: not state.running)
    assert bench.made[0].ends == ["hold", "go on", "finish"]


def test_what_was_sampled_stays_where_the_next_sampling_is_refused():
    bench = Bench()
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


def test_finish_and_stop_reach_the_sampler_that_runs_and_stop_is_for_good():
    bench = Bench()
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
