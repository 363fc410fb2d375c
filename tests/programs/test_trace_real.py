"""Traces that torch makes here give the cause that was put into the training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tpmon.model.known import is_known
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import analyze

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).with_name("trace_train.py")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("traces")
    subprocess.run([sys.executable, str(PROGRAM), str(place)], check=True, timeout=500, capture_output=True)
    return place


def test_a_loader_without_workers_holds_the_run(traces: Path) -> None:
    file = analyze([str(traces / "workers0.pt.trace.json")]).files[0]
    assert (file.verdict.kind, file.verdict.cause) == (Kind.DATA_BOUND, "no-workers")
    assert file.overview.steps == 3
    assert file.lost.events == 0
    assert file.host_us.data / 3 >= 8 * 4_000  # eight samples of 4 ms each


def test_sleeping_between_operators_is_python(traces: Path) -> None:
    file = analyze([str(traces / "python.pt.trace.json")]).files[0]
    assert (file.verdict.kind, file.verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert file.host_us.other / 3 >= 50_000
    assert file.memory.peaks[0].kind == "cpu"
    assert is_known(file.memory.peaks[0].allocated_bytes)


def test_the_command_prints_text_json_and_tables(traces: Path) -> None:
    command = [sys.executable, "-m", "tpmon", "trace", str(traces)]

    def run(*more: str) -> str:
        done = subprocess.run([*command, *more], check=True, timeout=120, capture_output=True, text=True)
        return done.stdout

    assert "PYTHON-BOUND (single-thread)" in run()
    report = json.loads(run("--json"))
    assert report["schema"] == "tpmon.trace/1"
    assert [len(report["files"]), report["files"][0]["gaps"]] == [2, []]
    lines = run("--csv", "operators").splitlines()
    assert lines[0].startswith("path,rank,name,calls,host_total_us")
    assert any(",aten::addmm," in line for line in lines)
