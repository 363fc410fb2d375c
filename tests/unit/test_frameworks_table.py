"""The table of programs made from public packages names only what tpmon can say, and all there is."""

from __future__ import annotations

import pytest

from tests.frameworks.faults import Fault
from tests.frameworks.matrix import HERE, choose
from tests.frameworks.table import EXPECTED, FRAMEWORKS, ROWS, Row
from tpmon.model.verdict import TABLE, Kind

CAUSES = {row.kind: row.causes for row in TABLE}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_a_kind_and_a_cause_of_the_closed_table(row: Row) -> None:
    for label in row.expected:
        assert label.kind in CAUSES
        assert label.cause in (*CAUSES[label.kind], "")


def test_every_program_is_there_and_meets_every_fault_once() -> None:
    assert all((HERE / f"{one.program}.py").is_file() for one in FRAMEWORKS)
    assert set(EXPECTED) == set(Fault)
    assert len({str(row) for row in ROWS}) == len(ROWS) == len(FRAMEWORKS) * len(Fault)


def test_only_a_hang_is_looked_at_for_longer_than_20_s() -> None:
    assert {row.fault for row in ROWS if row.look_s > 20} == {Fault.STOPPED_WORKER}
    assert all(row.expected[0].kind is Kind.HUNG for row in ROWS if row.look_s > 30)


def test_rows_are_chosen_by_program_and_by_fault() -> None:
    assert choose(ROWS, "") == list(ROWS)
    assert len(choose(ROWS, "healthy")) == len(FRAMEWORKS)
    assert {row.framework.program for row in choose(ROWS, "hf_trainer")} == {"hf_trainer"}
