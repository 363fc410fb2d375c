"""Print whether a training loses speed while tpmon watches it, and beside it what a placebo does.

One real training runs all the time and counts its steps in a shared page, with one attached tpmon beside it,
and a ``sleep``. Each window begins with a signal to each of the two: SIGCONT, or SIGSTOP to all of its processes.
Who runs is drawn at random; what the training does just after the signals does not count.
Pairs with a window in which the hypervisor took more than 2 % of the CPUs' time do not count either. The bench
ends when both intervals are as narrow as is promised, or after ``--pairs``.

Two factors are switched at the same time, tpmon and a placebo. In each pair of neighbouring windows each of
them runs in one window and is frozen in the other. Of every two pairs they run together in one and apart in
the other, so that what one does cancels out of the figure of the other, and the placebo costs no window.

Modes: ``json`` is ``attach --json``, ``screen`` is ``attach`` in a terminal of 120x40, ``hooked`` is
``attach --json`` of a run that ``tpmon run`` put the hook into. Run: ``make bench-harm`` on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import secrets
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from tests.budget.measure import Screen, children_of, read_stolen_s, say_neighbours

PROGRAM = str(Path(__file__).with_name("harm_program.py"))
TPMON = str(Path(sys.executable).with_name("tpmon"))
MODES = ("json", "screen", "hooked")
CPUS = os.cpu_count() or 1
PROMISED = 0.01
"""Half the width of an interval that says something about 1 %."""
FEWEST_PAIRS = 60
LOOK_EVERY = 10
SETTLE_S = 30.0
"""Until tpmon has a verdict and looks as it does for the rest of a run."""
STARTED_S = 60.0
TRIMMED = 0.2
"""Share (0-1) of the log ratios that is cut off at each end: bursts of other tenants of the host."""
RESAMPLES = 2_000
MOST_STOLEN = 0.02
"""Share (0-1) of all CPUs' time in a window; above it the window tells of the hypervisor."""


@dataclass(frozen=True, slots=True)
class Window:
    """Say what runs in a window; what does not run is frozen."""

    tpmon: bool
    placebo: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold a window with its steps a second and the stolen share (0-1) of all CPUs' time in it."""

    window: Window
    rate: float
    stolen: float


Pair = tuple[Measured, Measured]


@dataclass(frozen=True, slots=True)
class Interval:
    """Hold a ratio of speeds, with to without, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}]"


def draw_pairs(random: Random) -> Iterator[tuple[Window, Window]]:
    """Yield pairs of windows without end, in random order, balanced over every two pairs."""
    while True:
        together = random.random() < 0.5
        for same in (together, not together):
            tpmon = random.random() < 0.5
            first = Window(tpmon, tpmon if same else not tpmon)
            yield first, Window(not first.tpmon, not first.placebo)


def is_counted(pair: Pair) -> bool:
    """Tell whether the hypervisor left both windows their CPUs."""
    return all(one.stolen <= MOST_STOLEN and one.rate > 0 for one in pair)


def list_logs(pairs: Sequence[Pair], factor: str) -> list[float]:
    """Return the log ratios of steps a second, with ``factor``, "tpmon" or "placebo", to without."""
    return [math.log(one.rate / other.rate) * (1 if getattr(one.window, factor) else -1) for one, other in pairs]


def estimate(logs: Sequence[float], seed: int) -> Interval:
    """Return the trimmed mean of log ratios as a ratio, with its percentile bootstrap interval of 95 %."""
    values = np.asarray(logs)
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, values.size))
    low, high = np.percentile(_trimmed_means(drawn), (2.5, 97.5))
    (mean,) = _trimmed_means(values[np.newaxis])
    return Interval(*(math.exp(float(one)) for one in (mean, low, high)))


def _trimmed_means(rows: np.ndarray) -> np.ndarray:
    cut = int(TRIMMED * rows.shape[1])
    return np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Hold an attached tpmon: its process, how to wait while it draws, and how to ask what it wrote."""

    pid: int
    wait: Callable[[float], object]
    check: Callable[[], str]


class Steps:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    def read(self) -> tuple[int, int]:
        """Return the step count and the CLOCK_MONOTONIC ns of the last step's end."""
        while True:
            first = struct.unpack("qq", self._map[:16])
            if first == struct.unpack("qq", self._map[:16]):
                return first[0], first[1]


def freeze(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all below it: NVML's child and py-spy among them."""
    for one in (pid, *children_of(pid)):
        if one != pid:
            freeze(one, number)
            continue
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


@contextmanager
def training(path: Path, is_hooked: bool) -> Iterator[int]:
    path.write_bytes(bytes(16))
    before = [TPMON, "run", "--"] if is_hooked else []
    job = subprocess.Popen([*before, sys.executable, PROGRAM, str(path)], stdout=subprocess.DEVNULL)
    try:
        steps, until = Steps(path), time.monotonic() + STARTED_S
        while steps.read()[0] < 50:
            if job.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the training does not get on")
            time.sleep(0.1)
        yield job.pid
    finally:
        job.kill()
        job.wait()


@contextmanager
def placebo() -> Iterator[int]:
    with subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def watching(mode: str, pid: int, folder: Path) -> Iterator[Watcher]:
    if mode == "screen":
        screen = Screen([TPMON, "attach", str(pid)], 120, 40, {})
        screen.until(b"machine", STARTED_S)
        try:
            yield Watcher(screen.pid, screen.drain, lambda: f"{screen.received} bytes drawn")
        finally:
            freeze(screen.pid, signal.SIGCONT)
            screen.close()
        return
    out = folder / "frames.jsonl"
    with out.open("wb") as file:
        process = subprocess.Popen([TPMON, "attach", str(pid), "--json"], stdout=file)
    try:
        yield Watcher(process.pid, time.sleep, lambda: count_frames(out, mode == "hooked"))
    finally:
        freeze(process.pid, signal.SIGCONT)
        process.terminate()
        process.wait()


def count_frames(path: Path, is_hooked: bool) -> str:
    """Say how many Frames were written; of a hooked run the last must have the steps of its hook."""
    lines = path.read_text().splitlines()
    if not lines:
        raise RuntimeError("tpmon wrote no Frame")
    steps = json.loads(lines[-1]).get("steps", {}).get("count")
    if isinstance(steps, int) is not is_hooked:
        raise RuntimeError(f"the steps of the hook are {steps}, and the run is {'' if is_hooked else 'not '}hooked")
    return f"{len(lines)} Frames written"


@dataclass(frozen=True, slots=True)
class Bench:
    steps: Steps
    watcher: Watcher
    placebo: int
    window_s: float
    left_out_s: float

    def measure(self, window: Window) -> Measured:
        """Switch tpmon and the placebo, and count the steps of a window."""
        for pid, runs in ((self.watcher.pid, window.tpmon), (self.placebo, window.placebo)):
            freeze(pid, signal.SIGCONT if runs else signal.SIGSTOP)
        self.watcher.wait(self.left_out_s)
        stolen_s, begun_s, before = read_stolen_s(), time.monotonic(), self.steps.read()
        self.watcher.wait(self.window_s - self.left_out_s)
        after, taken_s = self.steps.read(), time.monotonic() - begun_s
        rate = (after[0] - before[0]) / max(1, after[1] - before[1]) * 1e9
        return Measured(window, rate, (read_stolen_s() - stolen_s) / (taken_s * CPUS))

    def run(self, most: int, seed: int) -> tuple[list[Pair], int]:
        """Measure pairs until both intervals are narrow; return those that count, and how many do not."""
        pairs, left_out = list[Pair](), 0
        for drawn in draw_pairs(Random(seed)):
            pair = self.measure(drawn[0]), self.measure(drawn[1])
            if is_counted(pair):
                pairs.append(pair)
            else:
                left_out += 1
            done = len(pairs) + left_out
            if done % LOOK_EVERY == 0 and len(pairs) > 1:
                both = judge(pairs, seed)
                print(f"  {done:3d} pairs: tpmon {both[0]}, placebo {both[1]}", flush=True)
                if done >= FEWEST_PAIRS and all(one.half <= PROMISED for one in both):
                    break
            if done >= most:
                break
        return pairs, left_out


def judge(pairs: list[Pair], seed: int) -> tuple[Interval, Interval]:
    """Return what tpmon and what the placebo did to the steps."""
    return estimate(list_logs(pairs, "tpmon"), seed), estimate(list_logs(pairs, "placebo"), seed)


def print_mode(mode: str, options: argparse.Namespace) -> None:
    print(f"{mode}: seed {options.seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = folder / "steps"
        pid = stack.enter_context(training(page, mode == "hooked"))
        watcher = stack.enter_context(watching(mode, pid, folder))
        idle = stack.enter_context(placebo())
        watcher.wait(options.settle)
        bench = Bench(Steps(page), watcher, idle, options.window, options.left_out)
        pairs, left_out = bench.run(options.pairs, options.seed)
        freeze(watcher.pid, signal.SIGCONT)
        watcher.wait(2.0)
        said = watcher.check()
    tpmon, nothing = judge(pairs, options.seed)
    rates = [
        statistics.median(one.rate for pair in pairs for one in pair if one.window.tpmon is runs)
        for runs in (False, True)
    ]
    kept = tpmon.low <= 1 <= tpmon.high and tpmon.half <= PROMISED
    print(f"  {said}; the promise is {'kept' if kept else 'not shown'}")
    print("| mode | pairs (left out) | steps/s without | with | tpmon, ratio | placebo, ratio |")
    print("|---|---|---|---|---|---|")
    print(f"| {mode} | {len(pairs)} ({left_out}) | {rates[0]:.1f} | {rates[1]:.1f} | {tpmon} | {nothing} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, help="one of them; all three without it")
    parser.add_argument("--pairs", type=int, default=220, help="at most; 220 take 12 minutes")
    parser.add_argument("--window", type=float, default=1.5, help="seconds")
    parser.add_argument("--left-out", type=float, default=0.25, help="seconds after the signals")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds before the first window")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of the order and the bootstrap")
    options = parser.parse_args()
    print(say_neighbours(), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the training ends, too
    for mode in (options.mode,) if options.mode else MODES:
        print_mode(mode, options)


if __name__ == "__main__":
    main()
