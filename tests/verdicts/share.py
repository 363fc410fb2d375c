"""Print whether the share of data wait that tpmon measures holds the truth, and what looking cost.

A program waits for data in a chosen share of its time and counts its waiting itself. tpmon follows
it; in each window of 15 s the share that its rules work with, and its interval, are compared with
the program's own figure, and so is the interval that the verdict shows in that second, where it names
the wait. Run: ``make bench-share``.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from dataclasses import dataclass

from tests.judging import read_phases
from tests.programs.causes.running import Running, TruthNow, attach, run_program
from tests.programs.causes.table import Label, Row
from tpmon.judge.features.snapshot import see
from tpmon.model.codec import decode
from tpmon.model.frame import Frame
from tpmon.model.known import is_known, known_or
from tpmon.model.verdict import Kind
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants

ROW = Row("chosen_share", Label(Kind.DATA_BOUND))
SETTLE_S = 15.0
WINDOW_S = 15.0
LONG_WINDOWS = 8
"""Windows of the 120 s over which the plain error counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    frame: Frame
    truth: TruthNow


@dataclass(frozen=True, slots=True)
class WindowResult:
    """Hold the truth and what tpmon measured in one window, in percent."""

    truth: float
    share: float
    low: float
    high: float
    said: str
    shown: tuple[float, float] | None
    """The interval on the screen; None where the verdict is of something else."""

    @property
    def shown_holds(self) -> bool:
        return self.shown is not None and self.shown[0] <= self.truth <= self.shown[1]

    @property
    def holds(self) -> bool:
        return self.low <= self.truth <= self.high


def compare(readings: list[Reading]) -> WindowResult | None:
    """Measure one window as tpmon's rules do; None where it could not tell."""
    frames = [reading.frame for reading in readings]
    slices = [one for frame in frames[1:] for one in known_or(frame.stacks, ())]
    scene = see(frames, read_phases(slices, frames[-1].taken_ns) if slices else {})
    verdict = frames[-1].verdict
    said = verdict.kind.value if is_known(verdict) else "not judged"
    for rank in scene.ranks:
        if is_known(rank.data_wait):
            share = rank.data_wait.share
            first, last = readings[0].truth, readings[-1].truth
            truth = 100 * (last.waited_ns - first.waited_ns) / max(1, last.taken_ns - first.taken_ns)
            shown = read_shown(frames[-1])
            return WindowResult(truth, 100 * share.ratio, 100 * share.low, 100 * share.high, said, shown)
    return None


def read_shown(frame: Frame) -> tuple[float, float] | None:
    """Return the interval of the share that a verdict of data wait shows, in percent."""
    verdict = frame.verdict
    if not is_known(verdict) or verdict.kind is not Kind.DATA_BOUND:
        return None
    low, high = verdict.share_low_pct, verdict.share_high_pct
    return (low, high) if is_known(low) and is_known(high) else None


def count_tracers(pid: int) -> int:
    """Count which processes of a job are traced: a tracer stops a process, which tpmon must not do."""
    traced = 0
    for one in [pid, *find_descendants(pid, read_table())]:
        try:
            with open(f"/proc/{one}/status") as file:
                traced += any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
        except OSError:  # it ended meanwhile
            continue
    return traced


def follow(running: Running, windows: int) -> tuple[list[WindowResult | None], list[Reading], int]:
    """Attach once and compare window by window; also return every reading and how often a tracer was seen."""
    results: list[WindowResult | None] = []
    every: list[Reading] = []
    traced = start = 0
    with attach(running.pid) as lines:
        for line in lines:
            every.append(Reading(decode(Frame, line), running.read_truth()))
            traced += count_tracers(running.pid)
            span_s = (every[-1].frame.taken_ns - every[start].frame.taken_ns) / 1e9
            if span_s >= WINDOW_S:
                results.append(compare(every[start:]))
                start = len(every) - 1
            if len(results) == windows:
                break
    return results, every, traced


def print_share(share: float, windows: int, seed: int) -> None:
    with run_program(ROW, seed, "--share", str(share / 100), seconds=windows * WINDOW_S + 120) as running:
        time.sleep(SETTLE_S)
        results, every, traced = follow(running, windows)
    told = [one for one in results if one is not None]
    for one in told:
        mark = "" if one.holds else "  MISSED"
        interval = f"{one.low:5.1f} to {one.high:5.1f}"
        shown = "" if one.shown is None else f" {one.shown[0]:.1f} to {one.shown[1]:.1f}"
        mark += "" if one.shown is None or one.shown_holds else "  SHOWN ONE MISSED"
        print(f"  truth {one.truth:5.1f} %  share {one.share:5.1f} %  interval {interval}  {one.said}{shown}{mark}")
    costs = [reading.frame.self_.cpu_pct for reading in every]
    cost = statistics.fmean(cost for cost in costs if is_known(cost))
    paused_ms = every[-1].frame.self_.target_paused_ms
    long = told[:LONG_WINDOWS]
    gap = statistics.fmean(one.share for one in long) - statistics.fmean(one.truth for one in long)
    held = sum(one.holds for one in told)
    shown_held, shown = sum(one.shown_holds for one in told), sum(one.shown is not None for one in told)
    print(
        f"wanted {share:.0f} %: over {len(long) * WINDOW_S:.0f} s error {gap:+.1f} points; "
        f"interval holds the truth in {held} of {len(results)} windows, the shown one in "
        f"{shown_held} of {shown}; tpmon {cost:.1f} % of a core, "
        f"paused the program {paused_ms:.0f} ms; tracers seen: {traced} in {len(every)} looks",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", default="5,30,60,90", help="percent, separated by commas")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the program ends and is swept up
    for share in json.loads(f"[{options.shares}]"):
        print_share(share, options.windows, options.seed)


if __name__ == "__main__":
    sys.exit(main())
