"""Check the keys of time: what they ask of the player, and that nothing else is asked of anybody."""

from dataclasses import replace

from tests.goldens import dump_views, sample_views
from tests.playbacks import END_NS, SECOND_NS, make_moment, make_playback
from tests.ui.monitor.driving import JOB, Checks
from tpmon.model.results.doctor import Update
from tpmon.model.results.replay import JumpTo, JumpToFrame, TimeMove
from tpmon.ui.kit.keys import Overlay

CHECKS = Checks()


async def play(s, **fields):
    """Show a Frame of a recording, with these fields of what is told of it."""
    playback = make_playback(**fields)
    frame = replace(JOB, taken_ns=playback.shown.taken_ns)
    s.app.receive(Update(frame, (), playback, ()))
    await s.pilot.pause()


@CHECKS.of("demo-next")
async def _(s):
    await s.press("n")
    assert "n works in tpmon demo" in s.view.message
    assert (s.app.asks_next, s.app.is_running) == ("", True)
    s.app.view = replace(s.view, following="no-workers")
    await play(s)
    assert "n next bottleneck" in s.text
    await s.press("n")
    assert (s.app.asks_next, s.app.return_code, s.app.is_running) == ("no-workers", 0, False)


MOVES = (
    ("change-back", ("(",), TimeMove.CHANGE_BACK),
    ("change-on", (")",), TimeMove.CHANGE_ON),
    ("seconds-back", (",",), TimeMove.SECONDS_BACK),
    ("seconds-on", (".",), TimeMove.SECONDS_ON),
    ("frame-back", ("[",), TimeMove.FRAME_BACK),
    ("frame-on", ("]",), TimeMove.FRAME_ON),
    ("begin", ("^",), TimeMove.BEGIN),
    ("end", ("$",), TimeMove.END),
    ("play-faster", ("+", "="), TimeMove.FASTER),
    ("play-slower", ("-",), TimeMove.SLOWER),
)
EDGES = {
    "begin": {"shown": make_moment(1, 3600)},
    "end": {"shown": make_moment(7201, -3600)},
    "play-faster": {"speed": 60.0},
    "play-slower": {"speed": 0.25},
}
"""Where a key of that row has nothing to do any more."""
AT_EDGE = {"back": "begin", "on": "end"}


@CHECKS.each(MOVES)
async def _(s, keys, move):
    before = len(s.asked)
    for key in keys:
        s.app.press(key)
    assert s.asked[before:] == [], "it means nothing to a job that is watched"
    await play(s)
    for key in keys:
        s.app.press(key)
    assert s.asked[before:] == [move] * len(keys)
    edge = EDGES.get(move.value) or EDGES[AT_EDGE[move.value.rpartition("-")[2]]]
    await play(s, **edge)
    s.app.press(keys[0])
    assert s.asked[before:] == [move] * len(keys)
    assert f"{keys[0]} works in a recording, " in s.view.message


@CHECKS.of("play")
async def _(s):
    await play(s)
    await s.press("p")
    assert s.asked == [TimeMove.PLAY]
    await play(s, paused=True, shown=make_moment(7201, -3600))
    await s.press("p")
    assert s.asked == [TimeMove.PLAY]
    assert "before its end" in s.text
    await play(s, paused=True, shown=make_moment(7201, -3600), live=True)
    await s.press("p")
    assert s.asked == [TimeMove.PLAY] * 2, "more may come"


@CHECKS.of("time")
async def _(s):
    await play(s)
    for opens, overlay in ((), Overlay.NONE), (("v",), Overlay.VERDICT), (("enter",), Overlay.DETAILS):
        await s.press(*opens)
        shown = s.text.splitlines()[:-1]
        await s.press(":", "0", "3", ":", "j", "q", "d")
        assert s.text.splitlines()[:-1] == shown, "what was in sight stays there"
        assert ":03:jqd_" in s.text
        assert s.view.overlay is Overlay.TIME
        await s.press("escape")
        assert s.view.overlay is overlay
        await s.press("escape")
    await s.press("?", ":", "escape")
    assert s.view.overlay is Overlay.NONE
    assert s.asked == []


@CHECKS.of("time-go")
async def _(s):
    await play(s)
    for typed, asked in (
        ("-10m", JumpTo(END_NS - 600 * SECOND_NS)),
        ("+30s", JumpTo(END_NS + 30 * SECOND_NS)),
        ("#120", JumpToFrame(120)),
        ("03:00", JumpTo(END_NS - 461 * SECOND_NS + SECOND_NS - 1)),
    ):
        await s.press(":", *typed, "enter")
        assert (s.asked.pop(), s.asked, s.view.overlay) == (asked, [], Overlay.NONE), typed
    await s.press(":", *"7:7", "enter")
    assert (s.view.overlay, s.asked) == (Overlay.TIME, []), "it can be mended"
    assert "'7:7' is no time: 03:12, 03:12:07" in s.text
    assert ":7:7_" in s.text
    await s.press(*("backspace",) * 3, "enter")
    assert (s.view.overlay, s.asked) == (Overlay.NONE, [])


@CHECKS.of("time-erase")
async def _(s):
    await play(s)
    await s.press(":", "0", "3", "backspace")
    assert (s.view.time_text, s.view.filter_text) == ("0", "")


@CHECKS.of("stacks-kept")
async def _(s):
    await play(s)
    await s.press("d", "6")
    assert s.view.overlay is Overlay.NONE
    assert "works in a recording with stacks in it" in s.text
    await s.send_result(dump_views.hung_once())
    for key in ("d", "6"):
        await s.press(key)
        assert s.view.overlay is Overlay.STACKS
        assert "7 of 8 ranks wait" in s.text
        await s.press(key)
        assert s.view.overlay is Overlay.NONE
    assert s.asked == []


@CHECKS.of("hot-kept")
async def _(s):
    await play(s)
    await s.press("7")
    assert "works in a recording with hot functions in it" in s.text
    await s.send_result(sample_views.ended())
    await s.press("7")
    assert s.view.overlay is Overlay.SAMPLE
    assert "3 processes" in s.text
    assert "f samples" not in s.text
    await s.press("7")
    assert (s.view.overlay, s.asked) == (Overlay.NONE, [])
