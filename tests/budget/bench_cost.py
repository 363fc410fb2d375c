"""Print what tpmon costs on a tree of 137 processes and 3,000 threads, beside top, pidstat and htop.

Run it with ``make bench-cost``. All figures are CPU time of the tools, measured in one run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.budget.measure import (
    Cost,
    Screen,
    children_of,
    cost_of,
    environment,
    measure_import,
    run_cpu_seconds,
    say_neighbours,
)
from tests.cards import build_library

HERE = Path(__file__).parent
PROCESSES, THREADS, WAKING = 137, 3000, 100
TPMON = [str(Path(sys.executable).with_name("tpmon"))]
JOBS, PER_JOB = 10, 30
LISTED_S = 20.0
"""So long the list of jobs runs before it is measured: by then its first turns are paid for."""
NO_LOOKS = ("--hang-after", "1h")
"""The tree only sleeps, which is a hang: the looks at all of it that follow once are measured by themselves."""
NO_CARDS: Mapping[str, str] = {}
KEYS_ANSWERED = b"\x1b[?1004h"
"""Textual asks for reports of the focus as it begins to read keys."""


def build_cards(folder: str, tree: int) -> Mapping[str, str]:
    """Compile the eight cards of cards.c and return the environment in which tpmon finds them.

    Each card lists one rank of the tree. Raises FileNotFoundError where there is no C compiler.
    """
    return build_library(folder) | {"TPMON_BENCH_PIDS": ",".join(map(str, sorted(children_of(tree))))}


def start_tree() -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "tree_program.py"), "--processes", str(PROCESSES)]
    command += ["--threads", str(THREADS), "--waking", str(WAKING), "--torch"]
    tree = subprocess.Popen(command, stdout=subprocess.PIPE)
    tree.stdout.readline()
    return tree


def start_jobs(folder: str, *, torch: bool = True) -> list[subprocess.Popen[bytes]]:
    """Start ``JOBS`` jobs of ``PER_JOB`` processes each, whose output goes to a log; without ``torch`` at once."""
    command = [
        sys.executable,
        str(HERE / "tree_program.py"),
        "--processes",
        str(PER_JOB),
        "--threads",
        str(4 * PER_JOB),
    ]
    command += ["--waking", "10", *(["--torch"] if torch else [])]
    logs = [Path(folder, f"job{at}.log") for at in range(JOBS)]
    jobs = []
    for log in logs:
        with log.open("wb") as file:
            jobs.append(subprocess.Popen(command, stdout=file))
    for log in logs:
        while not log.read_bytes().startswith(b"ready"):
            time.sleep(0.1)
    return jobs


def end_jobs(jobs: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in jobs:
        one.terminate()
    for one in jobs:
        one.wait()


def print_cost(name: str, cost: Cost) -> None:
    print(
        f"{name:<34} {cost.cpu_pct:6.2f} {cost.children_cpu_pct:6.2f} {cost.rss_mb:7.1f} "
        f"{cost.children_rss_mb:7.1f} {cost.descriptors:6d} {cost.bytes_s / 1000:7.1f}"
    )


def print_list_cost(seconds: float) -> None:
    """Print what the live list of all jobs costs."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = start_jobs(folder)
        try:
            screen = Screen(TPMON, 120, 40, NO_CARDS)
            screen.until(b"JUDGED", 30.0)
            screen.drain(LISTED_S)
            print_cost(f"tpmon, {JOBS} jobs, {JOBS * PER_JOB} processes", screen.cost_over(seconds))
            screen.close()
        finally:
            end_jobs(jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    print(say_neighbours())

    helps = [run_cpu_seconds([*TPMON, "--help"]) * 1000 for _ in range(9)]
    bare = [run_cpu_seconds([sys.executable, "-c", ""]) * 1000 for _ in range(9)]
    print(f"--help: {statistics.median(helps):.0f} ms CPU (python alone {statistics.median(bare):.0f} ms)")

    tree = start_tree()
    pid = str(tree.pid)
    library = tempfile.TemporaryDirectory()
    try:
        cards = build_cards(library.name, tree.pid)
        firsts, loaded, imports = [], [], []
        for _ in range(7):
            imports.append(measure_import())
            screen = Screen([*TPMON, "attach", pid, *NO_LOOKS], 200, 50, {})
            firsts.append(screen.until(b"machine", 20.0))
            loaded.append(screen.until(KEYS_ANSWERED, 20.0))
            screen.close()
        print(
            f"first frame at 200x50: {statistics.median(f.cpu_s for f in firsts):.2f} s CPU, "
            f"{statistics.median(f.wall_s for f in firsts):.2f} s wall; "
            f"keys are answered after {statistics.median(f.cpu_s for f in loaded):.2f} s CPU, "
            f"{statistics.median(f.wall_s for f in loaded):.2f} s wall; "
            f"importing textual alone {statistics.median(imports):.2f} s CPU (medians of 7, in turn)"
        )
        print(f"tree: {PROCESSES} processes, {THREADS} threads, {WAKING} waking")
        print(f"{'one core = 100 %':<34} {'CPU %':>6} {'child':>6} {'RSS MB':>7} {'child':>7} {'fds':>6} {'KB/s':>7}")
        for name, width, height, env in (
            ("tpmon 200x50, 8 cards", 200, 50, cards),
            ("tpmon 200x50, no card", 200, 50, NO_CARDS),
            ("tpmon 80x24, 8 cards", 80, 24, cards),
            ("tpmon 40x50, 8 cards", 40, 50, cards),
        ):
            screen = Screen([*TPMON, "attach", pid, *NO_LOOKS], width, height, env)
            screen.until(KEYS_ANSWERED, 20.0)
            screen.drain(15.0)
            print_cost(name, screen.cost_over(options.seconds))
            screen.close()
        peers = {
            "tpmon --json, 8 cards": [*TPMON, "attach", pid, *NO_LOOKS, "--json"],
            "top -H -b -d 1": ["top", "-H", "-b", "-d", "1"],
            "pidstat -t 1": ["pidstat", "-t", "1"],
        }
        for name, command in peers.items():
            if shutil.which(command[0]) is None:
                print(f"{name:<34} not installed")
                continue
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(cards)
            )
            time.sleep(15.0)
            print_cost(name, cost_of(process.pid, lambda: time.sleep(options.seconds)))
            process.kill()
            process.wait()
        if shutil.which("htop"):
            screen = Screen(["htop", "-d", "10"], 200, 50, {"HTOPRC": os.devnull})
            screen.drain(5.0)
            print_cost("htop -d 10, 200x50", screen.cost_over(options.seconds))
            screen.close()
    finally:
        library.cleanup()
        tree.terminate()
        tree.wait()
    print_list_cost(3 * options.seconds)


if __name__ == "__main__":
    main()
