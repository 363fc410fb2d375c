"""Check the keys that look at the job: panes, rows, sorting, filters, copies."""

from dataclasses import replace

from textual.events import Paste

from tests.frames import make_event, make_finding
from tests.ui.monitor.driving import JOB, Checks
from tpmon.errors import ExitCode
from tpmon.model.known import NOT_APPLICABLE
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.app import MESSAGE_SECONDS
from tpmon.ui.monitor.state import Pane, SortBy

CHECKS = Checks()


def rows(s):
    return panes.rows_of(s.view)


def place(s):
    return rows(s).index(s.view.cursor_pid)


PRESSED = (
    ("quit", ("q",), lambda s: (s.app.return_code, s.app.is_running), (ExitCode.OK, False)),
    ("interrupt", ("slash", "ctrl+c"), lambda s: (s.app.return_code, s.app.is_running), (ExitCode.OK, False)),
    ("faster", ("minus", "minus", "minus"), lambda s: s.intervals, [0.5]),
    ("focus-next", ("tab",), lambda s: s.view.focus, Pane.EVENTS),
    ("focus-next", ("tab", "tab"), lambda s: s.view.focus, Pane.CPU),
    ("focus-previous", ("shift+tab",), lambda s: s.view.focus, Pane.CPU),
    ("zoom-close", ("2", "escape"), lambda s: s.view.zoom, NOT_APPLICABLE),
    ("details", ("j", "enter"), lambda s: (s.view.overlay, str(s.view.cursor_pid) in s.text), (Overlay.DETAILS, True)),
    ("details", ("enter",), lambda s: s.view.overlay, Overlay.NONE),
    ("environment", ("e",), lambda s: (s.view.overlay, "OMP_NUM_THREADS" in s.text), (Overlay.ENVIRONMENT, True)),
    ("environment", ("enter", "e"), lambda s: s.view.overlay, Overlay.ENVIRONMENT),
    ("open-pane", ("tab", "enter"), lambda s: s.view.zoom, Pane.EVENTS),
    ("down", ("down", "j"), place, 1),
    ("up", ("j", "j", "j", "up", "k"), place, 0),
    ("page-down", ("j", "pagedown"), place, 2),
    ("page-up", ("G", "pageup"), place, 0),
    ("first", ("G", "g"), place, 0),
    ("first", ("G", "home"), place, 0),
    ("last", ("g", "G"), place, 2),
    ("last", ("g", "end"), place, 2),
    ("sort", ("s",), lambda s: (s.view.sort, *rows(s)), (SortBy.MEMORY, 4221, 4223, 4222)),
    ("reverse", ("S",), rows, (4221, 4223, 4222)),
    ("sort-cpu", ("M", "P"), lambda s: s.view.sort, SortBy.CPU),
    ("sort-memory", ("M",), lambda s: rows(s)[0], 4221),
    ("sort-time", ("T",), lambda s: s.view.sort, SortBy.TIME),
    ("filter-keep", ("slash", *"!4222", "enter"), lambda s: (s.view.overlay, *rows(s)), (Overlay.NONE, 4223, 4221)),
    ("filter-erase", ("slash", "4", "2", "backspace"), lambda s: s.view.filter_text, "4"),
    ("filter-clear", ("slash", *"4222", "enter", "escape"), lambda s: (s.view.filter_text, len(rows(s))), ("", 3)),
)
"""Keys whose whole effect one look tells: their row, what is pressed, what is looked at, what it is then."""


@CHECKS.each(PRESSED)
async def _(s, keys, look, seen):
    await s.press(*keys)
    assert look(s) == seen


@CHECKS.of("back")
async def _(s):
    await s.press("escape")
    assert s.app.is_running, "where no list was left, esc ends nothing"
    s.app.show(replace(s.view, from_list=True))
    assert "esc back" in s.text
    await s.press("e", "escape", "2", "escape", "3", "escape", "slash", "4", "enter", "escape")
    assert s.app.is_running, "there was something to close each time"
    await s.press("escape")
    assert (s.app.is_running, s.app.goes_back, s.app.return_code) == (False, True, ExitCode.OK)


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
    assert "5 log and events" in s.text
    assert "─ 3 workers" not in s.text
    await s.press("5")
    assert s.view.zoom is NOT_APPLICABLE
    assert "─ 3 workers" in s.text


@CHECKS.of("filter")
async def _(s):
    await s.press("tab", "shift+tab", "slash")
    assert s.view.focus is Pane.WORKERS
    await s.press(*"4222")
    assert rows(s) == (4222,)
    assert "/4222" in s.text
    s.app.post_message(Paste("\n"))
    await s.pilot.pause()
    assert s.view.filter_text == "4222"


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
