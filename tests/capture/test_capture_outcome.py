"""How a capture ended: whole, or with part of what was asked for, and why; how long steps after it are awaited."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_capture_plan import ASKED, record
from tests.captures import parse_conditions
from tpmon.capture import outcome as ranks
from tpmon.capture.outcome import IS_BUSY, EndedWindow, await_steps_after, find_use, judge_end, note_kernels
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.capture import CapturedFile, CaptureKind, CaptureState, RankCapture

RANK = RankCapture(1, 0, CaptureState.VERIFIED, "", 100, 5, 20.0, 10.0, 12.0, 10.0)
FILE = CapturedFile("/a", "/a", 0, 100, 5, 900, 0, 1000, CaptureKind.TRACE)


def test_a_set_is_partial_where_a_rank_or_a_step_is_not_there():
    missed = replace(RANK, rank=1, state=CaptureState.MISSED, first_step=Missing("x"))
    assert judge_end(ASKED, [RANK], [FILE]) is CaptureState.DONE
    assert judge_end(ASKED, [RANK, missed], [FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, steps=4)]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK, replace(RANK, first_step=101)], [FILE, FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [missed], []) is CaptureState.MISSED
    assert judge_end(ASKED, [RANK], []) is CaptureState.FAILED


def test_a_trace_without_a_kernel_is_partial_where_a_gpu_worked_and_says_why():
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(replace(ASKED, timed=True), [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=3)], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=Missing("x"))], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid + 1}) is CaptureState.DONE
    both = [RANK, replace(RANK, pid=2, rank=1)]
    assert judge_end(ASKED, both, [replace(FILE, kernels=3), FILE], {1, 2}) is CaptureState.PARTIAL
    assert note_kernels(IS_BUSY, Missing("x")) == [
        "no GPU kernel in the trace, although NVML saw a GPU work for it: another tool may hold CUPTI"
    ]
    for gpu, words in (("H100", "nothing says that a GPU worked meanwhile"), ("", ""), (None, "")):
        told = parse_conditions(f'{{"tpmon": {json.dumps({"gpu": gpu})}}}'.encode(), b"")
        assert words in "".join(note_kernels("", told))
        assert bool(note_kernels("", told)) is bool(words)


@pytest.mark.parametrize(
    ("told", "steps", "used"),
    [
        ({"device": "cuda:0", "mode": "training"}, 5, True),
        ({"device": "cpu", "mode": "training", "gpu": "H100"}, 5, False),
        ({"device": "cuda:0", "mode": "evaluation"}, 5, False),
        ({"device": "cuda:0", "mode": "training"}, 0, False),
        ({"mode": "training", "gpu": "H100"}, 5, False),
    ],
)
def test_a_step_of_training_on_a_gpu_has_kernels_and_cuda_alone_says_nothing(told, steps, used):
    conditions = parse_conditions(json.dumps({"tpmon": told}).encode(), b"")
    assert bool(find_use(replace(RANK, steps=steps), conditions)) is used


BEGAN_S = 1000.0
UNKNOWN = Missing("too few steps to tell")


class Loop:
    """Stand for the bus of a loop that ends a step each so many seconds, by a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
        self.step_s, self.now_s, self.alive = step_s, BEGAN_S, True
        clock = SimpleNamespace(
            sleep=self.sleep, monotonic=lambda: self.now_s, monotonic_ns=lambda: int(self.now_s * 1e9)
        )
        monkeypatch.setattr(ranks, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def is_alive(self) -> bool:
        return self.alive

    def read_records(self) -> list[list[int]]:
        last = int((self.now_s - BEGAN_S) / self.step_s)
        return [record(100 + at, 1e3 * (BEGAN_S + 0.001 + at * self.step_s)) for at in range(-3, last + 1)]


def ended(loop: Any, before: Known[float]) -> EndedWindow:
    return EndedWindow(loop, int((BEGAN_S + 0.5) * 1e9), before)


@pytest.mark.parametrize(
    ("step_s", "before", "waited_s", "after"),
    [
        (0.8, 800.0, 2, 800.0),
        (4.0, 4000.0, 8, 4000.0),
        (15.0, 15_000.0, 30, 15_000.0),
        (40.0, 40_000.0, 60, UNKNOWN),
        (4.0, UNKNOWN, 2, UNKNOWN),
        (4.0, 100.0, 2, UNKNOWN),
    ],
    ids=["quick", "slow", "very slow", "too slow", "no pace before", "suddenly slow"],
)
def test_steps_after_are_waited_for_as_long_as_they_took_before(monkeypatch, step_s, before, waited_s, after):
    loop = Loop(monkeypatch, step_s)
    window, said = ended(loop, before), []
    await_steps_after([window], said.append, lambda: False)
    assert loop.now_s - BEGAN_S == pytest.approx(waited_s, abs=0.5)
    told = window.measure_after()
    assert told == (pytest.approx(after) if is_known(after) else after)
    assert len(said) == (is_known(before) and before >= 800.0)


def test_who_wants_no_more_of_it_and_a_loop_that_ended_wait_for_nothing(monkeypatch):
    loop = Loop(monkeypatch, 20.0)
    await_steps_after([ended(loop, 20_000.0)], lambda _: None, lambda: loop.now_s > BEGAN_S + 3)
    assert loop.now_s - BEGAN_S == pytest.approx(3, abs=0.1)
    loop.now_s, loop.alive = BEGAN_S, False
    await_steps_after([ended(loop, 20_000.0)], lambda _: None, lambda: False)
    await_steps_after([], lambda _: None, lambda: False)
    assert loop.now_s == BEGAN_S
