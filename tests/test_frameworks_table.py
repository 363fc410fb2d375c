"""The table of programs made from public packages names only what tpmon can say, and all there is."""

import json
from dataclasses import asdict, replace

import pytest

from tests.frameworks.faults import Fault
from tests.frameworks.hooked.matrix import ROWS as HOOKED
from tests.frameworks.hooked.matrix import Told, parse_told, write_command
from tests.frameworks.matrix import HERE, choose
from tests.frameworks.table import EXPECTED, FRAMEWORKS, ROWS
from tpmon.model.verdict import TABLE, Kind

CAUSES = {row.kind: row.causes for row in TABLE}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_a_kind_and_a_cause_of_the_closed_table(row):
    for label in row.expected:
        assert label.kind in CAUSES
        assert label.cause in (*CAUSES[label.kind], "")


def test_every_program_is_there_and_meets_every_fault_once():
    assert all((HERE / f"{one.program}.py").is_file() for one in FRAMEWORKS)
    assert set(EXPECTED) == set(Fault)
    assert len({str(row) for row in ROWS}) == len(ROWS) == len(FRAMEWORKS) * len(Fault)


def test_only_a_hang_is_looked_at_for_longer_than_20_s():
    assert {row.fault for row in ROWS if row.look_s > 20} == {Fault.STOPPED_WORKER}
    assert all(row.expected[0].kind is Kind.HUNG for row in ROWS if row.look_s > 30)


def test_rows_are_chosen_by_program_and_by_fault():
    assert choose(ROWS, "") == list(ROWS)
    assert len(choose(ROWS, "healthy")) == len(FRAMEWORKS)
    assert {row.framework.program for row in choose(ROWS, "hf_trainer")} == {"hf_trainer"}


TOLD = Told(
    "DDP, 2 ranks", 0, (20, 20), (5, 5), (0, 0), (2.0, 1.0, 1.0, 0.5, 0.5), (2.0, 1.0, 1.0, 0.5, 0.5), (-1,), ""
)


def test_what_the_ranks_report_is_read_by_rank_and_judged():
    lines = [json.dumps({**asdict(TOLD), "rank": rank}) for rank in (1, 0)]
    told = parse_told("\n".join(["Epoch 0", *(f"tpmon {line}" for line in lines), "tpmon: a word"]))
    assert told == [TOLD, replace(TOLD, rank=1)]
    assert TOLD.is_right
    assert not replace(TOLD, steps=(20, 21)).is_right
    assert not replace(TOLD, eval_steps=(5, 4)).is_right
    assert not replace(TOLD, skipped=(3, 0)).is_right
    assert not replace(TOLD, told_s=(2.2, 1.0, 1.0, 0.5, 0.5)).is_right
    assert not replace(TOLD, fsdp=(1, 2, 0, 1, 1)).is_right
    assert not replace(TOLD, problem="ValueError").is_right
    assert replace(TOLD, told_s=(2.2, 1.0, 1.0, 0.5, 0.5)).write().endswith("| 3.8 % | no |")


def test_loops_of_several_ranks_are_started_by_torchrun_under_tpmon_run():
    for row in HOOKED:
        command = write_command(row, "/x/python")
        assert command[1:5] == ["-m", "tpmon", "run", "--"]
        assert ("torch.distributed.run" in command) == (row.ranks > 1)
        assert command[-1] == (row.loop or row.name)
        assert ("accelerate.commands.launch" in command) == (row.name == "accelerate launch")
