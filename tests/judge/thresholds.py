"""Print docs/thresholds.md: the rows of docs/thresholds.toml, with the values that the program has today.

Run as ``python -m tests.judge.thresholds``; ``make docs`` does.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from tpmon.judge.knowledge import read_table

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

Number = int | float
Threshold = Number | list[Number] | dict[Number, Number]

SCALES: dict[str, Number] = {
    **dict.fromkeys(("", "s", "%", "C", "W"), 1),
    "MB/s": 1e6,
    "GB/s": 1e9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "MiB/s": 1 << 20,
    "GiB": 1 << 30,
}
NO_THRESHOLDS = {
    "judge.advice.fields._GIB",
    "judge.folds.hot.TOP",
    *(f"model.gpu.{kind}_XIDS" for kind in ("HARMLESS", "RESTART", "APPLICATION")),
}
"""Constants that only name a unit, a mark, or errors of a card by their number."""


def is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool | Enum)


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
    found = {}
    for stem, path in MODULES.items():
        module = importlib.import_module(f"tpmon.{stem}")
        for name in find_names(ast.parse(path.read_text(encoding="utf-8"))):
            value = as_threshold(getattr(module, name))
            if value is not None and f"{stem}.{name}" not in NO_THRESHOLDS:
                found[f"{stem}.{name}"] = value
    return found


def read_sections() -> dict[str, dict[str, Any]]:
    """Return the rows of the page by section: unit, what it decides, where it comes from."""
    sections: dict[str, dict[str, Any]] = read_table(str(PAGE), "thresholds.toml")["sections"]
    return sections


def write_number(value: Number, unit: str) -> str:
    """Write a number in its unit, with all its digits."""
    scaled = round(value / SCALES[unit], 12)
    text = f"{int(scaled) if scaled == int(scaled) else scaled:,}"
    return f"{text} {unit}" if unit else text


def write_value(value: Threshold, unit: str) -> str:
    """Write a cell: ``0.25``, ``20 MB/s``, ``13, 31, 43`` or ``1: 0.25 GB/s, 2: 0.5 GB/s``."""
    if isinstance(value, list):
        return ", ".join(write_number(one, unit) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {write_number(one, unit)}" for key, one in value.items())
    return write_number(value, unit)


def write_lines() -> Iterator[str]:
    yield read_table(str(PAGE), "thresholds.toml")["introduction"]
    program = read_program()
    for title, rows in read_sections().items():
        yield f"\n## {title}\n"
        if "about" in rows:
            yield rows["about"] + "\n"
        bare = []
        for name, row in rows.items():
            if name == "about":
                continue
            unit, decides, origin = row
            one = f"`{name.removeprefix('judge.')}` {write_value(program[name], unit)}"
            if re.match(r"(chosen|as)\b", origin):
                bare.append(one)
            else:
                yield f"* {one}: {decides} ({origin.replace('`judge.', '`')})"
        if bare:
            yield "\n" + textwrap.fill(f"Chosen: {', '.join(bare)}.", 120, break_long_words=False)


def write_page() -> str:
    return "\n".join(write_lines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_page())
