"""docs/verdicts.md says what the tables of the program say."""

import re
from pathlib import Path

from tpmon.judge.advice.choose import EXPLANATIONS
from tpmon.judge.advice.verdict_page import write_page
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import TABLE

PAGE = Path(__file__).parents[3] / "docs" / "verdicts.md"


def test_the_page_is_of_today():
    assert PAGE.read_text(encoding="utf-8") == write_page(), "make docs"


def test_every_row_of_the_table_is_explained_once():
    rows = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
    assert sorted(map(str, rows)) == sorted(map(str, EXPLANATIONS))


def test_every_row_says_all_four_parts():
    for one in EXPLANATIONS.values():
        assert one.means.endswith(".")
        assert one.sees.endswith(".")
        assert one.confused_with.endswith(".")
        assert bool(one.remedies) != one.what_to_do.endswith("."), "remedies, or a sentence"


def test_every_section_of_the_page_has_its_three_points():
    rows, _, _ = PAGE.read_text(encoding="utf-8").partition("# The catalogue of remedies")
    for point in ("How tpmon sees it", "Often confused with", "What to do"):
        points = re.findall(rf"^\* {point}: (.*)$", rows, re.MULTILINE)
        assert len(points) == len(EXPLANATIONS)
        assert all(said.endswith(".") for said in points)
