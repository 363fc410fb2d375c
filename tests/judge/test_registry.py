"""Causes come from the table of kinds, evidence from the registry of figures: none is written twice."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tpmon.model.frame import HISTORIES, Ages, GroupTexts
from tpmon.model.verdict import TABLE, Figure

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


def test_evidence_is_made_by_a_row_of_the_registry_alone():
    makers = {
        str(path.relative_to(TPMON))
        for path in TPMON.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Evidence"
    }
    assert makers == {"judge/answers/result.py"}


def test_each_row_of_the_registry_is_used_and_dated():
    used = {
        node.attr
        for path in (TPMON / "judge").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Figure"
    }
    assert used == set(Figure.__members__)
    assert len(Figure) == len(Figure.__members__)  # two rows that are the same would be one
    groups = {field.name for field in fields(Ages)}
    assert {one.group for one in Figure} - {""} <= groups
    assert groups == {field.name for field in fields(GroupTexts)}


def test_the_name_of_a_figure_with_a_history_stands_in_the_registry_alone():
    names = HISTORIES.keys() - {"runnable"}  # which is also a key of JSON
    for path in (*(TPMON / "judge").rglob("*.py"), *(TPMON / "ui").rglob("*.py")):
        assert names.isdisjoint(_constants(ast.parse(path.read_text()))), path
