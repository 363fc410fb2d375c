"""The wiring of the screen: orders reach the session, what comes reaches the screen, one bundle at a time."""

import re
import subprocess
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.frames import make_frame, make_process, make_target
from tests.goldens import dump_views, sample_views
from tests.paces import make_hook
from tests.recordings import judge_steps, pass_by, run_seconds
from tests.waiting import wait_until
from tpmon import evidence
from tpmon.commands import sample, screen
from tpmon.commands.command import WatchOptions
from tpmon.commands.recordings.switch import BUSY
from tpmon.commands.screen import BUNDLING, CAPTURING, Wiring, trace_command
from tpmon.errors import NoTargetError, UsageError
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import TargetState
from tpmon.model.hook import PutIn
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureRequest, CaptureStage
from tpmon.model.results.doctor import Update
from tpmon.model.results.sample import SampleRequest
from tpmon.record.recording import Recording
from tpmon.record.writer import RecordingWriter, StoppedError
from tpmon.report.readings import write_reading
from tpmon.ui.monitor.controls import Errand, Notice

JOB = SimpleNamespace(root=Identity(4200, 1), user="user", script="train.py", remark="")


class EndedError(Exception):
    """Stand for the signal that ends the screen."""


class Session:
    """Note what is asked of it."""

    def __init__(self, *sinks) -> None:
        self.sinks = sinks
        self.calls: list[tuple[str, object]] = []

    def recall(self):
        return tuple(pass_by([make_frame()]))

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def opened(monkeypatch):
    """Return the sessions that are opened."""
    sessions: list[Session] = []

    def open_session(_job, _options, sink, dump_sinks, sample_sinks):
        sessions.append(Session(sink, *dump_sinks, *sample_sinks))
        return sessions[0]

    monkeypatch.setattr(screen, "open_session", open_session)
    return sessions


@pytest.fixture
def wired(opened):
    """Return a wiring that has started, its session and what its screen got."""
    updates, results = [], []
    wiring = Wiring(JOB, WatchOptions())
    wiring.ask(DumpRequest(Asker.KEY))
    wiring.stop()
    wiring.set_interval(2.0)
    assert opened == [], "nothing is opened before the start"
    wiring.start(updates.append, results.append)
    opened[0].calls.clear()
    return SimpleNamespace(wiring=wiring, session=opened[0], updates=updates, results=results)


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Give the folder of reports and recordings."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def begun(monkeypatch):
    """Return what was given to each bundle and capture that was to begin."""
    given = []
    monkeypatch.setattr(evidence, "start_bundle", lambda *arguments, own_log: given.append(arguments))
    monkeypatch.setattr(screen, "start_capture", lambda *arguments: given.append(arguments))
    return given


def test_orders_reach_the_session(wired):
    dump, sample = DumpRequest(Asker.KEY), SampleRequest()
    for order in (dump, sample, Errand.END_SAMPLING):
        wired.wiring.ask(order)
    wired.wiring.set_interval(2.0)
    wired.wiring.stop()
    assert wired.session.calls == [
        ("ask_dump", dump),
        ("ask_sample", sample),
        ("finish_sample",),
        ("set_interval", 2.0),
        ("stop",),
    ]


def test_what_the_session_reads_reaches_the_screen(wired):
    update, dump, sample = Update(make_frame(), ()), dump_views.hung_once(), sample_views.ended()
    for sink, result in zip(wired.session.sinks, (update, dump, sample), strict=True):
        sink(result)
    assert (wired.updates, wired.results) == ([update], [dump, sample])


def test_one_bundle_at_a_time_and_its_looks_are_those_of_the_session(wired, begun):
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    assert (len(begun), wired.results) == (1, [Notice(BUNDLING)])
    _, _, look, told, hurries = begun[0]
    assert len(look.steps()) == 1
    assert not is_known(look.rounds())
    request = look._request
    three = dump_views.hung_three_looks()
    wired.session.sinks[1](dump_views.make_update(*three.state.rounds, request=request))
    assert look.rounds() == three.state.rounds
    assert not hurries()
    told("bundle out (9 files, 80K)")
    assert wired.results[-1] == Notice("bundle out (9 files, 80K)")
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    assert len(begun) == 2


def test_the_job_is_read_anew_around_its_root_or_what_is_left_of_it(wired, begun, monkeypatch):
    """A launcher may be gone: its number alone is nobody, or a process of another job."""
    now = make_frame(processes=(make_process(4211), make_process(4212, rank=1)))
    earlier = make_frame(processes=(*now.processes, make_process(4213, start_ticks=7, rank=2)))
    monkeypatch.setattr(wired.session, "recall", lambda: pass_by([earlier, now]))
    monkeypatch.setattr(screen, "find_job_again", lambda processes: processes)
    for order in (Errand.WRITE_BUNDLE, CaptureRequest(NOT_APPLICABLE), CaptureRequest(4213)):
        wired.wiring._captures = False
        wired.wiring.ask(order)
    whole, any_rank, meant = (arguments[0]() for arguments in begun)
    assert whole == (Identity(4200, 1), Identity(4211, 104_211), Identity(4212, 104_212))
    assert any_rank == whole
    assert meant == (Identity(4213, 7),), "as it was when it was last seen"


def test_a_bundle_of_a_job_that_ends_waits_for_no_further_look_and_keeps_those_it_has(wired, begun):
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    look, told = begun[0][2], begun[0][3]
    one = dump_views.hung_once()
    request = look._request
    wired.session.sinks[1](dump_views.make_update(*one.state.rounds, request=request, running=True))
    assert not look.done.is_set()
    ended = Update(make_frame(target=make_target(state=TargetState.ENDED)), ())
    wired.session.sinks[0](ended)
    assert look.done.is_set()
    assert look.rounds() == one.state.rounds
    assert wired.updates == [ended]
    told("bundle out (9 files, 80K)")
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    assert begun[1][2].done.is_set(), "asked for while the last Frame came"


def test_a_working_directory_that_gives_no_answer_is_said(wired, begun, monkeypatch):
    dead = threading.Event()
    monkeypatch.setattr(evidence, "OPEN_S", 0.05)
    monkeypatch.setattr(screen, "WRITE_S", 0.05)
    monkeypatch.setattr(evidence, "FolderSink", lambda _: dead.wait(20))
    monkeypatch.setattr(sample, "save_samples", lambda _: dead.wait(20))
    try:
        wired.wiring.ask(Errand.WRITE_BUNDLE)
        with pytest.raises(UsageError, match=r"no answer within .* from the folder for the bundle"):
            begun[0][1](JOB)
        wired.session.sinks[2](sample_views.ended())
        wired.wiring.ask(Errand.WRITE_SAMPLES)
        assert wait_until(lambda: wired.results[-1] == Notice("not written so far: no answer within 0.05 s"))
    finally:
        dead.set()


def test_the_key_writes_what_the_session_sampled_last(wired, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wired.wiring.ask(Errand.WRITE_SAMPLES)
    assert wired.results == [], "nothing was sampled"
    wired.session.sinks[2](sample_views.ended())
    wired.wiring.ask(Errand.WRITE_SAMPLES)
    assert wait_until(lambda: len(wired.results) == 2)
    assert wired.results[1].text.startswith("wrote ")
    assert len(list(tmp_path.iterdir())) == 2


def test_one_capture_at_a_time_and_its_talk_reaches_the_screen(wired, begun):
    wired.wiring.ask(CaptureAnswer(CaptureStage.PLANNED, goes=True))
    wired.wiring.ask(CaptureChoice(steps=10))
    for _ in range(2):
        wired.wiring.ask(CaptureRequest(NOT_APPLICABLE))
    assert (len(begun), wired.results) == (1, [Notice(CAPTURING)])
    _, talk = begun[0]
    assert not talk.agreed(CaptureStage.PLANNED, ("5 steps",))
    assert wired.results[-1].plan == ("5 steps",)
    ten = CaptureChoice(steps=10)
    wired.wiring.ask(ten)
    assert (talk.begin(), wired.results[-1].plan) == (ten, ())
    wired.wiring.ask(CaptureChoice())
    assert talk.begin() == CaptureChoice()
    assert not talk.agreed(CaptureStage.PLANNED, ("5 steps",))
    wired.wiring.ask(CaptureAnswer(CaptureStage.PLANNED, goes=True))
    assert talk.agreed(CaptureStage.PLANNED, ("5 steps",))
    assert wired.results[-1].stage is CaptureStage.SIZING
    wired.wiring.ask(CaptureRequest(7))
    assert wired.results[-1] == Notice(CAPTURING)
    assert not talk.stopped()
    wired.wiring.ask(CaptureAnswer(CaptureStage.SIZING, goes=False))
    assert talk.stopped()
    talk.end("capture done: 5 steps", ("all of it",), "/tmp/x.json.gz")
    assert wired.results[-1] == Notice("capture done: 5 steps", trace="/tmp/x.json.gz")
    assert write_reading(wired.results[-2]) == "all of it"
    wired.wiring.ask(CaptureRequest(7))
    assert len(begun) == 2
    assert not begun[1][1].stopped()


def test_a_price_that_was_read_and_left_leaves_no_line(wired, begun):
    wired.wiring.ask(CaptureRequest(7))
    talk = begun[0][1]
    talk.agreed(CaptureStage.PLANNED, ("5 steps",))
    wired.wiring.ask(CaptureAnswer(CaptureStage.PLANNED, goes=False))
    talk.end("capture cancelled: nobody waits for it any more")
    assert (wired.results[-1].stage, wired.results[-1].line) == (CaptureStage.ENDED, "")
    assert not any(isinstance(one, Notice) for one in wired.results)
    assert wired.wiring.leave() == []


def test_who_leaves_is_told_what_became_of_what_was_begun(wired, begun, monkeypatch):
    monkeypatch.setattr(screen, "LEAVE_WITHIN_S", 0.1)
    assert wired.wiring.leave() == []
    wired.wiring._left.clear()
    wired.wiring.ask(Errand.WRITE_BUNDLE)
    wired.wiring.ask(CaptureRequest(7))
    (_, _, look, told, hurries), (_, talk) = begun
    talk.agreed(CaptureStage.PLANNED, ())
    wired.wiring.ask(CaptureAnswer(CaptureStage.PLANNED, goes=True))
    assert talk.agreed(CaptureStage.PLANNED, ())
    unfinished = wired.wiring.leave()
    assert "the bundle in the folder where tpmon was started is not whole" in unfinished[0]
    assert unfinished[1].startswith("the capture is cancelled, or ends by itself as asked")
    assert len(unfinished) == 2
    by_hand = make_frame(hook=(make_hook(pid=4211, put_in=PutIn(make_frame().taken, "1.0")),))
    monkeypatch.setattr(wired.session, "recall", lambda: pass_by([by_hand]))
    assert wired.wiring.leave()[2].startswith("the hook that was put in by hand may still be in pid 4211: tpmon hook")
    assert hurries()
    assert talk.stopped(), "a window cancels what it asked for"
    look.wait()  # at once: no further look is waited for
    told("bundle out (9 files, 80K)")
    talk.end("capture cancelled")
    assert wired.wiring.leave() == ["bundle out (9 files, 80K)", "capture cancelled"]


def test_a_trace_is_shown_by_a_process_of_its_own_that_finds_tpmon_from_any_folder(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": []}')
    (tmp_path / "tpmon.py").write_text("raise SystemExit('the wrong tpmon')")
    command = trace_command(str(path), ascii_only=True)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"trace    {path}"), "without a terminal it is text"


def test_a_copy_is_what_the_commands_print():
    assert write_reading(dump_views.hung_once()).startswith("dump     7 of 8 ranks wait")
    assert write_reading(dump_views.hung_waiting()) == "no stacks: nothing was read yet"
    assert write_reading(sample_views.ended()).startswith("sample   3 processes of train.py")
    assert write_reading(sample_views.refused()) == "nothing was sampled yet"


def said(wired) -> list[tuple[str, object]]:
    return [(one.text, one.records) for one in wired.results]


def test_the_key_records_from_what_is_at_hand_on_and_ends_it(wired, state, monkeypatch):
    steps = judge_steps(replace(one, taken_ns=time.monotonic_ns()) for one in run_seconds(2))
    monkeypatch.setattr(wired.session, "recall", lambda: steps, raising=False)
    wired.wiring.ask(Errand.RECORD)
    assert wait_until(lambda: wired.results and not wired.wiring._switch.busy)
    (path,) = (state / "tpmon").glob("tpmon-train.py-4200-*.tpmon")
    ((text, records),) = said(wired)
    assert re.fullmatch(rf"records in {re.escape(str(path))}, from \d\.\d s ago on; ctrl-r ends it", text)
    assert records is True
    (_, recorder), *_ = wired.session.calls
    recorder.take(*steps)
    wired.wiring.ask(Errand.RECORD)
    assert wait_until(lambda: len(wired.results) == 2)
    assert said(wired)[1][0].startswith(f"recorded 2 Frames in {path}, ")
    assert (wired.results[1].records, wired.results[1].passing) == (False, False)
    assert wired.session.calls[1:] == [("record", None)]
    with Recording(str(path)) as recording:
        assert recording.count_frames() == 2


def test_a_job_is_recorded_from_its_first_frame_where_that_was_asked_for_and_its_end_ends_it(opened, state, tmp_path):
    path, results = tmp_path / "a.tpmon", []
    wiring = Wiring(JOB, WatchOptions())
    wiring.record(str(path))
    wiring.start(lambda _update: None, results.append)
    assert [name for name, *_ in opened[0].calls] == ["record", "start"]
    assert results == [Notice(f"records in {path}; ctrl-r ends it", passing=True, records=True)]
    opened[0].calls[0][1].take(*judge_steps(run_seconds(1)))
    opened[0].sinks[0](Update(make_frame(target=make_target(state=TargetState.ENDED)), ()))
    assert wait_until(lambda: len(results) == 2)
    assert results[1].text.startswith(f"recorded 1 Frame in {path}")
    wiring._switch.turn()
    assert wait_until(lambda: not wiring._switch.busy)
    assert wiring.leave() == []


def test_a_file_that_cannot_be_recorded_into_is_refused_before_the_screen_and_said_on_it(wired, state, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("somebody's")
    with pytest.raises(UsageError, match="no recording of tpmon") as caught:
        Wiring(JOB, WatchOptions()).record(str(taken))
    assert caught.value.try_this.startswith("--record FILE, a new one")
    (state / "tpmon").write_text("a file where the folder should be")
    wired.wiring.ask(Errand.RECORD)
    assert wait_until(lambda: wired.results)
    assert said(wired) == [(f"not recorded: {state}/tpmon: File exists", False)]


def test_a_recorder_that_stops_by_itself_is_said_and_the_screen_goes_on(wired, state, monkeypatch):
    def fill(_self, _step):
        raise StoppedError("the disk is full")

    monkeypatch.setattr(RecordingWriter, "write", fill)
    wired.wiring.ask(Errand.RECORD)
    assert wait_until(lambda: wired.results)
    wired.session.calls[-1][1].take(*judge_steps(run_seconds(1)))
    assert wait_until(lambda: len(wired.results) == 2)
    assert wired.results[1].text.endswith("; stopped: the disk is full")
    assert wired.results[1].records is False
    assert wait_until(lambda: wired.session.calls[-1] == ("record", None))
    assert wired.wiring.leave() == []


def test_who_leaves_is_told_of_the_recording_and_a_dead_disk_is_not_waited_for(wired, state, monkeypatch):
    wired.wiring.ask(Errand.RECORD)
    assert wait_until(lambda: wired.results and not wired.wiring._switch.busy)
    (path,) = (state / "tpmon").glob("*.tpmon")
    stuck = threading.Event()
    monkeypatch.setattr(RecordingWriter, "close", lambda _self: stuck.wait(20))
    monkeypatch.setattr(screen, "LEAVE_WITHIN_S", 0.2)
    begun_s = time.monotonic()
    (line,) = wired.wiring.leave()
    assert time.monotonic() - begun_s < 5.0
    assert line.startswith(f"the recording in {path} was not finished in time: what was written can be replayed")
    wired.wiring.ask(Errand.RECORD)
    assert wired.results[-1].text == BUSY
    stuck.set()
    assert wait_until(lambda: not wired.wiring._switch.busy)
    assert any(one.startswith(f"recorded 0 Frames in {path}") for one in wired.wiring.leave())


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (NoTargetError("the job ended", "start it again"), (3, "tpmon: the job ended\nTry: start it again\n")),
        (ZeroDivisionError("by design"), (1, "tpmon: bug: ZeroDivisionError: by design\nTry: attach ")),
        (None, (143, "")),
    ],
)
def test_a_session_that_fails_before_the_screen_is_loaded_says_why(monkeypatch, opened, state, capfd, failure, told):  # noqa: PLR0917
    code, words = told

    def run_screen(_options, start, _controls):
        start(lambda _update: None, lambda _result: None)
        if failure is not None:
            with pytest.raises(EndedError):
                opened[0].calls[-1][1](failure)
            assert len(list(state.rglob("crash-*"))) == (code == 1), "written before the end is asked for"
        raise SystemExit(143)

    def end(*_arguments):
        raise EndedError

    monkeypatch.setattr(screen, "run_screen", run_screen)
    monkeypatch.setattr(screen.os, "kill", end)
    if failure is None:
        with pytest.raises(SystemExit, match=str(code)):
            screen.watch_on_screen(JOB, WatchOptions(), None)
    else:
        assert screen.watch_on_screen(JOB, WatchOptions(), None) == code
    assert capfd.readouterr().err.startswith(words)
