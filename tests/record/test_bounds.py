"""A recording stays within its bounds, says when it stops, and what was acknowledged is there after any end."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.frames import make_event, make_finding
from tests.recordings import FRAME, ROOMY, SUBJECT, pass_by, run_seconds, write_recording
from tpmon.model.known import Missing, is_known
from tpmon.record.recorder import FrameRecorder
from tpmon.record.recording import Recording
from tpmon.record.writer import RecordingBounds, RecordingWriter, StoppedError

HOUR_S = 3600


def test_old_frames_are_thinned_to_one_a_minute_and_figures_stay(tmp_path):
    bounds = replace(ROOMY, whole_s=600.0)
    path = write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(1_800)), bounds)
    with Recording(str(path)) as recording:
        numbers = [one.moment.n for one in recording.recorded()]
        assert len(recording.pulses(1_800)) == 601
        assert recording.moment(100) == recording.moment(61)
        assert recording.frame(61) == run_seconds(61)[-1]
        assert recording.step(61, 1).n == 121
    old, young = [n for n in numbers if n <= 1_140], [n for n in numbers if n > 1_140]
    assert old == list(range(1, 1_141, 60))
    assert young == list(range(1_141, 1_801))
    assert sqlite3.connect(path).execute("SELECT count(*) FROM pulse").fetchone() == (1_800,)


def test_the_size_stays_below_its_bound_and_verdicts_and_events_never_go(tmp_path):
    frames = [
        replace(
            one, verdict=make_finding(summary=f"at {at}"), events=(make_event(f"at {at}"),) if at % 600 == 0 else ()
        )
        for at, one in enumerate(run_seconds(HOUR_S, every_s=8.0))
    ]
    bounds = replace(ROOMY, most_bytes=1_300_000)
    path = write_recording(tmp_path / "a.tpmon", pass_by(frames), bounds)
    assert path.stat().st_size < 1_300_000 * 1.15
    with Recording(str(path)) as recording:
        assert recording.last.n == len(frames)
        assert recording.first.n > HOUR_S // 8
        assert len(recording.events()) == 6
        assert recording.verdicts()[0].first_n == 1
        assert recording.frame(recording.first.n) == frames[recording.first.n - 1]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (replace(ROOMY, most_bytes=1000), "it holds 1000B, as much as --max-size lets it"),
        (RecordingBounds(least_free_bytes=1 << 60), "left, and 1048576T are to stay free"),
    ],
)
def test_a_recording_that_may_not_grow_stops_and_says_so(bounds, words, tmp_path):
    stops = []
    recorder = FrameRecorder(str(tmp_path / "a.tpmon"), SUBJECT, bounds, stops.append)
    for step in pass_by(run_seconds(3)):
        recorder.take(step)
    state = recorder.finish(5.0)
    assert words in state.stopped
    assert stops == [state]
    events = sqlite3.connect(tmp_path / "a.tpmon").execute("SELECT text FROM event").fetchall()
    assert events == [(f"recording stopped: {state.stopped}",)]


def test_a_full_disk_ends_the_recording_and_what_is_there_stays(tmp_path):
    writer = RecordingWriter(str(tmp_path / "a.tpmon"), SUBJECT, ROOMY)
    steps = pass_by(run_seconds(400))
    for step in steps[:5]:
        writer.write(step)
    pages = writer._base.execute("PRAGMA page_count").fetchone()[0]
    writer._base.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoppedError, match="the disk is full"):
        list(map(writer.write, steps[5:]))
    writer.close()
    with Recording(str(tmp_path / "a.tpmon")) as recording:
        assert recording.last.n == writer.frames >= 5
        assert recording.frame(writer.frames) == steps[writer.frames - 1].judged


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_real_disk_that_is_full_is_said_in_one_line(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.decode().strip()}")
    try:
        recorder = FrameRecorder(str(mount / "a.tpmon"), SUBJECT, ROOMY)
        steps = pass_by(_make_noise(500))
        for step in steps:
            while recorder._waiting.full() and not recorder.state.stopped:
                time.sleep(0.01)
            recorder.take(step)
        state = recorder.finish(10.0)
        assert state.stopped == "the disk is full"
        with Recording(str(mount / "a.tpmon")) as recording:
            assert recording.last.n == state.frames > 5
            assert recording.frame(state.frames) == steps[state.frames - 1].judged
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def _make_noise(count: int):
    draw = random.Random(5)
    return [replace(one, facts=f"{draw.getrandbits(8_000):x}") for one in run_seconds(count)]


def test_frames_that_a_slow_disk_has_no_time_for_are_lost_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tpmon.record.recorder.WAITING", 20)
    recorder = FrameRecorder(str(tmp_path / "a.tpmon"), SUBJECT, ROOMY)
    write = RecordingWriter.write
    monkeypatch.setattr(RecordingWriter, "write", lambda self, step: (time.sleep(0.02), write(self, step)))
    for step in pass_by(run_seconds(40)):
        recorder.take(step)
    state = recorder.finish(30.0)
    assert 0 < state.lost <= 20
    assert state.frames + state.lost == 40


WRITER = """
import sys, time
from tests.recordings import ROOMY, SUBJECT, pass_by, run_seconds
from tpmon.record.writer import RecordingWriter
writer = RecordingWriter(sys.argv[1], SUBJECT, ROOMY)
for step in pass_by(run_seconds(3000)):
    writer.write(step)
    print(writer.frames, flush=True)
"""


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(one, marks=pytest.mark.long) for one in range(5, 50))])
def test_nothing_acknowledged_is_lost_when_the_recorder_is_killed(seed, tmp_path):
    path = tmp_path / "a.tpmon"
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    until = random.Random(seed).randrange(1, 400)
    acknowledged = 0
    while acknowledged < until:
        acknowledged = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = child.communicate()[0].split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    frames = run_seconds(acknowledged + 2)
    with Recording(str(path)) as recording:
        assert not recording.is_live()
        assert recording.last.n in (acknowledged, acknowledged + 1)
        assert recording.frame(recording.last.n) == frames[recording.last.n - 1]
        assert recording._one("PRAGMA integrity_check") == ("ok",)
    write_recording(path, pass_by(run_seconds(2)))  # and it can be gone on with
    with Recording(str(path)) as recording:
        assert recording.last.n >= acknowledged + 2


def test_a_reader_that_stands_still_does_not_block_the_writer(tmp_path):
    path = tmp_path / "a.tpmon"
    writer = RecordingWriter(str(path), SUBJECT, ROOMY)
    steps = pass_by(run_seconds(300))
    writer.write(steps[0])
    with Recording(str(path)) as recording:
        rows = recording.recorded()
        next(rows)  # a query that is never read to its end
        for step in steps[1:]:
            writer.write(step)
        writer.close()
        assert writer.frames == 300
    with Recording(str(path)) as recording:
        assert recording.last.n == 300


def test_a_hole_has_no_figures_that_were_not_read(tmp_path):
    frame = replace(FRAME, cpu=replace(FRAME.cpu, used_cores=Missing("no")))
    path = write_recording(tmp_path / "a.tpmon", pass_by([frame]))
    with Recording(str(path)) as recording:
        assert not is_known(recording.pulses(1)[0].used_cores)
    assert sqlite3.connect(path).execute("SELECT used_cores FROM pulse").fetchone() == (None,)
