"""End tpmon by SIGKILL right after each of its writes into a running Python, and see whether that goes on.

``python -m tests.inject.killed --runs 200 --python PATH``. As a program of its own with ``--pid`` it is the tpmon
that is killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

from tests.inject.targets import LOOP_ENDS, find, looping
from tpmon.inject.late_hook import LateHook
from tpmon.inject.refusal import RefusedError
from tpmon.model.process import Identity

POINTS = ("text", "slot", "end", "flag", "breaker")


def kill_at(point: str, process: Identity) -> None:
    """Put the hook in, and die right after that write."""

    def on_write(done: str) -> None:
        if done == point:
            os.kill(os.getpid(), signal.SIGKILL)

    LateHook(process, on_write=on_write).install()


def run(python: str, point: str, pairs: int = 1) -> str:
    """Kill a tpmon at a point, then put the hook in and out; return what the program then says, "" when right."""
    with looping(python) as job:
        process = find(job)
        command = [sys.executable, "-m", "tests.inject.killed", "--pid", str(process.pid)]
        for _ in range(pairs):
            killed = subprocess.run(
                [*command, str(process.start_ticks), point], capture_output=True, text=True, check=False
            )
            if killed.returncode not in (-signal.SIGKILL, 0):
                return killed.stderr
            try:
                results = LateHook(process).install(), LateHook(process).remove()
                LateHook(process).check()
            except RefusedError as error:
                return str(error)
            if [one.state.value for one in results] != ["installed", "removed"]:
                return str(results)
        said = job.communicate(timeout=60)
    return "" if said == (LOOP_ENDS, "") and job.returncode == 0 else f"{said} {job.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pid", nargs=3, metavar=("PID", "START", "POINT"))
    asked = parser.parse_args()
    if asked.pid:
        kill_at(asked.pid[2], Identity(int(asked.pid[0]), int(asked.pid[1])))
        return 0
    wrong = 0
    for number in range(asked.runs // 5):
        point = POINTS[number % len(POINTS)]
        found = run(asked.python, point, pairs=5)
        wrong += bool(found)
        if found:
            print(point, found, flush=True)
    print(f"{asked.python}: killed {asked.runs // 5 * 5} times at {', '.join(POINTS)}: {wrong} programs wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
