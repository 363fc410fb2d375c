"""A recording judged again by the version that made it differs nowhere; by another, each change is one line."""

from dataclasses import replace

import pytest

from tests.frames import later
from tests.goldens import judged_jobs
from tests.goldens.judged_jobs import read_recording
from tests.recordings import SUBJECT, judge_steps, pass_by, run_seconds, write_recording
from tpmon.judge import judge as judging
from tpmon.judge.hysteresis import Standing
from tpmon.model.codec import CodecError
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.verdict import Kind
from tpmon.record.memory import read_memory, write_memory
from tpmon.record.recording import Recording
from tpmon.record.rejudge import list_changes, rejudge
from tpmon.record.step import JudgedFrame


def long_run(seconds: int = 130) -> list[Frame]:
    """Return the recorded job again and again: with its stacks, so that verdicts come and change."""
    frames = read_recording()
    return [
        replace(one, taken=later(frames[0], at).taken, taken_ns=later(frames[0], at).taken_ns)
        for at in range(seconds)
        for one in (frames[at % len(frames)],)
    ]


@pytest.mark.parametrize("begin", [0, 40])
def test_the_version_that_recorded_it_says_the_same_in_every_word(begin, tmp_path):
    steps = judge_steps(long_run())[begin:]
    path = write_recording(tmp_path / "a.tpmon", steps)
    with Recording(str(path)) as recording:
        judged = list(rejudge(recording))
    counted = [one for one in judged if one.counts]
    assert len(judged) == len(steps)
    # what began in the middle of a session fills the Window first, and then begins with the memory of the judge
    assert len(counted) == (130 if begin == 0 else 30)
    assert all(one.is_equal for one in counted)
    assert Kind.DATA_BOUND in {one.again.verdict.kind for one in counted if is_known(one.again.verdict)}


def test_a_hung_job_with_its_dumps_is_judged_as_it_was(tmp_path):
    played = judged_jobs.hung_frames()
    steps = judge_steps(played)
    assert any(is_known(one.read.rounds) for one in steps)
    path = write_recording(tmp_path / "a.tpmon", steps)
    with Recording(str(path)) as recording:
        judged = list(rejudge(recording))
    assert all(one.is_equal for one in judged)
    assert judged[-1].again.verdict.kind is Kind.HUNG


def test_what_the_judge_remembers_comes_back_whole():
    for step in judge_steps(judged_jobs.hung_frames())[1:]:
        assert read_memory(write_memory(step.standing)) == replace(step.standing, looks=())


@pytest.mark.parametrize("data", [b"", b"[", b"7", b'["t"]', b'["Popen","id"]', b'["Kind","NONE"]', b"[" * 9999])
def test_memory_that_is_damaged_or_hostile_makes_nothing_else(data):
    with pytest.raises(CodecError):
        read_memory(data)


def test_thinned_parts_and_kept_seconds_are_not_judged(tmp_path):
    steps = judge_steps(long_run(70))
    path = write_recording(tmp_path / "a.tpmon", steps, every_s=10.0)
    with Recording(str(path)) as recording:
        judged = list(rejudge(recording))
        assert recording.count_frames() == len(judged) == 7
        assert len(recording.pulses(70)) == 70
    assert not any(one.counts for one in judged)


def test_two_sessions_in_one_file_are_judged_each_from_its_beginning(tmp_path):
    frames = long_run(140)
    path = tmp_path / "a.tpmon"
    write_recording(path, judge_steps(frames[:60]))
    write_recording(path, judge_steps(frames[80:]))
    with Recording(str(path)) as recording:
        judged = list(rejudge(recording))
    assert [one.is_equal and one.counts for one in judged] == [True] * 120


def test_another_judge_is_told_by_one_line_a_change(tmp_path, monkeypatch):
    path = write_recording(tmp_path / "a.tpmon", judge_steps(long_run(60)))
    before = judging.find
    monkeypatch.setattr(judging, "find", lambda *given: replace(before(*given), kind=Kind.PYTHON_BOUND, cause="gil"))
    with Recording(str(path)) as recording:
        changes = list(list_changes(rejudge(recording)))
    assert 1 <= len(changes) <= 4
    assert {one.again.verdict.kind for one in changes if is_known(one.again.verdict)} == {Kind.PYTHON_BOUND}
    assert changes[0].recorded.kind is not Kind.PYTHON_BOUND


def test_frames_that_were_not_judged_count_for_nothing(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(3)))
    with Recording(str(path)) as recording:
        assert [one.counts for one in rejudge(recording)] == [False] * 3


def test_what_is_known_of_the_hang_watch_is_that_of_the_session(tmp_path):
    frames = judged_jobs.hung_frames()
    path = write_recording(tmp_path / "a.tpmon", judge_steps(frames, replace(SUBJECT, may_look=False)), may_look=False)
    with Recording(str(path)) as recording:
        assert all(one.is_equal for one in rejudge(recording))


def test_a_session_whose_first_frame_was_shown_unjudged_is_judged_from_it(tmp_path):
    first, *rest = judge_steps(long_run(30))
    path = write_recording(tmp_path / "a.tpmon", [JudgedFrame(first.read, first.read, None), *rest])
    with Recording(str(path)) as recording:
        judged = list(rejudge(recording))
    assert [one.counts for one in judged] == [False] + [True] * 29
    assert all(one.is_equal for one in judged[1:])


def test_an_empty_memory_is_no_standing():
    assert read_memory(write_memory(Standing())) == Standing()
