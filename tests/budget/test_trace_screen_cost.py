"""What the first picture of a trace costs: beside the import of what it cannot do without."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.budget.bench_trace import ROOT, measure, tile
from tests.budget.measure import find_working
from tests.pty.conftest import END_S, Terminal, environment

pytestmark = pytest.mark.budget
MEGABYTES = 5
START = "import numpy, msgspec, textual.app"
TIMES_START = 1.9
"""0.5 s for 5 MB, where the import of numpy and textual takes half of it; 1.2 to 1.4 measured."""


def cpu_of_first_picture(path: Path, state: Path) -> float:
    """Return the CPU seconds that all threads of the screen took until its keys were drawn."""
    terminal = Terminal([sys.executable, "-m", "tpmon", "trace", str(path)], environment(state))
    try:
        terminal.until("q quit")
        fields = Path(f"/proc/{find_working(terminal.pid)}/stat").read_text().rpartition(")")[2].split()
        terminal.press("q")
        assert terminal.end(END_S) == 0
    finally:
        terminal.close()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_first_picture_of_5_mb_costs_about_twice_what_numpy_and_textual_do(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    tile(path, MEGABYTES, "")
    pairs = [
        (cpu_of_first_picture(path, tmp_path), measure([sys.executable, "-c", START], str(ROOT))[0])
        for _try in range(3)
    ]
    ours, start = (min(one) for one in zip(*pairs, strict=True))
    print(f"first picture {ours:.2f} s, numpy, msgspec and textual {start:.2f} s")
    assert ours < TIMES_START * start
