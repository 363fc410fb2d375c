"""docs/thresholds.md names every number at the top of a module that decides, with its value of today."""

import re

from tests.judge.thresholds import PAGE, read_program, read_sections, write_page, write_value

NAMED = [name for rows in read_sections().values() for name in rows if name != "about"]
ORIGINS = re.compile(r"(measured|documented|reported|chosen|definition|as|the)\b")


def test_the_table_and_the_program_name_the_same_thresholds():
    assert len(set(NAMED)) == len(NAMED)
    assert set(NAMED) - set(read_program()) == set(), "no longer in the program"
    assert set(read_program()) - set(NAMED) == set(), "add a row to docs/thresholds.toml"


def test_the_page_is_of_today():
    assert PAGE.read_text(encoding="utf-8") == write_page(), "make docs"


def test_every_row_says_where_its_value_comes_from():
    origins = {name: rows[name][2] for rows in read_sections().values() for name in rows if name != "about"}
    assert [name for name, origin in origins.items() if not ORIGINS.match(origin)] == []


def test_a_value_is_written_in_its_unit_with_all_its_digits():
    assert write_value(20_000_000, "MB/s") == "20 MB/s"
    assert write_value(1_500, "") == "1,500"
    assert write_value(0.0125, "%") == "0.0125 %"
    assert write_value([13, 31], "") == "13, 31"
    assert write_value({1: 0.985e9, 2: 3e9}, "GB/s") == "1: 0.985 GB/s, 2: 3 GB/s"
