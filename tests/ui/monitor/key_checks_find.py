"""Check the keys that find text, go to a place by name or number, and move sideways."""

from dataclasses import replace

from tests.frames import make_event, make_finding, make_frame, make_output, make_process, make_rank, make_worker
from tests.goldens import dump_views
from tests.ui.monitor.driving import Checks
from tpmon.errors import ExitCode
from tpmon.model.known import NOT_APPLICABLE
from tpmon.ui.kit.canvas import Canvas
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.state import Pane
from tpmon.view.layout import Ink

CHECKS = Checks()
RANKS = make_frame(
    verdict=make_finding(),
    processes=(*(make_process(100 + n, rank=n) for n in range(6)), make_worker(4221, 0)),
    ranks=tuple(make_rank(100 + n, rank=n, where=f"step_{n % 2} train.py:{n}") for n in range(6)),
    output=(make_output(lines=tuple(f"step {n} loss {n / 7:.3f}" for n in range(60))),),
    events=tuple(make_event(f"worker {n} was born") for n in range(80)),
)


def marked(s):
    """Return the text of every match that is marked on the screen, without the signs of its last line."""
    lines = s.app.query_one(Canvas)._lines[:-1]
    return [text for line in lines for text, ink in line if ink is Ink.CURSOR]


def rank_at(s):
    return s.view.cursor_pid - 100


@CHECKS.of("find")
async def _(s):
    await s.send(RANKS)
    await s.press("shift+tab", "shift+tab", "slash", *"STEP_1")
    assert (s.view.overlay, s.view.search.text) == (Overlay.FIND, "STEP_1")
    assert "/STEP_1_" in s.text.splitlines()[-1]
    assert "1 ranks" in s.text, "what is searched stays in sight"
    assert marked(s) == ["step_1"], "normal ranks share a line"
    await s.press("enter")
    assert "match 1 of 3" in s.text
    assert marked(s).count("step_1") == 2, "where one is found they have a line each; it is bold in that of the cursor"
    await s.press("escape", "slash", *"STEP_1")
    await s.press("escape")
    assert (s.view.overlay, s.view.search.text, s.view.focus) == (Overlay.NONE, "", Pane.RANKS)
    await s.press("v", "slash", *"cap", "escape")
    assert s.view.overlay is Overlay.VERDICT, "esc closes the line alone"
    await s.press("escape", "slash", "enter")
    assert s.view.overlay is Overlay.NONE
    assert s.view.message == ""


@CHECKS.of("find-first")
async def _(s):
    await s.send(RANKS)
    for keys, pane in ((("5",), Pane.EVENTS), ((), Pane.EVENTS)):
        await s.press(*keys, "slash", *"worker 3 was", "enter")
        assert (s.view.overlay, s.view.zoom) == (Overlay.NONE, pane), "found in full, where it was beside others"
        assert "worker 3 was born" in s.text
        assert "match 1 of 1" in s.text
        assert marked(s) == ["worker 3 was"]
        await s.press("escape", "escape")
    await s.press("v", "slash", *"nowhere", "enter")
    assert "not found here: nowhere" in s.text
    assert s.view.overlay is Overlay.VERDICT


@CHECKS.of("find-next")
async def _(s):
    await s.send(RANKS)
    await s.press("1", "slash", *"step_1", "enter")
    seen = [rank_at(s)]
    for _ in range(3):
        await s.press("n")
        seen.append(rank_at(s))
    assert sorted(seen[:3]) == [1, 3, 5]
    assert seen[3] == seen[0], "round and round"
    await s.press("escape")
    assert s.view.search.text == ""
    await s.get(dump_views.hung_once(), "6")
    await s.press("slash", *"train.py", "enter")
    assert "match 1 of 4" in s.text, "in closed groups, too"
    first = s.view.stacks.cursor
    await s.press("n")
    assert s.view.stacks.cursor != first
    await s.press("escape", "escape", "3", "slash", *"422", "enter", "n")
    assert "match" in s.text, "of a filter the next row"


@CHECKS.of("find-previous")
async def _(s):
    await s.send(RANKS)
    await s.press("5", "slash", *"was born", "enter", "n", "n")
    assert "match 3 of 80" in s.text
    await s.press("N")
    assert "match 2 of 80" in s.text
    await s.press("N", "N")
    assert "match 80 of 80" in s.text
    assert "worker 0 was born" in s.text


@CHECKS.of("find-erase")
async def _(s):
    await s.press("v", "slash", "x", "y", "backspace")
    assert s.view.search.text == "x"
    s.app.paste("abc\nsecond")
    assert s.view.search.text == "xabc"


@CHECKS.of("find-clear")
async def _(s):
    await s.send(RANKS)
    await s.press("5", "slash", *"born", "enter", "escape")
    assert (s.view.search.text, s.view.zoom, marked(s)) == ("", Pane.EVENTS, [])
    await s.press("escape")
    assert s.view.zoom is NOT_APPLICABLE


@CHECKS.of("go")
async def _(s):
    await s.press("colon", *"43")
    assert s.view.overlay is Overlay.GO
    assert ":43_" in s.text.splitlines()[-1]
    assert "3 workers" in s.text
    await s.press("escape")
    assert (s.view.overlay, s.view.search.goal) == (Overlay.NONE, "")


@CHECKS.of("go-there")
async def _(s):
    await s.send(RANKS)
    for goal, seen in (("4221", (Pane.WORKERS, 4221)), ("103", (Pane.RANKS, 103)), ("5", (Pane.RANKS, 105))):
        await s.press("colon", *goal, "enter")
        assert (s.view.focus, s.view.cursor_pid, s.view.zoom) == (*seen, NOT_APPLICABLE)
    await s.press("colon", *"77", "enter")
    assert "no process or rank 77 in this job" in s.text
    await s.press("colon", *"ev", "enter")
    assert s.view.zoom is Pane.EVENTS
    await s.press("colon", *"40", "enter")
    assert s.view.scroll == 39, "a line of a text"
    await s.press("colon", *"verdict", "enter")
    assert s.view.overlay is Overlay.VERDICT
    await s.press("colon", *"nope", "enter")
    assert "no such place" in s.text
    await s.get(dump_views.torn(), "colon", *"stacks", "enter")
    await s.press("G", "colon", *"4211", "enter")
    assert s.view.overlay is Overlay.STACKS
    await s.press("colon", *"999", "enter")
    assert "no process or rank 999 in these stacks" in s.text
    await s.press("escape", "colon", "enter")
    assert s.view.overlay is Overlay.NONE
    await s.press("colon", "q", "enter")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)


@CHECKS.of("go-erase")
async def _(s):
    await s.press("colon", "4", "2", "backspace")
    assert s.view.search.goal == "4"


@CHECKS.each((("pane-right", ("l",), Pane.EVENTS), ("pane-left", ("h",), Pane.WORKERS)))
async def _(s, keys, pane):
    if pane is Pane.WORKERS:
        await s.press("l")
    await s.press(*keys)
    assert s.view.focus is pane


LONG = replace(RANKS, output=(make_output(lines=("a" * 130 + "END",)),))


@CHECKS.of("side-right")
async def _(s):
    await s.send(LONG)
    await s.press("5")
    assert "END" not in s.text
    await s.press("l")
    assert "END" in s.text
    assert "from column 17" in s.text
    assert s.text.splitlines()[0].startswith(" train.py"), "the header stays"
    await s.press("tab", "shift+tab")
    assert s.view.search.left == 0, "another pane begins at its first column"


@CHECKS.of("side-left")
async def _(s):
    await s.send(LONG)
    await s.press("5", "l", "l", "h", "h")
    assert (s.view.search.left, s.view.zoom) == (0, Pane.EVENTS)
    await s.press("h")
    assert "h does nothing here" in s.text
