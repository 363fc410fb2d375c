"""docs/thresholds.md names every number at the top of a module that decides, with its value of today."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "thresholds.md"
JUDGES = sorted((ROOT / "tpmon" / "judge").rglob("*.py"))
SHARED = ROOT / "tpmon" / "model" / "gpu.py"
"""What a Frame says of its cards is decided as the judge decides it."""
MODULES = {
    str(path.relative_to(ROOT / "tpmon"))[:-3].replace("/", "."): path
    for path in (*JUDGES, SHARED)
    if path.stem != "__init__"
}
ROW = re.compile(r"^\| `([\w.]+\.\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

Number = int | float
Threshold = Number | list[Number] | dict[Number, Number]

SCALES: dict[str, Number] = {
    "": 1,
    "s": 1,
    "%": 1,
    "C": 1,
    "W": 1,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "MiB/s": 1 << 20,
    "GiB": 1 << 30,
}
NO_THRESHOLDS = {
    "judge.advice.facts._GIB",
    "judge.dumps.hot.TOP",
    *(f"model.gpu.{kind}_XIDS" for kind in ("HARMLESS", "RESTART", "APPLICATION")),
}
"""Constants that only name a unit, a mark, or errors of a card by their number."""


def is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_threshold(value: object) -> Threshold | None:
    """Return a number, a set of numbers or a table of numbers as the page writes it; else None."""
    if is_number(value):
        return value
    if isinstance(value, frozenset) and value and all(map(is_number, value)):
        return sorted(value)
    if isinstance(value, Mapping) and value and all(map(is_number, (*value, *value.values()))):
        return dict(value)
    return None


def find_names(tree: ast.Module) -> list[str]:
    """Return the upper-case names that a module itself assigns at its top level."""
    targets: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets += target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets.append(node.target)
    return [one.id for one in targets if isinstance(one, ast.Name) and one.id.isupper()]


def read_program() -> dict[str, Threshold]:
    """Return every threshold by ``module.NAME``."""
    found = {}
    for stem, path in MODULES.items():
        module = importlib.import_module(f"tpmon.{stem}")
        for name in find_names(ast.parse(path.read_text(encoding="utf-8"))):
            value = as_threshold(getattr(module, name))
            if value is not None and f"{stem}.{name}" not in NO_THRESHOLDS:
                found[f"{stem}.{name}"] = value
    return found


def parse_number(text: str) -> Number:
    digits, _, unit = text.strip().partition(" ")
    return float(digits.replace(",", "")) * SCALES[unit]


def parse_value(text: str) -> Threshold:
    """Read a cell: ``0.25``, ``20 MB/s``, ``13, 31, 43`` or ``1: 0.25, 2: 0.5``."""
    parts = text.split(", ")
    if ":" in text:
        return {parse_number(key): parse_number(value) for key, value in (part.split(":") for part in parts)}
    return parse_number(text) if len(parts) == 1 else [parse_number(part) for part in parts]


def read_page() -> list[tuple[str, str, str, str]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_the_page_and_the_program_name_the_same_thresholds() -> None:
    named = [name for name, *_ in read_page()]
    assert len(set(named)) == len(named)
    assert set(named) - set(read_program()) == set(), "no longer in the program"
    assert set(read_program()) - set(named) == set(), "add a row to docs/thresholds.md"


def test_every_value_is_of_today() -> None:
    program = read_program()
    wrong = {
        name: (value, program[name])
        for name, value, *_ in read_page()
        if parse_value(value) != pytest.approx(program[name], rel=1e-9)
    }
    assert wrong == {}


def test_every_row_of_a_table_is_read() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(read_page())


def test_every_row_says_where_its_value_comes_from() -> None:
    origins = re.compile(r"(measured|documented|reported|chosen|definition|as|the)\b")
    assert [name for name, _, _, origin in read_page() if not origins.match(origin)] == []
