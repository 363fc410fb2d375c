"""``tpmon replay`` as text: one second, the stream, the verdict; typed times; refusals in one line; its stage."""

import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.frames import NOW, later, make_event, make_finding, make_frame, make_target
from tests.goldens.judged_jobs import read_recording
from tests.recordings import judge_steps, pass_by, write_recording
from tpmon import __version__, cli
from tpmon.commands.recordings import replay
from tpmon.commands.recordings.replay import Stage, parse_speed
from tpmon.errors import ExitCode, UsageError
from tpmon.judge import judge as judging
from tpmon.model.codec import encode
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import EventKind, TargetState
from tpmon.model.process import Outcome
from tpmon.model.results.replay import JumpTo, JumpToFrame, TimeMove
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording
from tpmon.report.plain import PlainReport

SECONDS = 150
FRAMES = [
    later(
        make_frame(),
        n,
        facts=f"second {n}",
        verdict=make_finding() if n < 100 else make_frame().verdict,
        events=(make_event("rank 1 gone", -n),) if n == 70 else (),
    )
    for n in range(SECONDS)
]
"""From 03:07:41 to 03:10:10."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_recording(tmp_path_factory.mktemp("kept") / "a.tpmon", pass_by(FRAMES)))


@pytest.fixture
def call(path, capfd):
    """Call the command in this process; return its exit code, and the lines of both outputs."""

    def run(*arguments, file=path):
        code = cli.main(["replay", *([file] if file else []), *arguments])
        told = capfd.readouterr()
        return code, told.out.splitlines(), told.err.splitlines()

    return run


AT = (
    ((), SECONDS - 1),
    (("--at", "03:09"), 79),
    (("--at", "03:09:07"), 86),
    (("--at=3:09:07",), 86),
    (("--at", "2026-03-14T03:09:07"), 86),
    (("--at", "2026-03-14T04:09:07+01:00"), 86),
    (("--at", "-10s"), SECONDS - 11),
    (("--at", "-1m"), SECONDS - 61),
    (("--at", "-0"), SECONDS - 1),
    (("--at", "#1"), 0),
    (("--at", "#120"), 119),
)


@pytest.mark.parametrize(("arguments", "n"), AT)
def test_one_second_of_it(call, arguments, n):
    code, lines, said = call("--once", "--json", *arguments)
    assert (code, said) == (0, [])
    assert lines == [encode(FRAMES[n])]
    _code, text, _said = call("--once", *arguments)
    assert any(line.endswith(f"second {n}") for line in text)


def test_the_stream_is_that_of_attach_from_there_on(call):
    for arguments, first in (((), 0), (("--at", "-5s"), SECONDS - 6), (("--at", "#149"), 148)):
        code, lines, _said = call("--json", *arguments)
        assert (code, lines) == (0, [encode(frame) for frame in FRAMES[first:]])
    report = PlainReport()
    expected = [line for frame in FRAMES for line in report.read(frame)]
    assert call("--plain")[1] == expected
    assert any("rank 1 gone" in line for line in expected)
    assert call("--plain", "--once", "--at", "03:08")[1][0].startswith("03:08:00")


ENDED = make_target(state=TargetState.ENDED, ended="exit 1", outcome=Outcome.FAILED)


def test_the_verdict_of_then_is_the_exit_code(call, tmp_path):
    code, lines, _said = call("--check", "--at", "-55s")
    assert (code, len(lines)) == (10, 1)
    assert lines[0].startswith("data-bound (cpu-transform), confidence high")
    code, lines, _said = call("--check", "--json", "--at", "#7")
    assert (code, json.loads(lines[0])["kind"]) == (10, "data-bound")
    assert call("--check")[0] == 11
    ended = write_recording(tmp_path / "b.tpmon", pass_by([make_frame(target=ENDED)]))
    assert call("--check", file=str(ended))[0] == 10


COVERS = "2026-03-14 03:07:41 to 03:10:10, Frames #1 to #150"
REFUSED = (
    (("--once", "--at", "07:00"), f"--at: 07:00 is outside of the recording: {COVERS}", "--at 03:10:10"),
    (("--json", "--at", "-1h"), f"--at: -1h is outside of the recording: {COVERS}", "--at 03:10:10"),
    (("--check", "--at", "#151"), f"--at: #151 is outside of the recording: {COVERS}", "--at 03:10:10"),
    (("--once", "--at", "noon"), "--at: 'noon' is no time: 03:12, 03:12:07, ", "--at 03:10:10"),
    (("--once", "--at"), "argument --at: expected one argument", "tpmon replay --help"),
    (("--once", "--at", ""), "--at takes a time, found ''", "leave --at out"),
    (("--once", "-10m"), "replay has no -10m", "tpmon replay --help"),
    (("--speed", "61"), "--speed takes a number from 0.25 to 60, found '61'", "--speed 4"),
)


@pytest.mark.parametrize(("arguments", "what", "try_this"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(call, arguments, what, try_this):
    code, lines, said = call(*arguments)
    assert (code, lines) == (ExitCode.USAGE, [])
    assert said[0].startswith(f"tpmon: {what}")
    assert said[1:] == [f"Try: {try_this}"]


def test_a_file_that_is_none_and_a_place_without_a_terminal_are_named(call, tmp_path):
    (tmp_path / "a.txt").write_text("no recording")
    for file, what in ((None, "the following arguments are required: FILE"), ("nowhere", "nowhere: No such file")):
        assert call("--once", file=file)[2][0].startswith(f"tpmon: {what}")
    assert call("--once", file=str(tmp_path / "a.txt"))[2][0] == f"tpmon: {tmp_path}/a.txt: no recording of tpmon"
    assert call()[0] == ExitCode.NO_TERMINAL


@pytest.mark.parametrize(("text", "speed"), [("", 1.0), ("4", 4.0), ("0.25x", 0.25), ("60x", 60.0), ("1.5", 1.5)])
def test_a_speed_is_a_number_and_may_have_its_sign(text, speed):
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["x", "fast", "0", "-4", "nan", "inf", "0.2", "4xx"])
def test_other_speeds_are_refused(text):
    with pytest.raises(UsageError, match="--speed takes a number"):
        parse_speed(text)


def test_the_stage_hands_moves_to_the_player_and_nothing_else():
    asked, stopped = [], []
    player = SimpleNamespace(ask=asked.append, stop=lambda: stopped.append(True))
    stage = Stage(player)
    moves = [TimeMove.PLAY, JumpTo(7), JumpToFrame(7)]
    for order in (*moves, DumpRequest(Asker.KEY)):
        stage.ask(order)
    assert asked == moves
    stage.leave()
    assert stopped


class EndedError(Exception):
    """Stand for the signal that ends the screen."""


def test_a_recording_that_fails_while_it_plays_says_so_and_after_the_screen_nothing(path, monkeypatch):
    stages = []

    def run_screen(_options, start, controls):
        stages.append(start.__self__)
        with pytest.raises(EndedError):
            start.__self__._fail(UsageError("a.tpmon: damaged", "--at"))
        controls.stop()
        start.__self__._fail(UsageError("closed", ""))
        raise SystemExit(143)

    def end(*_arguments):
        raise EndedError

    monkeypatch.setattr("tpmon.ui.monitor.start.run_screen", run_screen)
    monkeypatch.setattr(os, "kill", end)
    recording = Recording(path)
    options = replay.ReplayOptions(file=path)
    with pytest.raises(UsageError, match="damaged"):
        replay.play_on_screen(recording, recording.first, 1.0, options)
    assert len(stages[0].failures) == 1
    recording.close()


def test_the_frames_are_where_the_times_say():
    assert (FRAMES[86].taken - NOW).total_seconds() == 86
    assert FRAMES[70].events[0].kind is EventKind.PROCESS


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return str(write_recording(tmp_path_factory.mktemp("judged") / "a.tpmon", judge_steps(read_recording())))


def test_a_recording_judged_again_by_its_own_version_differs_nowhere(call, judged):
    seconds, said = len(read_recording()), f"Frames of tpmon 0.1.0 judged again by {__version__}: no verdict differs"
    assert call("--rejudge", file=judged) == (0, [f"{seconds} {said}"], [])
    assert call("--rejudge", "--json", file=judged) == (0, [], [f"tpmon: {seconds} {said}"])


def test_another_judge_is_told_in_a_line_a_change_with_the_time_and_both_verdicts(call, judged, monkeypatch):
    other = judging.find
    monkeypatch.setattr(judging, "find", lambda *given: replace(other(*given), kind=Kind.PYTHON_BOUND, cause="gil"))
    code, lines, _said = call("--rejudge", file=judged)
    assert code == 10
    change = re.compile(
        r"\d\d:\d\d:\d\d  data-bound \(cpu-transform\), confidence \w+  ->  python-bound \(gil\), confidence \w+"
    )
    assert any(map(change.fullmatch, lines))
    assert re.search(r": \d+ with another verdict$", lines[-1])
    code, objects, _said = call("--rejudge", "--json", file=judged)
    assert (code, len(objects)) == (10, len(lines) - 1)
    last = json.loads(objects[-1])
    assert (last["schema"], last["again"]["cause"]) == ("tpmon.rejudged/1", "gil")


def test_what_cannot_be_judged_again_is_counted(call, path):
    _code, lines, _said = call("--rejudge")
    assert lines[0].endswith(f"; {SECONDS} could not be judged: thinned out, or too near to the start")
