"""Run the loop with real threads and clocks: rhythm, stopping, changing the interval, failing, ending."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from tests.collectives import make_group, make_record
from tests.dumps import IN_LOCK, make_rank, make_round
from tests.frames import make_cpu, make_frame, make_target
from tests.hanging import stand
from tests.samples import make_reading, make_sampled
from tpmon import cli
from tpmon.config import resolve, settle
from tpmon.judge.dump_update import whole_rounds
from tpmon.model.collectives import CollectivesReading, DumpRecords, RankRecord
from tpmon.model.dump import Asker, DumpRequest, DumpState, ProcessLook
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results import DumpUpdate, SampleUpdate, Update
from tpmon.model.sample import SampleRequest, SampleState
from tpmon.probe.sample_service import NOTHING_YET
from tpmon.session import Session


class Dumps:
    """Answer a request with the states that a test gives, one at each call of ``tell``."""

    def __init__(self) -> None:
        self.on_change = lambda: None
        self.state: Applicable[DumpState] = NOT_APPLICABLE
        self.asked: list[DumpRequest] = []

    def ask(self, request: DumpRequest) -> None:
        self.asked.append(request)

    def tell(self, state: DumpState) -> None:
        self.state = state
        self.on_change()


class Records:
    """Answer with the records that a test gives."""

    def __init__(self) -> None:
        self.on_change = lambda: None
        self.newest: Applicable[DumpRecords] = NOT_APPLICABLE
        self.asked: list[int] = []

    def ask(self, dump_ns: int) -> None:
        self.asked.append(dump_ns)

    def tell(self, dump_ns: int, *records: RankRecord) -> None:
        self.newest = DumpRecords(dump_ns, CollectivesReading(records, (), ()))
        self.on_change()


class Samples:
    """Answer a request for samples with the states that a test gives."""

    def __init__(self) -> None:
        self.on_change = lambda: None
        self.state: Applicable[SampleState] = NOT_APPLICABLE
        self.asked: list[SampleRequest] = []
        self.finished = 0

    def ask(self, request: SampleRequest) -> None:
        self.asked.append(request)

    def finish(self) -> None:
        self.finished += 1

    def tell(self, state: SampleState) -> None:
        self.state = state
        self.on_change()


class Source:
    """Hand out numbered Frames; a test may make one slow, failing or the last."""

    def __init__(
        self, *, slow: dict[int, float] | None = None, ends_at: int = -1, fails_at: int = -1
    ) -> None:
        self.dumps = Dumps()
        self.records = Records()
        self.samples = Samples()
        self.times: list[float] = []
        self.intervals: list[float] = []
        self.closed = 0
        self.open = threading.Event()
        self.open.set()
        self._slow, self._ends_at, self._fails_at = slow or {}, ends_at, fails_at

    def collect(self) -> Frame:
        number = len(self.times)
        self.times.append(time.monotonic())
        if number == self._fails_at:
            raise ZeroDivisionError("a bug in a probe")
        time.sleep(self._slow.get(number, 0))
        self.open.wait(20)
        state = TargetState.ENDED if number == self._ends_at else TargetState.RUNNING
        return make_frame(
            taken_ns=time.monotonic_ns(),
            target=make_target(state=state, world_size=8),
            cpu=make_cpu(runnable=float(number)),
        )

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def close(self) -> None:
        self.closed += 1


class Sink:
    """Keep every update and wake whoever waits for the n-th."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._changed = threading.Condition()

    def __call__(self, update: Update) -> None:
        with self._changed:
            self.updates.append(update)
            self._changed.notify_all()

    def wait_for(self, count: int, seconds: float = 5.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.updates) >= count, seconds)


@pytest.fixture
def run():
    """Start Sessions in their daemon thread and stop them all."""
    started = []

    def start(source: Source, *sinks, interval_s: float = 0.02) -> tuple[Session, list[BaseException]]:
        errors: list[BaseException] = []
        session = Session(source, sinks, interval_s)
        session.start(errors.append)
        started.append(session)
        return session, errors

    yield start
    for one in started:
        one.stop()


def wait_until(condition, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


def is_running() -> bool:
    return any(thread.name == "tpmon-session" for thread in threading.enumerate())


def test_every_sink_gets_every_frame_with_the_history_up_to_it():
    first, second = Sink(), Sink()
    source = Source()
    last = Session(source, (first, second), 0.01).run(frames=3)
    assert [update.frame.cpu.runnable for update in first.updates] == [0.0, 1.0, 2.0]
    assert [len(update.pulses) for update in first.updates] == [1, 2, 3]
    assert [pulse.runnable for pulse in first.updates[-1].pulses] == [0.0, 1.0, 2.0]
    assert second.updates == first.updates
    assert last is first.updates[-1].frame
    assert source.closed == 1


def test_frames_keep_the_rhythm_of_the_interval():
    source = Source(slow=dict.fromkeys(range(100), 0.03))
    Session(source, (), 0.1).run(frames=6)
    steps = [later - earlier for earlier, later in zip(source.times, source.times[1:], strict=False)]
    assert sum(steps) / len(steps) == pytest.approx(0.1, abs=0.03), "the time of a reading is not added"


def test_a_stall_is_followed_by_a_new_rhythm_and_no_burst():
    source = Source(slow={1: 0.55})
    Session(source, (), 0.1).run(frames=6)
    steps = [later - earlier for earlier, later in zip(source.times, source.times[1:], strict=False)]
    assert steps[1] == pytest.approx(0.55, abs=0.08), "the late tick comes at once"
    assert all(step > 0.06 for step in steps[2:])


def test_the_end_of_the_job_ends_the_loop_after_that_frame():
    source, sink = Source(ends_at=2), Sink()
    last = Session(source, (sink,), 0.005).run()
    assert last.target.state is TargetState.ENDED
    assert len(sink.updates) == 3
    assert sink.updates[-1].frame is last
    assert source.closed == 1


def test_stop_during_a_wait_ends_the_loop_at_once(run):
    source, sink = Source(), Sink()
    session, errors = run(source, sink, interval_s=30)
    assert sink.wait_for(1)
    session.stop()
    assert wait_until(lambda: not is_running(), 2)
    assert (len(sink.updates), source.closed, errors) == (1, 1, [])


def test_stop_does_not_wait_for_a_reading_that_hangs(run):
    source = Source()
    source.open.clear()
    session, _ = run(source)
    assert wait_until(lambda: source.times)
    before = time.monotonic()
    session.stop()
    assert time.monotonic() - before < 1
    source.open.set()
    assert wait_until(lambda: source.closed == 1)
    assert len(source.times) == 1


def test_stop_before_run_reads_nothing():
    source, sink = Source(), Sink()
    session = Session(source, (sink,), 1.0)
    session.stop()
    assert session.run() is None
    assert (source.times, sink.updates, source.closed) == ([], [], 1)


def test_a_shorter_interval_counts_from_now_on_in_the_middle_of_a_wait(run):
    source, sink = Source(), Sink()
    session, _ = run(source, sink, interval_s=30)
    assert sink.wait_for(1)
    session.set_interval(0.05)
    assert sink.wait_for(4, 3)
    assert source.intervals == [0.05]


def test_a_longer_interval_counts_at_once_too(run):
    source, sink = Source(), Sink()
    session, _ = run(source, sink, interval_s=0.3)
    assert sink.wait_for(1)
    session.set_interval(30)
    assert not sink.wait_for(2, 0.6)


def test_an_interval_changed_while_a_reading_runs_neither_skips_nor_doubles_it(run):
    source, sink = Source(), Sink()
    source.open.clear()
    session, _ = run(source, sink, interval_s=30)
    assert wait_until(lambda: source.times)
    session.set_interval(0.2)
    source.open.set()
    assert sink.wait_for(3, 3)
    steps = [later - earlier for earlier, later in zip(source.times, source.times[1:], strict=False)]
    assert all(step > 0.1 for step in steps[1:])


def test_a_source_that_raises_reaches_on_error_and_is_closed(run):
    source, sink = Source(fails_at=1), Sink()
    _, errors = run(source, sink)
    assert wait_until(lambda: errors)
    assert isinstance(errors[0], ZeroDivisionError)
    assert wait_until(lambda: source.closed == 1)
    assert len(sink.updates) == 1


def test_a_sink_that_raises_ends_the_loop_and_closes_the_source():
    source = Source()

    def broken(_update: Update) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Session(source, (broken,), 0.01).run()
    assert source.closed == 1
    assert len(source.times) == 1


def test_the_history_of_the_loop_is_bounded_in_time():
    class Sparse(Source):
        def collect(self) -> Frame:
            return replace(super().collect(), taken_ns=len(self.times) * 100_000_000_000)

    sink = Sink()
    Session(Sparse(), (sink,), 0.001).run(frames=12)
    assert max(len(update.pulses) for update in sink.updates) == 7


def test_tpmon_steps_aside_for_the_training():
    code = (
        "import os, threading; from tpmon.probe.scheduling import step_aside\n"
        "step_aside()\n"
        "seen = []\n"
        "one = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))\n"
        "one.start(); one.join()\n"
        "print(os.sched_getscheduler(0) == seen[0] == os.SCHED_BATCH)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"


def dump_state(**fields) -> DumpState:
    """Return the state of a dump of the key that has begun."""
    begun = DumpState(DumpRequest(Asker.KEY), (), answered=0, asked=2, running=True, refused="")
    return replace(begun, **fields)


def test_a_dump_that_grows_reaches_its_sinks_between_two_readings():
    source, sink = Source(), Sink()
    grown: list[DumpUpdate] = []
    session = Session(source, (sink,), 30.0, (grown.append,))
    errors: list[BaseException] = []
    session.start(errors.append)
    try:
        assert sink.wait_for(1)
        session.ask_dump(DumpRequest(Asker.KEY))
        source.dumps.tell(dump_state())
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(dump_state(rounds=(make_round(make_rank(0)),), answered=1))
        assert wait_until(lambda: len(grown) == 2)
    finally:
        session.stop()
    assert source.dumps.asked == [DumpRequest(Asker.KEY)]
    assert not is_known(grown[0].dump)
    assert is_known(grown[1].dump)
    assert [len(group.threads) for group in grown[1].dump.groups] == [1]
    assert (len(sink.updates), errors) == (1, [])


def test_a_dump_is_handed_out_once_and_not_folded_where_nobody_looks():
    source, grown = Source(), []
    source.dumps.tell(dump_state(refused="a dump is being read already"))
    Session(source, (), 0.005, (grown.append,)).run(frames=3)
    assert len(grown) == 1
    other = Source()
    other.dumps.tell(dump_state(rounds=("no round",)))
    Session(other, (), 0.005).run(frames=2)


def test_a_look_that_is_partly_read_is_folded_only_where_there_is_no_whole_one():
    whole, part = make_round(make_rank(0), make_rank(1)), make_round(make_rank(0), at_s=5.0)
    first = dump_state(rounds=(part,), answered=1)
    assert whole_rounds(first) == (part,)
    assert whole_rounds(dump_state(rounds=(whole, part), answered=1)) == (whole,)
    between = dump_state(rounds=(whole,), answered=2)
    assert whole_rounds(between) == (whole,)
    ended = dump_state(rounds=(whole, part), answered=1, running=False)
    assert whole_rounds(ended) == (whole, part)


def test_the_stacks_of_a_dump_are_collapsed_and_keep_their_marks_while_it_grows():
    source, grown = Source(), []
    session = Session(source, (), 0.005, (grown.append,))
    for ranks in ([make_rank(1)], [make_rank(0), make_rank(1), make_rank(2, frames=IN_LOCK)]):
        source.dumps.tell(dump_state(rounds=(make_round(*ranks),)))
        session.run(frames=1)
    (first,), second = grown[0].stacks, grown[1].stacks
    assert [line.text for line in first.lines] == ["<module> train.py:90", "train train.py:40", "all_reduce"]
    assert [line.is_users for line in first.lines] == [True, True, False]
    assert len({stack.mark for stack in second}) == len(grown[1].dump.groups) == len(second) == 2
    assert first in second


def test_a_dump_of_some_processes_knows_that_the_other_ranks_here_were_not_asked():
    source, grown = Source(), []
    one = make_round(make_rank(0, pid=4211))
    for pids in ((), (4211,), (4300,)):
        source.dumps.tell(dump_state(rounds=(one,), request=DumpRequest(Asker.KEY, pids=pids)))
        Session(source, (), 0.005, (grown.append,)).run(frames=1)
    assert [update.dump.not_asked for update in grown] == [NOT_APPLICABLE, 0, 1]


def finished(*looks: ProcessLook, at_s: float = 0.0) -> DumpState:
    """Return the state of a dump whose only look is done."""
    return dump_state(rounds=(make_round(*looks, at_s=at_s),), answered=len(looks), running=False)


def test_a_finished_dump_in_which_ranks_wait_comes_again_with_the_records_of_the_job():
    source, sink = Source(), Sink()
    grown: list[DumpUpdate] = []
    session = Session(source, (sink,), 30.0, (grown.append,))
    session.start(lambda _: None)
    state = finished(make_rank(0), make_rank(1, frames=IN_LOCK))
    try:
        assert sink.wait_for(1)
        source.dumps.tell(replace(state, running=True))
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(state)
        assert wait_until(lambda: source.records.asked)
        assert wait_until(lambda: len(grown) == 2)
        dump_ns = state.rounds[-1].taken_ns
        source.records.tell(dump_ns, make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3)))
        assert wait_until(lambda: len(grown) == 3)
    finally:
        session.stop()
    assert source.records.asked == [dump_ns], "once, and not while the dump was read"
    assert [update.awaits_records for update in grown] == [False, True, False]
    assert [is_known(update.dump.collectives) for update in grown] == [False, False, True]
    assert grown[2] == replace(grown[1], dump=grown[2].dump, awaits_records=False)
    (found,) = grown[2].dump.collectives.findings
    assert (found.waiting, found.missing) == ((0,), (1,))
    assert "hold train.py:12" in found.summary, "where the stack of the missing rank is"


def test_records_that_were_read_for_another_dump_are_not_put_into_this_one():
    source, grown = Source(), []
    session = Session(source, (), 0.005, (grown.append,))
    first, second = finished(make_rank(0), make_rank(1)), finished(make_rank(0), make_rank(1), at_s=9.0)
    source.dumps.tell(first)
    session.run(frames=1)
    source.dumps.tell(second)
    source.records.tell(first.rounds[0].taken_ns, make_record(0, make_group(3, 4)))
    session.run(frames=1)
    assert source.records.asked == [first.rounds[0].taken_ns, second.rounds[0].taken_ns]
    assert [update.awaits_records for update in grown] == [True, True]
    source.records.tell(second.rounds[0].taken_ns, make_record(0, make_group(3, 4)))
    session.run(frames=1)
    assert is_known(grown[-1].dump.collectives)
    assert grown[-1].state is second


def test_a_dump_in_which_nobody_waits_for_others_asks_the_job_for_nothing():
    source, grown = Source(), []
    source.dumps.tell(finished(make_rank(0, frames=IN_LOCK), make_rank(1, frames=IN_LOCK)))
    Session(source, (), 0.005, (grown.append,)).run(frames=2)
    assert (source.records.asked, len(grown)) == ([], 1)


def test_an_ended_job_is_asked_for_nothing():
    source, grown = Source(ends_at=0), []
    source.dumps.tell(finished(make_rank(0), make_rank(1)))
    Session(source, (), 0.005, (grown.append,)).run()
    assert (source.records.asked, [update.awaits_records for update in grown]) == ([], [False])


def test_the_hang_watch_gets_the_records_of_its_looks_also_where_nobody_shows_dumps():
    source = Source()
    source.dumps.tell(finished(make_rank(0), make_rank(1, frames=IN_LOCK)))
    Session(source, (), 0.005).run(frames=2)
    assert set(source.records.asked) == {source.dumps.state.rounds[-1].taken_ns}


def test_samples_that_grow_reach_their_sinks_as_hot_functions_between_two_readings():
    source, sink = Source(), Sink()
    grown: list[SampleUpdate] = []
    session = Session(source, (sink,), 30.0, sample_sinks=(grown.append,))
    errors: list[BaseException] = []
    session.start(errors.append)
    request = SampleRequest(seconds=2)
    try:
        assert sink.wait_for(1)
        session.ask_sample(request)
        source.samples.tell(SampleState(request, NOTHING_YET, running=True, refused=""))
        assert wait_until(lambda: len(grown) == 1)
        source.samples.tell(SampleState(request, make_reading(make_sampled(0)), running=False, refused=""))
        assert wait_until(lambda: len(grown) == 2)
        session.finish_sample()
    finally:
        session.stop()
    assert (source.samples.asked, source.samples.finished) == ([request], 1)
    assert not is_known(grown[0].hot)
    assert is_known(grown[1].hot)
    assert grown[1].hot.groups[0].functions[0].function == "all_reduce"
    assert grown[1].hot.script == source.collect().target.script
    assert (len(sink.updates), errors) == (1, [])


def test_samples_are_not_added_up_where_nobody_looks():
    source = Source()
    source.samples.tell(SampleState(SampleRequest(), "no reading", running=True, refused=""))
    Session(source, (), 0.005).run(frames=2)


class Still(Source):
    """Hand out the Frames of a job that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = [replace(one, rounds=NOT_APPLICABLE) for one in stand(make_rank(0), seconds=30)]

    def collect(self) -> Frame:
        super().collect()
        return self.frames[len(self.times) - 1]


def test_looks_at_a_job_that_may_hang_are_asked_for_once_and_without_a_stop():
    source = Still()
    Session(source, (), 0.001, may_look=True).run(frames=31)
    assert [(one.asker, one.block, one.pids) for one in source.dumps.asked] == [(Asker.WATCH, False, ())]


def test_a_session_that_shall_only_look_asks_for_nothing():
    source = Still()
    Session(source, (), 0.001).run(frames=31)
    assert source.dumps.asked == []


def test_looks_that_somebody_reads_already_are_not_asked_for_again():
    source = Still()
    source.dumps.tell(dump_state())
    Session(source, (), 0.001, may_look=True).run(frames=31)
    assert source.dumps.asked == []


def test_the_time_of_the_user_reaches_the_watch():
    source = Still()
    Session(source, (), 0.001, may_look=True, hang_after_s=300.0).run(frames=31)
    assert source.dumps.asked == []


@pytest.mark.parametrize(
    ("flags", "may_look"),
    [({}, True), ({"readonly": True}, False), ({"no-stacks": True}, False), ({"hang-after": "2m"}, True)],
)
def test_readonly_and_no_stacks_take_the_looks_away(monkeypatch, flags, may_look):
    asked = {}

    class Wired(Session):
        def __init__(self, *parts, **named):
            asked.update(named)
            super().__init__(*parts, **named)

    monkeypatch.setattr("tpmon.session.Session", Wired)
    monkeypatch.setattr("tpmon.probe.collect.Collector", lambda *_, **__: Still())
    cli._open_session(None, settle(resolve(flags, {}, "", {})))
    assert asked["may_look"] is may_look
    assert asked["hang_after_s"] == (120.0 if "hang-after" in flags else None)
