"""The loop of a session: its rhythm, its end, its errors, its history."""

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from tests.sessions import Sink, Source
from tests.waiting import wait_until
from tpmon.judge.judge import Judgement, judge
from tpmon.model.dump import Asker, DumpRequest, DumpState
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.verdict import Kind
from tpmon.session import Session


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
    """Hand out Frames that are 20 s apart by their own clock."""

    def collect(self) -> Frame:
        frame = super().collect()
        return replace(frame, taken_ns=len(self.times) * 20 * 10**9)


def test_a_bundle_gets_frames_of_five_minutes_of_which_the_judge_sees_the_last_one(monkeypatch):
    judged: list[int] = []

    def look_on(frames, standing):
        judged.append(len(frames))
        return Judgement(frames[-1], standing)

    monkeypatch.setattr("tpmon.judge.judge.judge", look_on)
    session = Session(Leaping(), (), 0.001)
    last = session.run(frames=30)
    kept = session.frames()
    assert [frame.taken_ns // 10**9 for frame in kept] == list(range(300, 601, 20))
    assert kept[-1] is last
    assert max(judged) == 4


def test_frames_keep_the_rhythm_of_the_interval():
    source = Source(slow=dict.fromkeys(range(100), 0.03))
    Session(source, (), 0.1).run(frames=6)
    steps = [later - earlier for earlier, later in zip(source.times, source.times[1:], strict=False)]
    assert sum(steps) / len(steps) == pytest.approx(0.1, abs=0.03), "the time of a reading is not added"


@pytest.mark.parametrize(("first_at", "frames"), [(1, 2), (2, 2), (3, 3), (9, 4)])
def test_one_reading_waits_a_little_for_its_first_stack(first_at, frames):
    class Late(Source):
        def collect(self):
            frame = super().collect()
            age = 0.5 if len(self.times) >= first_at else Missing("no stack was sampled yet")
            return replace(frame, stacks=(), ages_s=replace(frame.ages_s, stacks=age))

    source = Late()
    Session(source, (), 0.001).run(2, more=2)
    assert len(source.times) == frames


def test_no_reading_waits_for_stacks_that_cannot_come():
    class Off(Source):
        def collect(self):
            frame, off = super().collect(), Missing("stacks are off (--no-stacks)")
            return replace(frame, stacks=off, ages_s=replace(frame.ages_s, stacks=off))

    source = Off()
    Session(source, (), 0.001).run(2, more=2)
    assert len(source.times) == 2


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

    def broken(_update):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Session(source, (broken,), 0.01).run()
    assert source.closed == 1
    assert len(source.times) == 1


def test_the_history_of_the_loop_is_bounded_in_time():
    class Sparse(Source):
        def collect(self):
            return replace(super().collect(), taken_ns=len(self.times) * 100_000_000_000)

    sink = Sink()
    Session(Sparse(), (sink,), 0.001).run(frames=12)
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
