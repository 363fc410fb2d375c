"""What torch refuses at the begin or the end of a recording is told at once, and costs the next one nothing."""

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.hook.capture.test_bounds import Captured, Recorder
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.capture import capture
from tpmon.hook.capture.capture import Capture
from tpmon.hook.capture.recorder import MemoryRecorder, Range


def refuse(text: str) -> Callable[..., Any]:
    """Return a function of torch that refuses, as its file says."""
    namespace: dict[str, Any] = {}
    source = f"def refuse(*_, **__):\n    raise RuntimeError({text!r})\n"
    exec(compile(source, "/nowhere/torch/cuda/memory.py", "exec"), namespace)
    function: Callable[..., Any] = namespace["refuse"]
    return function


NO_HISTORY = "cudaMallocAsync does not yet support recordHistory"


@dataclass(frozen=True)
class Case:
    name: str
    recorder: Callable[[], Any]
    calls: dict[str, Callable[..., Any]]
    """What torch refuses, by name."""
    reason: str
    ends: bool = False


class Played(Recorder):
    """A recorder of which torch refuses one call."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, refuse(f"no {name}"))


CASES = (
    Case("a history of cudaMallocAsync", lambda: MemoryRecorder(10), {"is_on": refuse(NO_HISTORY)}, NO_HISTORY),
    Case("a history of another allocator", lambda: MemoryRecorder(10), {"record": refuse(NO_HISTORY)}, NO_HISTORY),
    Case("a range", Range, {"start": lambda: 5}, "cudaProfilerStart was refused: CUDA error 5"),
    Case("a range that raises", Range, {"start": refuse("no CUPTI")}, "no CUPTI"),
    *(
        Case(f"{call} of a profile", lambda call=call: Played(call), {}, f"no {call}")
        for call in ("prepare", "start", "mark")
    ),
    Case("a begin and its end", lambda: Played("start", "stop", "drop"), {}, "no start"),
    Case("the end of a profile", lambda: Played("stop"), {}, "no stop", ends=True),
    Case("what is left of it", lambda: Played("drop"), {}, "no drop", ends=True),
)


@pytest.fixture
def captured(monkeypatch):
    captured = Captured(monkeypatch)
    monkeypatch.setattr(Capture, "_refuse", lambda self, _request: self._broken)
    yield captured
    captured.loop.steps.drop_pages()


def play_torch(captured: Captured, monkeypatch: pytest.MonkeyPatch, calls: dict[str, Any]) -> list[bool]:
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_refusal_is_told_at_once_and_the_next_capture_works(captured, monkeypatch, case):
    kept = play_torch(captured, monkeypatch, case.calls)
    plain, captured.recorder = captured.recorder, case.recorder()
    captured.ask(w.KIND_SNAPSHOT)
    captured.loop.train(6 if case.ends else 2)
    state, reason = captured.told()
    assert state == w.STATE_FAILED
    assert case.reason in reason
    assert kept in ([], [True, False]), "only what was on is turned off"
    captured.recorder = plain
    captured.record()
    assert captured.loop.steps.problem == ""


def test_a_profile_that_torch_goes_on_recording_ends_all_captures(captured, monkeypatch):
    """Two at a time end the process."""
    play_torch(captured, monkeypatch, {})
    sys.modules["torch"]._C._autograd._profiler_enabled = lambda: True
    captured.recorder = Played("stop")
    captured.ask()
    captured.loop.train(6)
    assert captured.told()[0] == w.STATE_FAILED
    captured.ask()
    captured.loop.train(2)
    assert captured.told()[0] == w.STATE_REFUSED
