"""What the matrix of hung jobs on three hosts runs, and what it takes for right, of reports written down by hand."""

import json
import random

import pytest

from tests.fleet.matrix.__main__ import (
    WRONG_HOST,
    WRONG_RANK,
    FleetResult,
    choose,
    find_place_misses,
    parse_report,
    write_table,
)
from tests.fleet.matrix.rows import ALIVE, HOSTS, HUNG, SLOW
from tests.hangs.programs import PROGRAMS
from tests.programs.hangs.table import FRESH_S, Row
from tpmon.fleet.launch import Way

EVERY = (*HUNG, *SLOW, *ALIVE)


def test_every_row_has_its_program_and_no_two_are_the_same():
    assert [one.row.script for one in EVERY if not (PROGRAMS / one.row.script).is_file()] == []
    assert len({one.name for one in EVERY}) == len(EVERY)


def test_twenty_hangs_and_more_must_be_named_within_45_seconds_by_both_launchers():
    quick = [one for one in HUNG if isinstance(one.row, Row) and one.row.fresh_s == FRESH_S == 45.0]
    assert len(quick) >= 20
    for way in (Way.SLURM, Way.SSH):
        assert len([one for one in quick if one.way is way]) >= 10


def test_the_slow_rank_is_not_always_the_same():
    assert len({random.Random(one.seed).randrange(HOSTS) for one in SLOW}) == len(SLOW)


def test_a_run_is_chosen_by_its_program_or_its_group_and_nothing_twice():
    assert choose("") == [*ALIVE, *SLOW, *HUNG]
    assert choose("hung,rank_in_lock") == list(HUNG)
    assert [one.name for one in choose("rank_in_lock 6,straggler")] == [
        "straggler 29",
        "straggler 36",
        "rank_in_lock 6",
    ]
    with pytest.raises(SystemExit, match="no such program: rank_in_lok"):
        choose("rank_in_lok")


def report(node: str, rank: int):
    finding = {"kind": "hung", "cause": "missing-rank", "summary": "", "rank": rank}
    nodes = [{"state": "live"}, {"state": "late"}]
    document = {"taken": "2026-11-29T07:00:00+00:00", "verdict": finding, "nodes": nodes}
    return parse_report(json.dumps({**document, "node": node} if node else document))


@pytest.mark.parametrize(
    ("node", "rank", "misses"), [("n2", 1, []), ("n1", 1, [WRONG_HOST]), ("n2", 0, [WRONG_RANK]), ("", 1, [WRONG_HOST])]
)
def test_host_and_rank_must_both_be_right(node, rank, misses):
    one = report(node, rank)
    assert find_place_misses(one, {("n2", 1)}) == misses
    assert (one.live, str(one.verdict)) == (1, "hung missing-rank")


def test_the_table_has_a_line_for_each_run_that_was_made():
    first, other = HUNG[0], HUNG[7]
    results = [
        FleetResult(other.name, ("hung lock",), 1, "n1", (WRONG_HOST,), -1.0, "", ()),
        FleetResult(first.name, ("hung lock",), 2, "n3", (), 31.4, "", ()),
    ]
    assert write_table(results)[2:] == [
        "missing_rank|1|slurm|2|31|hung lock",
        "rank_in_lock|5|ssh|1|-1|hung lock, WRONG: host",
    ]
