"""What a trace costs to read, beside JSON in Python, and its first picture, beside what that cannot do without."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.budget.bench_trace import ROOT, measure, tile
from tests.budget.measure import find_working
from tests.pty.conftest import END_S, Terminal, environment

pytestmark = pytest.mark.budget
JSON = "import json, sys; json.load(open(sys.argv[1]))"


def test_the_analysis_beside_its_start_costs_about_what_json_does(tmp_path: Path) -> None:
    """json takes 1.3 s and 561 MB for 106 MB; tpmon has to start, import numpy and write tables too."""
    path = tmp_path / "rank0.json"
    tile(path, 12, "")
    ours = min(measure([sys.executable, "-m", "tpmon", "trace", str(path)], str(ROOT)) for _try in range(2))
    plain = min(measure([sys.executable, "-c", JSON, str(path)], str(ROOT)) for _try in range(2))
    start = min(measure([sys.executable, "-c", "import numpy, msgspec"], str(ROOT)) for _try in range(2))
    print(f"tpmon trace {ours[0]:.2f} s, {ours[1]:.0f} MB; json {plain[0]:.2f} s, {plain[1]:.0f} MB")
    assert ours[0] - 2 * start[0] < 1.6 * plain[0]
    assert ours[1] < start[1] + 45


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
    tile(path, 5, "")
    pairs = [
        (cpu_of_first_picture(path, tmp_path), measure([sys.executable, "-c", START], str(ROOT))[0])
        for _try in range(3)
    ]
    ours, start = (min(one) for one in zip(*pairs, strict=True))
    print(f"first picture {ours:.2f} s, numpy, msgspec and textual {start:.2f} s")
    assert ours < TIMES_START * start
