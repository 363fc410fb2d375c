"""Print what stack sampling costs: tpmon and every py-spy it starts, with and without --no-stacks.

Two jobs: a real training of one rank, and eight ranks with their workers. CPU time is that of tpmon's
process and of its ended children (fields 14 to 17 of /proc/PID/stat), so each py-spy counts in full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.budget.bench_cost import NO_CARDS, TPMON, start_tree
from tests.budget.measure import environment, find_working, say_neighbours

PROGRAMS = Path(__file__).parent.parent / "programs"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MEASURED_S = 60.0
WARM_S = 20.0
"""The dumps and the first slice, which are fast, are over by then."""


@contextmanager
def training() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as ready:
        command = [sys.executable, str(PROGRAMS / "stack_train.py"), "--ready", ready, "--seconds", "600"]
        with subprocess.Popen([*command, "--fetch", "0.02"], stderr=subprocess.DEVNULL) as process:
            while not Path(ready, str(process.pid)).exists() and process.poll() is None:
                time.sleep(0.1)
            yield process.pid
            process.kill()


@contextmanager
def tree() -> Iterator[int]:
    process = start_tree()
    yield process.pid
    process.terminate()
    process.wait()


def used_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process, and those of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, ended = fields[11:13], fields[13:15]
    return sum(map(int, own)) / TICKS_PER_S, sum(map(int, ended)) / TICKS_PER_S


def measure(pid: int, *flags: str) -> None:
    """Print the cost of one tpmon over a minute, and what its stacks brought."""
    with tempfile.TemporaryFile("w+b") as frames:
        process = subprocess.Popen(
            [*TPMON, "attach", str(pid), "--json", *flags], stdout=frames, env=environment(NO_CARDS)
        )
        time.sleep(WARM_S)
        (own, ended), begin = used_s(find_working(process.pid)), time.monotonic()
        time.sleep(MEASURED_S)
        (own_after, ended_after), spent = used_s(find_working(process.pid)), time.monotonic() - begin
        process.terminate()
        process.wait()
        frames.seek(0)
        slices = samples = 0
        for line in frames:
            taken = json.loads(line)["stacks"]
            for one in taken if isinstance(taken, list) else ():
                slices += 1
                samples += one["samples"]
    share, spy = 100 * (own_after - own) / spent, 100 * (ended_after - ended) / spent
    name = "tpmon --json " + " ".join(flags)
    print(f"  {name:<28} {share:8.2f} {spy:8.2f} {share + spy:8.2f} {slices:7d} {samples:8d}", flush=True)


def main() -> None:
    print(say_neighbours())
    for name, job in (("a training of one rank", training), ("8 ranks, 128 workers, 3,000 threads", tree)):
        with job() as pid:
            print(
                f"{name}\n  {'one core = 100 %':<28} {'tpmon':>8} {'py-spy':>8} {'sum':>8} {'slices':>7} {'samples':>8}"
            )
            for flags in ((), ("--no-stacks",)):
                measure(pid, *flags)


if __name__ == "__main__":
    main()
