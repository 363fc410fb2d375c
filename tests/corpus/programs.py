"""Every program that is recorded, from the tables of the other matrices: how it starts, for how long, with what truth."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.corpus.truth import Truth
from tests.frameworks.matrix import read_versions, run_row
from tests.frameworks.table import ROWS as FRAMEWORK_ROWS
from tests.frameworks.table import Row as FrameworkRow
from tests.hangs.programs import HANGS, start_trees
from tests.programs.causes.running import ROOT, run_program
from tests.programs.causes.table import ATTACH_S, ROWS, Row
from tests.programs.hangs.table import ALIVE_ROWS, AliveRow
from tests.programs.hangs.table import ROWS as HANG_ROWS
from tests.programs.hangs.table import Row as HangRow
from tests.verdicts.matrix import SETTLE_S
from tpmon.model.verdict import Kind

LEAST_S = 60.0
MOST_S = 120.0
"""What takes longer to be called hung is asked to be, by ``--hang-after``, or computes and is recorded for longer."""
SOON = ("--hang-after", "30")
MORE_S = 400.0
"""How long a program lives beyond its recording: starting, above all."""
FRAMEWORKS_PYTHON = ROOT / ".venv-frameworks/bin/python"


@dataclass(frozen=True)
class Recorded:
    """Hold a program as it is recorded: ``start`` gives the PID once it shows its cause, from a seed.

    One that ``computes`` wants a CPU of its own. ``flags`` go to tpmon.
    """

    name: str
    truth: Truth
    seconds: float
    computes: bool
    start: Callable[[int], AbstractContextManager[int]]
    flags: tuple[str, ...] = ()


def _of_cause(row: Row) -> Recorded:
    # What is right of a short watch is not right later: it is young.
    seconds = row.watch_s if row.watch_s < ATTACH_S else max(LEAST_S, row.watch_s)

    @contextmanager
    def start(seed: int) -> Iterator[int]:
        with run_program(row, seed, seconds=seconds + MORE_S) as running:
            time.sleep(SETTLE_S if row.is_healthy else 0)
            yield running.pid

    computes = row.label.kind not in (Kind.HUNG, Kind.IDLE)
    return Recorded(f"causes/{row.name}", Truth((row.label, *row.also)), seconds, computes, start, row.flags)


def _of_hang(row: HangRow) -> Recorded:
    late = row.fresh_s > MOST_S
    seconds = row.fresh_s if late and row.burns else MOST_S if late else LEAST_S
    flags = SOON if late and not row.burns else ()
    truth = Truth((row.label, *row.also))
    return Recorded(f"hangs/{row.name}", truth, seconds, row.burns, lambda seed: _hang(row, seed, seconds), flags)


def _of_alive(row: AliveRow) -> Recorded:
    return Recorded(
        f"alive/{row.name}", Truth(()), MOST_S, row.burns or row.folder != HANGS, lambda seed: _hang(row, seed, MOST_S)
    )


@contextmanager
def _hang(row: HangRow | AliveRow, seed: int, seconds: float) -> Iterator[int]:
    with start_trees(row, seed, seconds + MORE_S) as trees:
        trees.wait_until_ready()
        yield trees.seen.pid


def _of_framework(row: FrameworkRow, python: str) -> Recorded:
    @contextmanager
    def start(_seed: int) -> Iterator[int]:
        with run_row(row, python, int(LEAST_S + MORE_S)) as running:
            yield running.pid

    name = f"frameworks/{row.framework.program}-{row.fault.value}"
    return Recorded(name, Truth(row.expected), LEAST_S, True, start)


def list_programs() -> list[Recorded]:
    """List what can be recorded here; frameworks as far as an interpreter has them."""
    python = str(FRAMEWORKS_PYTHON) if Path(FRAMEWORKS_PYTHON).exists() else sys.executable
    needed = {name for row in FRAMEWORK_ROWS for name in ("torch", *row.framework.packages)}
    found = read_versions(python, sorted(needed)).keys() if importlib.util.find_spec("torch") else ()
    frameworks = [row for row in FRAMEWORK_ROWS if {"torch", *row.framework.packages} <= set(found)]
    return [
        *map(_of_cause, ROWS),
        *map(_of_hang, HANG_ROWS),
        *map(_of_alive, ALIVE_ROWS),
        *(_of_framework(row, python) for row in frameworks),
    ]
