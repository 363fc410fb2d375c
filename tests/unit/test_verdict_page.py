"""docs/verdicts.md says what the tables of the program say."""

from __future__ import annotations

from pathlib import Path

from tpmon.judge.verdict_page import EXPLANATIONS, write_page
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def test_the_page_is_of_today() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "make docs"


def test_every_row_of_the_table_is_explained_once() -> None:
    rows = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
    assert sorted(map(str, rows)) == sorted(map(str, EXPLANATIONS))


def test_every_explanation_has_words_for_each_question() -> None:
    for one in EXPLANATIONS.values():
        assert one.means.endswith(".")
        assert one.sees.endswith(".")
        assert one.confused_with.endswith(".")
