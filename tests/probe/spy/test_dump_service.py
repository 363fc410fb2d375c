"""Run dumps in the background with a dumper that answers when the test says so."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.dumps import make_rank, make_round
from tests.members import made_up
from tpmon.model.dump import Asker, DumpRequest, DumpRound, DumpState
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.probe.job.job import Member
from tpmon.probe.spy.dump import ALREADY, NATIVE_ROUND_S, NOBODY, ROUND_S, DumpService

State = TypeVar("State")


def wait_for_state(read: Callable[[], Applicable[State]], condition: Callable[[State], bool]) -> State:
    """Wait for a state of a service of which something holds, and return it."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        state = read()
        if is_known(state) and condition(state):
            return state
        time.sleep(0.002)
    raise AssertionError(f"not reached: {read()}")


class SlowDumper:
    """Show one part of a round, then answer when ``go`` is set."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.pids = [one.identity.pid for one in members]
        self.go = threading.Event()
        self.stopped = threading.Event()
        self.fails = False

    def read_round(self, limit_s: float, progress: Callable[[DumpRound, int], None]) -> DumpRound:
        self.limit_s = limit_s
        progress(make_round(make_rank(0)), 1)
        self.go.wait(10)
        if self.fails:
            raise ZeroDivisionError("a bug")
        return replace(make_round(make_rank(0), make_rank(1)), paused_ms=1.5)

    def stop(self) -> None:
        self.stopped.set()
        self.go.set()


class Bench:
    """Hold a service whose dumpers are kept for the test."""

    def __init__(self) -> None:
        self.made: list[SlowDumper] = []
        self.asked: list[DumpRequest] = []
        self.held: list[str] = []
        self.service = DumpService(lambda: (made_up(11), made_up(12)), self.make, (self.hold,))

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.held.append("begun")
        yield
        self.held.append("ended")

    def make(self, members: Sequence[Member], request: DumpRequest) -> SlowDumper:
        self.made.append(SlowDumper(members))
        self.asked.append(request)
        return self.made[-1]

    def begin(self, request: DumpRequest) -> DumpState:
        """Ask, and return what there is with the first part of the round."""
        self.service.ask(request)
        return self.wait(lambda state: state.answered == 1)

    def end(self) -> DumpState:
        """Let the dumper answer, and return how it ended."""
        self.made[-1].go.set()
        return self.wait(lambda state: not state.running)

    def read(self, request: DumpRequest) -> DumpState:
        self.begin(request)
        return self.end()

    def wait(self, condition: Callable[[DumpState], bool]) -> DumpState:
        return wait_for_state(lambda: self.service.state, condition)


@pytest.fixture
def bench():
    return Bench()


def test_a_dump_grows_ends_and_enters_one_frame(bench):
    assert bench.service.state is NOT_APPLICABLE
    part = bench.begin(DumpRequest(Asker.KEY))
    assert (part.running, part.asked, len(part.rounds), part.refused) == (True, 2, 1, "")
    assert bench.service.take() is NOT_APPLICABLE, "a part of a look is no look"
    whole = bench.end()
    assert (whole.answered, len(whole.rounds)) == (2, 1)
    assert [bench.service.take(), bench.service.take()] == [whole.rounds, NOT_APPLICABLE]
    assert bench.service.paused_ms == 1.5


@pytest.mark.parametrize(
    ("more", "enters"),
    [
        ({}, True),
        ({"block": True}, True),
        ({"variables": True}, True),
        ({"pids": (12,)}, False),
        ({"native": True}, False),
    ],
    ids=str,
)
def test_a_look_at_the_whole_job_enters_a_frame_and_no_other_one(bench, more, enters):
    """The watch over hangs would take a part, or frames of C, for a move of the job."""
    request = DumpRequest(Asker.KEY, **more)
    seen = bench.read(request)
    limit_s = NATIVE_ROUND_S if request.native else ROUND_S
    assert (bench.asked, bench.made[-1].limit_s) == ([request], limit_s), "frames of C get more time"
    assert len(seen.rounds) == 1, "whoever asked sees it"
    assert bench.service.take() == (seen.rounds if enters else NOT_APPLICABLE)
    assert bench.service.paused_ms == 1.5, "but its stops count"


def test_two_dumps_never_run_at_once(bench):
    bench.begin(DumpRequest(Asker.WATCH))
    bench.service.ask(DumpRequest(Asker.KEY, block=True))
    state = bench.wait(lambda state: state.refused != "")
    assert (state.refused, state.running, len(bench.made)) == (ALREADY, True, 1)
    bench.end()
    bench.service.ask(DumpRequest(Asker.KEY, block=True))
    bench.wait(lambda state: state.request.block)
    bench.made[1].go.set()
    assert [one.block for one in bench.asked] == [False, True]


def test_only_the_processes_that_were_asked_for_are_looked_at(bench):
    bench.service.ask(DumpRequest(Asker.KEY, pids=(12,)))
    bench.wait(lambda state: state.asked == 1)
    assert bench.made[0].pids == [12]
    bench.end()
    bench.service.ask(DumpRequest(Asker.KEY, pids=(99,)))
    assert bench.wait(lambda state: state.refused == NOBODY).running is False


def test_several_looks_keep_their_distance(bench):
    began = time.monotonic()
    bench.read(DumpRequest(Asker.WATCH, rounds=2, every_s=0.2))
    assert time.monotonic() - began >= 0.2
    taken = bench.service.take()
    assert is_known(taken)
    assert len(taken) == 2


def test_a_failure_is_said_and_the_next_dump_works(bench):
    bench.begin(DumpRequest(Asker.KEY))
    bench.made[0].fails = True
    assert bench.end().refused == "the dump failed: ZeroDivisionError: a bug"
    bench.service.ask(DumpRequest(Asker.KEY))
    bench.wait(lambda state: state.running)
    bench.made[1].go.set()
    bench.wait(lambda state: not state.running and not state.refused)


def test_stop_ends_the_dumper_that_runs(bench):
    bench.begin(DumpRequest(Asker.KEY))
    bench.service.stop()
    assert bench.made[0].stopped.is_set()
    bench.wait(lambda state: not state.running)
    assert bench.service.take() is NOT_APPLICABLE, "a look that was cut short is none"


def test_the_sampler_is_held_while_a_dump_may_stop_a_process_and_at_no_other_time(bench):
    for request, held in (
        (DumpRequest(Asker.KEY), []),
        (DumpRequest(Asker.KEY, block=True, block_pids=(11,)), ["begun", "ended"]),
        (DumpRequest(Asker.KEY, native=True), ["begun", "ended"]),
    ):
        bench.held.clear()
        bench.begin(request)
        assert bench.held == held[:1]
        bench.end()
        assert bench.held == held
    assert bench.asked[1].block_pids == (11,)
