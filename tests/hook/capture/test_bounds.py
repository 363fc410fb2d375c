"""What ends a recording that no step ends, and what torch refuses: told at once; its file is its user's alone."""

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hook_loop import MS, Loop
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus.pages import Pages
from tpmon.hook.capture import bounds as capture_bounds
from tpmon.hook.capture import capture, recorder
from tpmon.hook.capture import trace_file as capture_file
from tpmon.hook.capture.bounds import judge_validation, name_tracer
from tpmon.hook.capture.capture import Capture
from tpmon.hook.capture.recorder import MemoryRecorder, Range, rename_cut
from tpmon.hook.capture.trace_file import CaptureFile

GIB = 1 << 30


class Recorder:
    """Stand for torch's profiler; writes nothing."""

    ending = ""
    profile = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class Captured:
    """Hold a loop, its capture, and what a test changes: memory that is taken and left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = Loop(monkeypatch)
        self.taken, self.left = 100 << 20, 8 * GIB
        self.number = 0
        self.recorder = Recorder()
        self.rings = True
        for module in (capture, capture_bounds):
            monkeypatch.setattr(module, "monotonic_ns", lambda: self.loop.now)
        monkeypatch.setattr(capture_bounds, "read_resident", lambda: self.taken)
        monkeypatch.setattr(capture_bounds, "read_memory_left", lambda: self.left)
        monkeypatch.setattr(capture, "make_recorder", lambda _: self.recorder)
        monkeypatch.setattr(capture, "describe_run", lambda *_: {})
        monkeypatch.setattr(capture, "name_obstacle", lambda *_: "")
        monkeypatch.setattr(Capture, "_refuse", lambda *_: "")
        torch = types.ModuleType("torch")
        torch.__file__ = "/nowhere/torch/__init__.py"
        self.graph = False
        torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: self.graph)
        monkeypatch.setitem(sys.modules, "torch", torch)
        self.capture = Capture(self.loop.steps, lambda: self.rings, lambda: None)
        self.loop.steps.mailbox = types.SimpleNamespace(
            requested=self.capture.at_boundary, between=self.capture.woken, opened=lambda _: None
        )
        self.loop.train(1)

    def ask(self, kind: int = w.KIND_CAPTURE, **words: int) -> None:
        self.number += 1
        steps = 1 if kind == w.KIND_PROBE else 3
        meant = {"steps": steps, "longest_ns": 1000 * MS, "expires_ns": self.loop.now + 10**12, **words}
        request = w.Request(self.number, kind, most_events=200_000, **meant, folder="/nowhere", name="x")
        w.write_request(self.loop.steps.pages.mailbox, request)

    def record(self, kind: int = w.KIND_CAPTURE, **words: int) -> None:
        """Ask for a recording, and train until it runs."""
        self.ask(kind, **words)
        self.loop.train(1)
        self.loop.batch()
        assert self.told()[0] == (w.STATE_WARMING if kind == w.KIND_PROBE else w.STATE_RECORDING)

    def wake(self, after_ms: float = 0) -> None:
        self.loop.spend(after_ms)
        self.capture.woken()

    def told(self) -> tuple[int, str]:
        told = w.parse_progress(self.loop.steps.pages.page)
        return told.state, told.reason


@pytest.fixture
def captured(monkeypatch):
    captured = Captured(monkeypatch)
    yield captured
    captured.loop.steps.drop_pages()


def test_a_recording_whose_loop_ends_no_step_any_more_is_ended_by_time(captured):
    captured.record()
    captured.loop.spend(900)
    assert 0 < captured.capture.left_s() <= 0.1
    captured.capture.woken()
    assert captured.told()[0] == w.STATE_RECORDING
    captured.loop.spend(200)
    assert captured.capture.left_s() <= 0
    captured.capture.woken()
    assert captured.told() == (w.STATE_VERIFIED, "the time ran out within a step: validation, or a stall")
    assert captured.capture.under_way is None


@pytest.mark.parametrize(
    ("kind", "grows", "left", "reason"),
    [
        (w.KIND_PROBE, 0, 8 * GIB, "one step takes longer than 1 s: see --seconds"),
        (w.KIND_PROBE, 4 * GIB, 8 * GIB, "one step is too large to record: the process grew by 4096 MiB meanwhile"),
        (w.KIND_CAPTURE, 4 * GIB, 8 * GIB, "the recording was too large: the process grew by 4096 MiB meanwhile"),
        (w.KIND_CAPTURE, 0, 1 << 20, "the recording was too large: memory ran short meanwhile"),
    ],
)
def test_what_takes_too_long_or_too_much_is_thrown_away(captured, kind, grows, left, reason):
    captured.record(kind)
    captured.taken, captured.left = captured.taken + grows, left
    assert (captured.capture.left_s() == 0.0) == (reason != "one step takes longer than 1 s: see --seconds")
    captured.wake(1100)
    assert (captured.told(), captured.recorder.calls[-2:]) == ((w.STATE_FAILED, reason), ["stop", "drop"])


def test_who_asked_is_heard_within_a_step(captured):
    captured.record()
    captured.ask(w.KIND_CANCEL, subject=captured.number)
    assert captured.capture.left_s() == 0.0
    captured.capture.woken()
    assert captured.told() == (w.STATE_CANCELLED, "tpmon asked for it")


@pytest.mark.parametrize("armed", [False, True])
def test_who_asked_and_died_takes_the_request_back(captured, monkeypatch, armed):
    alive = [True]
    monkeypatch.setattr(Pages, "is_left", lambda *_: not alive[0])
    if armed:
        captured.ask(owned=1, start=1000)
        captured.loop.train(1)
    else:
        captured.record(owned=1)
        assert captured.capture.left_s() > 0
    alive[0] = False
    if not armed:
        assert captured.capture.left_s() == 0.0, "it is woken within a long step"
    captured.loop.train(1)
    captured.loop.batch()
    assert captured.told() == (w.STATE_CANCELLED, w.NOBODY_WAITS)
    assert captured.recorder.calls[-2:] == ([] if armed else ["stop", "drop"])
    assert captured.capture.under_way is None


def test_between_two_steps_no_recording_by_steps_begins_and_none_is_marked(captured):
    captured.ask(start=5)
    captured.capture.woken()
    assert captured.capture.under_way is None
    captured.loop.train(2)
    captured.loop.steps.steps = 5  # as in the middle of the end of a step
    captured.capture.woken()
    assert captured.told()[0] == w.STATE_ARMED
    captured.capture.at_boundary()
    assert captured.told()[0] == w.STATE_RECORDING
    captured.loop.steps.steps = 6
    captured.capture.woken()
    assert captured.recorder.calls.count("mark") == 1


def test_where_nothing_rings_a_recording_by_steps_is_bounded_by_the_backwards(captured):
    captured.rings = False
    captured.ask(options=w.OPTION_TIMED)
    captured.capture.woken()
    assert captured.told()[0] == w.STATE_REFUSED
    captured.record()
    assert captured.loop.steps.rule == wire.RULE_DATA_AFTER_UPDATE
    for _ in range(12):
        captured.loop.backward(50, 50)
    assert captured.told()[0] == w.STATE_VERIFIED


def test_a_window_whose_time_is_over_ends_with_the_step_that_crosses_it(captured):
    captured.loop.train(20, other_ms=289)  # steps of 300 ms
    captured.ask(steps=20)
    captured.loop.train(2, other_ms=289)
    captured.loop.train(3, other_ms=289)
    assert captured.told()[0] == w.STATE_RECORDING
    captured.loop.spend(150)  # 1,050 ms of 1,000: the step is not overdue
    assert captured.capture.left_s() > 0
    captured.capture.woken()
    assert captured.told()[0] == w.STATE_RECORDING
    captured.loop.batch()
    assert captured.told() == (w.STATE_VERIFIED, "the time asked for ran out after 4 of 20 steps")


@pytest.mark.parametrize(
    ("kind", "said"), [(w.KIND_CAPTURE, "the time asked for ran out after 1 of 3 steps"), (w.KIND_PROBE, "")]
)
def test_a_step_longer_than_the_window_is_recorded_whole_and_probed_whole(captured, kind, said):
    captured.loop.train(20, other_ms=289)
    captured.record(kind, longest_ns=100 * MS)
    before = captured.told()
    captured.loop.backward(200, 90)
    captured.loop.update()
    captured.capture.woken()
    assert captured.told() == before
    captured.loop.batch()
    assert captured.told() == (w.STATE_VERIFIED, said)


def test_a_window_by_time_in_which_a_step_ends_is_dropped_to_be_asked_for_again(captured):
    captured.ask(options=w.OPTION_TIMED)
    captured.capture.woken()
    assert captured.told()[0] == w.STATE_RECORDING
    assert "mark" not in captured.recorder.calls
    captured.loop.train(2)
    assert captured.told() == (w.STATE_CANCELLED, w.TAKES_STEPS)


def test_a_step_that_was_cut_off_is_no_step_in_the_file(captured):
    cuts: list[tuple[int, ...]] = []
    captured.recorder.ending = ".json"
    captured.record()

    class Noted(CaptureFile):
        def write_window(self, _recorder, told, *, cut):
            cuts.append((told.rank, told.first_step, told.steps_done, cut))

    captured.capture._file = Noted(captured.capture.under_way, {})
    captured.loop.train(1)
    captured.loop.batch()
    captured.wake(1100)
    assert (captured.told()[0], cuts) == (w.STATE_VERIFIED, [(0, 2, 1, True)])


def test_no_recording_ends_while_a_graph_is_captured(captured):
    """torch waits for the device at the end of a profile: within a capture that breaks the program's graph."""
    captured.record()
    captured.graph = True
    captured.ask(w.KIND_CANCEL, subject=captured.number)
    captured.wake(2000)
    captured.loop.train(5)
    assert captured.told()[0] == w.STATE_RECORDING
    assert "stop" not in captured.recorder.calls
    captured.graph = False
    captured.capture.woken()
    assert captured.told() == (w.STATE_CANCELLED, "tpmon asked for it")
    assert captured.recorder.calls[-2:] == ["stop", "drop"]


def ask_of(kind: int, steps: int = 10, **more: object) -> w.Request:
    return w.Request(
        kind=kind, steps=steps, **{"most_events": 1000, "most_bytes": 1 << 20, "folder": "/nowhere", "name": "x"} | more
    )


@pytest.mark.parametrize(
    ("kind", "done", "evals", "ended", "state"),
    [
        (w.KIND_CAPTURE, 3, 0, True, None),
        (w.KIND_CAPTURE, 3, 6, False, None),
        (w.KIND_CAPTURE, 3, 7, False, w.STATE_VERIFIED),  # 100 events a step: eleven are too many
        (w.KIND_PROBE, 0, 16, False, None),
        (w.KIND_PROBE, 0, 17, False, w.STATE_FAILED),
        (w.KIND_SNAPSHOT, 3, 999, False, None),
    ],
)
def test_a_validation_within_a_window_takes_no_more_room_than_was_asked_for(kind, done, evals, ended, state):
    request = ask_of(kind)
    end = judge_validation(request, CaptureFile(request, {0: (100, 1 << 10, 1)}), done, evals, ended=ended)
    assert (end.state if end else None) == state
    assert end is None or end.cut == (state == w.STATE_VERIFIED)


def test_a_snapshot_has_its_price_in_memory_and_on_disk(monkeypatch, tmp_path):
    request = ask_of(w.KIND_SNAPSHOT, entries=100_000, most_bytes=512 << 20, folder=str(tmp_path))
    monkeypatch.setattr(capture_file, "read_disk_left", lambda _: 8 * GIB)
    for left, said in ((700 << 20, ""), (600 << 20, "needs 646 MiB of memory beside the run, 600 are left")):
        monkeypatch.setattr(capture_file, "read_memory_left", lambda left=left: left)
        assert CaptureFile(request, {}).refuse() == said


def test_stacks_are_refused_while_the_program_profiles_its_functions():
    plain, with_stacks = ask_of(w.KIND_CAPTURE), ask_of(w.KIND_CAPTURE, options=w.OPTION_STACKS)
    assert name_tracer(with_stacks) == ""
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        assert name_tracer(plain) == ""
        assert "profiles its functions itself" in name_tracer(with_stacks)
    finally:
        sys.setprofile(before)


def refuse(text: str) -> Callable[..., Any]:
    """Return a function of torch that refuses, as its file says."""
    namespace: dict[str, Any] = {}
    source = f"def refuse(*_, **__):\n    raise RuntimeError({text!r})\n"
    exec(compile(source, "/nowhere/torch/cuda/memory.py", "exec"), namespace)
    function: Callable[..., Any] = namespace["refuse"]
    return function


NO_HISTORY = "cudaMallocAsync does not yet support recordHistory"


class Played(Recorder):
    """A recorder of which torch refuses one call."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, refuse(f"no {name}"))


CASES: dict[str, tuple[Callable[[], Any], dict[str, Callable[..., Any]], str, int]] = {
    "a history of cudaMallocAsync": (lambda: MemoryRecorder(10), {"is_on": refuse(NO_HISTORY)}, NO_HISTORY, 2),
    "a history of another allocator": (lambda: MemoryRecorder(10), {"record": refuse(NO_HISTORY)}, NO_HISTORY, 2),
    "a range": (Range, {"start": lambda: 5}, "cudaProfilerStart was refused: CUDA error 5", 2),
    "a range that raises": (Range, {"start": refuse("no CUPTI")}, "no CUPTI", 2),
    **{
        f"{call} of a profile": (lambda call=call: Played(call), {}, f"no {call}", 2)
        for call in ("prepare", "start", "mark")
    },
    "a begin and its end": (lambda: Played("start", "stop", "drop"), {}, "no start", 2),
    "the end of a profile": (lambda: Played("stop"), {}, "no stop", 6),
    "what is left of it": (lambda: Played("drop"), {}, "no drop", 6),
}
"""The recorder, what torch refuses by name, why, and the steps until then."""


@pytest.fixture
def refusing(captured, monkeypatch):
    monkeypatch.setattr(Capture, "_refuse", lambda self, _request: self._broken)
    return captured


def play_torch(refusing: Captured, monkeypatch: pytest.MonkeyPatch, calls: dict[str, Any]) -> list[bool]:
    """Let this torch refuse what a case says; return whether a history is kept, as it was told."""
    kept: list[bool] = []
    nothing = lambda *_, **__: None  # noqa: E731
    torch: Any = sys.modules["torch"]
    record = calls.get("record", lambda enabled="all", **_: kept.append(enabled is not None))
    memory = types.SimpleNamespace(_record_memory_history=record)
    monkeypatch.setitem(sys.modules, "torch.cuda.memory", memory)
    torch._C = types.SimpleNamespace(
        _cuda_isHistoryEnabled=calls.get("is_on", lambda: bool(kept and kept[-1])),
        _autograd=types.SimpleNamespace(_profiler_enabled=lambda: False),
        _cuda_getDevice=lambda: 0,
        _cuda_getDeviceCount=lambda: 0,
        _cuda_memoryStats=lambda _: {"reserved_bytes": {"all": {"current": 0}}},
    )
    cudart = types.SimpleNamespace(cudaProfilerStart=calls.get("start", nothing), cudaProfilerStop=nothing)
    torch.cuda.cudart = lambda: cudart
    torch.cuda.synchronize = nothing
    monkeypatch.setattr(capture, "is_graph_captured", lambda: False)
    return kept


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_refusal_is_told_at_once_and_the_next_capture_works(refusing, monkeypatch, case):
    recorder, calls, said, steps = case
    kept = play_torch(refusing, monkeypatch, calls)
    plain, refusing.recorder = refusing.recorder, recorder()
    refusing.ask(w.KIND_SNAPSHOT)
    refusing.loop.train(steps)
    state, reason = refusing.told()
    assert state == w.STATE_FAILED
    assert said in reason
    assert kept in ([], [True, False]), "only what was on is turned off"
    refusing.recorder = plain
    refusing.record()
    assert refusing.loop.steps.problem == ""


@pytest.mark.parametrize("name", ["_take", "_advance", "_begin", "_finish", "_hear", "_position", "_publish"])
def test_an_error_in_each_method_ends_all_captures_and_no_recording_goes_on(refusing, monkeypatch, name):
    play_torch(refusing, monkeypatch, {})
    made: dict[str, Any] = {}
    exec(compile("def fail(*_):\n    raise ZeroDivisionError('on purpose')", capture.__file__, "exec"), made)  # our own
    with monkeypatch.context() as broken:
        broken.setattr(Capture, name, made["fail"])
        refusing.ask()
        refusing.loop.train(2)
        refusing.ask()
        refusing.loop.train(10)
    calls = refusing.recorder.calls
    assert (calls.count("start"), refusing.capture._recorder) == (calls.count("stop"), None)
    assert (refusing.loop.steps.problem, refusing.loop.steps.steps) == ("", 12)
    refusing.ask()
    refusing.loop.train(6)
    state, reason = refusing.told()
    assert (state, reason[:31]) == (w.STATE_REFUSED, "ZeroDivisionError: on purpose (")


def test_a_profile_that_torch_goes_on_recording_ends_all_captures(refusing, monkeypatch):
    """Two at a time end the process."""
    play_torch(refusing, monkeypatch, {})
    sys.modules["torch"]._C._autograd._profiler_enabled = lambda: True
    refusing.recorder = Played("stop")
    refusing.ask()
    refusing.loop.train(6)
    assert refusing.told()[0] == w.STATE_FAILED
    refusing.ask()
    refusing.loop.train(2)
    assert refusing.told()[0] == w.STATE_REFUSED


def write(folder: Path, save: Callable[[str], None]) -> tuple[int, int]:
    """Write the file of a capture under the usual mask."""
    told = w.Progress(first_step=5)
    file = CaptureFile(w.Request(kind=w.KIND_CAPTURE, folder=str(folder), name="x"), {})
    before = os.umask(0o022)
    try:
        file.write_window(types.SimpleNamespace(save=save, ending=".json"), told, cut=False)
    finally:
        os.umask(before)
    return told.events, told.bytes


def test_a_trace_is_its_users_alone_also_while_torch_writes(tmp_path):
    modes = []

    def save(path):
        """Do as libkineto does."""
        with open(path + ".tmp", "w") as file:
            modes.append(os.fstat(file.fileno()).st_mode & 0o777)
            file.write("{}")
        os.rename(path + ".tmp", path)
        modes.append(os.stat(path).st_mode & 0o777)

    assert write(tmp_path, save) == (0, 2)
    assert modes == [0o600, 0o600]
    assert os.listdir(tmp_path) == ["x-step5.json"]
    assert os.stat(tmp_path / "x-step5.json").st_mode & 0o777 == 0o600
    os.unlink(tmp_path / "x-step5.json")
    assert write(tmp_path, lambda path: Path(path).write_text("{}") and None) == (0, 2)
    assert os.listdir(tmp_path) == ["x-step5.json"], "also where torch writes without a second file"


def test_nothing_is_left_where_it_fails(tmp_path):
    def fail(path):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, fail)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", [".part", ".part.tmp"])
def test_what_lies_in_its_place_is_left_as_it_is(tmp_path, ending):
    theirs = tmp_path / "theirs"
    theirs.write_text("of others")
    link = tmp_path / f"x-step5.json{ending}"
    link.symlink_to(theirs)
    with pytest.raises(FileExistsError):
        write(tmp_path, lambda _: None)
    assert theirs.read_text() == "of others"
    assert sorted(os.listdir(tmp_path)) == ["theirs", link.name]


def test_the_mark_of_a_step_that_did_not_end_is_renamed_in_its_place(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"name": "ProfilerStep#10"}, {"name": "ProfilerStep#1"}, {"name": "ProfilerStep#1"}]')
    rename_cut(str(path), 1)
    assert path.read_text() == ('[{"name": "ProfilerStep#10"}, {"name": "StepCutShort#1"}, {"name": "StepCutShort#1"}]')


def test_only_our_marks_count_as_steps(tmp_path):
    """A profiler of the program's own that waits for its turn marks its steps too, maybe by the same numbers."""
    path = tmp_path / "x.json"
    written = '{"traceEvents": [{"name": "ProfiledStep#7"}, {"name": "ProfilerStep#7"}, {"name": "ProfilerStep#91"}]}'
    results = types.SimpleNamespace(save=lambda place: Path(place).write_text(written))
    ours = recorder.Recorder(0)
    ours._profile = types.SimpleNamespace(kineto_results=results)
    ours.save(str(path))
    expected = '{"traceEvents": [{"name": "ProfilerStep#7"}, {"name": "ProgramsStep#7"}, {"name": "ProgramsStep#91"}]}'
    assert path.read_text() == expected


@pytest.fixture
def counted(captured, monkeypatch):
    """Have each step begin two collectives, of which there were 100 before the hook came."""
    steps = captured.loop.steps
    monkeypatch.setattr(capture, "count_collectives", lambda: 100 + 2 * steps.steps)
    return captured


def told_steps(captured: Captured) -> tuple[int, int, int]:
    told = w.parse_progress(captured.loop.steps.pages.page)
    return told.state, told.first_step, told.steps_done


def test_a_window_by_collectives_begins_at_their_count_and_numbers_its_steps_as_asked(counted):
    start = 100 + 2 * counted.loop.steps.steps + 5
    counted.ask(clock=w.CLOCK_COLLECTIVES, start=start, subject=70)
    counted.loop.train(2)
    assert told_steps(counted) == (w.STATE_ARMED, 0, 0)
    counted.loop.train(1)
    assert told_steps(counted) == (w.STATE_RECORDING, 70, 0)
    counted.loop.train(2)
    assert told_steps(counted) == (w.STATE_RECORDING, 70, 2)
    counted.loop.train(1)
    assert told_steps(counted) == (w.STATE_VERIFIED, 70, 3)
    counted.record()
    assert told_steps(counted)[1] == counted.loop.steps.steps, "the next window counts its own steps again"


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ({"start": 1}, w.STATE_MISSED),  # how long ago that was is not known
        ({"start": 1 << 40, "expires_ns": 1}, w.STATE_EXPIRED),
        ({"start": 0}, w.STATE_NONE),
        ({"start": 1 << 40, "subject": 1 << 63}, w.STATE_NONE),
        ({"start": 1 << 40, "clock": 2}, w.STATE_NONE),
    ],
)
def test_a_window_by_collectives_that_is_past_or_never_comes_records_nothing(counted, words, state):
    counted.ask(**{"clock": w.CLOCK_COLLECTIVES, "subject": 70, **words})
    counted.loop.train(3)
    assert counted.told()[0] == state
    assert counted.recorder.calls == []
    counted.record()
