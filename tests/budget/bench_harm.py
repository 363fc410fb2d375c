"""Print whether a training loses speed while tpmon watches it: interleaved pairs in one process.

One real training runs all the time. Windows with ``tpmon attach`` at 1 Hz and windows without
alternate (the order inside a pair alternates too); the figure is the ratio of steps/s. During
the watched windows TracerPid of every process of the job is sampled. Run: ``make bench-harm``.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, choices=sorted(T_95))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
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
    ratios, traced, samples = [], 0, 0
    for pair in range(options.pairs):
        rates = {}
        for watched in (True, False) if pair % 2 else (False, True):
            screen = Screen([TPMON, "attach", str(pid)], 120, 40, {}) if watched else None
            if screen is not None:
                screen.until(b"runnable", 20.0)
                screen.drain(1.0)
            else:
                time.sleep(2.0)
            count, at = steps.read()
            end = time.monotonic() + options.seconds
            # The bench itself does the same in both windows: its own load must not tell them apart.
            while time.monotonic() < end:
                if screen is not None:
                    screen.drain(0.1)
                else:
                    time.sleep(0.1)
                traced += count_tracers(pid) if watched else 0 * count_tracers(pid)
                samples += watched
            count_end, at_end = steps.read()
            rates[watched] = (count_end - count) / ((at_end - at) / 1e9)
            if screen is not None:
                screen.close()
        ratios.append(rates[True] / rates[False])
        print(
            f"pair {pair + 1:2d}: {rates[False]:8.2f} steps/s alone, {rates[True]:8.2f} watched, {ratios[-1]:.4f}"
        )
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = T_95[options.pairs] * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(
        f"ratio watched/alone: {math.exp(mean):.4f}, 95 % interval {low:.4f} to {high:.4f}, {len(ratios)} pairs"
    )
    print(f"processes seen with a tracer: {traced} in {samples} samples")


if __name__ == "__main__":
    main()
