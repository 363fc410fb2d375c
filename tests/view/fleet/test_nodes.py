"""Nodes as glyphs and words: how each does, which comes first, who is accused, what a person can find."""

from dataclasses import replace

import pytest

from tests.fleet.nodes import make_node, make_rank_summary, make_silent, make_verdict
from tests.frames import NOW
from tests.goldens.fleet_views import build_report
from tests.painted import join, texts_of
from tpmon.judge.nodes import FleetMemory, join_fleet
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.fleet import NodeState
from tpmon.model.verdict import Kind
from tpmon.view.fleet.heat import (
    GLYPHS,
    Grade,
    count_grades,
    draw_node,
    fit_cards,
    fit_glyphs,
    paint_grid,
    rate_node,
    shorten_names,
)
from tpmon.view.fleet.nodes import NodeOrder, describe_node, has_text, mark_blamed, name_nodes, sort_nodes
from tpmon.view.layout import LEVELS, Ink, to_ascii


def live(name="n1", kind=Kind.BALANCED, cause=NOT_APPLICABLE, **fields):
    return make_node(name, make_rank_summary(0), verdict=make_verdict(kind, cause), **fields)


DRAWN = (
    (live(), Grade.GOOD, "o", Ink.GOOD),
    (live(gpu_pct=(97.0, 40.0)), Grade.GOOD, LEVELS[3], Ink.GOOD),
    (live(gpu_pct=(0.0,)), Grade.GOOD, LEVELS[0], Ink.GOOD),
    (live(gpu_pct=(Missing("late"), 100.0)), Grade.GOOD, LEVELS[-1], Ink.GOOD),
    (live(gpu_pct=Missing("no driver")), Grade.GOOD, "o", Ink.GOOD),
    (live(kind=Kind.DATA_BOUND, gpu_pct=(40.0,)), Grade.HELD, "!", Ink.WARN),
    (live(kind=Kind.HUNG, cause="lock"), Grade.HUNG, "X", Ink.BAD),
    (live(kind=Kind.NOT_ENOUGH_EVIDENCE), Grade.UNDECIDED, "?", Ink.PLAIN),
    (make_node("n1", make_rank_summary(0)), Grade.UNDECIDED, "?", Ink.PLAIN),
    *(
        (make_silent("n1", state), Grade(state.value), state.value[0 if state is not NodeState.OTHER_VERSION else 6], None)
        for state in NodeState
        if state is not NodeState.LIVE
    ),
)  # fmt: skip


@pytest.mark.parametrize(("node", "grade", "glyph", "ink"), DRAWN)
def test_a_node_is_drawn_as_it_does(node, grade, glyph, ink):
    assert rate_node(node) is grade
    drawn = draw_node(node)
    assert drawn[0] == glyph
    assert ink in (None, drawn[1])


def test_glyphs_are_told_apart_without_colour_also_in_ascii():
    levels = {to_ascii(level) for level in LEVELS}
    glyphs = {glyph for grade, glyph in GLYPHS.items()}
    assert len(glyphs) == len(GLYPHS) == len(Grade)
    assert all(glyph.isascii() for glyph in glyphs)
    assert not glyphs & levels


def test_counts_begin_with_what_is_wrong():
    nodes = build_report("glyphs").nodes
    assert [(grade.value, count) for grade, count in count_grades(nodes)] == [
        ("held back", 12),
        ("refused", 5),
        ("late", 5),
        ("undecided", 6),
        ("good", 484),
    ]


SORTED = (
    (NodeOrder.WORST, ["n9", "n2", "n3", "n10", "n1"]),
    (NodeOrder.NAME, ["n1", "n2", "n3", "n9", "n10"]),
    (NodeOrder.GPU, ["n1", "n10", "n2", "n3", "n9"]),
    (NodeOrder.AGE, ["n9", "n10", "n1", "n2", "n3"]),
)


@pytest.mark.parametrize(("order", "names"), SORTED)
def test_nodes_stand_in_each_order(order, names):
    nodes = (
        live("n10", gpu_pct=(50.0, 90.0), age_s=2.0),
        live("n1", gpu_pct=(40.0,), age_s=1.0),
        live("n2", Kind.HUNG, "lock"),
        live("n3", Kind.DATA_BOUND, age_s=0.1),
        replace(make_silent("n9", NodeState.GONE), age_s=40.0),
    )
    report = replace(join_fleet(FleetMemory(), nodes, NOW), node=NOT_APPLICABLE)
    found = [one.node for one in sort_nodes(report, order)]
    assert found == (names if order is not NodeOrder.WORST else ["n9", "n2", "n3", "n1", "n10"])


def test_the_node_that_is_accused_comes_first_and_has_the_verdict():
    report = build_report("hung")
    assert next(one.node for one in sort_nodes(report, NodeOrder.WORST)) == "gpu2"
    nodes = {one.node: rate_node(one) for one in mark_blamed(report).nodes}
    assert (nodes["gpu2"], nodes["gpu0"]) == (Grade.HUNG, Grade.UNDECIDED)
    good = join_fleet(FleetMemory(), (live("n1"), live("n2", Kind.NOT_ENOUGH_EVIDENCE)), NOW)
    assert mark_blamed(good) == good, "nobody is accused of nothing"


def test_names_lose_the_domain_that_all_share():
    nodes = [live("a1.site.org"), live("a2.site.org")]
    assert set(shorten_names(nodes).values()) == {"a1", "a2"}
    assert set(shorten_names([*nodes, live("b.else")]).values()) == {"a1.site.org", "a2.site.org", "b.else"}


def test_a_grid_has_a_cell_for_each_card_and_marks_the_cursor_without_colour():
    nodes = [live("n1", gpu_pct=(100.0, Missing("late"), 0.0)), live("n2", Kind.HUNG, gpu_pct=(50.0,))]
    grid = fit_cards(nodes, 80)
    (line,) = paint_grid(nodes, grid, "n2", 0, 1)
    assert join([line]) == " n1 o█ ▁  >n2 X▅"
    assert (grid.per_line, grid.cards) == (8, 3)
    assert fit_glyphs(80).per_line == 70
    assert fit_glyphs(8).per_line == 7
    many = [live(f"n{at}") for at in range(25)]
    assert texts_of(paint_grid(many, fit_glyphs(24), "", 0, 2)) == [" oooooooooo oooooooooo", " ooooo"]


def test_a_node_is_told_in_a_line_and_found_by_what_is_said_of_it():
    node = live("n1", Kind.HUNG, "lock", still_s=41.0, gpu_pct=(12.0,), clock_skew_s=3.0)
    assert describe_node(node) == (
        "n1: live, hung (lock), nothing moved for 41 s, rank 0, GPU 12 %, CPU 1.5 of 8, its clock is 3.0 s ahead of the one here"
    )
    for text in ("N1", "lock", "ahead", ""):
        assert has_text(node, text)
    assert not has_text(node, "n2")


def test_many_ranges_of_names_are_cut():
    assert name_nodes(tuple(f"n{at}" for at in range(1, 100, 2))).endswith(",23,...]")
