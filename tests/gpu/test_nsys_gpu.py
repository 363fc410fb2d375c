"""On a machine with an NVIDIA GPU and nsys: ranges that are captured under it, and those that are refused."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.running import Stepping, step
from tests.programs.capturing import TPMON, capture
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("card")

STEPS = 3
RANGES = 2
WRITTEN_S = 120.0
GOES_ON = 20
"""Steps after a range that show that the loop goes on."""
KERNELS = "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
MARKS = (
    "SELECT COUNT(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON NVTX_EVENTS.textId = StringIds.id"
    " WHERE COALESCE(NVTX_EVENTS.text, StringIds.value) LIKE 'step %'"
)


def goes_on(run: Stepping) -> bool:
    steps = len(run.read())
    return wait_until(lambda: len(run.read()) >= steps + GOES_ON) and run.is_running


def capture_range(run: Stepping, out: Path) -> tuple[int, dict[str, Any], str]:
    return capture(run.pid, "--cuda-profiler", "--steps", str(STEPS), "--out", str(out))


def list_reports(folder: Path) -> list[Path]:
    """List the reports that are whole, oldest first: nsys writes them beside their names."""
    return sorted(folder.glob("*.nsys-rep"), key=lambda one: one.stat().st_mtime_ns)


def count_rows(nsys: str, report: Path, query: str) -> int:
    """Have nsys export a report as a database, and ask that."""
    database = report.with_suffix(".sqlite")
    if not database.exists():
        export = [nsys, "export", "--type=sqlite", f"--output={database}", str(report)]
        subprocess.run(export, check=True, capture_output=True, timeout=WRITTEN_S)
    with closing(sqlite3.connect(database)) as opened:
        (count,) = opened.execute(query).fetchone()
    return count


def test_two_ranges_of_a_run_under_nsys_are_two_reports_and_the_run_goes_on(nsys: str, tmp_path: Path) -> None:
    with step("layers", tmp_path, *TPMON, "run", "--nsys", "--") as run:
        for number in range(1, RANGES + 1):
            code, told, said = capture_range(run, tmp_path / f"out{number}")
            assert (code, told.get("state")) == (0, "done"), said
            assert told["ranks"][0]["steps"] == STEPS
            wrote = wait_until(lambda many=number: len(list_reports(tmp_path)) >= many, WRITTEN_S, 0.5)
            assert wrote, f"no report of range {number}: {sorted(path.name for path in tmp_path.iterdir())}"
            assert goes_on(run)
        reports = list_reports(tmp_path)
        assert len(reports) == RANGES
        for report in reports:
            assert count_rows(nsys, report, KERNELS) > 0
            assert count_rows(nsys, report, MARKS) == STEPS
        assert goes_on(run)


def test_a_trace_is_refused_where_nsys_records_the_card(nsys: str, tmp_path: Path) -> None:
    with step("layers", tmp_path, *TPMON, "run", "--nsys", "--") as run:
        code, _, said = capture(run.pid, "--out", str(tmp_path / "out"))
        assert code == 2
        assert "profiling slot" in said
        assert goes_on(run)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--capture-range=cudaProfilerApi",), "--capture-range-end=stop-shutdown of nsys can end the run"),
        (
            ("--capture-range=cudaProfilerApi", "--capture-range-end=stop-shutdown"),
            "--capture-range-end=stop-shutdown of nsys can end the run",
        ),
        ((), "lacks --capture-range=cudaProfilerApi"),
    ],
    ids=["by default", "as asked", "without a range"],
)
def test_a_range_is_refused_under_an_nsys_that_it_would_end_the_run_of(
    nsys: str, tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    with step("layers", tmp_path, nsys, "profile", "--sample=none", *flags) as run:
        code, _, said = capture_range(run, tmp_path / "out")
        assert code == 2
        assert reason in said
        assert goes_on(run)
