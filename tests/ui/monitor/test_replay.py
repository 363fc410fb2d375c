"""The screen over a recording: the pictures of the live screen, and what moves through time."""

from dataclasses import replace

import pytest

from tests.frames import NOW_NS, later, make_event, make_view
from tests.goldens import dump_views
from tests.goldens.pictures import load_frame
from tests.goldens.states import STATES, history_of
from tests.painted import screen_of, text_of
from tests.playbacks import make_moment, make_playback
from tests.ui.monitor.driving import JOB, driven
from tests.ui.monitor.key_checks_replay import play
from tpmon.model.dump import Asker
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.doctor import Update
from tpmon.model.results.replay import TimeMove
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import page_of, paint_screen
from tpmon.ui.monitor.state import Pane, has_unseen, with_update
from tpmon.view.layout import Size

COVERS = ({}, {"zoom": Pane.EVENTS}, {"overlay": Overlay.VERDICT}, {"overlay": Overlay.DETAILS})


@pytest.mark.parametrize("size", [Size(120, 40), Size(80, 24), Size(40, 50)], ids=str)
@pytest.mark.parametrize("state", STATES)
def test_a_picture_of_a_recording_is_that_of_the_live_screen_cell_by_cell(state, size):
    frame = load_frame(state)
    told = {"pulses": history_of(state, frame), "events": STATES[state][1]()}
    hung = {"dump": dump_views.hung_three_looks(Asker.WATCH)} if state == "hung" else {}
    playback = make_playback(shown=replace(make_moment(9), taken_ns=frame.taken_ns))
    for cover in (*COVERS, hung):
        live = make_view(frame, **told, **cover, now_ns=frame.taken_ns)
        update = Update(frame, told["pulses"], playback, told["events"])
        played = with_update(replace(make_view(), **cover), update, told["events"], 7)
        expected = paint_screen(live, size, keys_shown(live))
        painted = paint_screen(played, Size(size.width, size.height + 1), keys_shown(played))
        assert painted[2:-1] == expected[1:-1], cover
        assert "REPLAY" in text_of(painted[0])
        assert page_of(played, Size(size.width, size.height + 1)) == page_of(live, size)


def test_ages_are_counted_by_the_clock_of_the_recording():
    slow = later(JOB, -7000, interval_s=5.0)
    update = Update(slow, (), make_playback(), ())
    view = with_update(make_view(interval_s=1.0), update, (), NOW_NS + 10**15)
    assert (view.now_ns, view.interval_s) == (slow.taken_ns, 5.0)
    assert "LATE" not in screen_of(view)
    assert "old" not in screen_of(view).splitlines()[0]


@driven()
async def test_a_jump_back_takes_the_events_of_later_with_it(s):
    events = tuple(make_event(f"event {n}", 60 - n) for n in range(4))
    for shown in (events, events[:1], events[:3]):
        s.app.receive(Update(replace(JOB, events=()), (), make_playback(), shown))
        await s.pilot.pause()
        assert s.view.events == shown
        assert ("event 2" in s.text) is (len(shown) > 2)


@driven()
async def test_a_message_goes_by_the_clock_of_today(s):
    await play(s, shown=make_moment(9, 3000))
    await s.press("m")
    assert "recorded, not live" in s.text
    s.now_ns += 10_000_000_000
    await play(s, shown=make_moment(9, 3000))
    assert "recorded, not live" not in s.text


@driven(size=(80, 24))
async def test_what_is_wrong_with_a_time_is_told_however_long_it_is(s):
    await play(s)
    await s.press(":", *"2026-03-14T23:12:07", "enter")
    told = "23:12:07 is outside of the recording: 2026-03-14 02:07:41 to 04:07:41, Frames #1 to #7201"
    assert told in " ".join(s.text.split())
    assert ":2026-03-14T23:12:07_" in s.text.splitlines()[-1]


@driven(size=(80, 20))
async def test_a_place_in_a_text_stays_while_time_goes(s):
    await play(s, paused=True)
    await s.press("enter", "j", "j", ":", "-", "5", "m", "enter")
    assert (s.view.overlay, s.view.scroll) == (Overlay.DETAILS, 2)
    await s.press("v", "]")
    assert s.view.overlay is Overlay.VERDICT
    assert s.asked[-1] is TimeMove.FRAME_ON


def test_a_dump_of_later_is_no_hint_and_says_how_much_later():
    dump = dump_views.hung_three_looks(Asker.WATCH)
    taken_ns = dump.state.rounds[-1].taken_ns
    early = make_view(later(JOB, -600), playback=make_playback(), now_ns=taken_ns - 600_000_000_000, dump=dump)
    assert not has_unseen(early)
    assert "10m00s later" in screen_of(replace(early, overlay=Overlay.STACKS))
    after = replace(early, now_ns=taken_ns + 5_000_000_000)
    assert has_unseen(after)
    assert "5.0 s ago" in screen_of(replace(after, overlay=Overlay.STACKS))


def test_stacks_of_a_recording_name_no_key_that_it_has_not():
    for dump in (dump_views.torn(), dump_views.hung_once()):
        view = make_view(playback=make_playback(), dump=dump, overlay=Overlay.STACKS)
        text = screen_of(view)
        assert "m shows" not in text
        assert " R " not in text
        live = screen_of(replace(view, playback=NOT_APPLICABLE))
        assert "m shows" in live or " R " in live


def test_the_recording_of_a_demo_says_so_at_each_width():
    view = make_view(playback=make_playback(), now_ns=JOB.taken_ns, following="no-workers")
    for width in (120, 80, 40, 20):
        assert "recorded, not live" in screen_of(view, width, 24).splitlines()[0], width
    assert "recorded, not live" not in screen_of(replace(view, following=""))
    assert "recorded, not live" not in screen_of(replace(view, playback=NOT_APPLICABLE))


def test_where_there_is_room_for_a_few_lines_there_is_no_strip():
    view = make_view(playback=make_playback(), now_ns=JOB.taken_ns)
    assert screen_of(view, 80, 9).splitlines()[0].startswith(" REPLAY 03:07:41")
    assert "REPLAY 03:07:41 of" in screen_of(view, 80, 10)
    assert "█" not in screen_of(view, 80, 10).splitlines()[1]
    assert "█" in screen_of(view, 80, 11).splitlines()[1]
    assert screen_of(replace(view, overlay=Overlay.TIME, time_text="03:1"), 20, 5).startswith(" :03:1_ ")
