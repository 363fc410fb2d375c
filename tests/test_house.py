"""The layout that a stranger finds: small folders, files of one idea, a purpose for each, names used once."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import WAITS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tpmon"
MOST_FILES = 15
MOST_LINES = 600
MODULES = sorted(PACKAGE.rglob("*.py"))
TABLES = sorted([*PACKAGE.rglob("*.toml"), *PACKAGE.rglob("*.txt")])
FOLDERS = sorted({path.parent for path in MODULES if path.parent.name != "boot"})
VAGUE = {"base", "common", "helpers", "manager", "misc", "utils", "util", "stuff"}
"""Names that say nothing of what is in them; ``probe.base`` is a layer, and has it in its contract."""


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def read_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def has_purpose(path: Path) -> bool:
    return bool(ast.get_docstring(read_module(path)))


def test_a_folder_is_small_and_says_what_it_is_for():
    assert [one for one in FOLDERS if len(list(one.glob("*.py"))) > MOST_FILES] == []
    assert [one for one in FOLDERS if not has_purpose(one / "__init__.py")] == []


def test_a_file_holds_one_idea_of_at_most_600_lines():
    assert [one for one in (*MODULES, *TABLES) if len(one.read_text().splitlines()) > MOST_LINES] == []
    assert [one for one in MODULES if not has_purpose(one)] == []
    assert [one for one in MODULES if one.stem in VAGUE] == []


def test_tables_go_with_the_package():
    assert (
        '[tool.setuptools.package-data]\n"*" = ["*.toml", "*.txt", "py.typed"]' in (ROOT / "pyproject.toml").read_text()
    )


def test_a_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(read_module(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


SMALL = ("select", "SelectSelector", "*")


def find_selects(module: ast.Module) -> list[str]:
    """List what a module takes of select and selectors that fails on descriptors from 1,024 on."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module in ("select", "selectors"):
            found += [name.name for name in node.names if name.name in SMALL]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            small = node.value.id in ("select", "selectors") and node.attr in SMALL
            found += [node.attr] if small else []
    return found


def test_nothing_waits_in_a_way_that_fails_with_many_open_files():
    """tpmon keeps more than 1,024 descriptors open; select(2) reads beyond its set for those."""
    assert {relative(path): found for path in MODULES if (found := find_selects(read_module(path)))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import select\nselect.select([0], [], [])", ["select"]),
        ("from select import select, poll", ["select"]),
        ("import selectors\nselectors.SelectSelector()", ["SelectSelector"]),
        ("import select\nselect.poll()\nself.select(1)", []),
    ],
)
def test_a_small_wait_would_be_found(source, found):
    assert find_selects(ast.parse(source)) == found


def test_tests_lie_where_the_code_that_they_try_lies():
    mirrored = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    rooms = {relative(folder) for folder in FOLDERS}
    own = {"budget", "goldens", "gpu", "programs", "pty", "verdicts", "hangs", "frameworks", "pythons", "release"}
    lost = {str(path) for path in mirrored if str(path.parent) not in rooms and path.parts[0] not in own}
    assert {path for path in lost if "/" in path} == set()


def test_tests_that_mostly_wait_are_named_as_their_files_are():
    files = [ROOT / "tests" / folder / f"test_{name}.py" for folder, names in WAITS.items() for name in names]
    assert [str(path) for path in files if not path.exists()] == []
