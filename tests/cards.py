"""Cards that a test can contradict and silence: tests/budget/cards.c in the driver's place.

tpmon runs unchanged over the real pynvml; its header says how a fault is written. A test takes a ``Cards``,
passes ``cards.environment`` to what it starts, and may write other faults while that runs.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "budget" / "cards.c"
NVML = "libnvidia-ml.so.1"


@cache
def compile_library() -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", file.name, str(SOURCE)]
        subprocess.run(command, check=True)
        return Path(file.name).read_bytes()


def build_library(folder: str) -> dict[str, str]:
    """Put the compiled cards into a folder and return the environment in which tpmon finds them.

    Raises FileNotFoundError where there is no C compiler.
    """
    Path(folder, NVML).write_bytes(compile_library())
    return {"LD_LIBRARY_PATH": folder}


class Cards:
    """Hold some cards of cards.c, and the file of their faults."""

    def __init__(self, folder: Path, count: int = 2, pids: Sequence[int] = ()) -> None:
        """Build them in ``folder``; the first ones list ``pids``. Skips the test where there is no C compiler."""
        if shutil.which("cc") is None:
            pytest.skip("no C compiler to build the simulated cards with")
        self._file = folder / "faults"
        self.environment = build_library(str(folder)) | {
            "TPMON_BENCH_PIDS": ",".join(map(str, pids)),
            "TPMON_CARDS": str(count),
            "TPMON_CARDS_FAULTS": str(self._file),
        }

    def fail(self, *faults: str) -> None:
        """Put these faults in the place of all before, at once."""
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{fault}\n" for fault in faults))
        new.replace(self._file)
