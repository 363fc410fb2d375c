"""Tables: a row that does not fit is named, causes and figures are written once, the page is of today."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.judge.thresholds import PAGE, read_program, read_sections, write_page, write_value
from tpmon.judge import knowledge
from tpmon.judge.advice import choose
from tpmon.judge.advice.choose import Remedy, Risk
from tpmon.judge.advice.hot import HotCall
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import LazyTable, TableError, make_row
from tpmon.model.figures import HISTORIES, Figure
from tpmon.model.frame import Ages, GroupTexts
from tpmon.model.verdict import TABLE

CALL = {"text": "wait", "words": "a wait", "title": "wait less", "paste": "wait()"}
REMEDY = {
    "id": "wait",
    "title": "wait",
    "needs": ["LOCK_WAIT", "STOPPED"],
    "paste": ["first\n  second"],
    "ceiling": "none",
}


def test_lines_of_prose_are_joined_and_lines_to_paste_are_not():
    remedy = make_row(Remedy, "x.toml: wait", {**REMEDY, "title": "wait\n  less", "risk": "NUMERICS"})
    assert (remedy.title, remedy.paste) == ("wait less", ("first\n  second",))
    assert (remedy.needs, remedy.risk) == ((Need.LOCK_WAIT, Need.STOPPED), Risk.NUMERICS)
    assert make_row(HotCall, "x.toml: idle", {**CALL, "frames": []}).frames == ()


def test_rows_parsed_one_by_one_are_those_of_the_whole_file():
    """No text of a row may begin a line as the head of another one does."""
    names = [f"catalogue/{area}.toml" for area in choose._AREAS]
    wholes = [knowledge.read_table(choose.__file__, name) for name in names]
    assert [dict(knowledge.read_sections(choose.__file__, name)) for name in names] == wholes
    assert len(choose.CATALOGUE) == sum(map(len, wholes))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"word": "x"}, "word: no such key; the keys are id, title"),
        ({"needs": ["LOCK"]}, "needs: LOCK: no Need of that name"),
        ({"needs": "LOCK_WAIT"}, "needs: 'LOCK_WAIT' is no tuple"),
        ({"needs": [3]}, "needs: 3 is no Need"),
        ({"risk": "LOW"}, "risk: LOW: no Risk of that name"),
        ({"adds_workers": 1}, "adds_workers: 1 is no bool"),
        ({"title": ["wait"]}, "title: ['wait'] is no str"),
        ({"paste": [4]}, "paste: 4 is no Verbatim"),
    ],
)
def test_a_row_that_does_not_fit_says_where_and_why(row, told):
    with pytest.raises(TableError) as raised:
        make_row(Remedy, "x.toml: wait", {**REMEDY, **row})
    assert str(raised.value).startswith(f"x.toml: wait: {told}")


def test_a_file_is_read_when_a_row_is_looked_for_a_row_made_once_and_what_it_lacks_said():
    done: list[str] = []
    table = LazyTable(
        [lambda: done.append("one") or {"a": CALL}, lambda: done.append("two") or {"b": {}}],
        lambda key, row: done.append(key) or make_row(HotCall, key, row),
    )
    assert done == []
    assert table["a"] is table["a"]
    assert done == ["one", "a"]
    assert (len(table), list(table), "c" in table) == (2, ["a", "b"], False)
    assert done == ["one", "a", "two"]
    with pytest.raises(TableError, match=r"^b: text, words, title, paste: missing"):
        table["b"]
    with pytest.raises(TableError, match=r"x\.toml: idle: text: missing"):
        make_row(HotCall, "x.toml: idle", {name: text for name, text in CALL.items() if name != "text"})


# causes and figures

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


BY_HAND = {
    "judge/features/starvation.py": "one origin alone, where nothing tells whether the card works meanwhile",
    "judge/hang/detection.py": "of the look at all threads, the sign that dates the hang, a lost card's standstill",
    "judge/rules/gpu.py": "a card that shows no figure, whose host tells that it is waited for",
    "judge/rules/hook.py": "those of the rule, and the hook's",
    "judge/rules/loader.py": "one origin alone, where only one kernel reading tells for what workers wait",
}
"""Modules whose suspicions do not take their origins from the evidence, and why."""


def test_origins_follow_from_the_figures_that_decide():
    makers = {"Suspicion", "suspect"}
    stated = {
        str(path.relative_to(TPMON))
        for path in (TPMON / "judge").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "origins" in {one.arg for one in node.keywords}
        if getattr(node.func, "id", getattr(node.func, "attr", "")) in makers
        or (getattr(node.func, "id", "") == "replace" and ast.unparse(node.args[0]) in ("told", "suspicion"))
    }
    assert stated == set(BY_HAND)


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


# thresholds

NAMED = [name for rows in read_sections().values() for name in rows if name != "about"]
ORIGINS = re.compile(r"(measured|documented|reported|chosen|definition|as|the)\b")


def test_the_page_is_of_today_names_the_thresholds_of_the_program_and_says_where_each_comes_from():
    assert PAGE.read_text(encoding="utf-8") == write_page(), "make docs"
    assert len(set(NAMED)) == len(NAMED)
    assert set(NAMED) - set(read_program()) == set(), "no longer in the program"
    assert set(read_program()) - set(NAMED) == set(), "add a row to docs/thresholds.toml"
    origins = {name: rows[name][2] for rows in read_sections().values() for name in rows if name != "about"}
    assert [name for name, origin in origins.items() if not ORIGINS.match(origin)] == []


def test_a_value_is_written_in_its_unit_with_all_its_digits():
    assert write_value(20_000_000, "MB/s") == "20 MB/s"
    assert write_value(1_500, "") == "1,500"
    assert write_value(0.0125, "%") == "0.0125 %"
    assert write_value([13, 31], "") == "13, 31"
    assert write_value({1: 0.985e9, 2: 3e9}, "GB/s") == "1: 0.985 GB/s, 2: 3 GB/s"
