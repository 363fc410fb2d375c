"""``tpmon record``: a real job in a file, in the background, listed, ended, moved; refusals in one line."""

import json
import os
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import SECONDS, call, start, start_training
from tests.frames import make_frame
from tests.recordings import SUBJECT, pass_by, run_seconds, write_recording
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon import cli
from tpmon.commands.recordings.record import parse_size, parse_span, write_shelf
from tpmon.errors import ExitCode, UsageError
from tpmon.model.known import NOT_APPLICABLE
from tpmon.record import schema
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.record.shelf import Shelved

NOW_NS = time.time_ns()


@pytest.mark.parametrize(
    ("text", "size"),
    [("256M", 256 << 20), ("1.5G", 3 << 29), ("2048k", 2 << 20), ("1048576", 1 << 20), ("3GiB", 3 << 30)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1M", "1000", "much", "1e9", "256 apples", "9" * 30, "1.5.5M"])
def test_sizes_that_are_none_or_too_small_are_refused(text):
    with pytest.raises(UsageError, match="--max-size takes 1M or more"):
        parse_size(text)


def test_spans_are_refused_by_the_name_of_their_flag():
    assert parse_span("", "--for", 1.0) == 0.0
    assert parse_span("8h", "--for", 1.0) == 8 * 3600
    for text in ("0.5", "soon", "nan", "1e99", "-5m"):
        with pytest.raises(UsageError, match=r"--every takes a time of 1 s or more, found"):
            parse_span(text, "--every", 1.0)


def test_the_list_names_writers_jobs_and_what_cannot_be_read():
    from_ns = NOW_NS - 7_500 * 10**9
    one = Shelved("/state/a.tpmon", SUBJECT, from_ns, NOW_NS, 7_500, 3 << 20, 812)
    head, first, other, bad = write_shelf(
        [one, replace(one, writer=NOT_APPLICABLE), UsageError("/state/b.tpmon: no recording of tpmon", "")], "/state"
    )
    assert head.split() == ["writer", "job", "began", "length", "size", "script,", "file"]
    assert first.split()[:2] == ["812", "4210"]
    assert first.endswith("2h05m    3.0M  train.py, /state/a.tpmon")
    assert other.split()[:2] == ["-", "4210"]
    assert bad.split(maxsplit=1) == ["?", "/state/b.tpmon: no recording of tpmon"]
    assert list(write_shelf([], "/state")) == ["no recording in /state"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("record", "--stop", ""), "--stop takes a PID or a file"),
        (("record", "--stop", "999999"), "is written by 999999"),
        (("record", "--stop", "nowhere.tpmon"), "nowhere.tpmon: No such file"),
        (("record", "--move", "nowhere.tpmon"), "--move takes the new place in --out"),
        (("record", "--move", "a.tpmon", "--out", "./a.tpmon"), "exclude each other"),
        (("record", "1", "--max-size", "9"), "--max-size takes 1M or more"),
        (("record", "1", "--for", "never"), "--for takes a time"),
        (("record", "1", "--every", "0.2"), "--every takes a time of 1 s or more"),
        (("record", "1", "--out", ""), "--out takes a file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, words, tmp_path):
    write_recording(tmp_path / "a.tpmon", pass_by([make_frame()]))
    done = call(*arguments, cwd=tmp_path, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    said, try_this, *rest = done.stderr.splitlines()
    assert words in said
    assert try_this.startswith("Try: ")
    assert (rest, done.stdout) == ([], "")
    assert done.returncode in (ExitCode.USAGE, ExitCode.NO_TARGET)


@pytest.mark.parametrize("command", ["record", "replay"])
def test_a_python_without_sqlite_is_no_bug(command, monkeypatch, capfd):
    monkeypatch.setattr("tpmon.record.find_spec", lambda _name: None)
    assert cli.main([command, "1"]) == ExitCode.USAGE
    assert capfd.readouterr().err.startswith("tpmon: this Python was built without SQLite")


def test_a_network_file_system_is_refused_with_the_way_around_it(monkeypatch):
    from tpmon.commands.recordings import record

    monkeypatch.setattr(schema, "read_file_system", lambda _folder: 0x0BD00BD0)
    with pytest.raises(UsageError, match="is on Lustre") as caught:
        record.open_recorder("/home/user/a.tpmon", SUBJECT)
    assert caught.value.try_this == "--out /tmp/a.tpmon, then tpmon record --move /tmp/a.tpmon --out /home/user/a.tpmon"


def test_a_recording_is_moved_as_one_compact_file(tmp_path):
    write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(9)))
    done = call("record", "--move", "a.tpmon", "--out", "b.tpmon", cwd=tmp_path, code=0)
    assert done.stdout.startswith("b.tpmon, ")
    with Recording(str(tmp_path / "b.tpmon")) as recording:
        assert recording.count_frames() == 9


@pytest.fixture
def training():
    child = start_training()
    yield child
    child.kill()
    child.wait()


def read_state(folder: Path) -> list[Path]:
    return sorted((folder / "tpmon").glob("*.tpmon"))


@needs_torch
@pytest.mark.torch
def test_a_job_is_recorded_in_the_background_until_it_is_told_to_end(training, tmp_path):
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    began = call("record", str(training.pid), "--detach", "-i", "0.5", "--no-stacks", env=env, code=0)
    (path,) = read_state(tmp_path)
    assert str(path) in began.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listed = call("record", "--list", env=env, code=0).stdout.splitlines()[1]
    writer = int(listed.split()[0])
    assert f"--stop {writer}" in began.stdout
    assert os.getsid(writer) != os.getsid(0)
    with Recording(str(path)) as recording:
        wait_until(lambda: recording.refresh() and recording.last.n >= 4, SECONDS)
        assert recording.subject.pid == training.pid
    call("record", "--stop", str(writer), env=env, code=0)
    assert os.listdir(path.parent) == [path.name]
    with Recording(str(path)) as recording:
        assert not recording.is_live()
        judged = [one for one in rejudge(recording) if one.counts]
        assert len(judged) >= 4
        assert all(one.is_equal for one in judged)
    assert call("record", "--list", env=env, code=0).stdout.splitlines()[1].split()[0] == "-"
    again = call("record", "--stop", str(path), env=env)
    assert "is not being recorded" in again.stderr


@needs_torch
@pytest.mark.torch
def test_an_interrupt_ends_a_recording_in_order_and_the_same_file_goes_on(training, tmp_path):
    path = tmp_path / "a.tpmon"
    for sent, code in ((signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)):
        child = start("record", str(training.pid), "--out", str(path), "-i", "0.5", "--no-stacks")
        before = count_frames(path)
        wait_until(lambda before=before: count_frames(path) >= before + 3, SECONDS)
        child.send_signal(sent)
        _, said = child.communicate(timeout=SECONDS)
        assert child.returncode == code
        assert f"in {path}" in said.splitlines()[-1]
    call("record", str(training.pid), "--out", str(path), "-i", "0.5", "--no-stacks", "--for", "2", code=0)
    assert os.listdir(tmp_path) == ["a.tpmon"]
    with Recording(str(path)) as recording:
        assert [one.reason for one in recording.holes()] == ["nothing was recorded"] * 2
        assert all(one.is_equal for one in rejudge(recording) if one.counts)


def count_frames(path: Path) -> int:
    try:
        with Recording(str(path)) as recording:
            return recording.count_frames()
    except UsageError:
        return 0


@needs_torch
@pytest.mark.torch
def test_the_job_that_ends_ends_its_recording(training, tmp_path):
    path = tmp_path / "a.tpmon"
    child = start("record", str(training.pid), "--out", str(path), "-i", "0.5", "--no-stacks")
    wait_until(lambda: count_frames(path) >= 2, SECONDS)
    training.kill()
    training.wait()
    said, _ = child.communicate(timeout=SECONDS)
    assert (child.returncode, said) == (0, f"{path}\n")
    with Recording(str(path)) as recording:
        assert recording.frame(recording.last.n).target.state.value == "ended"


@needs_torch
@pytest.mark.torch
def test_what_the_file_holds_is_what_json_shows(training, tmp_path):
    """The words of a secret are hidden in both, and each key of the JSON is there."""
    path = tmp_path / "a.tpmon"
    call("record", str(training.pid), "--out", str(path), "-i", "0.5", "--no-stacks", "--for", "2", code=0)
    shown = json.loads(call("attach", str(training.pid), "--json", "--once", "--no-stacks", code=0).stdout)
    with Recording(str(path)) as recording:
        from tpmon.model.codec import to_plain

        held = to_plain(recording.frame(recording.last.n))
    assert held.keys() == shown.keys()
    assert held["target"]["script"] == shown["target"]["script"]
