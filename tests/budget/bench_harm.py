"""Print whether a training loses speed while tpmon watches it: interleaved pairs in one process.

One real training runs all the time, with ``tpmon attach`` at 1 Hz beside it. Every second tpmon with
all its children is stopped (SIGSTOP) or goes on: the speed of a shared host drifts by more than a
watcher takes within seconds, and turns this short share its drift. A pair is many such turns. Its
figure is the median ratio of steps/s of neighbouring turns: a burst of another tenant then costs one
turn; the ratio of all steps is printed, too. After each stop tpmon reads at once, so it reads once a
second of its own time at least. TracerPid of every process of the job is sampled. Run: ``make bench-harm``.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.budget.measure import Screen, children_of

HERE = Path(__file__).parent
TPMON = str(Path(sys.executable).with_name("tpmon"))
T_95 = {10: 2.262, 20: 2.093, 30: 2.045, 40: 2.023}


class Steps:
    """Read the step counter that the training keeps in a shared file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    def read(self) -> tuple[int, int]:
        """Return the step count and the CLOCK_MONOTONIC ns of the last step's end."""
        while True:
            first = struct.unpack("qq", self._map[:16])
            if first == struct.unpack("qq", self._map[:16]):
                return first[0], first[1]


def count_tracers(pid: int) -> int:
    """Return how many processes of the job have a tracer right now."""
    traced = 0
    for one in [pid, *children_of(pid)]:
        try:
            with open(f"/proc/{one}/status") as file:
                traced += any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
        except OSError:
            continue
    return traced


def freeze(pid: int, number: signal.Signals) -> None:
    """Stop tpmon and its children, NVML child and py-spy among them, or let them go on."""
    for one in [pid, *children_of(pid)]:
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


class Arm:
    """Add up the steps and the seconds of the turns of one kind, and keep the speed of each turn."""

    def __init__(self) -> None:
        self.steps, self.ns = 0, 0
        self.rates: list[float] = []

    def add(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Add one turn, from its first finished step to its last."""
        steps, ns = after[0] - before[0], after[1] - before[1]
        self.steps += steps
        self.ns += ns
        self.rates.append(steps / (ns / 1e9))

    @property
    def rate(self) -> float:
        """Return steps a second."""
        return self.steps / (self.ns / 1e9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, choices=sorted(T_95))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each kind in a pair")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of one turn")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--null", action="store_true", help="keep tpmon stopped: what the host does alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the training ends, too
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps")
        Path(path).write_bytes(bytes(16))
        command = [sys.executable, str(HERE / "harm_program.py"), path, str(options.workers)]
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            print_pairs(training.pid, Steps(path), options)
        finally:
            training.kill()
            training.wait()


def print_pairs(pid: int, steps: Steps, options: argparse.Namespace) -> None:
    """Measure and print each pair, then the ratio's mean with its 95 % interval."""
    while steps.read()[0] < 50:
        time.sleep(0.1)
    screen = Screen([TPMON, "attach", str(pid)], 120, 40, {})
    screen.until(b"runnable", 20.0)
    screen.drain(10.0)
    ratios, sums, traced, samples = [], [], 0, 0
    for pair in range(options.pairs):
        alone, watched = Arm(), Arm()
        for turn in range(2 * round(options.seconds / options.turn)):
            # The order alternates: ab ba ab ba.
            arm = watched if (turn + turn // 2 + pair) % 2 else alone
            freeze(screen.pid, signal.SIGCONT if arm is watched and not options.null else signal.SIGSTOP)
            before = steps.read()
            # The bench itself does the same in both kinds: its own load must not tell them apart.
            screen.drain(options.turn)
            arm.add(before, steps.read())
            traced += count_tracers(pid)
            samples += 1
        # The turns of one number are neighbours: each kind has every second turn or the one beside it.
        turns = zip(watched.rates, alone.rates, strict=True)
        ratios.append(statistics.median(one / other for one, other in turns))
        sums.append(watched.rate / alone.rate)
        print(
            f"pair {pair + 1:2d}: {alone.rate:8.2f} steps/s alone, {watched.rate:8.2f} watched, "
            f"{sums[-1]:.4f}; median of turns {ratios[-1]:.4f}",
            flush=True,
        )
    freeze(screen.pid, signal.SIGCONT)
    screen.close()
    print_interval("median of turns", ratios)
    print_interval("all steps", sums)
    print(f"processes seen with a tracer: {traced} in {samples} samples")


def print_interval(name: str, ratios: list[float]) -> None:
    """Print the mean ratio of the pairs with its 95 % interval (Student's t of the logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = T_95[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(
        f"ratio watched/alone, {name}: {math.exp(mean):.4f}, 95 % interval {low:.4f} to {high:.4f}, "
        f"{len(ratios)} pairs"
    )


if __name__ == "__main__":
    main()
