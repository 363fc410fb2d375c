"""How long the steps after a window are waited for, which its result compares with those before."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_capture_plan import record
from tpmon.capture import outcome as ranks
from tpmon.capture.outcome import EndedWindow, await_steps_after
from tpmon.model.known import Known, Missing, is_known

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
