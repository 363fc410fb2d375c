"""What a trace costs to read, beside what Python's own JSON reader takes for the same file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.budget.bench_trace import ROOT, measure, tile

pytestmark = pytest.mark.budget
MEGABYTES = 12
JSON = "import json, sys; json.load(open(sys.argv[1]))"


def test_the_analysis_beside_its_start_costs_about_what_json_does(tmp_path: Path) -> None:
    """json takes 1.3 s and 561 MB for 106 MB; tpmon has to start, import numpy and write tables too."""
    path = tmp_path / "rank0.json"
    tile(path, MEGABYTES, "")
    ours = min(measure([sys.executable, "-m", "tpmon", "trace", str(path)], str(ROOT)) for _try in range(2))
    plain = min(measure([sys.executable, "-c", JSON, str(path)], str(ROOT)) for _try in range(2))
    start = min(measure([sys.executable, "-c", "import numpy, msgspec"], str(ROOT)) for _try in range(2))
    print(f"tpmon trace {ours[0]:.2f} s, {ours[1]:.0f} MB; json {plain[0]:.2f} s, {plain[1]:.0f} MB")
    assert ours[0] - 2 * start[0] < 1.6 * plain[0]
    assert ours[1] < start[1] + 45
