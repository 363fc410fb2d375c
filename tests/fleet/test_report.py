"""Many nodes as text: the verdict first, who does not answer with the reason, and lines of what changes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fleet.nodes import look_at_pair, make_node, make_pair, make_rank_summary, make_silent, make_verdict
from tests.frames import NOW
from tpmon.fleet.report import LOOK_S, FleetPlain, pick_fleet_code, write_fleet, write_fleet_check
from tpmon.judge.nodes import FleetMemory, join_fleet, note_answer, note_asked, observe
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.fleet import NodeState
from tpmon.model.verdict import Kind
from tpmon.view.fleet.nodes import name_nodes

GOOD = make_verdict(Kind.BALANCED, share_pct=NOT_APPLICABLE, summary="nothing stands out", try_=NOT_APPLICABLE)
OPEN = make_verdict(summary="looking", try_=NOT_APPLICABLE)


def join(*nodes, memory=FleetMemory(), after_s=0.0):  # noqa: B008  # frozen
    return join_fleet(memory, nodes, NOW + timedelta(seconds=after_s))


def hang():
    nodes = make_pair(33.0)
    memory = note_asked(FleetMemory(), ("n1", "n2"), 990.0)
    for node, dump in look_at_pair().items():
        memory = note_answer(memory, node, dump)
    return join(*nodes, memory=observe(memory, nodes, 1000.0))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a",), "a"),
        (("n1", "n2", "n3", "n7"), "n[1-3,7]"),
        (("gpu08", "gpu09", "gpu10"), "gpu[08-10]"),
        (("n1.site", "n2.site", "m1"), "n[1-2].site, m1"),
        (("n1", "n01"), "n1, n01"),
        (("a", "b", "c", "d", "e", "f"), "a, b, c, d (+2 more)"),
        (tuple(f"n{at}" for at in range(1, 1025)), "n[1-1024]"),
        ((), ""),
    ],
)
def test_nodes_are_named_in_ranges(names, said):
    assert name_nodes(names) == said


def test_the_verdict_comes_first_and_then_the_nodes_those_that_do_not_answer_on_top():
    nodes = (
        make_node("n1", make_rank_summary(0), make_rank_summary(1), verdict=GOOD, world_size=4),
        make_silent("n2", NodeState.GONE, "Connection reset by peer"),
        make_node("n3", make_rank_summary(2), verdict=OPEN, world_size=4, clock_skew_s=-2.5),
    )
    lines = write_fleet(join(*nodes))
    assert lines[0].startswith("verdict  NOT-ENOUGH-EVIDENCE")
    assert "job      train.py, 2 of 3 nodes, 3 of 4 ranks" in lines
    assert "nodes    they differ: not-enough-evidence on n3; balanced on n1" in lines
    table = lines[lines.index("") + 1 :]
    assert [line.split()[0] for line in table if line.startswith(" n")] == ["n2", "n3", "n1"]
    assert "    Connection reset by peer" in table
    assert "    its clock is 2.5 s behind of the one here" in table
    assert "0-1" in table[-1]
    assert all(len(line) <= 100 for line in lines)


def test_a_hang_is_told_with_its_node():
    report = hang()
    text = "\n".join(write_fleet(report))
    assert text.startswith("verdict  HUNG, missing-rank")
    assert "n2: " in text
    assert "try      tpmon attach 4010  # on n2" in text
    assert write_fleet_check(report).startswith("hung (missing-rank), confidence low")
    assert pick_fleet_code(report) == 12


def test_without_a_verdict_it_is_not_known_what_the_job_does():
    report = join(make_silent("n1", NodeState.REFUSED, "Permission denied"))
    assert pick_fleet_code(report) == 11
    said = "no verdict: no node tells of the job so far: n1: Permission denied (0 of 1 node, 0 ranks)"
    assert write_fleet_check(report) == said


def test_text_of_other_machines_reaches_no_terminal_as_it_came():
    node = make_silent("n1", NodeState.GONE, "\x1b[2Jgone\x07")
    evil = make_node("n2", make_rank_summary(0), script="\x1b]0;x\x07", verdict=GOOD)
    report = join(node, evil)
    lines = [*write_fleet(report), *FleetPlain().read(report), write_fleet_check(report)]
    assert all(line.isprintable() for line in lines)


def test_a_thousand_nodes_are_some_rows_and_a_count():
    nodes = [make_node(f"n{at}", make_rank_summary(at), verdict=GOOD, world_size=1000) for at in range(1000)]
    lines = write_fleet(join(*nodes))
    assert lines[-1] == "  and 936 more nodes"
    assert len(lines) < 80


def test_a_stream_says_what_changes_and_no_more():
    plain = FleetPlain()
    starting = [replace(make_silent(name, NodeState.STARTING), reason=NOT_APPLICABLE) for name in ("n1", "n2")]
    live = [replace(one, verdict=OPEN) for one in make_pair()]
    good = [replace(one, verdict=GOOD) for one in make_pair()]
    late = [good[0], replace(good[1], state=NodeState.LATE, reason="its agent answers no more")]

    def read(*nodes, after_s):
        return [line.partition(" ")[2] for line in plain.read(join(*nodes, after_s=after_s))]

    assert read(*starting, after_s=0) == ["2 nodes: an agent starts on each"]
    assert read(*starting, after_s=1) == []
    assert read(*live, after_s=2) == ["n[1-2]: live"], "no verdict is due so early"
    (verdict,) = read(*good, after_s=3)
    assert verdict.startswith("verdict: balanced")
    assert read(*good, after_s=4) == []
    assert read(*late, after_s=5) == ["n2: late, its agent answers no more"]
    said = read(good[0], live[1], after_s=6)
    assert [line.partition(":")[0] for line in said] == ["n2", "verdict", "the nodes differ"]
    (beat,) = read(good[0], live[1], after_s=90)
    assert beat.startswith("no change: ")


def test_an_undecided_verdict_is_told_once_it_was_due():
    plain = FleetPlain()
    nodes = [replace(one, verdict=OPEN) for one in make_pair()]
    assert not any("verdict" in line for line in plain.read(join(*nodes)))
    assert any("verdict: not-enough-evidence" in line for line in plain.read(join(*nodes, after_s=LOOK_S)))
