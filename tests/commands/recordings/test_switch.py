"""``attach --record``: what is shown is recorded too, in every form; refusals in one line; a full disk stops no watch."""

import errno
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from tests.command_line import SECONDS, call, start, start_training
from tests.frames import make_frame
from tests.recordings import judge_steps, pass_by, run_seconds, write_recording
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.commands.command import WatchOptions
from tpmon.commands.recordings import switch
from tpmon.commands.recordings.switch import RecordingSwitch, recorded
from tpmon.errors import ExitCode, UsageError
from tpmon.model.codec import decode
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Identity
from tpmon.record import schema
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.record.writer import RecordingWriter, StoppedError

JOB = SimpleNamespace(root=Identity(4210, 77), user="user", script="train.py")


class Session:
    """Keep who records, and what is at hand."""

    def __init__(self) -> None:
        self.recorder = None
        self.steps = judge_steps(run_seconds(2))

    def record(self, recorder):
        self.recorder = recorder

    def recall(self):
        return self.steps


@pytest.mark.parametrize(
    ("words", "said", "way_out"),
    [
        (("1", "--once", "--record"), "--once and --record exclude each other", "leave one of the two out"),
        (("1", "--check", "--record"), "--check and --record exclude each other", "leave one of the two out"),
        (("--record", "4242"), "which job? PID is missing", "the PID before --record"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, said, way_out):
    done = call("attach", *words, code=ExitCode.USAGE)
    assert done.stderr.startswith(f"tpmon: {said}\nTry: {way_out}")


def test_a_session_of_a_text_command_is_recorded_and_the_end_says_how_much(tmp_path, capfd):
    session, path = Session(), tmp_path / "a.tpmon"

    def watch():
        with recorded(session, JOB, WatchOptions(), str(path)):
            session.recorder.take(*session.steps)
            raise KeyError

    with pytest.raises(KeyError):
        watch()
    assert capfd.readouterr().err == f"tpmon: recording in {path}\ntpmon: recorded 2 Frames in {path}\n"
    with Recording(str(path)) as recording:
        assert (recording.count_frames(), recording.subject.pid) == (2, 4210)


def test_a_disk_that_is_full_is_said_once_and_the_watch_goes_on(tmp_path, capfd, monkeypatch):
    def fill(_self, _step):
        raise StoppedError("the disk is full")

    monkeypatch.setattr(RecordingWriter, "write", fill)
    session, path = Session(), tmp_path / "a.tpmon"
    with recorded(session, JOB, WatchOptions(), str(path)):
        session.recorder.take(*session.steps)
        assert wait_until(lambda: session.recorder.state.stopped and session.recorder._ended.is_set())
        session.recorder.take(*session.steps)
    said = capfd.readouterr().err.splitlines()
    assert said[1:] == [f"tpmon: recorded 0 Frames in {path}; stopped: the disk is full"]


def fail(*_arguments):
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ((schema, "read_file_system", lambda _folder: 0x6969), "is on NFS"),
        ((schema, "read_file_system", fail), "Input/output error"),
        ((switch, "OPEN_S", 0.0), "no answer within 0 s"),
    ],
)
def test_a_place_that_takes_no_recording_is_refused_by_the_name_of_the_flag(tmp_path, monkeypatch, patch, said):
    monkeypatch.setattr(*patch)
    with (
        pytest.raises(UsageError, match=said) as caught,
        recorded(Session(), JOB, WatchOptions(), str(tmp_path / "a.tpmon")),
    ):
        pass
    assert caught.value.try_this.startswith("--record FILE, ")


def test_the_file_of_another_job_is_left_alone(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by([make_frame()]))
    before = path.read_bytes()
    other = RecordingSwitch(JOB, WatchOptions(), lambda *_: None)
    with pytest.raises(UsageError, match=r"is of another job: 4210 train\.py on node1"):
        other.open(str(path))
    assert path.read_bytes() == before


def test_what_is_at_hand_of_a_job_that_is_over_is_written_and_the_file_is_done(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session, told = Session(), []
    one = RecordingSwitch(JOB, WatchOptions(), lambda *said: told.append(said))
    one.follow(session)
    one.end()
    monkeypatch.setattr(session, "record", lambda recorder: recorder and recorder.take(*session.steps))
    one.turn()
    assert wait_until(lambda: told and not one.busy)
    ((line, records),) = told
    assert line.startswith(f"recorded 2 Frames in {one.path}, ")
    assert records is False
    with Recording(one.path) as recording:
        assert not recording.is_live()


def test_the_end_of_a_job_while_the_file_is_opened_ends_its_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    opening, go_on, told = threading.Event(), threading.Event(), []
    right = switch.open_for

    def open_late(*arguments):
        opening.set()
        go_on.wait(SECONDS)
        return right(*arguments)

    monkeypatch.setattr(switch, "open_for", open_late)
    one = RecordingSwitch(JOB, WatchOptions(), lambda *said: told.append(said))
    one.follow(Session())
    one.turn()
    assert opening.wait(SECONDS)
    one.turn()
    assert told == [(switch.BUSY, NOT_APPLICABLE)]
    one.end()
    go_on.set()
    assert wait_until(lambda: not one.busy)
    assert told[-1][0].startswith("recorded 0 Frames in ")
    assert told[-1][1] is False


@pytest.mark.torch
@needs_torch
def test_the_frames_that_are_printed_are_those_that_are_recorded_with_readonly_too(tmp_path):
    path = tmp_path / "a.tpmon"
    with start_training() as job:
        words = ("--json", "--record", str(path), "--readonly", "-i", "0.5")
        child = start("attach", str(job.pid), *words, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
        lines = [child.stdout.readline() for _ in range(3)]
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=SECONDS)
        job.kill()
    lines += out.splitlines()
    assert child.returncode == ExitCode.INTERRUPTED
    assert err.splitlines()[0] == f"tpmon: recording in {path}"
    with Recording(str(path)) as recording:
        frames = list(recording.frames(1, recording.last.n))
        assert all(one.is_equal for one in rejudge(recording) if one.counts)
        assert not recording.subject.may_look
    shown = [decode(Frame, line).taken_ns for line in lines]
    assert shown == [one.taken_ns for one in frames][: len(shown)]
    assert len(frames) - len(shown) in (0, 1), "the signal may come between the two"
    assert f"tpmon: recorded {len(frames)} Frames in {path}" in err
