"""Play a training loop to the counter of the hook, on a clock that the test holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from tpmon.hook import counters as counts
from tpmon.hook import steps
from tpmon.hook.bus import wire
from tpmon.hook.steps import Steps

MS = 1_000_000


class Batches:
    def __init__(self, batch_size: int) -> None:
        self._index_sampler = SimpleNamespace(batch_size=batch_size)


class Loop:
    """Stand for a training loop: each call takes so many ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10**12
        monkeypatch.setattr(steps, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(counts, "monotonic_ns", lambda: self.now)
        # It would stay in this process, which other tests read.
        monkeypatch.setattr(counts, "leave_word", lambda _: None)
        self.turned_off = 0
        self.steps = Steps(self._turned_off)
        self.iterator = Batches(4)
        self.other = Batches(4)
        self.gradients = False
        monkeypatch.setattr(steps, "has_gradients_on", lambda: self.gradients)

    def _turned_off(self) -> None:
        self.turned_off += 1

    def spend(self, ms: float) -> None:
        self.now += int(ms * MS)

    def batch(self, ms: float = 2, of: Batches | None = None) -> None:
        ours = self.steps.data_begins()
        self.spend(ms)
        if ours:
            self.steps.data_ended(of or self.iterator)

    def stop(self, ms: float = 0, of: Batches | None = None) -> None:
        if self.steps.data_begins():
            self.spend(ms)
            self.steps.data_stopped(of or self.iterator)

    def backward(self, forward_ms: float = 3, ms: float = 5, counts: bool = True) -> None:
        self.spend(forward_ms)
        ours = self.steps.backward_begins()
        self.spend(ms)
        if ours:
            self.steps.backward_ended(counts)

    def update(self, ms: float = 1) -> None:
        self.spend(ms)
        self.steps.optimizer_stepped(None, (), {})

    def train(self, number: int, other_ms: float = 0) -> None:
        for _ in range(number):
            self.batch()
            self.backward()
            self.update()
            self.spend(other_ms)

    def play(self, score: str) -> None:
        """Play a loop that is written in the letters of PARTS; ``3(DBU)`` plays a part three times."""
        while found := re.search(r"(\d+)\(([^()]*)\)", score):
            score = score[: found.start()] + found[2] * int(found[1]) + score[found.end() :]
        for letter in score.replace(" ", ""):
            PARTS[letter](self)

    def tell(self, names: Iterable[str]) -> dict[str, object]:
        times = {"phases_ms": self.phases_ms(), "evals_ms": self.evals_ms()}
        return {name: times[name] if name in times else getattr(self.steps, name) for name in names}

    def phases_ms(self) -> list[float]:
        one = self.steps
        times = (one.data_ns, one.forward_ns, one.backward_ns, one.optimizer_ns, one.other_ns)
        return [time / MS for time in times]

    def evals_ms(self) -> list[float]:
        one = self.steps
        return [time / MS for time in (one.eval_data_ns, one.eval_forward_ns, one.eval_other_ns)]

    def records(self) -> list[tuple[int, ...]]:
        return wire.parse_records(self.steps.pages.page, 0, 1024)[1]


PARTS: dict[str, Callable[[Loop], None]] = {
    "D": lambda loop: loop.batch(),
    "e": lambda loop: loop.batch(1),
    "d": lambda loop: loop.batch(10),
    "S": lambda loop: loop.stop(),
    "O": lambda loop: loop.batch(of=loop.other),
    "o": lambda loop: loop.batch(10, of=loop.other),
    "q": lambda loop: loop.batch(1, of=loop.other),
    "X": lambda loop: loop.stop(of=loop.other),
    "[": lambda loop: loop.steps.data_begins(),
    "{": lambda loop: loop.steps.backward_begins(),
    "B": lambda loop: loop.backward(),
    "b": lambda loop: loop.backward(counts=False),
    "U": lambda loop: loop.update(),
    "u": lambda loop: loop.update(0),  # as of a step() that calls its parent class
    "C": lambda loop: loop.steps.scaler_updated(),
    "~": lambda loop: loop.spend(1),
    "+": lambda loop: setattr(loop, "gradients", True),
    "-": lambda loop: setattr(loop, "gradients", False),
}
"""A batch that comes in 2, 1 or 10 ms, the end of its loader; the same of another loader; a fetch and a backward whose
end an interrupt took; forward and backward, of which ``b`` is one that fills no gradient; an update, a scaler's update; a millisecond; gradients on and off."""
