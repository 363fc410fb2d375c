"""The application by its pilot: Updates, pauses, dumps, bursts, crashes."""

import asyncio
import threading
from dataclasses import replace

import pytest

from tests.frames import make_event, make_finding, make_frame, make_target
from tests.goldens import dump_views
from tests.ui.monitor.driving import JOB, Session, drive, driven
from tpmon.errors import ExitCode
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import EventKind, TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.doctor import Update
from tpmon.model.verdict import Kind
from tpmon.ui.kit.canvas import Canvas, ink_styles
from tpmon.ui.kit.ink import STYLES
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.controls import Notice, turns_bad
from tpmon.view.events import is_everyday
from tpmon.view.layout import Ink


@driven(readonly=True)
async def test_with_readonly_no_key_stops_anything(s):
    await s.get(dump_views.torn(), "6")
    await s.press("R", "R", "N", "N")
    assert s.asked == []
    assert "with a stop" not in s.text
    await s.press("d")
    assert s.asked == [DumpRequest(Asker.KEY)], "a look stops nothing"
    await s.press("6", "t", "c", "a", "t", "enter", "escape")
    assert len(s.asked) == 1, "a capture has the training record itself"
    await s.press("8")
    assert "--readonly forbids that" in s.text


@driven()
async def test_a_dump_of_the_hang_watch_is_a_hint_and_d_shows_it(s):
    await s.send_result(dump_views.hung_three_looks(Asker.WATCH))
    assert s.view.overlay is Overlay.NONE, "nothing jumps at a person who reads something else"
    assert "d: stacks of 03:07:39, read by the hang watch: 7 of 8 ranks" in s.text
    await s.press("d")
    assert s.asked == []
    assert "asked by the hang watch" in s.text
    await s.press("escape")
    assert "d: stacks of" not in s.text, "it was looked at"
    await s.press("d")
    assert s.asked == [DumpRequest(Asker.KEY)]


@driven()
async def test_a_paused_picture_takes_a_dump_of_the_key_alone(s):
    await s.get(dump_views.hung_three_looks(Asker.WATCH), "p")
    assert s.view.dump is NOT_APPLICABLE
    await s.press("d")
    assert len(s.asked) == 1
    await s.send_result(dump_views.hung_once())
    assert "7 of 8 ranks wait" in s.text
    assert "PAUSED" in s.text
    await s.press("p", "q")
    assert not s.app.is_running


@driven()
async def test_a_job_that_has_ended_is_not_asked_and_its_last_stacks_stay(s):
    await s.send_result(dump_views.hung_once())
    await s.send(replace(JOB, target=make_target(state=TargetState.ENDED, ended="exit 1")))
    await s.press("d")
    assert (s.asked, s.view.overlay) == ([], Overlay.NONE)
    await s.press("6")
    assert "7 of 8 ranks wait" in s.text


@driven()
async def test_a_refused_dump_says_why_and_q_ends_the_screen_while_another_is_read(s):
    await s.press("d")
    refused = dump_views.make_update(running=False, refused="no process to read")
    await s.send_result(refused)
    assert "! no process to read" in s.text
    assert is_known(s.view.dump)
    await s.send_result(dump_views.hung_running())
    await s.press("q")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False), "at once"


@driven()
async def test_a_burst_of_frames_or_of_dump_states_is_painted_once_and_loses_no_event(s):
    before = s.painted
    frames = [replace(JOB, facts=f"burst {n}", events=(make_event(f"event {n}"),)) for n in range(50)]
    await s.send(*frames)
    assert "burst 49" in s.text
    assert s.painted - before <= 3
    assert [event.text for event in s.view.events][-50:] == [f"event {n}" for n in range(50)]
    await s.press("6")
    before = s.painted
    await s.send_result(*[dump_views.hung_running()] * 40, dump_views.hung_once())
    assert "7 of 8 ranks wait" in s.text
    assert s.painted - before <= 3


@driven()
async def test_the_workers_of_each_epoch_push_out_no_other_event(s):
    verdict = make_event("verdict: data-bound (cpu-transform)", kind=EventKind.VERDICT)
    failed = make_event("rank 0 (4211) gone: SIGKILL")
    await s.send(replace(JOB, events=(verdict, failed)))
    for _ in range(3):
        epoch = tuple(make_event(f"epoch respawn: {n} workers of 8 ranks replaced") for n in range(400))
        await s.send(replace(JOB, events=epoch))
    assert len(s.view.events) == 500
    assert [event for event in s.view.events if not is_everyday(event)][-2:] == [verdict, failed]
    await s.press("v")
    assert "verdict: data-bound (cpu-transform)" in s.text


@driven(frames=())
async def test_before_the_first_reading_the_screen_says_so(s):
    assert isinstance(s.view.frame, Missing)
    assert "waiting for the first reading" in s.text
    await s.press("j", "e", "y", "1", "1", "question_mark")
    assert s.view.overlay is Overlay.HELP


@driven()
async def test_a_stalled_session_is_repainted_and_its_age_grows(s):
    s.now_ns += 90_000_000_000
    await s.until(lambda: "LATE" in s.text)


@driven()
async def test_no_escape_sequence_of_others_reaches_the_screen(s):
    await s.send_result(Notice("no capture; try tpmon run -- a\x1b]0;title\x07b"))
    await s.until(lambda: "run -- a?]0;title?b" in s.text)
    s.app.say("could not be opened: \x1b[31mred")
    assert s.view.message == "could not be opened: ?[31mred"
    assert s.app.text_left == "no capture; try tpmon run -- a?]0;title?b"


@driven()
async def test_a_key_that_is_not_in_the_table_does_nothing(s):
    before = s.view
    await s.press("ctrl+p", "ctrl+q", "b", "o", "m", "R", "9", "space", "alt+s", "f5")
    assert replace(s.view, now_ns=0) == replace(before, now_ns=0)
    assert s.app.is_running
    assert len(s.app.screen_stack) == 1


@driven()
async def test_the_cursor_stays_on_its_process_when_rows_move(s):
    await s.press("j", "j")
    held = s.view.cursor_pid
    moved = tuple(replace(p, cpu_pct=100.0 - p.cpu_pct) for p in JOB.processes)
    await s.send(replace(JOB, processes=moved))
    assert s.view.cursor_pid == held
    await s.send(replace(JOB, processes=tuple(p for p in moved if p.pid != held)))
    assert s.view.cursor_pid in panes.rows_of(s.view)


@driven()
async def test_every_size_is_painted_whole(s):
    for columns, rows in ((40, 50), (20, 5), (200, 50), (80, 24), (1, 1)):
        await s.pilot.resize_terminal(columns, rows)
        await s.until(lambda most=rows: len(s.text.split("\n")) <= most)
        assert "4211" in s.text or columns == 1


def test_an_update_after_the_end_is_dropped():
    session = drive(lambda s: s.press("q"))
    thread = threading.Thread(target=session.app.receive, args=(Update(JOB, ()),))
    thread.start()
    thread.join()
    assert not session.app.is_running


def test_a_painter_that_fails_ends_the_app_with_its_error():
    def paint(view, size, keys):
        if "boom" in getattr(view.frame, "facts", ""):
            raise ZeroDivisionError("boom")
        return panes.paint_screen(view, size, keys)

    session = Session(paint=paint)

    async def run():
        async with session.app.run_test() as session.pilot:
            await session.send(replace(JOB, facts="boom"))

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert isinstance(session.app.crash, ZeroDivisionError)
    assert session.app.return_code == ExitCode.BUG


@driven()
async def test_only_changed_rows_are_sent(s):
    canvas = s.app.query_one(Canvas)
    shown = [((f"row {n}", Ink.PLAIN),) for n in range(40)]
    canvas.set_lines(shown)
    await s.pilot.pause()
    assert canvas.set_lines(list(shown)) == 0
    assert not canvas._exchange_repaint_regions()
    shown[7] = (("row seven", Ink.BAD),)
    assert canvas.set_lines(shown) == 1
    (region,) = canvas._exchange_repaint_regions()
    assert (region.y, region.height) == (7, 1)


@driven(size=(41, 12))
async def test_a_row_is_as_wide_as_the_screen_whatever_stands_in_it(s):
    canvas = s.app.query_one(Canvas)
    for text in ("日本語" * 30, "x" + "日本語" * 30, "e\u0301" * 200, "", "short"):
        canvas.set_lines([((text, Ink.PLAIN),)])
        strip = canvas.render_line(0)
        assert strip.cell_length == 41
        assert sum(segment.cell_length for segment in strip) == 41


def test_every_ink_has_a_style_and_without_colour_only_bold_and_reverse_are_left():
    for ink, style in ink_styles(colour=False).items():
        assert style.color is None
        assert style.bgcolor is None
        assert not style.dim
        assert style.reverse or ink is not Ink.CURSOR
    assert any(style.color for style in ink_styles(colour=True).values())
    assert set(STYLES) == set(Ink)


def test_the_bell_is_for_a_verdict_that_turns_bad():
    bad = make_frame(verdict=make_finding(kind=Kind.HUNG, cause="lock"))
    calm = make_frame(verdict=make_finding(kind=Kind.COMPUTE_BOUND, cause="cpu"))
    new = (make_event("verdict: other", kind=EventKind.VERDICT),)
    other = (make_event("worker 4221 gone"),)
    assert turns_bad(Update(bad, ()), new)
    assert not turns_bad(Update(bad, ()), other)
    assert not turns_bad(Update(calm, ()), new)
    assert not turns_bad(Update(make_frame(), ()), new)
