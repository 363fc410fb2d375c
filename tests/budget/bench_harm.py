"""Print whether a training loses speed while tpmon watches it: interleaved pairs in one process.

One real training runs all the time, with ``tpmon attach`` at 1 Hz beside it. Every few seconds tpmon with
all its children is stopped (SIGSTOP) or goes on: the speed of a shared host drifts by more than a
watcher takes within a minute, and turns this short share its drift. The first second of each turn is not
counted: whoever was stopped makes up for what he missed, py-spy with all the looks of that time at once.
A pair is many such turns. Its figure is the median ratio of steps/s of neighbouring turns: a burst of another
tenant then costs one turn; the ratio of all steps is printed, too. Two neighbours are left out when the
hypervisor took more than 2 % of the CPUs' time from this machine in one of them ("steal" in /proc/stat): that is
no doing of tpmon's. TracerPid of every process of the job is sampled. Run: ``make bench-harm``.

Each step waits 10 ms as behind a GPU: the usual training. With ``--device-ms 0`` the thread computes all the
time, and its speed on a shared host is the host's: two neighbouring turns of 2 s differed by 12 % (standard
deviation), with tpmon stopped or not, of which no bench of half an hour makes 1 %.
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
from dataclasses import dataclass
from pathlib import Path

from tests.budget.measure import Screen, list_with_children, read_stolen_s, say_neighbours

HERE = Path(__file__).parent
TPMON = str(Path(sys.executable).with_name("tpmon"))
MOST_STOLEN = 0.02
"""Share (0-1) of all CPUs' time in a turn; above it the turn tells of the host."""
CPUS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Turn:
    """Hold one turn: finished steps, the ns they took, and the stolen share of all CPUs' time in it."""

    steps: int
    ns: int
    stolen: float

    @property
    def rate(self) -> float:
        """Return steps a second."""
        return self.steps / (self.ns / 1e9)


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
    for one in list_with_children(pid):
        try:
            with open(f"/proc/{one}/status") as file:
                traced += any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
        except OSError:
            continue
    return traced


def freeze(pid: int, number: signal.Signals) -> None:
    """Stop tpmon and its children, NVML child and py-spy among them, or let them go on."""
    for one in list_with_children(pid):
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


def rate_of(turns: list[Turn]) -> float:
    """Return steps a second of all the turns together."""
    return sum(one.steps for one in turns) / (sum(one.ns for one in turns) / 1e9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=21.0, help="counted of each kind in a pair")
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of one turn that count")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds before them that do not")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device-ms", type=float, default=10.0, help="of each step that pass without a CPU")
    parser.add_argument("--null", action="store_true", help="keep tpmon stopped: what the host does alone")
    options = parser.parse_args()
    print(say_neighbours(), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the training ends, too
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps")
        Path(path).write_bytes(bytes(16))
        program = [str(HERE / "harm_program.py"), path, str(options.workers), str(options.device_ms)]
        command = [sys.executable, *program]
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
    ratios, sums, traced, samples, left_out = list[float](), list[float](), 0, 0, 0
    for pair in range(options.pairs):
        alone, watched = list[Turn](), list[Turn]()
        for turn in range(2 * round(options.seconds / options.turn)):
            # The order alternates: ab ba ab ba.
            arm = watched if (turn + turn // 2 + pair) % 2 else alone
            freeze(screen.pid, signal.SIGCONT if arm is watched and not options.null else signal.SIGSTOP)
            screen.drain(options.settle)
            stolen_s, begun_s, before = read_stolen_s(), time.monotonic(), steps.read()
            # The bench itself does the same in both kinds: its own load must not tell them apart.
            screen.drain(options.turn)
            after, taken_s = steps.read(), time.monotonic() - begun_s
            stolen = (read_stolen_s() - stolen_s) / (taken_s * CPUS)
            arm.append(Turn(after[0] - before[0], after[1] - before[1], stolen))
            traced += count_tracers(pid)
            samples += 1
        # The turns of one number are neighbours: each kind has every second turn or the one beside it.
        kept = [
            (one, other)
            for one, other in zip(watched, alone, strict=True)
            if max(one.stolen, other.stolen) <= MOST_STOLEN
        ]
        left_out += len(watched) - len(kept)
        if len(kept) < len(watched) / 2:
            print(
                f"pair {pair + 1:2d}: not counted, the hypervisor took CPUs in {len(watched) - len(kept)} turns",
                flush=True,
            )
            continue
        ratios.append(statistics.median(one.rate / other.rate for one, other in kept))
        speeds = rate_of([other for _, other in kept]), rate_of([one for one, _ in kept])
        sums.append(speeds[1] / speeds[0])
        print(
            f"pair {pair + 1:2d}: {speeds[0]:8.2f} steps/s alone, {speeds[1]:8.2f} watched, "
            f"{sums[-1]:.4f}; median of {len(kept)} turns {ratios[-1]:.4f}",
            flush=True,
        )
    freeze(screen.pid, signal.SIGCONT)
    screen.close()
    print_interval("median of turns", ratios)
    print_interval("all steps", sums)
    print(f"turns left out for stolen time: {left_out} of {samples // 2}")
    print(f"processes seen with a tracer: {traced} in {samples} samples")


def students_t(freedom: int) -> float:
    """Return the 97.5 % point of Student's t (Cornish-Fisher expansion; within 0.004 from 9 degrees on)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def print_interval(name: str, ratios: list[float]) -> None:
    """Print the mean ratio of the pairs with its 95 % interval (Student's t of the logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = students_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(
        f"ratio watched/alone, {name}: {math.exp(mean):.4f}, 95 % interval {low:.4f} to {high:.4f}, "
        f"{len(ratios)} pairs"
    )


if __name__ == "__main__":
    main()
