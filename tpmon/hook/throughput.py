"""Measure samples a second and step latencies, without the steps of a warm-up that is named."""

from __future__ import annotations

import math
from array import array
from time import monotonic_ns

_KEPT = 65_536
"""So many of the newest latencies give the percentiles; count, mean and deviation are of all."""


class Throughput:
    """Hold one measurement; latencies in ms, 0 steps when nothing was measured after the cut."""

    __slots__ = (
        "cut",
        "mean_ms",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "samples",
        "samples_per_s",
        "seconds",
        "std_ms",
        "steps",
        "warmup_seconds",
        "warmup_steps",
    )

    def __init__(
        self,
        cut: str,
        warmup: tuple[int, float],
        steps: int,
        samples: int,
        seconds: float,
        spread: tuple[float, float],
        percentiles: tuple[float, float, float],
    ) -> None:
        """Hold what ``ThroughputMeter.result`` found."""
        self.cut = cut
        self.warmup_steps, self.warmup_seconds = warmup
        self.steps = steps
        self.samples = samples
        self.seconds = seconds
        self.samples_per_s = samples / seconds if seconds else math.nan
        self.mean_ms, self.std_ms = spread
        self.p50_ms, self.p95_ms, self.p99_ms = percentiles

    def __str__(self) -> str:
        """Say it in one line, with what was left out."""
        if not self.steps:
            return f"no steps measured; left out: {self.warmup_steps} steps, {self.cut}"
        return (
            f"{self.samples_per_s:.1f} samples/s over {self.steps} steps in {self.seconds:.1f} s; "
            f"step {self.mean_ms:.3f} ms mean, {self.std_ms:.3f} std, "
            f"{self.p50_ms:.3f} p50, {self.p95_ms:.3f} p95, {self.p99_ms:.3f} p99; "
            f"left out: {self.warmup_steps} steps in {self.warmup_seconds:.1f} s, {self.cut}"
        )


class ThroughputMeter:
    """Measure a loop: call ``step(samples)`` at the end of each step, ``result()`` at any time.

    The first ``warmup_steps`` are left out; ``cut("compiled")`` leaves out all until then and says
    why. Host time between two calls: on a GPU, synchronise before the last ``step`` if it matters.
    """

    __slots__ = (
        "_began_ns",
        "_cut",
        "_cut_ns",
        "_last_ns",
        "_latencies",
        "_mean",
        "_samples",
        "_squares",
        "_steps",
        "_warmup",
        "_warmup_steps",
    )

    def __init__(self, warmup_steps: int = 10) -> None:
        """Begin the first step now."""
        self._warmup = warmup_steps
        self._warmup_steps = 0
        self._cut = f"the first {warmup_steps}" if warmup_steps else "nothing"
        self._began_ns = self._cut_ns = self._last_ns = monotonic_ns()
        self._forget()

    def step(self, samples: int = 0) -> None:
        """End a step of so many samples."""
        now = monotonic_ns()
        spent_ms = (now - self._last_ns) / 1e6
        self._last_ns = now
        if self._warmup_steps < self._warmup:
            self._warmup_steps += 1
            self._cut_ns = now
            return
        index = self._steps % _KEPT
        if index == len(self._latencies):
            self._latencies.append(spent_ms)
        else:
            self._latencies[index] = spent_ms
        self._steps += 1
        self._samples += samples
        # Welford: one pass, no loss of digits over millions of steps.
        away = spent_ms - self._mean
        self._mean += away / self._steps
        self._squares += away * (spent_ms - self._mean)

    def cut(self, name: str) -> None:
        """Leave out everything until now, because of ``name``: "compiled", "cache warm"."""
        self._warmup_steps += self._steps
        self._warmup = self._warmup_steps
        self._cut = name
        self._last_ns = self._cut_ns = monotonic_ns()
        self._forget()

    def result(self) -> Throughput:
        """Return what was measured since the cut."""
        ordered = sorted(self._latencies)
        std = math.sqrt(self._squares / (self._steps - 1)) if self._steps > 1 else math.nan
        return Throughput(
            cut=self._cut,
            warmup=(self._warmup_steps, (self._cut_ns - self._began_ns) / 1e9),
            steps=self._steps,
            samples=self._samples,
            seconds=(self._last_ns - self._cut_ns) / 1e9 if self._steps else 0.0,
            spread=(self._mean if self._steps else math.nan, std),
            percentiles=(_percentile(ordered, 50), _percentile(ordered, 95), _percentile(ordered, 99)),
        )

    def _forget(self) -> None:
        self._latencies = array("d")
        self._steps = self._samples = 0
        self._mean = self._squares = 0.0


def _percentile(ordered: list[float], percent: int) -> float:
    """Return the percentile by linear interpolation between ranks, NaN of nothing."""
    if not ordered:
        return math.nan
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
