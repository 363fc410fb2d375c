"""Play a training loop to the counter of the hook, on a clock that the test holds."""

from __future__ import annotations

import pytest

from tpmon.hook import counters as counts
from tpmon.hook import steps
from tpmon.hook.bus import wire
from tpmon.hook.steps import Steps

MS = 1_000_000


class Sampler:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


class Batches:
    def __init__(self, batch_size: int) -> None:
        self._index_sampler = Sampler(batch_size)


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

    def phases_ms(self) -> list[float]:
        one = self.steps
        times = (one.data_ns, one.forward_ns, one.backward_ns, one.optimizer_ns, one.other_ns)
        return [time / MS for time in times]

    def evals_ms(self) -> list[float]:
        one = self.steps
        return [time / MS for time in (one.eval_data_ns, one.eval_forward_ns, one.eval_other_ns)]

    def records(self) -> list[tuple[int, ...]]:
        assert self.steps.pages is not None
        return wire.parse_records(self.steps.pages.page, 0, 1024)[1]
