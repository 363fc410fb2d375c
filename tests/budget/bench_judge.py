"""Print what one judgement costs, in ms of CPU, by the number of processes of the job.

The Window is 60 s of a rank whose loader workers always compute: the verdict that reads most of each
worker. The figures that a second costs are less for more than 64 processes, which are judged every third
second (docs/adr/0016-the-price-of-a-judgement.md).
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from dataclasses import replace

from tests.budget.measure import measure_import, say_neighbours
from tests.starving import COMPUTES, line_up, make_second
from tpmon.judge.features.snapshot import MANY_PROCESSES
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import LARGE_JOB_S, judge

SECONDS = 60
WORKERS = (2, 8, 19, 32, 63, 128)
JUDGEMENTS = 40


def measure(workers: int) -> tuple[float, float, int]:
    """Return the least and the median ms of CPU of a judgement, and the processes of its job."""
    frames = line_up([make_second(0.7, [COMPUTES] * workers)] * SECONDS)
    standing = Standing()
    for count in range(1, SECONDS + 1):
        standing = judge(frames[:count], standing).standing
    due = replace(standing, judged_ns=0)  # else the last verdict stands, and nothing is judged
    gc.collect()
    costs = []
    for _ in range(JUDGEMENTS):
        began_ns = time.process_time_ns()
        judge(frames, due)
        costs.append((time.process_time_ns() - began_ns) / 1e6)
    return min(costs), statistics.median(costs), len(frames[-1].processes)


def main() -> None:
    print(f"Python {platform.python_version()}, importing textual takes {measure_import():.2f} s of CPU")
    print(say_neighbours())
    print("| processes | a judgement, least | median | a second |")
    print("|---:|---:|---:|---:|")
    for workers in WORKERS:
        least, median, processes = measure(workers)
        turns = LARGE_JOB_S + 0.5 if processes > MANY_PROCESSES else 1.0
        print(f"| {processes} | {least:.2f} ms | {median:.2f} ms | {median / turns:.2f} ms |")


if __name__ == "__main__":
    main()
