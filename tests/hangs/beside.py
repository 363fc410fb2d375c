"""Hang some programs beside each other and attach to all of them, while other tests run.

``python -m tests.hangs.beside FILE`` writes a line for each to FILE as soon as it was looked at.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from tests.hangs.looking import look, watch_alive
from tests.hangs.programs import Trees, start_trees
from tests.hangs.results import Result, read
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, AliveRow, Row
from tests.verdicts.results import append

ROOT = Path(__file__).parents[2]
NAMES = ("lock_held", "blocked_fifo", "missing_rank", "slow_step")
LIFE_S = 400.0
CROWDED_S = 150.0
"""How long a verdict may take on the machine of a test, which has other things to do; 31 s when it has none."""
SLOW_S = 40.0
"""The matrix looks at slow programs for longer."""
SEED = 3
"""With this seed every job is of two ranks."""


class Beside:
    """Look at the programs in a process of its own, from now on."""

    def __init__(self, folder: Path) -> None:
        self._path, self._log = folder / "results.jsonl", folder / "output.log"
        with self._log.open("wb") as output:
            command = [sys.executable, "-m", "tests.hangs.beside", str(self._path)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)

    def wait_for(self, name: str) -> Result:
        self._process.wait(LIFE_S)
        found = {one.name: one for one in read(self._path)}
        assert name in found, self._log.read_text()
        return found[name]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def _look(row: Row | AliveRow, trees: Trees) -> Result:
    try:
        trees.wait_until_ready()
    except CannotBeMadeError as error:
        return Result(row.name, SEED, 0.0, "", (), -1.0, (), "", skipped=str(error))
    if isinstance(row, Row):
        return look(row, SEED, 0.0, trees, CROWDED_S)
    return watch_alive(row, SEED, trees, SLOW_S)


def _end(*_: object) -> NoReturn:
    raise SystemExit(1)


def main(path: Path) -> None:
    signal.signal(signal.SIGTERM, _end)
    rows = [row for row in (*ROWS, *ALIVE_ROWS) if row.name in NAMES]
    with ThreadPoolExecutor(len(rows)) as pool, ExitStack() as stack:
        started = [(row, stack.enter_context(start_trees(row, SEED, LIFE_S))) for row in rows]
        looks = [pool.submit(_look, row, trees) for row, trees in started]
        for one in looks:
            append(path, one.result())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
