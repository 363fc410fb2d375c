"""Profile and measure from your own code: bounded captures, samples a second, step latencies, named parts.

Never run two torch profilers at a time: torch drops one of them, and may crash on it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from array import array
from time import monotonic_ns
from typing import NamedTuple

from tpmon.hook.bus import wire
from tpmon.hook.context import read_ranks
from tpmon.hook.installation import HOOK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self


_MOST_STEPS = 100
"""A step is thousands of events of a kilobyte each, and more steps seldom show more."""


def make_profiler(
    steps: int = 5,
    *,
    wait: int = 5,
    warmup: int = 2,
    on_trace: Callable[[Any], None] | None = None,
    **options: Any,
) -> Any:
    """Return a torch.profiler.profile that records so many steps once, and then does nothing more.

    Use it as a context around the loop and call its ``step()`` at the end of each step. Shapes, stacks and
    memory each multiply time and memory: they are off unless ``options`` ask for them. The median of the
    steps that ``wait`` leaves out, but for the first, goes into the trace, which ``tpmon trace`` compares.

    Args:
        steps: 1 to 100.
        wait: steps that are left out first, for compilation and caches.
        warmup: steps after them that are recorded and dropped.
        on_trace: called with the profile when the steps are recorded, such as ``export_trace``.
        options: for torch's profiler: record_shapes, with_stack, profile_memory, with_flops, activities.

    Raises:
        ValueError: for a number of steps outside these bounds.
    """
    from importlib import import_module  # noqa: PLC0415 only who calls this pays for it

    if not 1 <= steps <= _MOST_STEPS or wait < 0 or warmup < 0:
        raise ValueError(f"steps from 1 to {_MOST_STEPS}, wait and warmup from 0")
    profiler: Any = import_module("torch.profiler")
    made = profiler.profile(
        schedule=profiler.schedule(wait=wait, warmup=warmup, active=steps, repeat=1),
        on_trace_ready=on_trace,
        **options,
    )
    if hasattr(made, "preset_metadata_json"):  # not in an older torch
        _tell_steps(made, wait)
    return made


_LEFT_OUT = {"missing": "the profiler was to leave out no two steps first (wait)"}
_NO_LATER = {"missing": "the trace was written when its steps ended"}


def _tell_steps(profile: Any, wait: int) -> None:
    """Have a profile write the median of its steps before into its trace, under the names of a capture."""
    ended_ns: list[int] = []
    step: Callable[[], None] = profile.step

    def timed_step() -> None:
        if len(ended_ns) < wait:
            ended_ns.append(monotonic_ns())
        if len(ended_ns) == wait:
            ended_ns.append(0)  # once
            took_ms = sorted((two - one) / 1e6 for one, two in zip(ended_ns, ended_ns[1:wait]))
            before = {"step_before_ms": _percentile(took_ms, 50), "steps_before": len(took_ms)}
            profile.preset_metadata_json("tpmon", json.dumps({**told, **(before if took_ms else {})}))
        step()

    told = {"step_before_ms": _LEFT_OUT, "steps_before": 0, "step_after_ms": _NO_LATER, "steps_after": 0}
    profile.preset_metadata_json("tpmon", json.dumps(told))
    profile.step = timed_step


def top_tables(profile: Any, rows: int = 10) -> dict[str, str]:
    """Return tables of the ``rows`` costliest operators: "device" and "cpu" by self time, "shapes".

    Call it after the end of the profile, or in ``on_trace``. "device" is there only where a device worked,
    "shapes" only with ``record_shapes``; none where the loop ended before the profiler began.
    """
    if not _has_recorded(profile):
        return {}
    averages = profile.key_averages()
    names = ("self_device_time_total", "self_cuda_time_total")  # the second before torch 2.3
    on_device = next((name for name in names if any(getattr(one, name, 0) for one in averages)), "")
    tables = {"cpu": averages.table(sort_by="self_cpu_time_total", row_limit=rows)}
    if on_device:
        tables["device"] = averages.table(sort_by=on_device, row_limit=rows)
    if getattr(profile, "record_shapes", False):
        by_shape = profile.key_averages(group_by_input_shape=True)
        tables["shapes"] = by_shape.table(sort_by=on_device or "self_cpu_time_total", row_limit=rows)
    return tables


def export_trace(profile: Any, folder: str = ".", name: str = "trace") -> str:
    """Write the trace of this rank as ``NAME-rank3.json.gz``, and return its path.

    A file of that name is kept, and a number is added. torch saves a trace only once: where a handler of
    the program did, return "".

    Raises:
        OSError: when it cannot be written (full disk, no folder, no permission), or nothing was recorded: the
            loop ended before the profiler began.
    """
    if not _has_recorded(profile):
        raise OSError("nothing was recorded: the loop ended before the profiler began")
    rank = max(read_ranks()[0], 0)
    os.makedirs(folder, exist_ok=True)
    path = _new_path(os.path.join(folder, f"{name}-rank{rank}"))
    part = f"{path[: -len('.json.gz')]}.part.json.gz"
    try:
        try:
            profile.export_chrome_trace(part)
        except RuntimeError as error:
            if "already saved" in str(error):
                return ""
            raise
        if not os.path.exists(part):  # torch says nothing when it could not write
            raise OSError(f"torch wrote no trace to {folder}")
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return path


def _has_recorded(profile: Any) -> bool:
    """Tell whether a profile has recorded, which torch takes for granted; True for an unknown torch."""
    return getattr(profile, "profiler", True) is not None


def _new_path(stem: str) -> str:
    path, number = f"{stem}.json.gz", 0
    while os.path.exists(path):
        number += 1
        path = f"{stem}-{number}.json.gz"
    return path


_KEPT = 65_536
"""Percentiles are of so many newest latencies; count, mean and deviation are of all."""


class Throughput(NamedTuple):
    """Hold one measurement; latencies in ms, 0 steps when nothing was measured after the cut."""

    cut: str
    warmup_steps: int
    warmup_seconds: float
    steps: int
    samples: int
    seconds: float
    mean_ms: float
    std_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @property
    def samples_per_s(self) -> float:
        """Return samples a second, NaN without a step."""
        return self.samples / self.seconds if self.seconds else math.nan

    def __str__(self) -> str:
        """Describe it in one line, with what was left out."""
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

    The first ``warmup_steps`` are left out; ``cut("compiled")`` leaves out all until then for that reason.
    It measures host time between two calls: on a GPU, synchronise before the last ``step`` if it matters.
    """

    def __init__(self, warmup_steps: int = 10) -> None:
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
        """Leave out everything until now; ``name`` is the reason: "compiled", "cache warm"."""
        self._warmup_steps += self._steps
        self._warmup = self._warmup_steps
        self._cut = name
        self._last_ns = self._cut_ns = monotonic_ns()
        self._forget()

    def result(self) -> Throughput:
        """Return what was measured since the cut."""
        ordered = sorted(self._latencies)
        return Throughput(
            cut=self._cut,
            warmup_steps=self._warmup_steps,
            warmup_seconds=(self._cut_ns - self._began_ns) / 1e9,
            steps=self._steps,
            samples=self._samples,
            seconds=(self._last_ns - self._cut_ns) / 1e9 if self._steps else 0.0,
            mean_ms=self._mean if self._steps else math.nan,
            std_ms=math.sqrt(self._squares / (self._steps - 1)) if self._steps > 1 else math.nan,
            p50_ms=_percentile(ordered, 50),
            p95_ms=_percentile(ordered, 95),
            p99_ms=_percentile(ordered, 99),
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


class _Named:
    """Hold the counters of one mark, and its place on the page of the bus."""

    __slots__ = ("calls", "longest_ns", "page", "place", "total_ns")

    def __init__(self) -> None:
        self.calls = self.total_ns = self.longest_ns = self.place = 0
        self.page: object = None


_NAMED: dict[str, _Named] = {}


class mark:  # noqa: N801 used like a function
    """Time the block under a name: ``with mark("checkpoint"): ...``.

    Calls, total and longest time go to the bus (the first 16 names), and profiles show the block as a
    ``record_function``. Costs some microseconds with torch. Use a name in one thread only, and not in code
    that torch.compile compiles.
    """

    __slots__ = ("_began_ns", "_name", "_recorded")

    def __init__(self, name: str) -> None:
        self._name = name
        self._recorded: Any = None
        self._began_ns = 0

    def __enter__(self) -> Self:
        """Begin to measure."""
        profiler = sys.modules.get("torch.autograd.profiler")
        if profiler is not None:
            self._recorded = profiler.record_function(self._name)
            self._recorded.__enter__()
        self._began_ns = monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Add what was measured; an error of the block goes on."""
        spent = monotonic_ns() - self._began_ns
        if self._recorded is not None:
            self._recorded.__exit__(kind, error, trace)
        try:
            _add(self._name, spent)
        except Exception as problem:
            if not HOOK.steps.fail(problem):
                raise


def _add(name: str, spent_ns: int) -> None:
    named = _NAMED.get(name)
    if named is None:
        if len(_NAMED) >= wire.MARKS:
            return
        named = _NAMED[name] = _Named()
    named.calls += 1
    named.total_ns += spent_ns
    named.longest_ns = max(named.longest_ns, spent_ns)
    pages = HOOK.steps.pages
    if pages is None:
        return
    if named.page is not pages:
        named.page = pages
        number = pages.live[wire.LIVE_MARKS]
        if number >= wire.MARKS:
            named.place = 0
            return
        named.place = wire.MARKS_OFFSET + number * wire.MARK_BYTES
        pages.page[named.place : named.place + wire.MARK_BYTES] = wire.pack_mark(name)
        pages.live[wire.LIVE_MARKS] = number + 1
    if named.place:
        wire.write_mark(pages.page, named.place, named.calls, named.total_ns, named.longest_ns)
