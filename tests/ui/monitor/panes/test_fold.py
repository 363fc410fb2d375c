"""What is ill stands out, what is normal or the same shares a line, and a cursor opens it again."""

from dataclasses import replace

import pytest

from tests.frames import (
    make_event,
    make_finding,
    make_frame,
    make_gpu,
    make_log_pace,
    make_output,
    make_process,
    make_rank,
    make_view,
    make_worker,
)
from tests.painted import find_wrong, inks_of, join, texts_of
from tpmon.model.frame import EventKind
from tpmon.model.gpu import GpuState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.ui.kit.keys import KeyHelp, paint_footer
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes.cards import name_trouble, paint_gpus, paint_summary
from tpmon.ui.monitor.panes.events import paint_events
from tpmon.ui.monitor.panes.tables import paint_ranks, paint_workers
from tpmon.ui.monitor.state import Pane, SortBy
from tpmon.view.layout import Ink, Size

HOT = make_gpu(3, throttle=("SW thermal",), sm_clock_mhz=891.0, power_w=364.0, temperature_c=90.0)
EIGHT = tuple(HOT if index == 3 else make_gpu(index) for index in range(8))


def gpus(cards, width=120, height=10):
    return paint_gpus(make_view(make_frame(gpus=cards)), Size(width, height), focused=False)


def test_eight_cards_take_two_lines_and_the_hot_one_stands_out():
    lines = gpus(EIGHT)
    assert len(lines) == 3
    assert find_wrong("! GPU 3 SW thermal now|busy 96 % of the time, 4 % idle", join(lines)) == []
    assert "3!HOT 891 MHz  364 W  90 C" in texts_of(lines)[2]
    assert inks_of(lines, "3!HOT") == {Ink.BADGE_WARN}
    assert texts_of(lines)[1].count("[") == 4
    assert inks_of(lines, "\u2588") == {Ink.GOOD}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, ""),
        ({"throttle": ("power cap",)}, ""),
        ({"throttle": ("power brake",)}, "BRAKE"),
        ({"throttle": ("reliability",)}, "HELD"),
        ({"state": GpuState.LOST}, "LOST"),
        ({"state": GpuState.STALE}, "STALE"),
        ({"xids": (79,)}, "FAULT"),
        ({"recovery_action": 1}, "CHECK"),
    ],
)
def test_what_is_wrong_with_a_card_is_one_word(fields, word):
    assert name_trouble(make_gpu(**fields)) == word


def test_of_more_cards_than_fit_the_ill_ones_are_shown_and_the_rest_is_one_line():
    cards = (*EIGHT[:3], make_gpu(4), replace(HOT, index=17), *(make_gpu(index) for index in range(18, 40)))
    lines = texts_of(gpus(cards, height=4))
    assert len(lines) == 4
    assert "17!HOT" in join(gpus(cards, height=4))
    assert lines[-1].startswith(f" {len(cards) - 8} more: SM 96 %")


def test_a_card_that_is_busy_without_work_is_not_painted_as_good():
    spins = make_gpu(0, sm_pct=100.0, sm_active_pct=6.0)
    assert inks_of(gpus((spins,)), "\u2588") == {Ink.BAD}
    idle = make_gpu(0, sm_pct=Missing("no"))
    assert "? %" in join(gpus((idle,)))


def test_all_cards_share_a_line_of_a_narrow_screen():
    line = "".join(text for text, _ in paint_summary(EIGHT, 40))
    assert find_wrong(" GPU 0-7  96 % [|3!HOT 90 C", line) == []


def job(count, odd=(), **fields):
    """Build a job whose ranks compute, but for ``odd`` ones, which are blocked."""
    members = tuple(
        make_process(100 + n, rank=n, state="D" if n in odd else "R", cpu_pct=0.1 if n in odd else 97.0 + n % 3)
        for n in range(count)
    )
    rows = tuple(
        make_rank(100 + n, rank=n, where="save x.py:1" if n in odd else "all_reduce y.py:2") for n in range(count)
    )
    return make_frame(processes=members, ranks=rows, gpus=(), **fields)


def ranks(view, height=12, width=120):
    return join(paint_ranks(view, Size(width, height), focused=view.focus is Pane.RANKS))


def test_many_normal_ranks_share_a_line_and_the_one_that_is_not_has_its_own():
    view = make_view(job(8, odd=(3,)))
    said = ranks(view)
    assert find_wrong("save x.py:1|D blocked|ranks 0-2,4-7 normal: all_reduce y.py:2, CPU 97 to 99 %", said) == []
    assert len(said.splitlines()) == 4
    assert "   3 " in ranks(view, height=3), "it goes before the heads of the columns"
    few = ranks(make_view(job(3)))
    assert find_wrong("~normal|all_reduce", few) == []


@pytest.mark.parametrize("fields", [{"zoom": Pane.RANKS}, {"focus": Pane.RANKS, "cursor_pid": 104}])
def test_a_zoom_and_a_cursor_open_the_ranks(fields):
    said = ranks(make_view(job(8, odd=(3,)), **fields))
    assert find_wrong("~normal", said) == []
    assert sum("y.py:2" in line for line in said.splitlines()) == 7


def test_a_rank_has_the_pace_that_its_own_log_tells():
    logs = tuple(make_output(100 + n, pace=make_log_pace(pid=100 + n, rate_hz=3.2 - n)) for n in range(2))
    said = ranks(make_view(job(2, output=logs)))
    assert find_wrong("steps/s|3.20|2.20", said) == []
    old = (replace(logs[0], pace=make_log_pace(pid=100, age_s=900.0)),)
    assert "steps/s" not in ranks(make_view(job(2, output=old)))
    narrow = join(paint_screen(make_view(job(2, output=logs)), Size(40, 30)))
    assert find_wrong("3.20/s|2.20/s", narrow) == []


def crew(*states):
    workers = tuple(make_worker(200 + n, n, 100, state=state, waits_for=wait) for n, (state, wait) in enumerate(states))
    return make_frame(processes=(make_process(100), *workers))


SAME = crew(*[("S", "pipe")] * 4)
MIXED = crew(*[("S", "pipe")] * 9, *[("R", "running")] * 3, ("D", "NFS"))


def workers(frame, height=8, width=120, **fields):
    return join(paint_workers(make_view(frame, **fields), Size(width, height), focused=True))


def test_workers_that_do_the_same_share_a_line():
    assert find_wrong("   4 wait for pipe   CPU|~PID", workers(SAME)) == []
    lines = workers(MIXED).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "9", "3"], "the one in trouble comes first"
    assert "! blocked: NFS" in lines[1]
    assert "PID" in workers(MIXED, height=20), "all fit"


@pytest.mark.parametrize(
    "fields", [{"cursor_pid": 201}, {"filter_text": "w1"}, {"sort": SortBy.MEMORY}, {"zoom": Pane.WORKERS}]
)
def test_a_key_that_is_about_rows_shows_rows(fields):
    assert "PID" in workers(SAME, **fields)


def test_the_log_says_how_old_it_is_only_where_it_is_late():
    def said(age_s, **pace):
        log = make_output(last_write_age_s=age_s, pace=make_log_pace(**pace) if pace else NOT_APPLICABLE)
        return join(paint_events(make_view(make_frame(output=(log,))), Size(120, 5), focused=False))

    assert "ago" not in said(20.0)
    assert "! written 26m40s ago" in said(1600.0)
    assert "ago" not in said(150.0, every_s=60.0), "it writes once a minute"
    assert "! written 5m00s ago" in said(300.0, every_s=60.0)


def test_the_signs_of_the_keys_are_set_apart_and_a_narrow_screen_has_them_alone():
    keys = (KeyHelp(("q",), "quit", "tpmon", "quit", 1), KeyHelp(("?",), "help", "tpmon", "help", 2))
    (line,) = paint_footer(make_view(), keys, 80)
    assert [text for text, ink in line if ink is Ink.CURSOR] == ["q", "?"]
    assert "".join(text for text, _ in line).rstrip() == " q quit  ? help"
    (line,) = paint_footer(make_view(), keys, 40)
    assert "".join(text for text, _ in line).rstrip() == " q  ?"


@pytest.mark.parametrize("height", [10, 20, 30, 50])
def test_a_narrow_screen_has_a_line_of_each_thing(height):
    events = (make_event("rank 1 gone", kind=EventKind.ENDED),)
    frame = replace(job(8, odd=(3,)), gpus=EIGHT, output=(make_output(),), verdict=make_finding())
    text = join(paint_screen(make_view(frame, events=events), Size(40, height)))
    words = "DATA-BOUND|GPU 0-7|r3 ! blocked" if height > 10 else "DATA-BOUND"
    if height >= 30:
        words += "|ranks 0-2,4-7 normal|normal: memory| | epoch 3|rank 1 gone|CPUs"
    assert find_wrong(words, text) == []
    assert "\u2500\u2500" not in text.replace("\u2500]", ""), "no rules"
