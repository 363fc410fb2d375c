"""What a file of kineto's says beside its events, by the bus of a hook beside it; and how such a capture ends."""

import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.capture.test_capture_plan import ASKED
from tests.captures import make_updates
from tpmon.capture import kineto_capture
from tpmon.capture.dialog import CaptureAsker
from tpmon.capture.files import to_conditions
from tpmon.capture.kineto_capture import (
    Kept,
    LoopAround,
    describe_from_bus,
    fit_updates,
    judge_recorded,
    list_ends,
    mark_steps,
    name_file,
    try_kineto,
)
from tpmon.capture.kineto_window import Recorded
from tpmon.errors import UsageError
from tpmon.hook.bus import wire, wire_settings
from tpmon.hook.capture import conditions as hook_conditions
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAsked, CapturedFile, CaptureKind, CaptureState, GpuClocks
from tpmon.model.results.trace_tables import CountedSteps, MarkedSteps
from tpmon.trace.child import summarize, write_marked
from tpmon.trace.compare import read_conditions
from tpmon.trace.reading.read import read_trace

HEADER = wire.Header(1, rank=1, world_size=4, torch_version="2.13.0+cpu", python_version="3.11.2")
CLOCKS = (GpuClocks(0, "NVIDIA H100", 1755.0, 1980.0, Missing("not told")),)
NO_GPU = Missing("the processes use no NVIDIA GPU")
OLDER = Missing("the hook of this run does not write it: it is of an older tpmon")


def settings(**words: int) -> list[int]:
    found = [wire_settings.UNKNOWN] * wire_settings.SETTINGS_WORDS
    for name, value in words.items():
        found[getattr(wire_settings, f"SET_{name}")] = value
    return found


def record(rule: int = wire.RULE_UPDATE, batch_size: int = 8) -> list[int]:
    found = [0] * wire.RECORD_WORDS
    found[wire.REC_RULE], found[wire.REC_BATCH_SIZE] = rule, batch_size
    return found


def test_the_bus_tells_settings_ranks_and_versions_and_says_what_it_cannot():
    words = settings(
        THREADS=4, INTEROP_THREADS=2, MATMUL_TF32=0, CUDNN_BENCHMARK=1, DETERMINISTIC=0, CUDA=1,
        AUTOCAST=1, AUTOCAST_DTYPE=wire_settings.DTYPE_BFLOAT16,
    )  # fmt: skip
    told = describe_from_bus(HEADER, words, record(), 3, CLOCKS, within=OLDER)
    json.dumps(told)
    found = to_conditions(told)
    assert (found.torch, found.python, found.world_size) == ("2.13.0+cpu", "3.11.2", 4)
    assert (found.threads, found.matmul_precision, found.autocast) == (4, "highest", True)
    assert (found.autocast_dtype, found.mode, found.batch_size) == ("bfloat16", "training", 8)
    assert (found.gpu, told["rank"], told["cudnn_benchmark"]) == ("NVIDIA H100", 3, True)
    assert told["clocks"][0]["sm_mhz"] == 1755.0
    for one in (found.model, found.parameters, found.dtype, found.device, found.training, found.inputs):
        assert one == OLDER
    assert told["anomaly_mode"] == {"missing": "its torch does not tell"}


def test_what_the_hook_told_from_within_goes_before_its_bus_but_for_the_rank_and_the_clocks():
    within = {
        "model": "Net", "wrapped_by": "", "parameters": 4225, "dtype": "torch.float32", "device": "cpu",
        "training": True, "inputs": ["float32[32, 64]"], "threads": 3, "matmul_precision": "high", "rank": 0,
        "clocks": "none", "unheard": "of", "backend": 5,
    }  # fmt: skip
    told = describe_from_bus(HEADER, settings(THREADS=4, MATMUL_TF32=1), record(), 3, CLOCKS, within=within)
    found = to_conditions(told)
    assert (found.model, found.parameters, found.dtype, found.inputs) == (
        "Net", 4225, "torch.float32", ("float32[32, 64]",),
    )  # fmt: skip
    assert (found.threads, found.matmul_precision, found.torch) == (3, "high", "2.13.0+cpu")
    assert (told["rank"], told["clocks"][0]["sm_mhz"]) == (3, 1755.0)
    assert "unheard" not in told
    assert told["cuda"] == {"missing": "its torch does not tell"}


def test_before_the_hook_has_told_anything_all_of_it_is_missing():
    told = describe_from_bus(wire.Header(1), [], [], NOT_APPLICABLE, NO_GPU, within=OLDER)
    found = to_conditions(told)
    assert [name for name, value in told.items() if not isinstance(value, dict)] == []
    assert (found.mode, found.threads) == (Missing("no step ended yet"), found.gpu)
    assert found.world_size == Missing("there was no process group when the hook began")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ({"CUDA": 0}, "gpu", ""),
        ({"CUDA": 1}, "gpu", Missing("NVML does not name the GPU")),
        ({"MATMUL_TF32": 1}, "matmul_precision", Missing("TF32 is on: high or medium")),
        ({"AUTOCAST": 0}, "autocast", Missing("it was off where the backward began")),
        ({}, "autocast", Missing("its torch does not tell")),
        ({"AUTOCAST": 1, "AUTOCAST_DTYPE": wire_settings.DTYPE_OTHER}, "autocast_dtype", "another type"),
    ],
)
def test_a_setting_is_told_as_far_as_it_is_known(words, name, value):
    told = describe_from_bus(
        HEADER, settings(**words), record(wire.RULE_BATCH, 0), NOT_APPLICABLE, NO_GPU, within=OLDER
    )
    found = to_conditions(told)
    assert getattr(found, name) == value
    assert (found.mode, told["rank"]) == ("evaluation", 1)
    assert found.batch_size == Missing("the DataLoader does not say it")


def test_the_names_are_those_of_the_hook(monkeypatch):
    class Anything:
        __version__ = "2"

        def __getattr__(self, name):
            return self

        def __call__(self, *_):
            return self

        def __iter__(self):
            return iter(())

        def __int__(self):
            return 1

    torch = Anything()
    steps = type("Steps", (), {"watcher": None, "rule": 1, "batch_size": 1, "page": b""})
    monkeypatch.setitem(hook_conditions.sys.modules, "torch", torch)
    monkeypatch.setattr(hook_conditions, "find_model", lambda *_: None)
    monkeypatch.setattr(hook_conditions, "find_device", lambda *_: 0)
    within = set(hook_conditions.read_conditions(steps))
    outside = set(describe_from_bus(HEADER, [], [], 0, NO_GPU, within=OLDER))
    assert within - outside == set()
    assert outside - within == {"clocks", "wrapped_by", "parameters", "dtype", "device", "training"}


def mark_files(source: Path, target: Path, most: int, beside: tuple[str, str]) -> Known[MarkedSteps]:
    with source.open("rb") as events, target.open("wb") as packed:
        return mark_steps(events.fileno(), packed.fileno(), most, beside)


def test_the_child_that_marks_writes_the_conditions_beside_the_events(tmp_path):
    source, target = tmp_path / "trace.json", tmp_path / "host-1-kineto.pt.trace.json.gz"
    make_updates(3).write(source)
    told = describe_from_bus(HEADER, settings(THREADS=4), record(), 0, CLOCKS, within=OLDER)
    marked = mark_files(source, target, 3, (json.dumps(told), ""))
    assert (marked.marks, marked.why) == (3, "")
    assert isinstance(marked.first, Missing)
    with gzip.open(target) as file:
        whole = json.load(file)
    assert whole["tpmon"] == {**told, "step_during_ms": 0.1, "steps_during": 3}
    assert len(whole["traceEvents"]) == 3 + len(json.loads(source.read_text())["traceEvents"])
    assert [(one.name, one.value) for one in read_conditions(read_trace(str(target))).told] == [("batch size", "8")]
    assert write_marked(str(source), str(tmp_path / "bare.gz"), 3).marks == 3
    with gzip.open(tmp_path / "bare.gz") as file:
        assert "tpmon" not in json.load(file)


def test_kinetos_trace_without_a_kernel_is_partial_where_a_gpu_worked(tmp_path):
    path = tmp_path / "x.json"
    make_updates(3).step(0, 0, 100).write(path)
    summary = summarize(str(path))
    file = CapturedFile("/a", "/a", 0, Missing("x"), 1, 4, 0, 9, CaptureKind.TRACE)
    whole, kept = Recorded(CaptureState.VERIFIED, "", 9), Kept(file, summary, ())
    assert judge_recorded(whole, kept, 1, "") is CaptureState.DONE
    assert judge_recorded(whole, kept, 1, "NVML saw a GPU work for it") is CaptureState.PARTIAL
    with_kernels = Kept(replace(file, kernels=2), summary, ())
    assert judge_recorded(whole, with_kernels, 1, "NVML saw a GPU work for it") is CaptureState.DONE
    assert judge_recorded(whole, kept, 2, "") is CaptureState.PARTIAL
    assert judge_recorded(whole, Kept(None, Missing("x"), ()), 1, "") is CaptureState.FAILED
    yielded = Recorded(CaptureState.YIELDED, "why")
    assert judge_recorded(yielded, Kept(None, Missing("x"), ()), 1, "") is CaptureState.YIELDED


def ended(at_ms: float, steps: int, rule: int = wire.RULE_DATA_AFTER_UPDATE, later_ms: float = 0.0) -> list[int]:
    found = record(rule)
    found[wire.REC_STEPS] = steps
    found[wire.REC_ENDED_NS] = int(at_ms * 1e6)
    found[wire.REC_TIME_NS] = int((at_ms + later_ms) * 1e6)
    return found


def test_only_records_at_the_end_of_a_step_tell_when_it_ended():
    told = list_ends([ended(10, 1), ended(10, 1, later_ms=900), ended(1000, 2, wire.RULE_UPDATE)])
    assert told.steps == (1, 2)
    assert told.ends_ns[1] - told.ends_ns[0] == 990_000_000
    assert told.at_update
    assert abs(told.ends_ns[1] - 1_000_000_000 - time.time_ns() + time.monotonic_ns()) < 1e9
    assert list_ends([]) == CountedSteps((), (), at_update=False)


@pytest.mark.parametrize(
    ("rank", "first", "name"), [(3, 2841, "n-rank3-step2841-kineto-1"), (NOT_APPLICABLE, Missing("no"), "n-kineto-1")]
)
def test_a_file_is_named_by_rank_and_step_as_far_as_they_are_known(rank, first, name):
    assert name_file("n", rank, first, "1") == f"{name}.pt.trace.json.gz"


def test_the_child_numbers_marks_and_conditions_as_the_loop_does(tmp_path):
    source, target = tmp_path / "trace.json", tmp_path / "numbered.json.gz"
    make_updates(3).write(source)  # updates end 100, 200 and 300 us after its base
    whole = json.loads(source.read_text())
    base = 1_790_000_000_000_000_000
    source.write_text(json.dumps({**whole, "baseTimeNanoseconds": base}))
    ends = {"ends_ns": [base + us * 1000 for us in (3, 103, 203, 303)], "steps": [40, 41, 42, 43]}
    beside = (json.dumps({"torch": "2"}), json.dumps({**ends, "at_update": False}))
    marked = mark_files(source, target, 3, beside)
    assert (marked.marks, marked.first) == (3, 40)
    with gzip.open(target) as file:
        written = json.load(file)
    assert written["tpmon"] == {"torch": "2", "first_step": 40, "step_during_ms": 0.1, "steps_during": 3}
    names = [one["name"] for one in written["traceEvents"] if one["name"].startswith("ProfilerStep#")]
    assert names == ["ProfilerStep#40", "ProfilerStep#41", "ProfilerStep#42"]


@pytest.mark.parametrize(
    ("asked", "step_ms", "updates", "said"),
    [
        ({"steps": 5}, 10.0, 5, ""),
        ({"steps": 600, "seconds": 10.0}, 100.0, 100, "100 updates: as many as 10 s hold at 100.0 ms each"),
        ({"steps": 5}, 50_000.0, 2, "2 updates: as many as 60 s hold at 50000.0 ms each"),
        ({"steps": 5}, 90_000.0, 1, "1 update: as many as"),
        ({"steps": 600}, Missing("no hook"), 600, ""),
        ({"steps": 1000, "by_seconds": True}, Missing("no hook"), 5, "5 updates: kineto ends by their count"),
    ],
)
def test_updates_are_cut_to_what_the_seconds_hold_since_nothing_else_ends_them(asked, step_ms, updates, said):
    fit, told = fit_updates(replace(ASKED, **asked), step_ms)
    assert (fit.steps, told[: len(said)]) == (updates, said)
    assert (told == "") is (said == "")


def play(
    monkeypatch: pytest.MonkeyPatch,
    bus: object,
    *,
    is_ours: bool,
    of_11: bool = False,
    tell: Callable[[str], object] = print,
) -> Callable[[CaptureAsked], object]:
    """Play a process that kineto asks for, with a hook or without; return what tries to capture it."""
    me = Identity(7, 1)
    client = SimpleNamespace(process=me, is_ours=is_ours)
    monkeypatch.setattr(kineto_capture, "find_client", lambda _: client)
    monkeypatch.setattr(kineto_capture, "_find_bus", lambda _: bus)
    monkeypatch.setattr(kineto_capture, "capture_by_kineto", lambda *_, **__: "recorded")
    around = LoopAround(lambda _: None, lambda _: 0, lambda _: False, runs_cuda_11=lambda pid: of_11 and pid == 7)
    return lambda asked: try_kineto(me, 0, asked, "x", asker=CaptureAsker(tell), around=around)


@pytest.mark.parametrize(
    ("calls", "evaluates", "asked", "alike"),
    [
        ((10, 11, 12), False, {}, True),
        ((10, 12, 14), False, {}, False),  # two optimizers in a step
        ((10, 10, 10), False, {}, False),  # no optimizer of torch
        ((10, 11, 12), True, {}, False),
        ((10, 11, 12), False, {"named_seconds": True}, False),
        ((10,), False, {}, False),  # too early to tell
    ],
)
def test_kineto_goes_first_where_an_update_is_a_step_and_nothing_else_ends_the_window(
    monkeypatch, *, calls, evaluates, asked,
    alike,
) :  # fmt: skip
    records = [ended(step, step) for step in range(len(calls))]
    for one, count in zip(records, calls, strict=True):
        one[wire.REC_OPTIMIZER_CALLS] = count
    if evaluates:
        records = [ended(at, 0, wire.RULE_BATCH) for at in calls]
        for at, one in enumerate(records):
            one[wire.REC_EVAL_STEPS] = at
    try_it = play(monkeypatch, SimpleNamespace(close=lambda: None, read_records=lambda: records), is_ours=False)
    wanted = replace(ASKED, **{"named_seconds": False, **asked})
    assert try_it(wanted) == ("recorded" if alike else None)


@pytest.mark.parametrize("of_11", [True, False])
@pytest.mark.parametrize("hooked", [True, False])
def test_kineto_is_not_asked_where_cuda_11_may_have_graphs(monkeypatch, of_11, hooked):
    said: list[str] = []
    ask = play(
        monkeypatch,
        SimpleNamespace(close=lambda: None) if hooked else None,
        is_ours=True,
        of_11=of_11,
        tell=said.append,
    )
    if not of_11:
        assert ask(ASKED) == "recorded"
    elif hooked:
        assert ask(ASKED) is None
        assert said == [
            "CUDA 11 is loaded: torch.profiler records from the step hook, which looks for CUDA graphs first"
        ]
    else:
        with pytest.raises(UsageError, match="CUDA 11 is loaded: a profile can hang or crash CUDA graphs"):
            ask(ASKED)
