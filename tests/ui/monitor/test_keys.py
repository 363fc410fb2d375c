"""The table of keys: complete, unambiguous, honest about what works; and the pure actions, which leave no bounds."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_finding, make_frame, make_gpu, make_target, make_view
from tests.goldens import capture_views, dump_views
from tests.painted import join
from tests.playbacks import make_playback
from tests.ui.monitor import key_checks_capture, key_checks_find, key_checks_job, key_checks_replay, key_checks_stacks
from tests.ui.monitor.driving import drive
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.capture import CaptureChoice, CaptureStage
from tpmon.ui.kit.keys import FILTER_LIMIT, ByDigit, Effect, Move, Overlay, action_filter_type
from tpmon.ui.monitor import keys as monitor_keys
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.keys import KEYS, Demand, keys_markdown, keys_shown, say_unused
from tpmon.ui.monitor.layout import page_of, paint_screen
from tpmon.ui.monitor.state import INTERVALS_S, Pane, SortBy, ViewState
from tpmon.ui.traces import keys as trace_keys
from tpmon.view.layout import Size

DOCS = Path(__file__).parents[3] / "docs" / "keys.md"
CHECKS = {
    key_id: check
    for part in (key_checks_job, key_checks_find, key_checks_stacks, key_checks_capture, key_checks_replay)
    for key_id, check in part.CHECKS.items()
}


def all_views() -> Iterator[ViewState]:
    """Every kind of view that a key can meet."""
    frames = (make_frame(), make_frame(verdict=make_finding()), Missing("waiting"))
    for frame, overlay, zoom, focus, text, interval_s in product(
        frames, Overlay, (NOT_APPLICABLE, *Pane), Pane, ("", "w0"), (0.5, 1.0, 10.0)
    ):
        yield make_view(frame, overlay=overlay, zoom=zoom, focus=focus, filter_text=text, interval_s=interval_s)
    for overlay, zoom, focus, text in product(Overlay, (NOT_APPLICABLE, *Pane), Pane, ("", "w0")):
        yield make_view(overlay=overlay, zoom=zoom, focus=focus, filter_text=text, from_list=True)
    for overlay, zoom, focus, dump, paused in product(
        Overlay, (NOT_APPLICABLE, *Pane), Pane, (NOT_APPLICABLE, dump_views.torn()), (True, False)
    ):
        playback = make_playback(paused=paused)
        yield make_view(overlay=overlay, zoom=zoom, focus=focus, dump=dump, playback=playback, time_text="3")


def test_each_row_has_an_id_words_in_the_docs_too_something_to_do_and_a_check():
    assert len({key.id for key in KEYS}) == len(KEYS)
    assert {key.id for key in KEYS} == set(monitor_keys.USES) == set(CHECKS)
    assert {key.id for key in trace_keys.TRACE_KEYS} == set(trace_keys.USES)
    for key in KEYS:
        word, priority = key.footer
        assert (bool(key.help), bool(key.section), priority > 0) == (True, True, bool(word)), key.id
    assert DOCS.read_text() == keys_markdown(), "run: python -m tpmon.ui.monitor.keys > docs/keys.md"


def test_plus_and_minus_mean_one_thing_over_a_capture_too_its_steps():
    every = [capture_views.offered(choice=CaptureChoice(steps=steps)) for steps in (1, 5, 1_000)]
    met = set()
    for update, stage, overlay, behind, interval_s in product(
        every, CaptureStage, Overlay, (Overlay.NONE, Overlay.CAPTURE), (0.5, 1.0, 10.0)
    ):
        view = make_view(capture=replace(update, stage=stage), overlay=overlay, behind=behind, interval_s=interval_s)
        rows = [key for key in KEYS if key.when.holds(view)]
        names = [name for key in rows for name in key.keys]
        assert len(set(names)) == len(names), view
        ids = {key.id for key in rows}
        met |= ids
        if ids & {"capture-more", "capture-fewer", "capture-kind", "capture-ranks"}:
            assert not ids & {"slower", "faster"}
    assert met >= {"capture-more", "capture-fewer", "capture-ranks", "capture-go", "slower", "faster"}


def test_a_key_that_does_nothing_says_why():
    view = make_view()
    assert say_unused(" ", view) == "space has no meaning, ? shows the keys"
    assert say_unused("Z", view) == "Z has no meaning, ? shows the keys"
    assert say_unused("R", view).startswith("R works in the stacks, where py-spy could not read")
    assert say_unused("T", view) == "T does nothing here, ? shows what does"
    assert say_unused("f12", view) == say_unused("\x07", view) == ""
    ended = make_view(make_frame(target=make_target(state=TargetState.ENDED)))
    assert say_unused("d", ended) == "d has nothing to do: the job has ended"


def test_no_key_means_two_things_at_once_and_whatever_is_shown_does_something():
    for view in all_views():
        works = [key for key in KEYS if key.when.holds(view)]
        names = [name for key in works for name in key.keys]
        assert len(set(names)) == len(names), view
        for key in works:
            if isinstance(key.deed, Demand):
                after, request = key.deed.make(view, (4211,))
                assert is_known(request) or after != view, (key.id, view)
            elif isinstance(key.deed, ByDigit):
                assert all(key.deed.act(view, pane) != view for pane in Pane)
            elif not isinstance(key.deed, (Effect, Move)) and key.id != "sort-cpu":  # already sorted so
                assert key.deed(view) != view, (key.id, view)


def test_a_recording_offers_nothing_that_asks_the_job_and_says_so():
    view = make_view(make_frame(verdict=make_finding()), playback=make_playback(), dump=dump_views.torn())
    for overlay in (Overlay.NONE, Overlay.STACKS):
        shown = replace(view, overlay=overlay)
        assert not {key.id for key in KEYS if key.when.holds(shown)} & set(monitor_keys.LIVE)
    for name in (*"DmRNLfFtbca8", "ctrl+r"):
        assert say_unused(name, view) == "recorded, not live", name
    assert say_unused("w", view) == "w works in the stacks, once some are read"
    assert names_shown(view) >= {*"p[](),.:^$+-d6vYyes/", "q", "?"}
    assert not names_shown(make_view(make_frame())) & set("[](),.^$")


def names_shown(view):
    return {name for key in keys_shown(view) for name in key.keys}


def test_keys_that_cannot_work_are_not_shown_and_help_lists_what_works_below_it_but_the_footer_does_not():
    assert "esc" not in names_shown(make_view())
    zoomed = make_view(zoom=Pane.GPUS, focus=Pane.GPUS)
    assert not names_shown(zoomed) & {"s", "S", "P", "M", "T", "e"}
    assert names_shown(make_view(overlay=Overlay.FILTER)) == {"enter", "esc", "ctrl-c", "ctrl-z", "ctrl-l"}
    assert "y" not in names_shown(make_view(Missing("waiting")))
    assert "+" not in names_shown(make_view(interval_s=INTERVALS_S[-1]))
    assert names_shown(make_view(make_frame())) >= {"+", "-"}
    ended = make_frame(target=make_target(state=TargetState.ENDED, ended="exit 0"))
    assert not names_shown(make_view(ended)) & {"+", "-"}
    priorities = {key.keys[0]: key.priority for key in keys_shown(make_view(overlay=Overlay.HELP))}
    assert (priorities["s"], priorities["esc"] > 0, priorities["q"] > 0) == (0, True, True)


JUDGED = make_frame(verdict=make_finding())
HELPED = [
    *(
        {"frame": frame, "filter_text": "x"}
        for frame in (make_frame(), JUDGED, make_frame(verdict=make_finding(try_=Missing("?"))))
    ),
    *(
        {"frame": JUDGED, "behind": behind, "capture": capture}
        for behind in (Overlay.CAPTURE, Overlay.NONE)
        for capture in (capture_views.offered(cuda=True), capture_views.priced(), capture_views.recording())
    ),
    {"frame": JUDGED, "filter_text": "x", "dump": dump_views.torn(), "playback": make_playback()},
    {"frame": JUDGED, "behind": Overlay.STACKS, "dump": dump_views.torn(), "playback": make_playback()},
]
"""Views below a help, over the plan of a capture too."""


@pytest.mark.parametrize("fields", HELPED)
def test_all_keys_of_the_help_fit_the_common_screen(fields):
    view = make_view(**fields, overlay=Overlay.HELP)
    keys = keys_shown(view)
    text = join(paint_screen(view, Size(80, 24), keys))
    assert page_of(view, Size(80, 24), keys)[1] == 0, "nothing to scroll to"
    assert "lines 1" not in text
    assert [key.keys[0] for key in keys if f" {key.keys[0]} " not in text] == []


@pytest.mark.parametrize("key_id", [row.id for row in KEYS])
def test_key(key_id):
    drive(CHECKS[key_id])


ROWS = (11, 12, 13, 14)


@pytest.mark.parametrize(
    ("start", "move", "end"),
    [
        (NOT_APPLICABLE, Move.DOWN, 11),
        (NOT_APPLICABLE, Move.LAST, 14),
        (11, Move.DOWN, 12),
        (11, Move.UP, 11),
        (14, Move.DOWN, 14),
        (11, Move.PAGE_DOWN, 13),
        (13, Move.PAGE_UP, 11),
        (12, Move.PAGE_UP, 11),
        (12, Move.LAST, 14),
        (13, Move.FIRST, 11),
        (99, Move.DOWN, 11),
    ],
)
def test_the_cursor_walks_the_rows(start, move, end):
    view = actions.action_move(make_view(cursor_pid=start), move, ROWS, page=2, scroll_limit=0)
    assert view.cursor_pid == end


def test_an_overlay_scrolls_and_leaves_the_cursor():
    view = make_view(cursor_pid=12, overlay=Overlay.DETAILS)
    down = actions.action_move(view, Move.PAGE_DOWN, ROWS, page=7, scroll_limit=10)
    assert (down.scroll, down.cursor_pid) == (7, 12)
    assert actions.action_move(down, Move.PAGE_DOWN, ROWS, page=7, scroll_limit=10).scroll == 10
    assert actions.action_move(down, Move.FIRST, ROWS, page=7, scroll_limit=10).scroll == 0


@given(st.lists(st.sampled_from(Move), max_size=20), st.integers(0, 6), st.integers(1, 9), st.integers(0, 30))
def test_moves_never_leave_the_rows_or_the_text(moves, count, page, limit):
    view, rows = make_view(), tuple(range(100, 100 + count))
    for move in moves:
        view = actions.action_move(view, move, rows, page, limit)
        assert not is_known(view.cursor_pid) or view.cursor_pid in rows
        assert 0 <= view.scroll <= limit


def test_the_cursor_takes_the_row_of_a_process_that_left():
    view = make_view(cursor_pid=12)
    assert actions.keep_cursor(view, (11, 13, 14), ROWS).cursor_pid == 13
    assert actions.keep_cursor(view, (14, 12), ROWS).cursor_pid == 12
    assert actions.keep_cursor(make_view(cursor_pid=14), (11,), ROWS).cursor_pid == 11
    assert actions.keep_cursor(view, (), ROWS).cursor_pid == NOT_APPLICABLE
    details = replace(view, overlay=Overlay.DETAILS)
    assert actions.keep_cursor(details, (11,), ROWS) == details, "they stay open"


def test_zoom_returns_and_tab_moves_it():
    view = actions.action_zoom(make_view(), Pane.EVENTS)
    assert (view.zoom, view.focus) == (Pane.EVENTS, Pane.EVENTS)
    assert actions.action_focus(view, 1).zoom == Pane.RANKS
    assert actions.action_zoom(view, Pane.EVENTS).zoom is NOT_APPLICABLE
    assert actions.action_focus(make_view(focus=Pane.RANKS), -1).focus == Pane.EVENTS


def test_tab_goes_down_the_screen_and_reaches_cards_where_there_are_some():
    def walk(frame):
        view, seen = make_view(frame, focus=Pane.RANKS), []
        for _ in Pane:
            view = actions.action_focus(view, 1)
            seen.append(view.focus)
        return seen

    assert walk(make_frame(gpus=(make_gpu(0),))) == [Pane.CPU, Pane.WORKERS, Pane.EVENTS, Pane.GPUS, Pane.RANKS]
    assert walk(make_frame()) == [Pane.CPU, Pane.WORKERS, Pane.EVENTS, Pane.RANKS, Pane.CPU]


def test_sorting_goes_round_and_starts_with_the_largest():
    view = make_view(sort_reversed=True)
    seen = []
    for _ in SortBy:
        view = actions.action_sort_next(view)
        seen.append(view.sort)
        assert not view.sort_reversed
    assert set(seen) == set(SortBy)
    assert view.sort is make_view().sort


def test_a_filter_takes_one_clean_line_of_bounded_length():
    typed = action_filter_type(make_view(overlay=Overlay.FILTER), "a\x1b[31mb\nsecond line")
    assert typed.filter_text == "a?[31mb"
    long = action_filter_type(typed, "x" * 1000)
    assert len(long.filter_text) == FILTER_LIMIT
    assert action_filter_type(typed, "\n").filter_text == typed.filter_text


def test_an_interval_between_those_of_the_keys_goes_to_the_next():
    view = make_view(interval_s=0.7)  # a value of -i
    assert actions.action_slower(view).interval_s == 1.0
    assert actions.action_faster(view).interval_s == 0.5
