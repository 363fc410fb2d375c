"""Programs of the project that were made after public bug reports: each says which, and has its truth in the table."""

import ast
import os
import re

import pytest

from tests.corpus.own_reports import FOLDER, ROWS
from tests.corpus.reports import start_report
from tests.torch_build import needs_torch

PROGRAMS = sorted(FOLDER.rglob("*.py"))
REPORT = re.compile(r"[^\n]+\.\n\nReport: [\w.-]+/[\w.-]+#\d+\n", re.ASCII)
FEWEST_LINES, MOST_LINES = 12, 40


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_compiles_is_short_and_names_its_report(path):
    source = path.read_text()
    compile(source, path, "exec")
    assert FEWEST_LINES <= len(source.splitlines()) <= MOST_LINES
    assert REPORT.fullmatch(ast.get_docstring(ast.parse(source), clean=False))
    assert "signal.alarm(600)" in source, "it ends by itself"


def test_each_program_has_a_truth_and_each_truth_a_program():
    named = [f"{folder}/{row.name}.py" for folder, rows in ROWS.items() for row in rows]
    assert sorted(named) == [str(path.relative_to(FOLDER)) for path in PROGRAMS]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_lines_that_are_to_blame_are_lines_of_the_program(path):
    rows = {row.name: row for rows in ROWS.values() for row in rows}
    lines = path.read_text().splitlines()
    for places in re.findall(rf"{path.stem}\\\.py:(\(.*?\)|\d+)", rows[path.stem].place):
        assert all(lines[int(place) - 1].strip() for place in re.findall(r"\d+", places))


@needs_torch
@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("name", ["soft_lock_left", "early_stop_one_rank"])
def test_a_program_reaches_its_hang_and_stays_there(name):
    row = next(row for row in ROWS["hangs"] if row.name == name)
    with start_report(row, FOLDER / "hangs", 0) as pid:
        assert os.path.exists(f"/proc/{pid}/exe")
