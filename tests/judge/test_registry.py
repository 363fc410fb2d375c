"""Causes come from the table of kinds, and figures with a history from their registry: none is written twice."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge.scenes import SCENES
from tests.judge.test_state import follow
from tpmon.model.frame import FIGURES
from tpmon.model.verdict import TABLE

TPMON = Path(__file__).parents[2] / "tpmon"
CAUSES = {cause for row in TABLE for cause in row.causes}


def _constants(node: ast.AST | None) -> Iterator[str]:
    for one in ast.walk(node) if node is not None else ():
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def find_causes(source: str) -> set[str]:
    """Return what a module names as a cause: gives to one, compares with one, or blames."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "cause" and isinstance(node.value, ast.Constant):
            found.update(_constants(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Blame":
            found.update(_constants(node.args[0]))
        elif isinstance(node, ast.Compare):
            parts = (node.left, *node.comparators)
            if any(isinstance(one, ast.Attribute) and one.attr == "cause" for one in parts):
                found.update(text for one in parts for text in _constants(one))
    return found


@pytest.mark.parametrize("path", sorted((TPMON / "judge").rglob("*.py")), ids=lambda path: path.name)
def test_a_rule_names_no_cause_that_the_table_has_not(path):
    assert find_causes(path.read_text()) <= CAUSES


def test_what_a_module_names_as_a_cause_is_found():
    source = "Blame('a', seen); f(cause='b'); one.cause in ('c', 'd'); x = 'e'"
    assert find_causes(source) == {"a", "b", "c", "d"}


def test_the_name_of_a_figure_stands_in_the_registry_alone():
    names = FIGURES.keys() - {"runnable"}  # which is also a key of JSON
    for path in (*(TPMON / "judge").rglob("*.py"), *(TPMON / "ui").rglob("*.py")):
        assert names.isdisjoint(_constants(ast.parse(path.read_text()))), path


def test_evidence_of_a_figure_has_its_unit():
    shown = set()
    for build in SCENES.values():
        (*_, verdict) = follow(build())
        for row in (*verdict.evidence, *verdict.against):
            if row.name in FIGURES:
                shown.add(row.name)
                assert row.unit == FIGURES[row.name].unit
    assert {"CPUs used", "GPU busy", "queue empty"} <= shown
