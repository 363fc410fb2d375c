"""Hang some programs beside each other and attach to all of them, while other tests run.

``python -m tests.hangs.beside FILE`` writes a line for each to FILE as soon as it was looked at.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.hangs.abreast import Abreast
from tests.hangs.results import Result
from tests.programs.hangs.table import ALIVE_ROWS, ROWS
from tests.verdicts.results import append, read

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
        found = {one.name: one for one in read(self._path, Result)}
        assert name in found, self._log.read_text()
        return found[name]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def main(path: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = [replace(row, fresh_s=CROWDED_S) for row in ROWS if row.name in NAMES]
    slow = [replace(row, watch_s=SLOW_S) for row in ALIVE_ROWS if row.name in NAMES]
    Abreast(len(NAMES), len(NAMES), 0, 0.0, partial(append, path)).run([(row, SEED) for row in (*rows, *slow)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
