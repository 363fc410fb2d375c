"""Print what ``tpmon trace`` says that a recording adds to the times of the host, beside the truth.

Loops on a CPU time their own steps, bare and while they are recorded. ``own``: by torch's profiler, with each set of
options, with and without a schedule. ``hook``, ``kineto``: by ``tpmon capture``, which writes the steps around its window
into the trace. ``made``: by ``tpmon.hook.make_profiler``. Run: ``python -m tests.verdicts.weight``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.programs.capturing import HERE, TPMON, capture, start, started
from tpmon.model.known import is_known
from tpmon.trace.analysis import analyze
from tpmon.trace.figures.steps import find_steps
from tpmon.trace.reading.read import read_trace

PROGRAM = str(HERE / "weight_loops.py")
FLAGS = {"plain": (), "shapes": ("--shapes",), "memory": ("--memory",), "stacks": ("--stacks",)}
FLAGS["all"] = tuple(flag for flags in FLAGS.values() for flag in flags)
LOOPS = (
    *("small_linears", "large_linears", "small_adam", "convolutions"),
    *("transformer", "recurrent", "bags", "python_heavy"),
)
SETTLE_S, BARE_S = 1.0, 3.0
ALLOWED = 0.2
_INFLATED = re.compile(r"inflated (\d+\.\d+) x")


@dataclass(frozen=True, slots=True)
class Weighed:
    """Hold one trace: the truth in ms, and what is said of it."""

    loop: str
    how: str
    options: str
    bare_ms: float
    during_ms: float
    said: str
    drift: float = 1.0
    """By how much the bare steps around it differ from each other: the machine alone does that."""

    @property
    def truth(self) -> float:
        return self.during_ms / self.bare_ms

    @property
    def ratio(self) -> float | None:
        """Return by how much it is said to be inflated, None where nothing is said."""
        found = _INFLATED.search(self.said)
        return float(found[1]) if found else None

    @property
    def holds(self) -> bool:
        return self.off <= ALLOWED

    @property
    def off(self) -> float:
        """Return how far what is said is from the truth, as a part of it."""
        return math.inf if self.ratio is None else abs(self.ratio / self.truth - 1)

    def __str__(self) -> str:
        return f"{self.loop} by {self.how}, {self.options}: {self.write_cell()}"

    def write_cell(self) -> str:
        said = "-" if self.ratio is None else f"{self.ratio:.1f}"
        return f"{self.truth:.2f}/{said}{'' if self.holds or self.ratio is None else '!'}"


def write_table(found: Sequence[Weighed]) -> list[str]:
    """Return a line for each loop and recorder: truth and what is said by options, "!" where further off than a fifth."""
    options = list(dict.fromkeys(one.options for one in found))
    lines = [f"loop | recorded by | {' | '.join(options)}", "---|---" + "|---" * len(options)]
    for loop, how in dict.fromkeys((one.loop, one.how) for one in found):
        cells = {one.options: one.write_cell() for one in found if (one.loop, one.how) == (loop, how)}
        lines.append(f"{loop} | {how} | {' | '.join(cells.get(one, '-') for one in options)}")
    return lines


def read_weight(path: str) -> str:
    weight = analyze([path]).files[0].verdict.weight
    return weight if is_known(weight) else ""


def weigh_own(loop: str, folder: str, *, made: bool = False, steady: int = 0) -> Iterator[Weighed]:
    """Have a program profile itself, so many times steadily or once, and read what is said of its traces."""
    flags = ["--steady", str(steady), *(["--made"] if made else [])]
    with start([sys.executable, "-W", "ignore", PROGRAM, folder, "--loops", loop, *flags]) as job:
        said, error = job.communicate()
    assert job.returncode == 0, error
    for line in said.splitlines():
        told = json.loads(line)
        how = "make_profiler" if made else f"own, {'schedule' if told['schedule'] else 'whole'}"
        weight = read_weight(told["path"])
        yield Weighed(loop, how, told["options"], told["bare_ms"], told["during_ms"], weight, told["drift"])
        Path(told["path"]).unlink()


def weigh_captured(loop: str, options: str, folder: str, *, kineto: bool) -> Weighed:
    """Capture a loop by tpmon, and compare with the loop's own log."""
    log = Path(folder) / "log"
    command = [*TPMON, "run", *(["--kineto"] if kineto else []), "--", sys.executable, "-W", "ignore", PROGRAM]
    with started([*command, folder, "--loops", loop, "--serve", str(log)]) as job:
        time.sleep(SETTLE_S + BARE_S)
        out = str(Path(folder) / f"{loop}-{options}-{kineto}")
        code, _, said = capture(job.pid, "--steps", "12", "--out", out, "--yes", *FLAGS[options])
        assert code == 0, said
        time.sleep(1.0)
    (path,) = map(str, Path(out).glob("*.gz"))
    trace = read_trace(path)
    steps = find_steps(trace)
    base_ns = trace.header.base_time_ns or 0
    begin, end = (base_ns + ns for ns in steps.host_window)
    rows = [tuple(map(int, line.split())) for line in log.read_text().splitlines() if line.count(" ") == 1]
    during = [took for ended, took in rows if ended - took >= begin - 1e6 and ended <= end + 1e6]
    bare = [took for ended, took in rows if begin - BARE_S * 1e9 <= ended <= begin]
    how = "kineto" if kineto else "hook"
    return Weighed(
        loop, how, options, statistics.median(bare) / 1e6, statistics.median(during) / 1e6, read_weight(path)
    )


def main() -> int:
    """Print the table; exit 1 where what is said is further from the truth than a fifth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--options", default=",".join(FLAGS))
    parser.add_argument("--how", default="hook,kineto,made,own")
    asked = parser.parse_args()
    found: list[Weighed] = []
    for loop in asked.loops.split(","):
        for how in asked.how.split(","):
            with tempfile.TemporaryDirectory() as folder:
                if how in ("own", "made"):
                    rows = weigh_own(loop, folder, made=how == "made")
                else:
                    kinds = asked.options.split(",")
                    rows = (weigh_captured(loop, kind, folder, kineto=how == "kineto") for kind in kinds)
                for row in rows:
                    found.append(row)
                    print(row, flush=True)
    print("\n".join(["", *write_table(found)]))
    told = [row for row in found if row.ratio is not None]
    wrong = [row for row in told if not row.holds]
    print(f"\n{len(found)} traces, {len(told)} with a figure, {len(wrong)} of these further off than 20 %")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
