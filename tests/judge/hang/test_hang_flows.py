"""Calls of C that keep the interpreter: at work while they get something, else a hang in the end."""

from dataclasses import replace

import pytest

from tests.dumps import ALL_REDUCE, MAIN, RUNNING, StackFrame, make_rank, make_thread
from tests.hanging import conclude, sample, stand
from tpmon.judge.hang.causes import Patience
from tpmon.judge.hang.detection import need_s
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.dump import ProcessToll
from tpmon.model.process import ThreadKind
from tpmon.model.verdict import Kind

CALL = (MAIN, StackFrame("build_index", "/run/index.py", 48))
OTHER = (MAIN, StackFrame("build_index", "/run/index.py", 49))
SECOND_NS = 10**9
LOADS = ProcessToll(SECOND_NS, 50_000, 800_000_000)
MAKES = ProcessToll(SECOND_NS, 50_000, 0)
IDLE = ProcessToll(SECOND_NS, 0, 0)


def call(toll, *stacks, seconds=125, log_age_s=None, others=(), **reads):
    """Build a rank in one call that keeps the interpreter, with others that wait for it."""
    one = replace(make_rank(0, frames=CALL, holds_gil=True, **RUNNING), toll=toll)
    frames = stand(one, *others, world_size=1 + len(others), seconds=seconds, log_age_s=log_age_s)
    frames = [replace(f, processes=tuple(replace(p, **reads) for p in f.processes)) for f in frames]
    return sample(frames, one.pid, *(stacks or (CALL,)))


def is_hung(frames):
    return conclude(frames).kind is Kind.HUNG


def test_a_call_that_makes_memory_or_reads_is_no_loop_without_end():
    waits = [make_rank(rank, frames=ALL_REDUCE) for rank in (1, 2, 3)]
    assert not is_hung(call(MAKES, others=waits))
    # An old log says nothing of a call that gets what it asks for.
    assert not is_hung(call(LOADS, seconds=20, log_age_s=400.0))
    assert is_hung(call(MAKES, seconds=310, others=waits))


def test_a_call_that_reads_now_has_longer_than_one_that_computes():
    assert not is_hung(call(LOADS, seconds=310, asked_read_bytes_s=5e8))


@pytest.mark.parametrize(
    ("stacks", "seconds", "log_age_s", "expected"),
    [
        ((CALL,), 125, None, False),
        ((CALL,), 310, None, True),
        ((CALL,), 20, 400.0, True),
        ((CALL, OTHER), 125, None, False),
        ((CALL, OTHER), 310, None, True),
    ],
    ids=["one line", "one line for minutes", "one line with an old log", "several lines", "for minutes"],
)
def test_what_keeps_the_interpreter_at_one_line_may_be_a_call_that_ends(stacks, seconds, log_age_s, expected):
    finding = conclude(call(IDLE, *stacks, seconds=seconds, log_age_s=log_age_s))
    assert (finding.kind is Kind.HUNG) is expected
    assert not expected or (finding.cause, "runs without end" in finding.summary) == ("spin", True)


@pytest.mark.parametrize(
    ("toll", "seconds", "log_age_s", "expected"),
    [(LOADS, 20, 400.0, False), (IDLE, 20, 1900.0, True), (IDLE, 310, None, True), (IDLE, 125, None, False)],
)
def test_a_thread_that_keeps_the_interpreter_in_a_call_may_load_what_all_wait_for(toll, seconds, log_age_s, expected):
    holds = {"kind": ThreadKind.OTHER, "name": "loader", "frames": CALL, "holds_gil": True}
    loader = make_thread(7, **holds, **RUNNING)
    rank = make_rank(0, loader, frames=(MAIN,), waits_for="lock with a time-out (futex)", holds_gil=False)
    frames = stand(replace(rank, toll=toll), seconds=seconds, log_age_s=log_age_s)
    assert is_hung(frames) is expected


@pytest.mark.parametrize("toll", [IDLE, MAKES])
@pytest.mark.parametrize("others", [(), (make_rank(1, frames=ALL_REDUCE),)])
def test_a_loop_is_told_whatever_it_gets_and_whoever_waits_for_it(toll, others):
    assert is_hung(call(toll, CALL, OTHER, seconds=310, others=others))


def test_more_patience_is_never_less_time():
    for watch in (WatchedTime(stepped=True), WatchedTime(longest_s=1500.0, stepped=True)):
        needs = [need_s(watch, one) for one in Patience]
        assert needs == sorted(needs)


def test_a_loop_has_more_time_before_the_first_step_that_a_stack_or_the_hook_tells():
    assert need_s(WatchedTime(), Patience.LOOPS) == 300.0
    assert need_s(WatchedTime(stepped=True), Patience.LOOPS) == 120.0
