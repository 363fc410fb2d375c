"""The layout that a stranger finds: small folders, files of one idea, a purpose for each, names used once."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_a_folder_is_small_and_says_what_it_is_for(folder):
    assert len(list(folder.glob("*.py"))) <= MOST_FILES
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_file_holds_one_idea_of_at_most_600_lines(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert ast.get_docstring(ast.parse(text))
    assert path.stem not in VAGUE


@pytest.mark.parametrize("path", TABLES, ids=relative)
def test_a_table_is_short_and_goes_with_the_package(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
    assert '[tool.setuptools.package-data]\n"*" = ["*.toml", "*.txt"]' in (ROOT / "pyproject.toml").read_text()


def test_a_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_tests_lie_where_the_code_that_they_try_lies():
    mirrored = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    rooms = {relative(folder) for folder in FOLDERS}
    own = {"budget", "goldens", "gpu", "programs", "pty", "verdicts", "hangs", "frameworks", "pythons"}
    lost = {str(path) for path in mirrored if str(path.parent) not in rooms and path.parts[0] not in own}
    assert {path for path in lost if "/" in path} == set()
