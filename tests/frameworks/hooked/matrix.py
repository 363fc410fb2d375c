"""Print what the hook counts in loops of public frameworks, beside what was so: steps, and the split.

Each loop is made of parts that take known times (``known.py``) and runs once under ``tpmon run``, in the
Python of the frameworks, which needs no tpmon. Run: ``make test-frameworks``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.frameworks.matrix import read_versions
from tests.programs.causes.running import end_tree

LOOPS = Path(__file__).with_name("loops.py")
ROOT = Path(__file__).parents[3]
MOST_OFF = 0.03
"""Of a step: by so much a phase may be off the truth."""

STEPS = 20
"""Of a loop, beside those in which torch compiles."""

LIMIT_S = 900
PACKAGES = ("torch", "lightning", "accelerate", "transformers", "deepspeed", "numpy")
HEAD = "loop | steps | evaluations | furthest off | right\n---|---|---|---|---"


@dataclass(frozen=True)
class Row:
    """Hold a loop, the packages that it needs besides torch, and how many ranks it has.

    ``launcher`` is a module that starts the script, with its flags, "" for none or torchrun; ``loop`` is
    set where two rows share one.
    """

    name: str
    packages: tuple[str, ...] = ()
    ranks: int = 1
    launcher: str = ""
    loop: str = ""


ROWS = (
    Row("plain"),
    Row("accumulation"),
    Row("zipped"),
    Row("compiled"),
    Row("lightning", ("lightning",)),
    Row("accelerate", ("accelerate",)),
    Row(
        "accelerate launch",
        ("accelerate",),
        launcher="accelerate.commands.launch --cpu --num_processes 1",
        loop="accelerate",
    ),
    Row("dispatched", ("accelerate",), ranks=2),
    Row("hf_trainer", ("transformers", "accelerate")),
    Row("deepspeed", ("deepspeed",), ranks=2),
    Row("zero1", ("deepspeed",), ranks=2),
    Row("zero2", ("deepspeed",), ranks=2),
    Row("zero3", ("deepspeed",), ranks=2),
    Row("overflow", ("deepspeed",), ranks=2),
    Row("ddp", ranks=2),
    Row("fsdp", ranks=2),
    Row("fsdp1", ranks=2),
)


@dataclass(frozen=True)
class Told:
    """Hold what one rank reported: true first, then by the hook; times in s, the phases of a step in order."""

    name: str
    rank: int
    steps: tuple[int, int]
    eval_steps: tuple[int, int]
    skipped: tuple[int, int]
    """Of the steps, those whose update was left out."""

    spent_s: tuple[float, ...]
    told_s: tuple[float, ...]
    fsdp: tuple[int, ...]
    """What the hook told of FSDP: version, units, forward, backward, limit; -1 for what it did not."""

    problem: str

    @property
    def off(self) -> float:
        """Return by how much of a step the worst phase is off."""
        whole = sum(self.told_s) or 1.0
        return max(abs(told - true) / whole for told, true in zip(self.told_s, self.spent_s, strict=True))

    @property
    def is_right(self) -> bool:
        """Tell whether steps are counted exactly and each phase is within bounds."""
        exact = all(true == told for true, told in (self.steps, self.eval_steps, self.skipped))
        known = max(self.fsdp, default=-1) > 0
        return exact and self.off <= MOST_OFF and known == ("FSDP" in self.name) and not self.problem

    def write(self) -> str:
        who = f"{self.name}, rank {self.rank}" if "ranks" in self.name else self.name
        right = "yes" if self.is_right else f"no{': ' + self.problem if self.problem else ''}"
        return (
            f"{who} | {write_counts(self.steps)} | {write_counts(self.eval_steps)} | {100 * self.off:.1f} % | {right}"
        )


def write_counts(counts: tuple[int, int]) -> str:
    """Write what is true and what was counted: once where they are equal."""
    true, told = counts
    return str(true) if true == told else f"{told}, not {true}"


def parse_told(output: str) -> list[Told]:
    found = []
    for line in output.splitlines():
        if not line.startswith("tpmon {"):
            continue
        one = json.loads(line.removeprefix("tpmon "))
        found.append(Told(**{name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}))
    return sorted(found, key=lambda told: told.rank)


def write_command(row: Row, python: str) -> list[str]:
    start = [sys.executable, "-m", "tpmon", "run", "--", python]
    if row.ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.ranks)]
    elif row.launcher:
        start += ["-m", *row.launcher.split()]
    return [*start, str(LOOPS), row.loop or row.name]


def run_row(row: Row, python: str) -> list[str]:
    """Run a loop and return its lines of the table; one that says why where it reported nothing."""
    with tempfile.TemporaryDirectory(prefix="tpmon-frameworks-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"}
        with subprocess.Popen(
            write_command(row, python),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as loop:
            try:
                said = loop.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                return [f"{row.name} | not done in {LIMIT_S} s | | | no"]
            finally:
                if loop.poll() is None:
                    end_tree(loop)
    output, errors = (one.decode(errors="replace") for one in said)
    told = parse_told(output)
    if len(told) == row.ranks and loop.returncode == 0:
        return [replace(one, name=f"{one.name}, by {row.name}").write() if row.loop else one.write() for one in told]
    print(output[-2000:], errors[-4000:], sep="\n", file=sys.stderr)
    return [f"{row.name} | ended with {loop.returncode} | | | no"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the Python that has torch and the frameworks")
    parser.add_argument("--only", default="", help="loops whose name has this in it")
    asked = parser.parse_args(arguments)
    asked.python = os.path.abspath(asked.python)
    versions = read_versions(asked.python, PACKAGES)
    print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
    print(f"tpmon {importlib.metadata.version('tpmon')}\n\n{HEAD}", flush=True)
    wrong = 0
    for row in ROWS:
        if asked.only not in row.name:
            continue
        lacking = [name for name in row.packages if name not in versions]
        if lacking:
            print(f"{row.name} | not run: no {', '.join(lacking)} here | | |", flush=True)
            continue
        for line in run_row(row, asked.python):
            print(line, flush=True)
            wrong += not line.endswith("| yes")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
