"""The loop of a session: its rhythm, its end, its errors, its history; when it looks by itself; dumps and samples that grow."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.collectives import make_group, make_record
from tests.command_line import read
from tests.dumps import make_rank, make_round
from tests.frames import make_cpu, make_frame, make_target
from tests.hanging import stand
from tests.samples import make_reading, make_sampled
from tests.stacks import IN_LOCK
from tests.waiting import wait_until
from tpmon.commands.command import WatchOptions, open_session
from tpmon.judge.folds.hot import whole_rounds
from tpmon.judge.judge import Judgement, judge
from tpmon.model.dump import Asker, DumpRequest, DumpState, ProcessLook
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading, DumpRecords, RankRecord
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.sample import SampleRequest, SampleState
from tpmon.model.verdict import Kind
from tpmon.probe.spy.sample import NOTHING_YET
from tpmon.session import Session


class Service:
    """Note what it is asked for, and answer with the states that a test gives, one at each call of ``tell``."""

    def __init__(self) -> None:
        self.on_change = lambda: None
        self.state: Any = NOT_APPLICABLE
        self.asked: list[Any] = []
        self.finished = 0

    def ask(self, request: object) -> None:
        self.asked.append(request)

    def finish(self) -> None:
        self.finished += 1

    def tell(self, state: object) -> None:
        self.state = state
        self.on_change()


def make_records(dump_ns: int, *records: RankRecord) -> DumpRecords:
    return DumpRecords(dump_ns, CollectivesReading(records, (), ()))


class Source:
    """Hand out numbered Frames; a test may make one slow, failing or the last."""

    def __init__(self, *, slow: dict[int, float] | None = None, ends_at: int = -1, fails_at: int = -1) -> None:
        self.dumps, self.records, self.samples = Service(), Service(), Service()
        self.times: list[float] = []
        self.intervals: list[float] = []
        self.rests: list[int] = []
        """After how many Frames the rest was read."""
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

    def read_rest(self) -> None:
        self.rests.append(len(self.times))

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def set_settled(self, *, settled: bool) -> None:
        self.settled = settled

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


def dump_state(**fields) -> DumpState:
    begun = DumpState(DumpRequest(Asker.KEY), (), answered=0, asked=2, running=True, refused="")
    return replace(begun, **fields)


@pytest.fixture
def run():
    """Start Sessions in their daemon thread and stop them all."""
    started = []

    def start(source, *sinks, interval_s=0.02):
        errors: list[BaseException] = []
        session = Session(source, sinks, interval_s)
        session.start(errors.append)
        started.append(session)
        return session, errors

    yield start
    for one in started:
        one.stop()


def is_running() -> bool:
    return any(thread.name == "tpmon-session" for thread in threading.enumerate())


def test_every_sink_gets_every_frame_with_the_history_up_to_it():
    first, second = Sink(), Sink()
    source = Source()
    session = Session(source, (first, second), 0.01)
    last = session.run(frames=3)
    assert [update.frame.cpu.runnable for update in first.updates] == [0.0, 1.0, 2.0]
    assert [len(update.pulses) for update in first.updates] == [1, 2, 3]
    assert [pulse.runnable for pulse in first.updates[-1].pulses] == [0.0, 1.0, 2.0]
    assert second.updates == first.updates
    assert last is first.updates[-1].frame
    assert session.pulses() == first.updates[-1].pulses
    assert source.closed == 1


class Leaping(Source):
    """Hand out Frames that are some seconds apart by their own clock."""

    def __init__(self, apart_s: int) -> None:
        super().__init__()
        self._apart_s = apart_s

    def collect(self) -> Frame:
        frame = super().collect()
        return replace(frame, taken_ns=len(self.times) * self._apart_s * 10**9)


def test_frames_of_ten_minutes_are_at_hand_of_which_the_judge_sees_the_last_one(monkeypatch):
    judged: list[int] = []

    def look_on(frames, standing):
        judged.append(len(frames))
        return Judgement(frames[-1], standing)

    monkeypatch.setattr("tpmon.judge.judge.judge", look_on)
    session = Session(Leaping(20), (), 0.001)
    last = session.run(frames=40)
    kept = [step.judged for step in session.recall()]
    assert [frame.taken_ns // 10**9 for frame in kept] == list(range(200, 801, 20))
    assert kept[-1] is last
    assert max(judged) == 4


def list_steps(source: Source) -> list[float]:
    """Return the seconds from each reading to the next."""
    return [later - earlier for earlier, later in zip(source.times, source.times[1:], strict=False)]


def test_frames_keep_the_rhythm_of_the_interval():
    source = Source(slow=dict.fromkeys(range(100), 0.03))
    Session(source, (), 0.1).run(frames=6)
    steps = list_steps(source)
    assert sum(steps) / len(steps) == pytest.approx(0.1, abs=0.03), "the time of a reading is not added"


LATE, OFF = Missing("no stack was sampled yet"), Missing("stacks are off (--no-stacks)")


@pytest.mark.parametrize(
    ("missing", "first_at", "frames"),
    [(LATE, 1, 2), (LATE, 2, 2), (LATE, 3, 3), (LATE, 9, 4), (OFF, 9, 2)],
    ids=["there", "in time", "one late", "too late", "off: it cannot come"],
)
def test_one_reading_waits_a_little_for_its_first_stack(missing, first_at, frames):
    class Late(Source):
        def collect(self):
            frame = super().collect()
            age = 0.5 if len(self.times) >= first_at else missing
            return replace(frame, stacks=() if missing is LATE else OFF, ages_s=replace(frame.ages_s, stacks=age))

    source = Late()
    Session(source, (), 0.001).run(2, more=2)
    assert len(source.times) == frames


def test_a_stall_is_followed_by_a_new_rhythm_and_no_burst():
    source = Source(slow={1: 0.55})
    Session(source, (), 0.1).run(frames=6)
    steps = list_steps(source)
    assert steps[1] == pytest.approx(0.55, abs=0.08), "the late tick comes at once"
    assert all(step > 0.06 for step in steps[2:])


def test_the_end_of_the_job_ends_the_loop_after_that_frame():
    source, sink = Source(ends_at=2), Sink()
    last = Session(source, (sink,), 0.005).run()
    assert last.target.state is TargetState.ENDED
    assert len(sink.updates) == 3
    assert sink.updates[-1].frame is last
    assert source.closed == 1


def test_the_source_hears_whether_the_verdict_stands(monkeypatch):
    source = Source()
    monkeypatch.setattr(
        "tpmon.judge.judge.judge", lambda seen, standing: Judgement(seen[-1], standing, settled=len(seen) > 2)
    )
    Session(source, (), 0.005).run(frames=2)
    assert source.settled is False
    Session(source, (), 0.005).run(frames=3)
    assert source.settled is True


def test_looks_that_the_judge_asks_for_begin_when_a_look_at_one_process_has_ended(monkeypatch):
    watch, row = DumpRequest(Asker.WATCH, rounds=3), DumpRequest(Asker.KEY, pids=(12,))
    source = Source()
    monkeypatch.setattr(
        "tpmon.judge.judge.judge",
        lambda seen, standing: Judgement(seen[-1], standing, look=watch if len(seen) == 1 else NOT_APPLICABLE),
    )

    def run(first):
        source.dumps.asked.clear()
        state = DumpState(first, (), 0, 1, running=True, refused="", earlier=NOT_APPLICABLE)
        source.dumps.state = state
        session = Session(source, (), 0.005)
        session.run(frames=1)
        assert source.dumps.asked == []
        source.dumps.state = replace(state, running=False)
        session.run(frames=1)
        return source.dumps.asked

    assert run(row) == [watch]
    assert run(DumpRequest(Asker.KEY)) == [], "that one tells of the whole job, too"


def test_a_glance_hands_out_the_first_frame_unjudged_and_loses_no_second_of_the_verdict(monkeypatch):
    seen_by_judge = []

    def count(seen, standing):
        seen_by_judge.append(len(seen))
        return judge(seen, standing)

    monkeypatch.setattr("tpmon.judge.judge.judge", count)
    source, sink = Source(), Sink()
    Session(source, (sink,), 0.005, glance=True).run(frames=2)
    first, second = (update.frame.verdict for update in sink.updates)
    assert not is_known(first)
    assert is_known(second)
    assert seen_by_judge == [1, 2]
    assert source.rests == [1], "what the first Frame left out is read before the second"
    plain = Source()
    assert is_known(Session(plain, (), 0.005).run(frames=1).verdict), "whoever asks for one gets a verdict"
    assert plain.rests == []


def test_a_glance_at_a_job_that_has_ended_says_so_at_once():
    sink = Sink()
    Session(Source(ends_at=0), (sink,), 0.005, glance=True).run()
    assert [update.frame.verdict.kind for update in sink.updates] == [Kind.IDLE]


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
    assert time.monotonic() - before < 5
    source.open.set()
    assert wait_until(lambda: source.closed == 1)
    assert len(source.times) == 1


def test_stop_before_run_reads_nothing():
    source, sink = Source(), Sink()
    session = Session(source, (sink,), 1.0)
    session.stop()
    assert session.run() is None
    assert (source.times, sink.updates, source.closed) == ([], [], 1)


@pytest.mark.parametrize(
    ("before_s", "after_s", "comes"), [(30, 0.05, True), (0.3, 30, False)], ids=["shorter", "longer"]
)
def test_another_interval_counts_from_now_on_in_the_middle_of_a_wait(run, before_s, after_s, comes):
    source, sink = Source(), Sink()
    session, _ = run(source, sink, interval_s=before_s)
    assert sink.wait_for(1)
    session.set_interval(after_s)
    assert sink.wait_for(4 if comes else 2, 3 if comes else 0.6) is comes
    assert source.intervals == [after_s]


def test_an_interval_changed_while_a_reading_runs_neither_skips_nor_doubles_it(run):
    source, sink = Source(), Sink()
    source.open.clear()
    session, _ = run(source, sink, interval_s=30)
    assert wait_until(lambda: source.times)
    session.set_interval(0.2)
    source.open.set()
    assert sink.wait_for(3, 3)
    assert all(step > 0.1 for step in list_steps(source)[1:])


def test_a_source_that_raises_reaches_on_error_and_is_closed(run):
    source, sink = Source(fails_at=1), Sink()
    _, errors = run(source, sink)
    assert wait_until(lambda: errors)
    assert isinstance(errors[0], ZeroDivisionError)
    assert wait_until(lambda: source.closed == 1)
    assert len(sink.updates) == 1


def test_a_sink_that_raises_ends_the_loop_and_closes_the_source():
    source = Source()

    def broken(_update):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Session(source, (broken,), 0.01).run()
    assert source.closed == 1
    assert len(source.times) == 1


def test_the_history_of_the_loop_is_bounded_in_time():
    sink = Sink()
    Session(Leaping(100), (sink,), 0.001).run(frames=12)
    assert max(len(update.pulses) for update in sink.updates) == 7


def test_tpmon_steps_aside_for_the_training():
    code = (
        "import os, threading; from tpmon.probe.base.worker import step_aside\n"
        "step_aside()\n"
        "seen = []\n"
        "one = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))\n"
        "one.start(); one.join()\n"
        "print(os.sched_getscheduler(0) == seen[0] == os.SCHED_BATCH)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"


class Still(Source):
    """Hand out the Frames of a job that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = [replace(one, rounds=NOT_APPLICABLE) for one in stand(make_rank(0), seconds=30)]

    def collect(self) -> Frame:
        super().collect()
        return self.frames[len(self.times) - 1]


@pytest.mark.parametrize(
    ("options", "read_already", "looks"),
    [
        pytest.param({"may_look": True}, False, 1, id="may look"),
        pytest.param({}, False, 0, id="shall only watch"),
        pytest.param({"may_look": True}, True, 0, id="somebody reads looks already"),
        pytest.param({"may_look": True, "hang_after_s": 300.0}, False, 0, id="before the time of the user"),
    ],
)
def test_looks_at_a_job_that_may_hang_are_asked_for_once_and_without_a_stop(options, read_already, looks):
    source = Still()
    if read_already:
        source.dumps.tell(dump_state())
    Session(source, (), 0.001, **options).run(frames=31)
    assert [(one.asker, one.block, one.pids) for one in source.dumps.asked] == [(Asker.WATCH, False, ())] * looks


@pytest.mark.parametrize(
    ("flags", "may_look"),
    [({}, True), ({"readonly": True}, False), ({"no_stacks": True}, False), ({"hang_after": "2m"}, True)],
)
def test_readonly_and_no_stacks_take_the_looks_away(monkeypatch, flags, may_look):
    asked = {}

    class Wired(Session):
        def __init__(self, *parts, **named):
            asked.update(named)
            super().__init__(*parts, **named)

    monkeypatch.setattr("tpmon.session.Session", Wired)
    monkeypatch.setattr("tpmon.probe.collect.collector.Collector", lambda *_, **__: Still())
    open_session(None, read(WatchOptions, **flags))
    assert (asked["may_look"], asked["glance"]) == (may_look, False)
    assert asked["hang_after_s"] == (120.0 if "hang_after" in flags else None)


@contextmanager
def waiting(**sinks: object) -> Iterator[tuple[Session, Source]]:
    """Give a session between its first reading and its second one, which comes no more."""
    source, sink, errors = Source(), Sink(), list[BaseException]()
    session = Session(source, (sink,), 30.0, **sinks)
    session.start(errors.append)
    try:
        assert sink.wait_for(1)
        yield session, source
    finally:
        session.stop()
    assert (len(sink.updates), errors) == (1, [])


def test_a_dump_that_grows_reaches_its_sinks_between_two_readings():
    grown: list[DumpUpdate] = []
    with waiting(dump_sinks=(grown.append,)) as (session, source):
        session.ask_dump(DumpRequest(Asker.KEY))
        source.dumps.tell(dump_state())
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(dump_state(rounds=(make_round(make_rank(0)),), answered=1))
        assert wait_until(lambda: len(grown) == 2)
    assert source.dumps.asked == [DumpRequest(Asker.KEY)]
    assert not is_known(grown[0].dump)
    assert [len(group.threads) for group in grown[1].dump.groups] == [1]


def hand_out(source: Source, *states: DumpState, frames: int = 1) -> list[DumpUpdate]:
    """Return what a session hands out of dumps, over some Frames after each state that the source tells."""
    grown: list[DumpUpdate] = []
    session = Session(source, (), 0.005, (grown.append,))
    for state in states:
        source.dumps.tell(state)
        session.run(frames=frames)
    return grown


def test_a_dump_is_handed_out_once_and_neither_folded_nor_samples_added_up_where_nobody_looks():
    assert len(hand_out(Source(), dump_state(refused="a dump is being read already"), frames=3)) == 1
    other = Source()
    other.dumps.tell(dump_state(rounds=("no round",)))
    other.samples.tell(SampleState(SampleRequest(), "no reading", running=True, refused=""))
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
    three = (make_rank(0), make_rank(1), make_rank(2, frames=IN_LOCK))
    grown = hand_out(Source(), *(dump_state(rounds=(make_round(*ranks),)) for ranks in (three[1:2], three)))
    (first,), second = grown[0].stacks, grown[1].stacks
    assert [line.text for line in first.lines] == ["<module> train.py:90", "train train.py:40", "all_reduce"]
    assert [line.is_users for line in first.lines] == [True, True, False]
    assert len({stack.mark for stack in second}) == len(grown[1].dump.groups) == len(second) == 2
    assert first in second


def test_a_dump_of_some_processes_knows_that_the_other_ranks_here_were_not_asked():
    one = make_round(make_rank(0, pid=4211))
    requests = [DumpRequest(Asker.KEY, pids=pids) for pids in ((), (4211,), (4300,))]
    grown = hand_out(Source(), *(dump_state(rounds=(one,), request=request) for request in requests))
    assert [update.dump.not_asked for update in grown] == [NOT_APPLICABLE, 0, 1]


def finished(*looks: ProcessLook, at_s: float = 0.0) -> DumpState:
    """Return the state of a dump whose only look is done."""
    return dump_state(rounds=(make_round(*looks, at_s=at_s),), answered=len(looks), running=False)


def test_a_finished_dump_in_which_ranks_wait_comes_again_with_the_records_of_the_job():
    grown: list[DumpUpdate] = []
    state = finished(make_rank(0), make_rank(1, frames=IN_LOCK))
    with waiting(dump_sinks=(grown.append,)) as (_, source):
        source.dumps.tell(replace(state, running=True))
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(state)
        assert wait_until(lambda: source.records.asked)
        assert wait_until(lambda: len(grown) == 2)
        dump_ns = state.rounds[-1].taken_ns
        source.records.tell(make_records(dump_ns, make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3))))
        assert wait_until(lambda: len(grown) == 3)
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
    source.records.tell(make_records(first.rounds[0].taken_ns, make_record(0, make_group(3, 4))))
    session.run(frames=1)
    assert source.records.asked == [first.rounds[0].taken_ns, second.rounds[0].taken_ns]
    assert [update.awaits_records for update in grown] == [True, True]
    source.records.tell(make_records(second.rounds[0].taken_ns, make_record(0, make_group(3, 4))))
    session.run(frames=1)
    assert is_known(grown[-1].dump.collectives)
    assert grown[-1].state is second


def test_a_job_where_nobody_waits_for_others_or_that_ended_is_asked_for_no_records():
    locked = [make_rank(rank, frames=IN_LOCK) for rank in range(2)]
    for source, looks in ((Source(), locked), (Source(ends_at=0), [make_rank(0), make_rank(1)])):
        grown = hand_out(source, finished(*looks), frames=2)
        assert (source.records.asked, [update.awaits_records for update in grown]) == ([], [False])


def test_the_hang_watch_gets_the_records_of_its_looks_also_where_nobody_shows_dumps():
    source = Source()
    source.dumps.tell(finished(make_rank(0), make_rank(1, frames=IN_LOCK)))
    Session(source, (), 0.005).run(frames=2)
    assert set(source.records.asked) == {source.dumps.state.rounds[-1].taken_ns}


def test_samples_that_grow_reach_their_sinks_as_hot_functions_between_two_readings():
    grown: list[SampleUpdate] = []
    request = SampleRequest(seconds=2)
    with waiting(sample_sinks=(grown.append,)) as (session, source):
        session.ask_sample(request)
        source.samples.tell(SampleState(request, NOTHING_YET, running=True, refused=""))
        assert wait_until(lambda: len(grown) == 1)
        source.samples.tell(SampleState(request, make_reading(make_sampled(0)), running=False, refused=""))
        assert wait_until(lambda: len(grown) == 2)
        session.finish_sample()
    assert (source.samples.asked, source.samples.finished) == ([request], 1)
    assert not is_known(grown[0].hot)
    assert grown[1].hot.groups[0].functions[0].function == "all_reduce"
    assert grown[1].hot.script == source.collect().target.script


class Tape:
    """Stand for a recorder: note what it is handed, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, ...]] = []

    def take(self, *those) -> None:
        self.pieces.append(tuple(one.read.cpu.runnable for one in those))

    @property
    def numbers(self) -> list[float]:
        return [number for piece in self.pieces for number in piece]


def test_a_recorder_gets_every_frame_from_the_first_on_the_last_too():
    tape, source = Tape(), Source(ends_at=3)
    session = Session(source, (), 0.01)
    session.record(tape)
    session.run()
    assert tape.numbers == [0.0, 1.0, 2.0, 3.0]


def test_one_that_comes_later_gets_what_is_at_hand_in_one_piece_and_one_that_goes_nothing_more(run):
    sink, tape = Sink(), Tape()
    session, _ = run(Source(), sink)
    assert sink.wait_for(5)
    session.record(tape)
    assert wait_until(lambda: len(tape.pieces) >= 3)
    session.record(None)
    numbers = tape.numbers
    assert len(tape.pieces[0]) >= 5
    assert numbers == [float(number) for number in range(len(numbers))]
    seen = len(sink.updates)
    assert sink.wait_for(seen + 3)
    assert len(tape.numbers) <= len(numbers) + 1
    assert [step.read.cpu.runnable for step in session.recall()][:3] == [0.0, 1.0, 2.0]


def test_one_that_comes_after_the_end_still_gets_what_is_at_hand():
    tape, session = Tape(), Session(Source(ends_at=2), (), 0.01)
    session.run()
    session.record(tape)
    assert tape.numbers == [0.0, 1.0, 2.0]
