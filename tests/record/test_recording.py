"""A recording gives back what was written: Frames, figures, verdicts, events, holes; also while it is written."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.corpus.demo_recordings import deflate_all
from tests.dumps import make_rank as make_look
from tests.dumps import make_round
from tests.frames import later, make_event, make_evidence, make_finding, make_log_pace, make_output
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.judged_jobs import read_recording
from tests.goldens.states import STATES
from tests.recordings import FRAME, ROOMY, SUBJECT, judge_steps, pass_by, run_seconds, write_recording
from tpmon.errors import UsageError
from tpmon.judge.folds.hot import fold_state
from tpmon.judge.hysteresis import Standing
from tpmon.model.codec import from_plain, to_plain
from tpmon.model.dump import Asker, DumpRequest, DumpState
from tpmon.model.figures import Figure
from tpmon.model.frame import EventKind, Frame, Window
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.doctor import DumpUpdate
from tpmon.model.verdict import Kind
from tpmon.record import line
from tpmon.record.line import unpack_once
from tpmon.record.pulses import NOT_KEPT
from tpmon.record.recording import Recording
from tpmon.record.step import JudgedFrame
from tpmon.record.writer import HIDDEN_LINE, RecordingWriter, wall_ns

SECOND = 10**9


@pytest.mark.parametrize("state", STATES)
def test_a_frame_comes_back_as_it_was_judged_and_as_it_was_read(state, tmp_path):
    frame = STATES[state][0]()
    read = replace(frame, verdict=Missing("not judged"), notes=frame.notes[:1], events=frame.events[-1:])
    path = write_recording(tmp_path / "a.tpmon", [JudgedFrame(read, frame, None)])
    with Recording(str(path)) as recording:
        (back,) = recording.recorded()
        assert recording.frame(1) == back.judged == frame
        assert back.read == read


def test_a_frame_that_nobody_judged_is_one():
    (step,) = pass_by([FRAME])
    assert step.read is step.judged


def test_a_python_without_zstandard_reads_a_deflated_recording_and_says_what_another_takes(tmp_path, monkeypatch):
    steps = judge_steps(run_seconds(70))  # of two streams
    path, deflated = write_recording(tmp_path / "a.tpmon", steps), tmp_path / "b.tpmon"
    shutil.copy(path, deflated)
    deflate_all(deflated)
    monkeypatch.setattr(line, "zstd", None)
    with Recording(str(deflated)) as recording:
        assert [one.judged for one in recording.recorded()] == [step.judged for step in steps]
    with Recording(str(path)) as recording, pytest.raises(UsageError, match="Zstandard"):
        recording.frame(1)
    with pytest.raises(UsageError, match="Zstandard"):
        write_recording(tmp_path / "c.tpmon", steps[:1])
    assert not (tmp_path / "c.tpmon").exists()
    with closing(sqlite3.connect(deflated)) as base, base:
        base.execute("UPDATE frame SET body = ? WHERE n = 1", (b"\x78\xda no stream",))
    with Recording(str(deflated)) as recording, pytest.raises(UsageError, match="damaged"):
        recording.frame(1)


def without_pace(path):
    """Make a recording one of before logs told a pace: the column of its history is not there."""
    with closing(sqlite3.connect(path)) as base:
        base.execute("DROP VIEW timeline")
        base.execute("ALTER TABLE pulse DROP COLUMN log_hz")
        base.commit()


def test_the_pace_of_a_log_is_recorded_and_recordings_without_it_are_read_and_gone_on_with(tmp_path):
    frames = [later(replace(FRAME, pace=make_log_pace(rate_hz=hz)), at) for at, hz in enumerate((5.1, 3.2))]
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames))
    with Recording(str(path)) as recording:
        assert recording.frame(2).pace == frames[1].pace
        assert [one.log_hz for one in recording.pulses(2)] == [5.1, 3.2]
    without_pace(path)
    with Recording(str(path)) as recording:
        assert recording.pulses(2)[1].log_hz == NOT_KEPT
        assert is_known(recording.pulses(2)[1].used_cores)
    write_recording(path, pass_by([later(frames[1], 2)]))
    with Recording(str(path)) as recording:
        assert [one.log_hz for one in recording.pulses(3)] == [NOT_KEPT, NOT_KEPT, 3.2]


def test_a_frame_of_before_logs_told_a_pace_is_read():
    frame = replace(FRAME, output=(make_output(pace=NOT_APPLICABLE),))
    raw = to_plain(frame)
    assert "pace" not in raw
    assert "pace" not in raw["output"][0]
    assert from_plain(Frame, raw) == frame


def test_every_frame_is_found_by_time_number_and_step_in_any_order(tmp_path):
    frames = run_seconds(150)
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames))
    with Recording(str(path)) as recording:
        assert (recording.first.n, recording.last.n) == (1, 150)
        for n in (150, 1, 61, 60, 62, 149, 3, 120, 120, 121):
            assert recording.frame(n) == frames[n - 1]
        assert recording.find(wall_ns(frames[99])).n == 100
        assert recording.find(wall_ns(frames[99]) + SECOND // 2).n == 100
        assert recording.find(0) == recording.first
        assert recording.find(1 << 62) == recording.last
        assert [recording.step(n, by).n for n, by in ((5, 1), (5, -1), (5, 10), (1, -3), (149, 9))] == [
            6,
            4,
            15,
            1,
            150,
        ]
        assert recording.moment(10**6).n == 150
        assert list(recording.frames(10, 12)) == frames[9:12]


def test_the_history_is_that_of_the_live_session(tmp_path):
    frames = [later(eight_gpus(), second) for second in range(5)]
    frames[2] = replace(frames[2], cpu=replace(frames[2].cpu, used_cores=Missing("late")))
    window = Window()
    for frame in frames:
        window.append(frame)
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames))
    with Recording(str(path)) as recording:
        back = recording.pulses(5)
        assert len(recording.pulses(3)) == 3
    for one, live in zip(back, window.pulses(), strict=True):
        for name in type(live).__slots__:
            was, now = getattr(live, name), getattr(one, name)
            assert now == was if is_known(was) and name != "gpu_pct" else not is_known(now) or now == was


def test_the_history_is_the_same_whatever_was_read_before(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by([later(FRAME, at * 10) for at in range(150)]))
    with Recording(str(path)) as walked:
        for n in (5, 6, 9, 70, 71, 150, 149, 3, 120, 40, 41, 1):
            with Recording(str(path)) as fresh:
                found = fresh.pulses(n)
            assert walked.pulses(n) == found
            assert found[-1].taken_ns == FRAME.taken_ns + (n - 1) * 10 * SECOND
            assert len(found) == min(n, 61)


def test_figures_can_be_asked_for_in_sql(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", judge_steps(read_recording()))
    base = sqlite3.connect(path)
    rows = base.execute("SELECT time, kind, cause, used_cores, processes FROM timeline").fetchall()
    assert len(rows) == len(read_recording())
    assert rows[-1][1:3] == ("data-bound", "cpu-transform")
    assert all(cores is None or cores > 0 for _, _, _, cores, _ in rows)
    spans = base.execute("SELECT seconds, kind FROM verdicts").fetchall()
    assert spans[-1][1] == "data-bound"
    assert sum(seconds for seconds, _ in spans) <= len(rows)


def test_spans_of_a_verdict_and_events_cover_the_recording(tmp_path):
    balanced = make_finding(kind=Kind.BALANCED, cause="")
    frames = [replace(one, verdict=make_finding(), events=()) for one in run_seconds(4)]
    frames[2] = replace(frames[2], verdict=balanced, events=(make_event("worker 3 gone"),))
    frames[3] = replace(frames[3], verdict=Missing("too early"))
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames))
    with Recording(str(path)) as recording:
        spans = recording.verdicts()
        (event,) = recording.events()
    assert [(one.first_n, one.last_n) for one in spans] == [(1, 2), (3, 3), (4, 4)]
    assert (spans[0].kind, spans[0].cause, spans[0].summary) == (
        Kind.DATA_BOUND,
        "cpu-transform",
        make_finding().summary,
    )
    assert spans[1].kind is Kind.BALANCED
    assert not is_known(spans[2].kind)
    assert (event.n, event.wall_ns, event.event) == (3, wall_ns(frames[2]), make_event("worker 3 gone"))


def test_the_first_frame_of_a_recording_may_go_while_it_is_read(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(5)))
    with Recording(str(path)) as recording, sqlite3.connect(path) as base:
        assert recording.first.n == 1
        base.execute("DELETE FROM frame WHERE n < 3")
        base.commit()
        assert not recording.refresh()
        assert (recording.first.n, recording.last.n) == (3, 5)


def test_a_recording_is_read_while_it_is_written(tmp_path):
    path, steps = tmp_path / "a.tpmon", pass_by(run_seconds(70))
    writer = RecordingWriter(str(path), SUBJECT, ROOMY)
    for step in steps[:3]:
        writer.write(step)
    with Recording(str(path)) as recording:
        assert recording.is_live()
        assert not recording.refresh()
        for step in steps[3:]:
            writer.write(step)
        assert recording.refresh()
        assert recording.last.n == 70
        assert recording.frame(70) == steps[-1].judged
        writer.close()
        assert not recording.is_live()
        assert recording.frame(2) == steps[1].judged
    with Recording(str(path)) as again:
        assert again.last.n == 70


def test_late_readings_are_holes_and_the_clock_that_was_set_back_is_none(tmp_path):
    frames = [*run_seconds(3), later(FRAME, 9), later(FRAME, 10)]
    frames[-1] = replace(frames[-1], taken=frames[-1].taken - timedelta(hours=1))
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames))
    with Recording(str(path)) as recording:
        (hole,) = recording.holes()
        assert hole.reason == "tpmon was late by 6.0 s"
        assert (hole.from_ns, hole.to_ns) == (wall_ns(frames[2]), wall_ns(frames[3]))
        assert recording.find(wall_ns(frames[4])).n == 5
        assert recording.last.n == 5


def test_a_machine_that_slept_is_said(tmp_path, monkeypatch):
    slept = iter((0.0, 0.0, 3_600.0, 3_600.0, 3_600.0))
    monkeypatch.setattr("tpmon.record.writer._read_slept_s", lambda: next(slept, 3_600.0))
    path = write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(2)))
    with Recording(str(path)) as recording:
        assert [one.reason for one in recording.holes()] == ["the machine slept for 3600 s"]


def test_a_recorder_that_was_restarted_goes_on_with_a_hole(tmp_path):
    path, steps = tmp_path / "a.tpmon", pass_by(run_seconds(30))
    write_recording(path, steps[:5])
    write_recording(path, [JudgedFrame(steps[20].read, steps[20].judged, None), *steps[21:25]])
    with Recording(str(path)) as recording:
        assert recording.last.n == 10
        assert recording.frame(6) == steps[20].judged
        assert [one.reason for one in recording.holes()] == ["nothing was recorded"]
        assert "recording resumed" in [one.event.text for one in recording.events()]


def test_lines_of_the_log_are_left_out_wherever_the_frame_repeats_them(tmp_path):
    secret = "password of the day"
    evidence = make_evidence(Figure.LAST_WORDS.label, text=secret)
    pace = make_log_pace(shape=secret)
    output = (make_output(lines=(secret,), pace=pace),)
    frame = replace(FRAME, output=output, verdict=make_finding(evidence=(evidence,)), pace=pace)
    for name, kept in (("a", True), ("b", False)):
        path = write_recording(tmp_path / name, pass_by([frame]), log_lines=kept)
        with Recording(str(path)) as recording:
            back = recording.frame(1)
        assert (back.output[0].lines == (secret,)) is kept
        assert (HIDDEN_LINE in str(back.verdict)) is not kept
        assert (secret in str(back)) is kept


def test_the_memory_of_the_judge_holds_no_line_of_the_log_either(tmp_path):
    secret = "password of the day"
    evidence = make_evidence(Figure.LAST_WORDS.label, text=secret)
    (step,) = judge_steps([replace(FRAME, output=(make_output(lines=(secret,)),))])
    standing = replace(Standing(), finding=make_finding(evidence=(evidence,)), begun_ns=1)
    for name, kept in (("a", True), ("b", False)):
        path = write_recording(tmp_path / name, [step._replace(standing=standing)], log_lines=kept)
        with sqlite3.connect(path) as base:
            (memory,) = base.execute("SELECT body FROM memory").fetchone()
        assert (secret.encode() in unpack_once(memory)) is kept


def test_a_frame_that_nobody_judged_stays_one_without_its_log_lines(tmp_path):
    frame = replace(FRAME, output=(make_output(lines=("loss 0.3",)),))
    path = write_recording(tmp_path / "a.tpmon", pass_by([frame]), log_lines=False)
    with Recording(str(path)) as recording:
        (back,) = recording.recorded()
    assert back.read is back.judged


def test_what_ended_the_writing_is_noted_whatever_it_was(tmp_path):
    writer = RecordingWriter(str(tmp_path / "a.tpmon"), SUBJECT, ROOMY)
    (good,) = pass_by([FRAME])
    writer.write(good)
    odd = replace(FRAME, cpu=replace(FRAME.cpu, used_cores=float("nan")))
    with pytest.raises(ValueError, match="Out of range"):
        writer.write(good._replace(judged=odd))
    writer.note("recording stopped: nan")
    writer.close()
    with Recording(str(tmp_path / "a.tpmon")) as recording:
        assert recording.last.n == 1
        assert recording.events()[-1].event.text == "recording stopped: nan"
        assert not is_known(recording.read_writer())


def test_dumps_and_samples_that_were_asked_for_are_kept_and_the_nearest_is_found(tmp_path):
    path, steps = tmp_path / "a.tpmon", pass_by(run_seconds(9))
    writer = RecordingWriter(str(path), SUBJECT, ROOMY)
    updates: list[DumpUpdate] = []
    for at, step in enumerate(steps):
        writer.write(step)
        if at in (1, 7):
            state = DumpState(DumpRequest(Asker.KEY), (make_round(make_look(at)),), 1, 1, running=False, refused="")
            updates.append(fold_state(state, step.judged))
            writer.keep(updates[-1])
    writer.close()
    with Recording(str(path)) as recording:
        assert [recording.dump_near(n) for n in (1, 3, 6, 9)] == [updates[0], updates[0], updates[1], updates[1]]
        assert recording.dump_near(6) is recording.dump_near(9), "it is decoded once"
        assert not is_known(recording.sample_near(1))


def test_the_events_of_a_frame_keep_their_order(tmp_path):
    events = tuple(make_event(f"worker {one} gone", kind=EventKind.PROCESS) for one in range(5))
    path = write_recording(tmp_path / "a.tpmon", pass_by([replace(FRAME, events=events)]))
    with Recording(str(path)) as recording:
        assert tuple(one.event for one in recording.events()) == events
