"""Read a fake card with a clock that a test sets."""

from __future__ import annotations

from tests.fake_nvml import FakeNvml, ring
from tpmon.probe.gpu.nvml import CardReader
from tpmon.probe.gpu.wire import CardLine

SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def step(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def make_reader(nvml: FakeNvml) -> tuple[CardReader, Clock]:
    clock = Clock()
    return CardReader(nvml, 0, clock), clock


def read_twice(nvml: FakeNvml) -> tuple[CardLine, CardLine]:
    """Read a card in two seconds; both have new samples."""
    reader, clock = make_reader(nvml)
    first = reader.read()
    clock.step(1)
    for card in nvml.cards:
        card.samples = ring([50], 11, 1)
        card.memory_samples = ring([20], 11, 1)
        card.busy_rows = [(pid, stamp + 1_000_000, pct) for pid, stamp, pct in card.busy_rows]
    return first, reader.read()
