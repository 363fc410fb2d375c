"""The lines of the steps: what they say, where a stall shows, and that no screen gets too wide."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_event, make_frame, make_rank, make_view
from tests.paces import make_hook, make_pace, split_of, with_hooks
from tests.painted import join, texts_of
from tpmon.model.frame import EventKind, pulse_of
from tpmon.model.known import Missing, is_known
from tpmon.ui.monitor.panes.steps import paint_steps, split_bar
from tpmon.ui.monitor.panes.tables import paint_ranks
from tpmon.ui.monitor.state import ViewState
from tpmon.view.layout import Ink, Size, line_width


def view_of(**fields: Any) -> ViewState:
    return make_view(with_hooks(make_frame(), make_hook(pace=make_pace(**fields))))


def text_of(view: ViewState, width: int, most: int = 4) -> str:
    return join(paint_steps(view, width, most))


def test_without_a_hook_nothing_is_painted():
    assert paint_steps(make_view(), 200, 4) == []
    assert paint_steps(make_view(Missing("no reading yet")), 200, 4) == []


def rank_table(width: int, **fields: Any) -> str:
    return join(paint_ranks(view_of(**fields), Size(width, 6), focused=False))


def test_a_wide_rank_table_tells_the_pace_of_each_rank_before_what_its_threads_do():
    wide = rank_table(200, p95_ms=1270.0, p99_ms=2_310.0, rate_hz=48.31, samples_hz=12_840.0)
    for words in ("p95", "1.3 s", "p99", "2.3 s", "steps/s", "48.3", "12,840", "thr", "wait %", "RSS", "step age"):
        assert words in wide, words
    assert " ? " in rank_table(200, p99_ms=Missing("no step was timed"))
    before = {"p50", "own", "step age", "where"}
    for width, heads in (
        (40, set()),
        (80, {"own", "where"}),
        (119, {*before}),
        (120, {*before, "steps/s"}),
        (136, {*before, "steps/s", "p95", "run"}),
        (145, {*before, "steps/s", "p95", "p99", "run"}),
        (156, {*before, "steps/s", "p95", "p99", "run", "samples/s"}),
    ):
        table = rank_table(width)
        assert all(head in table for head in heads), width
        new = {head for head in ("steps/s", "p95", "p99", "samples/s") if head in table}
        assert new == heads & {"steps/s", "p95", "p99", "samples/s"}, width


def test_a_rank_without_a_hook_has_no_pace_and_not_a_pace_of_nothing():
    frame = make_frame(ranks=(make_rank(4211), make_rank(4212, rank=1)))
    view = make_view(with_hooks(frame, make_hook(4211)))
    row = next(text for text in texts_of(paint_ranks(view, Size(200, 6), focused=False)) if " 4212 " in text)
    assert row.split().count("?") >= 4
    assert "4.00" not in row


@pytest.mark.parametrize("width", [80, 90, 100, 120])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rate_hz": 102.4, "samples_hz": 1_234_567.0, "p50_ms": 9.8, "p95_ms": 11.2, "p99_ms": 20.4},
        {"rate_hz": 0.07, "samples_hz": 12_840.0, "p50_ms": 13_000.0, "p95_ms": 19_000.0, "p99_ms": 64_000.0},
        {"rate_hz": 3.2, "p50_ms": 308.0, "p95_ms": 402.0, "p99_ms": 4_120.0, "samples_hz": 1_234_567.0},
    ],
)
def test_from_80_columns_on_rate_samples_and_all_percentiles_stand_in_one_line(width, fields):
    view = view_of(**fields)
    assert is_known(view.frame)
    frame = replace(view.frame, steps=replace(make_pace(**fields), ranks=8))
    line = "".join(text for text, _ in paint_steps(replace(view, frame=frame), width, 4)[0])
    assert "samples/s, sum" in line
    assert "steps/s" in line or "a step in" in line
    assert all(share in line for share in ("p50", "95", "99"))
    assert "…" not in line


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize(
    "fields", [{}, {"step_age_s": 840.0}, {"samples_hz": Missing("no"), "data_pct": Missing("no")}, {"rate_hz": 0.004}]
)
def test_no_line_is_wider_than_the_screen(width, fields):
    lines = paint_steps(view_of(**fields), width, 4)
    assert lines
    assert all(line_width(line) <= width for line in lines)


def test_a_loop_that_takes_no_step_is_marked():
    line = paint_steps(view_of(step_age_s=840.0), 120, 4)[0]
    assert ("! no step for 14m00s", Ink.WARN) in line


def test_that_ranks_compiled_again_is_said_for_ten_minutes_where_there_is_room():
    again = make_event("rank 0 compiled again: 14 frames", 12, EventKind.COMPILE)
    view = replace(view_of(), events=(again,))
    assert ("! compiled again 12 s ago", Ink.WARN) in paint_steps(view, 120, 4)[0]
    assert "compiled again" not in text_of(view, 40)
    old = make_event("rank 0 compiled again: 14 frames", 700, EventKind.COMPILE)
    assert "compiled again" not in text_of(replace(view, events=(old,)), 200)


def test_the_bar_has_a_cell_for_each_share_and_the_width_asked_for():
    bar = split_bar(make_pace(**split_of(50.0)), 20)
    assert len(bar) == 20
    assert bar.count("█") == 10
    assert split_bar(make_pace(data_pct=Missing("no")), 20) == ""


def test_the_pulse_keeps_the_longest_step():
    frame = with_hooks(make_frame(), make_hook(pace=make_pace(slowest_ms=333.0)))
    assert pulse_of(frame).step_ms == 333.0
    assert isinstance(pulse_of(make_frame()).step_ms, Missing)


def test_a_rank_whose_own_part_is_long_is_marked():
    frame = make_frame(ranks=(make_rank(4211), make_rank(4212, rank=1), make_rank(4213, rank=2)))
    hooks = [make_hook(4211 + i, rank=i, pace=make_pace(4211 + i, own_ms=own)) for i, own in enumerate((100, 240, 110))]
    text = join(paint_ranks(make_view(with_hooks(frame, *hooks)), Size(160, 8), focused=False))
    assert "240 ms!" in text
    assert text.count("ms!") == 1


def test_a_stall_of_the_history_is_named_with_its_age():
    view = view_of()
    pulses = list(view.pulses)
    pulses[-21] = replace(pulses[-21], step_ms=4_100.0)
    text = text_of(replace(view, pulses=tuple(pulses)), 120)
    assert "! stall 4.1 s, 20 s ago" in text
    assert "stall" not in text_of(view, 120)
