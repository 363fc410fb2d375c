"""Rows come worst first and stay where they are, columns go by need, the cursor is always shown."""

from dataclasses import replace

import pytest

from tests.frames import (
    GIB,
    MIB,
    NOW,
    make_cpu,
    make_frame,
    make_gpu,
    make_process,
    make_rank,
    make_target,
    make_view,
    make_worker,
)
from tests.painted import find_wrong, join, text_of, texts_of
from tpmon.model.gpu import GpuState, ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer, Outcome, Role
from tpmon.model.units import count_cells
from tpmon.ui.kit.ink import line_to_ascii
from tpmon.ui.monitor.layout import Wish, paint_screen, rows_of, share_height
from tpmon.ui.monitor.panes.cards import paint_gpus
from tpmon.ui.monitor.panes.tables import paint_ranks, paint_workers, select_workers
from tpmon.ui.monitor.state import Pane, SortBy
from tpmon.view import layout
from tpmon.view.cards import card_ink, order_cards, summarize_cards, write_throttle
from tpmon.view.layout import Column, Ink, Item, Size, Table
from tpmon.view.ranks import order_ranks, state_ink, write_role, write_state

# Cells


def test_wide_characters_take_two_cells_and_a_line_is_cut_in_the_span_that_crosses_the_edge():
    assert count_cells("\u8a13\u7df4") == 4
    assert layout.cut("\u8a13\u7df4.py", 5) == "\u8a13\u7df4\u2026"
    assert layout.cut("\u8a13\u7df4.py", 4) == "\u8a13\u2026"
    assert count_cells(layout.pad("\u8a13", 5)) == count_cells(layout.pad_left("\u8a13", 5)) == 5
    assert layout.cut_front("/a/long/path.log", 9) == "\u2026path.log"
    assert layout.cut("train", 0) == ""
    line = (("abc", Ink.DIM), ("", Ink.BAD), ("def", Ink.DIM), ("ghi", Ink.BAD))
    assert layout.fit_line(line, 9) == (("abcdef", Ink.DIM), ("ghi", Ink.BAD))
    assert layout.fit_line(line, 5) == (("abcd\u2026", Ink.DIM),)
    assert layout.fit_line(line, 0) == ()


def test_wrapping_prefers_to_break_between_pieces():
    assert layout.wrap(["one two", "three", "four"], 14, " | ") == ["one two", "three | four"]
    assert layout.wrap(["one two three", "four"], 8, " | ") == ["one two", "three", "four"]
    assert layout.wrap_words("unbreakable words", 6) == ["unbre\u2026", "words"]


def test_a_spark_shows_zero_gaps_and_full_scale():
    assert layout.spark([0.0, 0.001, 50.0, 100.0, 400.0], 5, 100.0) == "\u2581\u2582\u2585\u2588\u2588"
    assert layout.spark([1.0, Missing("gap"), 1.0], 4, 1.0) == " \u2588 \u2588"
    assert layout.spark([0.5], 3, 0.0) == "  \u2582"


def test_ascii_keeps_the_cells():
    line = (("\u2500 \u00b7 \u8a13\u2026", Ink.PLAIN), ("plain", Ink.BAD))
    assert line_to_ascii(line) == (("- | ??~", Ink.PLAIN), ("plain", Ink.BAD))
    assert text_of(line_to_ascii(((layout.LEVELS, Ink.PLAIN),))) == "_.:-=+*#"


# Tables


def make_table(width):
    columns = [
        Column("PID", 5, 0, str),
        Column("name", 6, 2, lambda n: f"row {n}", right=False, grows=True),
        Column("CPU", 4, 1, lambda n: ("hot!", Ink.WARN) if n > 8 else str(n)),
    ]
    return Table(columns, width)


def test_columns_go_by_need_one_takes_the_rest_a_marked_cell_has_its_ink_and_the_cursor_the_line():
    assert text_of(make_table(30).paint_head()) == "   PID name                CPU"
    assert text_of(make_table(30).paint_row(7)) == "     7 row 7                 7"
    assert text_of(make_table(17).paint_head()) == "   PID  CPU"
    assert text_of(make_table(3).paint_head()) == "  \u2026"
    assert make_table(18).paint_row(9) == (("     9 row 9  ", Ink.PLAIN), ("hot!", Ink.WARN))
    assert make_table(20).paint_row(9, cursor=True) == ((">    9 row 9    hot!", Ink.CURSOR),)


def test_unread_and_inapplicable_look_different():
    assert layout.show(Missing("no"), str) == "?"
    assert layout.show(NOT_APPLICABLE, str) == "-"
    assert layout.show_pair(1, Missing("no"), str) == "1/?"
    assert layout.show_pair(Missing("no"), Missing("no"), str) == "?"


def test_a_rule_and_a_line_of_pieces_drop_what_is_needed_least():
    details = [Item(5, "nice to know"), Item(0, "12 more")]
    assert text_of(layout.paint_rule("1 ranks", details, 40)).startswith(
        "\u2500\u2500 1 ranks  nice to know  12 more \u2500"
    )
    assert "12 more" in text_of(layout.paint_rule("1 ranks 0-1 of 2", details, 24))
    assert text_of(layout.paint_rule("1 ranks", [], 30, focused=True)).startswith("\u2550\u2550 1 ranks \u2550")
    left, right = [Item(1, "left"), Item(9, "luxury")], [Item(2, "right")]
    assert text_of(layout.justify(left, right, 30)) == " left  luxury           right"
    assert text_of(layout.justify(left, right, 16)) == " left     right"
    assert text_of(layout.justify([Item(1, "LIVE 1 s")], [Item(0, "DATA-BOUND")], 20, 1)) == " LIVE 1 s DATA-BOUND"


@pytest.mark.parametrize(
    ("cursor", "window"),
    [(NOT_APPLICABLE, (0, 3)), (10, (0, 3)), (12, (0, 3)), (13, (1, 4)), (19, (7, 10)), (99, (0, 3))],
)
def test_the_page_holds_the_cursor(cursor, window):
    assert layout.window_of(list(range(10, 20)), cursor, 3) == window


# Ranks


def job_of(count, odd=(), waits_s=(), **changes):
    """Make a job of so many ranks, some of them odd, by their number."""
    plain = [{"rank": n, "cpu_pct": 90.0 + n % 5} for n in range(count)]
    processes = [make_process(100 + n, **(fields | dict(odd).get(n, {}))) for n, fields in enumerate(plain)]
    rows = [make_rank(100 + n, rank=n, where_unchanged_s=dict(waits_s).get(n, 0.0)) for n in range(count)]
    return make_frame(processes=tuple(processes), ranks=tuple(rows), **changes)


def ranks_in_order(frame):
    return [rank.row.rank for rank in order_ranks(frame)]


def test_the_worst_rank_comes_first_and_a_frozen_one_that_says_so():
    odd = {1: {"cpu_pct": 3.0}, 2: {"state": "S"}, 3: {"state": "S"}, 4: {"state": "T"}, 5: {"state": "Z"}}
    assert ranks_in_order(job_of(6, odd, waits_s={2: 26.0, 3: 1900.0})) == [5, 4, 3, 2, 1, 0]
    frame = job_of(3, {2: {"state": "S", "frozen": Freezer(2, "/train", "/sys/fs/cgroup/train")}})
    first, _, last = frame.processes
    assert ranks_in_order(frame) == [2, 0, 1]
    assert write_state(last) == "S frozen"
    assert state_ink(last) is Ink.WARN
    assert (write_state(first), state_ink(first)) == ("R runs", Ink.PLAIN)


def test_a_wait_that_grows_a_little_moves_no_row():
    def frame_at(seconds):
        frame = job_of(3)
        waiting = tuple(replace(p, state="S") for p in frame.processes)
        rows = tuple(replace(r, where_unchanged_s=seconds - r.pid % 3) for r in frame.ranks)
        return replace(frame, processes=waiting, ranks=rows)

    assert {tuple(ranks_in_order(frame_at(seconds))) for seconds in range(60, 100)} == {(0, 1, 2)}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_pane_without_a_living_rank_says_so_first(width):
    zombie = make_frame(processes=(make_process(4211, state="Z"),))
    gone = make_frame(processes=())
    none = make_frame(ranks=(), processes=(), target=make_target(outcome=Outcome.UNKNOWN))
    for frame in (zombie, gone, none):
        rule = paint_ranks(make_view(frame), Size(width, 6), focused=False)[0]
        assert ("no rank left", Ink.BAD) in rule
    one_left = job_of(2)
    one_left = replace(one_left, processes=one_left.processes[:1])
    early = make_frame(ranks=(), processes=(), facts="no rank yet \u00b7 99 % of 2 CPUs")
    for frame in (one_left, early):
        assert "no rank left" not in "".join(texts_of(paint_ranks(make_view(frame), Size(width, 6), focused=False)))


# Workers


def workers_frame():
    return make_frame(
        processes=(
            make_process(100),
            make_worker(203, 3, 100, cpu_pct=41.0, rss_bytes=GIB, started=NOW),
            make_worker(201, 1, 100, cpu_pct=39.0, rss_bytes=2 * GIB),
            make_worker(202, 2, 100, cpu_pct=99.0, rss_bytes=GIB, waits_for="NFS"),
            make_process(50, role=Role.LAUNCHER, rank=NOT_APPLICABLE, cpu_pct=38.0, rss_bytes=90 * MIB),
        )
    )


def pids(view):
    return [process.pid for process in select_workers(view)]


def test_workers_sort_and_close_rows_stay_by_pid():
    view = make_view(workers_frame())
    assert pids(view) == [202, 201, 203, 50]
    assert pids(replace(view, sort=SortBy.MEMORY)) == [201, 202, 203, 50]
    assert pids(replace(view, sort=SortBy.PID)) == [50, 201, 202, 203]
    assert pids(replace(view, sort=SortBy.PID, sort_reversed=True)) == [203, 202, 201, 50]
    assert pids(replace(view, sort=SortBy.TIME))[-1] == 203


@pytest.mark.parametrize(
    ("text", "found"),
    [("nfs", [202]), ("!nfs", [201, 203, 50]), ("LAUNCH", [50]), ("w1", [201]), ("203", [203]), ("zzz", []), ("!", 4)],
)
def test_the_filter_finds_text_and_inverts(text, found):
    shown = pids(make_view(workers_frame(), filter_text=text))
    assert (len(shown) if isinstance(found, int) else shown) == found


def test_roles_are_told_in_full_and_short():
    assert write_role(make_worker(1, 3, rank=2)) == "rank 2 w3"
    assert write_role(make_worker(1, 3, rank=2), short=True) == "r2 w3"
    assert write_role(make_worker(1, 3, rank=Missing("no"))) == "rank ? w3"
    assert write_role(make_process(1, role=Role.HELPER, label="wandb-core")) == "wandb-core"
    assert write_role(make_process(1, rank=4)) == "rank 4"


def test_the_cursor_walks_what_is_shown_and_is_in_the_focused_pane_only():
    view = make_view(workers_frame(), focus=Pane.WORKERS)
    assert rows_of(view) == (202, 201, 203, 50)
    assert rows_of(replace(view, filter_text="nfs")) == (202,)
    assert rows_of(replace(view, focus=Pane.RANKS)) == (4211,)
    assert rows_of(replace(view, zoom=Pane.RANKS)) == (4211,)
    assert rows_of(replace(view, focus=Pane.EVENTS)) == ()
    assert rows_of(make_view(Missing("not yet"))) == ()
    view = replace(view, cursor_pid=201)
    assert any(line.startswith(">") for line in texts_of(paint_screen(view, Size(100, 40))))
    elsewhere = replace(view, focus=Pane.RANKS)
    assert not any(line.startswith(">") for line in texts_of(paint_screen(elsewhere, Size(100, 40))))


# Cards


def test_cards_come_worst_first_and_the_jobs_before_others():
    cards = (
        make_gpu(0, pids=()),
        make_gpu(1),
        make_gpu(2, throttle=("thermal",)),
        make_gpu(3, state=GpuState.LOST),
        make_gpu(4, pids=(), state=GpuState.LOST),
    )
    assert [card.index for card in order_cards(cards)] == [3, 2, 1, 4, 0]


def test_what_a_card_that_is_well_shows_is_no_warning():
    """Full load brings it to its power cap, and a program's own fault leaves an Xid."""
    for normal in ("power cap", "application clocks"):
        assert card_ink(make_gpu(throttle=(normal,))) is Ink.PLAIN
        assert card_ink(make_gpu(throttle=(normal, "SW thermal"))) is Ink.WARN
    assert card_ink(make_gpu(xids=(31,))) is Ink.WARN
    assert card_ink(make_gpu(xids=(31, 79))) is Ink.BAD
    assert card_ink(make_gpu(xids=(94,))) is Ink.WARN
    assert card_ink(make_gpu(xids=(92, 137))) is Ink.PLAIN
    assert card_ink(make_gpu(ecc_uncorrected=1)) is Ink.WARN
    assert card_ink(make_gpu(recovery_action=1)) is Ink.WARN


def test_throttling_is_told_with_its_share():
    shares = (ThrottleShare("thermal", 38.0, "counter"), ThrottleShare("power cap", 0.0, "bit"))
    assert write_throttle(make_gpu(throttle=("thermal", "brake"), throttle_shares=shares)) == "thermal 38 %, brake now"
    assert write_throttle(make_gpu()) == ""
    assert write_throttle(make_gpu(throttle_known=Missing("not supported"))) == "?"


def test_cards_that_do_not_fit_are_summed_up_with_their_troubles():
    cards = (make_gpu(0, sm_pct=41.0), make_gpu(1, power_w=Missing("no")), make_gpu(2, xids=(79,)))
    assert summarize_cards(cards) == "! GPU 2 Xid 79, SM 41 to 96 %, 612 W, 1980 MHz, 58 C"
    assert summarize_cards(cards[:1]).endswith("none held down")
    one_line = texts_of(paint_gpus(make_view(make_frame(gpus=cards)), Size(120, 1), focused=False))
    assert len(one_line) == 1
    assert "3 cards: ! GPU 2 Xid 79" in one_line[0]


# What panes say

TOLD = replace(job_of(1), ranks=(replace(job_of(1).ranks[0], step=1230, step_age_s=0.4),))
ZOOMED = {"zoom": Pane.RANKS}
PANES = {
    "no column of cards without any": (paint_ranks, job_of(2), {}, (120, 6), "~SM %"),
    "columns of cards in full": (paint_ranks, replace(job_of(2), gpus=(make_gpu(0),)), ZOOMED, (120, 6), "SM %"),
    "the card of a rank": (paint_ranks, replace(job_of(2), gpus=(make_gpu(0),)), {}, (120, 6), "GPU|~SM %"),
    "a rank that is gone": (paint_ranks, replace(job_of(2), processes=()), {}, (120, 6), "gone"),
    "hidden ranks are counted and the cursor pages": (
        paint_ranks,
        job_of(64, target=make_target(world_size=64)),
        {"focus": Pane.RANKS, "cursor_pid": 140},
        (60, 10),
        "56 more|\n>  40 ",
    ),
    "steps that a hook tells": (paint_ranks, TOLD, ZOOMED, (120, 4), "step age|1230"),
    "no steps": (paint_ranks, job_of(1), ZOOMED, (120, 4), "step ? no hook in the training process|~step age"),
    "nothing of steps that nobody counts": (paint_ranks, job_of(1), {}, (120, 4), "now in|~step"),
    "a filter that nothing matches": (
        paint_workers,
        workers_frame(),
        {"filter_text": "zzz"},
        (100, 5),
        "filter zzz (0 of 4)|\n no process matches zzz",
    ),
    "no workers": (paint_workers, make_frame(processes=(make_process(100),)), {}, (100, 5), "\n no worker process now"),
    "no driver": (paint_gpus, make_frame(), {}, (80, 12), "? no NVIDIA driver on this machine|~\n"),
}
"""What a pane of a size says of a Frame and a view, with a "|" between; after a "~" what it does not."""


@pytest.mark.parametrize(("paint", "frame", "fields", "size", "words"), PANES.values(), ids=PANES)
def test_the_pane_says(paint, frame, fields, size, words):
    assert find_wrong(words, join(paint(make_view(frame, **fields), Size(*size), focused=True))) == []


# Heights


def test_rows_are_shared_by_need():
    wishes = [
        Wish(Pane.RANKS, 3, 6, 10),
        Wish(Pane.CPU, 3, 7, 9),
        Wish(Pane.WORKERS, 3, 6, 100),
        Wish(Pane.EVENTS, 2, 4, 6),
        Wish(Pane.GPUS, 1, 10, 10),
    ]
    assert share_height(wishes, 7) == {Pane.RANKS: 3, Pane.CPU: 3, Pane.GPUS: 1}
    assert share_height(wishes, 12) == {Pane.RANKS: 3, Pane.CPU: 3, Pane.WORKERS: 3, Pane.EVENTS: 2, Pane.GPUS: 1}
    shared = share_height(wishes, 40)
    assert sum(shared.values()) == 40
    assert shared[Pane.GPUS] == 10
    assert shared[Pane.EVENTS] >= 4


def test_panes_keep_their_places_when_only_numbers_change():
    def rules(frame):
        lines = texts_of(paint_screen(make_view(frame), Size(100, 40)))
        return [row for row, line in enumerate(lines) if line[:2] in ("\u2500\u2500", "\u2550\u2550")]

    frame = workers_frame()
    busy = replace(frame, cpu=make_cpu(runnable=99.0, used_cores=8.0, run_delay_ratio=0.9, oversubscription=9.0))
    assert rules(frame) == rules(busy)
