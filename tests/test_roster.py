"""The loop of the live list: whose turn it is, when a turn ends, what is kept, and what it may cost."""

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import NOW, NOW_NS, make_finding, make_frame, make_target
from tests.rosters import make_row
from tpmon import roster as module
from tpmon.model.frame import TargetState
from tpmon.model.known import Missing, is_known
from tpmon.model.results.doctor import Update
from tpmon.model.results.roster import NOT_JUDGED_YET, JobsReading
from tpmon.model.verdict import Kind, SinceIs
from tpmon.roster import MOST_TURN_S, JobsWatch, Turn, TurnBudget


def play(turn: Turn, kinds, interval_s: float = 1.0) -> int:
    """Hand one Frame a kind to a turn, and return how many it took."""
    ended = threading.Event()
    turn.stop = ended.set
    for at, kind in enumerate(kinds, 1):
        verdict = make_finding(kind=kind) if isinstance(kind, Kind) else kind
        turn.take(Update(make_frame(taken_ns=NOW_NS + int(at * interval_s * 1e9), verdict=verdict), ()))
        if ended.is_set():
            return at
    return 0


DATA, NONE, GIL = Kind.DATA_BOUND, Kind.NOT_ENOUGH_EVIDENCE, Kind.PYTHON_BOUND


@pytest.mark.parametrize(
    ("kinds", "frames", "found"),
    [
        ([NONE, DATA, DATA, DATA, DATA, DATA, DATA], 6, DATA),
        ([NONE, NONE, NONE, NONE, NONE, NONE, DATA, DATA, DATA], 9, DATA),
        ([DATA, GIL, DATA, GIL, DATA, GIL, GIL, DATA, GIL, GIL, GIL], 11, GIL),
        ([NONE] * 60, int(MOST_TURN_S) + 1, None),
        ([DATA, GIL] * 40, int(MOST_TURN_S) + 1, None),
        ([Missing("not judged")] * 60, int(MOST_TURN_S) + 1, None),
    ],
)
def test_a_turn_ends_with_a_verdict_that_stands_and_without_one_it_claims_none(kinds, frames, found):
    turn = Turn()
    assert play(turn, kinds) == frames
    if found is None:
        assert turn.finding == Missing("not enough evidence in 45 s")
    else:
        assert turn.finding.kind is found


@pytest.mark.parametrize(("kinds", "slower"), [([DATA] * 8, 0), ([NONE] * 40, 1)])
def test_a_turn_that_takes_long_reads_less_often(kinds, slower):
    turn, called = Turn(), []
    turn.slow_down = lambda: called.append(1)
    play(turn, kinds)
    assert len(called) == slower


def test_a_turn_ends_with_its_job():
    turn, ended = Turn(), threading.Event()
    turn.stop = ended.set
    turn.take(Update(make_frame(target=make_target(state=TargetState.ENDED)), ()))
    assert ended.is_set()
    assert not is_known(turn.finding)


def test_turns_are_paid_for_by_what_all_of_tpmon_uses(monkeypatch):
    clocks = [(10.0, 100.0)]
    monkeypatch.setattr(module, "_read_clocks", lambda _child: clocks[-1])

    def passed(cpu_s, wall_s):
        clocks.append((clocks[-1][0] + cpu_s, clocks[-1][1] + wall_s))
        return budget.is_free()

    budget = TurnBudget(lambda: Missing("no child"), 0.02, 0.5)
    assert budget.is_free()
    assert passed(0.4, 1.0), "the first turns borrow"
    assert not passed(0.4, 1.0)
    assert not passed(0.02, 10.0)
    assert passed(0.0, 10.0)
    clocks.append((clocks[-1][0] + 50.0, clocks[-1][1] + 60.0))
    budget.forget()
    assert passed(0.0, 1.0), "what another screen used is not counted"
    assert passed(0.0, 1e6)
    assert not passed(0.5 + 0.1, 1.0), "no rest saves up more than the credit"


@pytest.fixture
def watch():
    one = JobsWatch()
    yield one
    one.close()


def read(*rows, taken_ns=NOW_NS):
    return JobsReading(taken_ns, tuple(row.reading for row in rows))


ONE, TWO, THREE = (make_row(pid, f"job{pid}.py") for pid in (1, 2, 3))


def test_jobs_that_were_never_judged_come_first_then_the_oldest_verdict(watch):
    denied = make_row(9, state=Missing("not permitted"))
    watch._take(read(ONE, TWO, THREE, denied))
    taken = []
    for kind in (Kind.BALANCED, Kind.STARTING, Kind.BALANCED):
        root = watch._choose()
        taken.append(root.pid)
        watch._keep(root, make_finding(kind=kind))
    assert taken == [1, 2, 3], "never one that this user may not read"
    assert watch._choose().pid == 2, "what passes is looked at again sooner"
    watch._keep(TWO.reading.root, make_finding(kind=Kind.BALANCED))
    assert watch._choose().pid == 1
    watch.prefer((THREE.reading.root,))
    assert watch._choose().pid == 3, "the cursor is on it"
    findings = {row.reading.root.pid: row.finding for row in watch.snapshot().rows}
    assert findings[9] == Missing("not judged: this user may not read it")
    assert findings[1].kind is Kind.BALANCED


def test_the_same_verdict_holds_since_it_was_found_first(watch):
    first = make_finding(since=NOW - timedelta(minutes=9), since_is=SinceIs.ONSET)
    watch._take(read(ONE))
    watch._keep(ONE.reading.root, first)
    watch._keep(ONE.reading.root, replace(first, since=NOW))
    assert watch.snapshot().rows[0].finding.since == first.since
    other = make_finding(kind=Kind.PYTHON_BOUND, since=NOW)
    watch._keep(ONE.reading.root, other)
    assert watch.snapshot().rows[0].finding == other
    watch._keep(ONE.reading.root, Missing("not enough evidence in 45 s"))
    assert not is_known(watch.snapshot().rows[0].finding), "what is not confirmed is not claimed"


def test_new_jobs_and_ended_ones_are_marked(watch):
    now_ns = time.monotonic_ns()
    watch._take(read(ONE, taken_ns=now_ns - 2_000_000_000))
    watch._take(read(ONE, TWO, taken_ns=now_ns))
    marks = {row.reading.root.pid: row.is_new for row in watch.snapshot().rows}
    assert marks == {1: False, 2: True}, "those of the first reading are not new"
    watch._take(read(TWO, taken_ns=now_ns + 1))
    rows = {row.reading.root.pid: row for row in watch.snapshot().rows}
    assert rows[1].ended_ns == now_ns + 1
    assert rows[1].finding == NOT_JUDGED_YET
    watch._take(read(TWO, taken_ns=now_ns + int(1e9 * module.KEEP_ENDED_S) + 2))
    assert [row.reading.root.pid for row in watch.snapshot().rows] == [2]


def test_nothing_is_read_while_another_screen_is_shown(watch, monkeypatch):
    seen = []
    monkeypatch.setattr(watch._reader, "read", lambda: read(ONE))
    monkeypatch.setattr(watch, "_look_at", lambda job: make_finding())
    monkeypatch.setattr(module, "READ_EVERY_S", 0.01)
    watch.listen(seen.append)
    watch.rest()
    watch.start()
    time.sleep(0.05)
    assert seen == []
    watch.resume()
    deadline = time.monotonic() + 10
    while not seen:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again = []
    watch.listen(again.append)
    assert again[0].rows[0].reading == ONE.reading, "who listens later gets the newest at once"
