"""Check the keys that look at the job: panes, rows, sorting, filters, copies."""

from dataclasses import replace

from tests.frames import make_event, make_finding
from tests.ui.monitor.driving import JOB, Checks, paste
from tpmon.errors import ExitCode
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.app import MESSAGE_SECONDS
from tpmon.ui.monitor.state import Pane, SortBy

CHECKS = Checks()


@CHECKS.of("quit")
async def _(s):
    await s.press("q")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)


@CHECKS.of("interrupt")
async def _(s):
    await s.press("slash", "ctrl+c")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)


@CHECKS.of("help")
async def _(s):
    for name in ("question_mark", "f1"):
        await s.press(name)
        assert s.view.overlay is Overlay.HELP
        assert "freeze the picture" in s.text
        await s.press(name)
        assert s.view.overlay is Overlay.NONE
    await s.press("f1", "s")
    assert (s.view.overlay, s.view.sort) == (Overlay.NONE, SortBy.CPU), "another key only closes it"


@CHECKS.of("verdict")
async def _(s):
    await s.press("v")
    assert s.view.overlay is Overlay.VERDICT
    assert "no verdict: not judged" in s.text
    await s.press("v")
    assert s.view.overlay is Overlay.NONE
    await s.send(replace(JOB, verdict=make_finding(ruled_out=("swap (0 B)",) * 40)))
    await s.press("v", "G")
    assert "confidence high" not in s.text
    assert "4 workers" not in s.text.split("facts")[0]
    await s.press("g", "escape")
    assert "DATA-BOUND" in s.text


@CHECKS.of("pause")
async def _(s):
    await s.press("p")
    s.now_ns += 12_000_000_000
    await s.send(replace(JOB, facts="later", taken_ns=s.now_ns, events=(make_event("born"),)))
    assert "PAUSED 12 s" in s.text
    assert "later" not in s.text
    await s.send(replace(JOB, facts="last", taken_ns=s.now_ns, events=(make_event("died"),)))
    await s.press("p")
    assert "last" in s.text
    assert [event.text for event in s.view.events][-2:] == ["born", "died"], "no event is lost"


@CHECKS.of("slower")
async def _(s):
    await s.press("plus", "equals_sign")
    assert s.intervals == [2.0, 5.0]
    assert "every 5 s" in s.text
    await s.press("plus", "plus", "plus")
    assert s.intervals == [2.0, 5.0, 10.0]


@CHECKS.of("faster")
async def _(s):
    await s.press("minus", "minus", "minus")
    assert s.intervals == [0.5]


@CHECKS.of("suspend")
async def _(s):
    asked = []
    s.app.action_suspend_process = lambda: asked.append(True)  # tests/pty sends the real signal
    await s.press("ctrl+z")
    assert asked


@CHECKS.of("redraw")
async def _(s):
    drawn = []
    s.app.screen.refresh = lambda **options: drawn.append(options)
    await s.press("ctrl+l")
    assert drawn == [{"layout": True}]


@CHECKS.of("zoom")
async def _(s):
    for pane in Pane:
        await s.press(str(pane.value))
        assert (s.view.zoom, s.view.focus) == (pane, pane)
    assert "5 events" in s.text
    assert "3 workers" not in s.text
    await s.press("5")
    assert s.view.zoom is NOT_APPLICABLE
    assert "3 workers" in s.text


@CHECKS.of("focus-next")
async def _(s):
    await s.press("tab")
    assert s.view.focus is Pane.GPUS
    await s.press("tab", "tab")
    assert s.view.focus is Pane.RANKS


@CHECKS.of("focus-previous")
async def _(s):
    await s.press("shift+tab")
    assert s.view.focus is Pane.CPU


@CHECKS.of("open-pane")
async def _(s):
    await s.press("tab", "enter")
    assert s.view.zoom is Pane.GPUS


@CHECKS.of("down")
async def _(s):
    await s.press("down", "j")
    assert s.view.cursor_pid == panes.rows_of(s.view)[1]


@CHECKS.of("up")
async def _(s):
    await s.press("j", "j", "j", "up", "k")
    assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@CHECKS.of("page-down")
async def _(s):
    await s.press("j", "pagedown")
    assert s.view.cursor_pid == panes.rows_of(s.view)[-1]


@CHECKS.of("page-up")
async def _(s):
    await s.press("G", "pageup")
    assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@CHECKS.of("first")
async def _(s):
    for name in ("g", "home"):
        await s.press("G", name)
        assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@CHECKS.of("last")
async def _(s):
    for name in ("G", "end"):
        await s.press("g", name)
        assert s.view.cursor_pid == panes.rows_of(s.view)[-1]


@CHECKS.of("details")
async def _(s):
    await s.press("j", "enter")
    assert s.view.overlay is Overlay.DETAILS
    assert str(s.view.cursor_pid) in s.text
    await s.press("enter")
    assert s.view.overlay is Overlay.NONE


@CHECKS.of("environment")
async def _(s):
    await s.press("e")
    assert s.view.overlay is Overlay.ENVIRONMENT
    assert "OMP_NUM_THREADS" in s.text
    await s.press("enter", "e")
    assert s.view.overlay is Overlay.ENVIRONMENT, "one opens over the other"


@CHECKS.of("sort")
async def _(s):
    before = panes.rows_of(s.view)
    await s.press("s")
    assert s.view.sort is SortBy.MEMORY
    assert panes.rows_of(s.view) != before


@CHECKS.of("reverse")
async def _(s):
    before = panes.rows_of(s.view)
    await s.press("S")
    assert panes.rows_of(s.view) == before[::-1]


@CHECKS.of("sort-cpu")
async def _(s):
    await s.press("M", "P")
    assert s.view.sort is SortBy.CPU


@CHECKS.of("sort-memory")
async def _(s):
    await s.press("M")
    assert panes.rows_of(s.view)[0] == 4221


@CHECKS.of("sort-time")
async def _(s):
    await s.press("T")
    assert s.view.sort is SortBy.TIME


@CHECKS.of("filter")
async def _(s):
    await s.press("tab", "slash")
    assert s.view.focus is Pane.WORKERS
    await s.press(*"4222")
    assert panes.rows_of(s.view) == (4222,)
    assert "/4222" in s.text
    s.app.post_message(paste("\n"))
    await s.pilot.pause()
    assert s.view.filter_text == "4222"


@CHECKS.of("filter-keep")
async def _(s):
    await s.press("slash", *"!4222", "enter")
    assert s.view.overlay is Overlay.NONE
    assert panes.rows_of(s.view) == (4223, 4221)


@CHECKS.of("filter-erase")
async def _(s):
    await s.press("slash", "4", "2", "backspace")
    assert s.view.filter_text == "4"


@CHECKS.of("zoom-close")
async def _(s):
    await s.press("2")
    assert is_known(s.view.zoom)
    await s.press("escape")
    assert not is_known(s.view.zoom)


@CHECKS.of("filter-clear")
async def _(s):
    await s.press("slash", *"4222", "enter", "escape")
    assert s.view.filter_text == ""
    assert len(panes.rows_of(s.view)) == 3


@CHECKS.of("copy-try")
async def _(s):
    await s.press("y")
    assert s.app.copied.startswith("tpmon 4211"), "nothing to try yet: the facts"
    await s.send(replace(JOB, verdict=make_finding(try_="do this:\nline one  # with two blanks\nline two")))
    await s.press("y")
    assert s.app.copied == "do this:\nline one  # with two blanks\nline two"
    await s.until(lambda: "copied what to try" in s.text)
    await s.press("v", "y")
    assert s.app.copied.startswith("do this"), "also from the verdict in full"


@CHECKS.of("copy-facts")
async def _(s):
    await s.press("y")
    assert s.app.copied.startswith("tpmon 4211 train.py")
    await s.until(lambda: "copied the facts" in s.text)
    s.now_ns += int((MESSAGE_SECONDS + 1) * 1e9)
    await s.send(JOB)
    assert "copied the facts" not in s.text, "the answer leaves the place to the keys again"
    await s.send(replace(JOB, verdict=make_finding(try_=NOT_APPLICABLE)))
    await s.press("y")
    assert "data-bound (cpu-transform), confidence high, since 03:02" in s.app.copied


@CHECKS.of("copy-screen")
async def _(s):
    await s.press("Y")
    assert "3 workers" in s.app.copied
    assert "\x1b" not in s.app.copied
    await s.until(lambda: "copied the screen" in s.text)


@CHECKS.of("close")
async def _(s):
    for opens, overlay in (("question_mark", Overlay.HELP), ("e", Overlay.ENVIRONMENT), ("enter", Overlay.DETAILS)):
        await s.press(opens)
        assert s.view.overlay is overlay
        await s.press("escape")
        assert s.view.overlay is Overlay.NONE
    await s.press("slash", "x", "escape")
    assert (s.view.overlay, s.view.filter_text) == (Overlay.NONE, "")
