"""The application by its pilot: every key of the table once, Updates, pauses, crashes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.frames import (
    NOW_NS,
    make_event,
    make_finding,
    make_frame,
    make_process,
    make_pulses,
    make_target,
    make_worker,
)
from tests.goldens import dump_views, sample_views
from tpmon.errors import ExitCode
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import EventKind, Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results import Update
from tpmon.model.sample import SampleRequest
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind
from tpmon.ui import editor, panes
from tpmon.ui.app import MESSAGE_SECONDS, MonitorApp
from tpmon.ui.ask_bundle import OFFER_SECONDS
from tpmon.ui.canvas import Canvas, ink_styles
from tpmon.ui.controls import Controls, Errand, Notice, Order, Result, ScreenOptions
from tpmon.ui.inbox import turns_bad
from tpmon.ui.keys import KEYS
from tpmon.ui.stack_rows import PRICE_SECONDS
from tpmon.ui.view import Ink, Overlay, Pane, SortBy

JOB = make_frame(
    processes=(
        make_process(),
        make_worker(4221, 0, cpu_pct=10.0, rss_bytes=3 << 30),
        make_worker(4222, 1, cpu_pct=90.0, rss_bytes=1 << 30),
        make_worker(4223, 2, cpu_pct=50.0, rss_bytes=2 << 30),
    )
)


@dataclass
class Session:
    """Stand in for the session: it records what the screen asks for and moves the clock."""

    paint: Callable = panes.paint_screen
    now_ns: int = NOW_NS
    intervals: list[float] = field(default_factory=list)
    asked: list[Order] = field(default_factory=list)
    readonly: bool = False
    painted: int = 0
    app: MonitorApp = field(init=False)
    pilot: object = None

    def __post_init__(self) -> None:
        def paint(view, size, keys):
            self.painted += 1
            return self.paint(view, size, keys)

        controls = Controls(
            set_interval=self.intervals.append,
            stop=lambda: None,
            ask=self.asked.append,
            write=lambda result: f"text of {type(result).__name__}",
            trace_command=lambda path: ("tpmon", "trace", path),
        )
        options = ScreenOptions(1.0, False, readonly=self.readonly)
        self.app = MonitorApp(options, controls, paint, lambda: self.now_ns)

    @property
    def view(self):
        return self.app.view

    @property
    def text(self) -> str:
        return self.app.query_one(Canvas).text()

    async def send(self, *frames: Frame) -> None:
        """Send Frames from a thread of their own, as the session does, and wait for the picture."""

        def run() -> None:
            for frame in frames:
                self.app.receive(Update(frame, make_pulses(frame, 3)))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        await self.pilot.pause()

    async def send_result(self, *updates: Result) -> None:
        """Send what was read so far, as the session does."""
        for update in updates:
            self.app.receive_result(update)
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, self.text
            await asyncio.sleep(0.01)


def drive(check: Callable[[Session], Awaitable[None]], size=(120, 40), frames=(JOB,), **options) -> Session:
    session = Session(**options)

    async def run() -> None:
        async with session.app.run_test(size=size) as session.pilot:
            if frames:
                await session.send(*frames)
            await check(session)

    asyncio.run(run())
    return session


CHECKS: dict[str, Callable[[Session], Awaitable[None]]] = {}


def key(key_id: str):
    """Register the check of one row of the table."""

    def register(check):
        assert key_id not in CHECKS
        CHECKS[key_id] = check
        return check

    return register


def test_every_key_of_the_table_has_a_check():
    assert set(CHECKS) == {row.id for row in KEYS}


@pytest.mark.parametrize("key_id", [row.id for row in KEYS])
def test_key(key_id):
    drive(CHECKS[key_id])


@key("quit")
async def _(s):
    await s.press("q")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)


@key("interrupt")
async def _(s):
    await s.press("slash", "ctrl+c")
    assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)


@key("help")
async def _(s):
    for name in ("question_mark", "f1"):
        await s.press(name)
        assert s.view.overlay is Overlay.HELP
        assert "freeze the picture" in s.text
        await s.press(name)
        assert s.view.overlay is Overlay.NONE
    await s.press("f1", "s")
    assert (s.view.overlay, s.view.sort) == (Overlay.NONE, SortBy.CPU), "another key only closes it"


@key("verdict")
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


@key("pause")
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


@key("slower")
async def _(s):
    await s.press("plus", "equals_sign")
    assert s.intervals == [2.0, 5.0]
    assert "every 5 s" in s.text
    await s.press("plus", "plus", "plus")
    assert s.intervals == [2.0, 5.0, 10.0]


@key("faster")
async def _(s):
    await s.press("minus", "minus", "minus")
    assert s.intervals == [0.5]


@key("suspend")
async def _(s):
    asked = []
    s.app.action_suspend_process = lambda: asked.append(True)  # tests/pty sends the real signal
    await s.press("ctrl+z")
    assert asked


@key("redraw")
async def _(s):
    drawn = []
    s.app.screen.refresh = lambda **options: drawn.append(options)
    await s.press("ctrl+l")
    assert drawn == [{"layout": True}]


@key("zoom")
async def _(s):
    for pane in Pane:
        await s.press(str(pane.value))
        assert (s.view.zoom, s.view.focus) == (pane, pane)
    assert "5 events" in s.text
    assert "3 workers" not in s.text
    await s.press("5")
    assert s.view.zoom is NOT_APPLICABLE
    assert "3 workers" in s.text


@key("focus-next")
async def _(s):
    await s.press("tab")
    assert s.view.focus is Pane.GPUS
    await s.press("tab", "tab")
    assert s.view.focus is Pane.RANKS


@key("focus-previous")
async def _(s):
    await s.press("shift+tab")
    assert s.view.focus is Pane.CPU


@key("open-pane")
async def _(s):
    await s.press("tab", "enter")
    assert s.view.zoom is Pane.GPUS


@key("down")
async def _(s):
    await s.press("down", "j")
    assert s.view.cursor_pid == panes.rows_of(s.view)[1]


@key("up")
async def _(s):
    await s.press("j", "j", "j", "up", "k")
    assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@key("page-down")
async def _(s):
    await s.press("j", "pagedown")
    assert s.view.cursor_pid == panes.rows_of(s.view)[-1]


@key("page-up")
async def _(s):
    await s.press("G", "pageup")
    assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@key("first")
async def _(s):
    for name in ("g", "home"):
        await s.press("G", name)
        assert s.view.cursor_pid == panes.rows_of(s.view)[0]


@key("last")
async def _(s):
    for name in ("G", "end"):
        await s.press("g", name)
        assert s.view.cursor_pid == panes.rows_of(s.view)[-1]


@key("details")
async def _(s):
    await s.press("j", "enter")
    assert s.view.overlay is Overlay.DETAILS
    assert str(s.view.cursor_pid) in s.text
    await s.press("enter")
    assert s.view.overlay is Overlay.NONE


@key("environment")
async def _(s):
    await s.press("e")
    assert s.view.overlay is Overlay.ENVIRONMENT
    assert "OMP_NUM_THREADS" in s.text
    await s.press("enter", "e")
    assert s.view.overlay is Overlay.ENVIRONMENT, "one opens over the other"


@key("sort")
async def _(s):
    before = panes.rows_of(s.view)
    await s.press("s")
    assert s.view.sort is SortBy.MEMORY
    assert panes.rows_of(s.view) != before


@key("reverse")
async def _(s):
    before = panes.rows_of(s.view)
    await s.press("S")
    assert panes.rows_of(s.view) == before[::-1]


@key("sort-cpu")
async def _(s):
    await s.press("M", "P")
    assert s.view.sort is SortBy.CPU


@key("sort-memory")
async def _(s):
    await s.press("M")
    assert panes.rows_of(s.view)[0] == 4221


@key("sort-time")
async def _(s):
    await s.press("T")
    assert s.view.sort is SortBy.TIME


@key("filter")
async def _(s):
    await s.press("tab", "slash")
    assert s.view.focus is Pane.WORKERS
    await s.press(*"4222")
    assert panes.rows_of(s.view) == (4222,)
    assert "/4222" in s.text
    s.app.post_message(_paste("\n"))
    await s.pilot.pause()
    assert s.view.filter_text == "4222"


@key("filter-keep")
async def _(s):
    await s.press("slash", *"!4222", "enter")
    assert s.view.overlay is Overlay.NONE
    assert panes.rows_of(s.view) == (4223, 4221)


@key("filter-erase")
async def _(s):
    await s.press("slash", "4", "2", "backspace")
    assert s.view.filter_text == "4"


@key("zoom-close")
async def _(s):
    await s.press("2")
    assert is_known(s.view.zoom)
    await s.press("escape")
    assert not is_known(s.view.zoom)


@key("filter-clear")
async def _(s):
    await s.press("slash", *"4222", "enter", "escape")
    assert s.view.filter_text == ""
    assert len(panes.rows_of(s.view)) == 3


@key("copy-try")
async def _(s):
    await s.press("y")
    assert s.app.copied.startswith("tpmon 4211"), "nothing to try yet: the facts"
    await s.send(replace(JOB, verdict=make_finding(try_="do this:\nline one  # with two blanks\nline two")))
    await s.press("y")
    assert s.app.copied == "do this:\nline one  # with two blanks\nline two"
    await s.until(lambda: "copied what to try" in s.text)
    await s.press("v", "y")
    assert s.app.copied.startswith("do this"), "also from the verdict in full"


@key("copy-facts")
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


@key("copy-screen")
async def _(s):
    await s.press("Y")
    assert "3 workers" in s.app.copied
    assert "\x1b" not in s.app.copied
    await s.until(lambda: "copied the screen" in s.text)


@key("close")
async def _(s):
    for opens, overlay in (
        ("question_mark", Overlay.HELP),
        ("e", Overlay.ENVIRONMENT),
        ("enter", Overlay.DETAILS),
    ):
        await s.press(opens)
        assert s.view.overlay is overlay
        await s.press("escape")
        assert s.view.overlay is Overlay.NONE
    await s.press("slash", "x", "escape")
    assert (s.view.overlay, s.view.filter_text) == (Overlay.NONE, "")


@key("dump")
async def _(s):
    await s.press("d")
    assert s.asked == [DumpRequest(Asker.KEY)]
    assert s.view.overlay is Overlay.STACKS
    assert "asked 0.0 s ago" in s.text
    await s.send_result(dump_views.hung_waiting())
    assert "reading 0 of 24" in s.text
    await s.send_result(dump_views.hung_running())
    assert "reading 12 of 24" in s.text
    assert "+ rank 11: save_shard" in s.text, "what has come is shown"
    assert "ranks wait in" not in s.text, "no sentence on a part of the ranks"
    await s.press("d")
    assert "a dump is read already" in s.text
    await s.send_result(dump_views.hung_once())
    assert "7 of 8 ranks wait in all_reduce" in s.text
    await s.press("escape")
    assert s.view.overlay is Overlay.NONE
    await s.press("d")
    assert len(s.asked) == 2, "a new look, for it is another time"


@key("dump-row")
async def _(s):
    await s.press("j", "D")
    assert s.asked == [DumpRequest(Asker.KEY, pids=(panes.rows_of(s.view)[0],))]
    await s.press("6", "1", "j", "D")
    assert s.asked[1].pids == (4211, 4221, 4222, 4223), "a rank with its workers"
    assert s.view.overlay is Overlay.STACKS
    await s.press("escape")
    assert s.view.cursor_pid == 4211, "the cursor is where it was"


@key("stacks")
async def _(s):
    await s.press("6")
    assert "no stacks read yet: d reads" in s.text
    assert s.asked == []
    await s.press("6")
    assert s.view.overlay is Overlay.NONE
    await s.send_result(dump_views.hung_once())
    await s.press("6", "question_mark")
    assert "three looks" in s.text or "3 looks" in s.text
    await s.press("x")
    assert s.view.overlay is Overlay.STACKS, "the help goes back to where it was opened"
    await s.press("v", "escape", "escape")
    assert s.view.overlay is Overlay.NONE


@key("sample")
async def _(s):
    await s.press("f")
    assert s.view.overlay is Overlay.SAMPLE
    assert "f samples 4 processes at 20 Hz for 10 s: about" in s.text
    assert "the job is never stopped (rank 0 with its workers" in s.text
    assert s.asked == [], "the price comes first"
    await s.press("escape", "3", "j", "f")
    assert s.view.to_sample == SampleRequest(pids=(s.view.cursor_pid,)), "the row of the cursor"
    assert f"(process {s.view.cursor_pid}" in s.text


@key("sample-start")
async def _(s):
    await s.press("f", "f")
    assert s.asked == [SampleRequest(pids=(4211,))]
    await s.send_result(sample_views.running())
    assert "sampling: 4 of 10 s" in s.text
    assert "decode data.py:88" in s.text
    await s.press("escape", "f")
    assert len(s.asked) == 1, "back to what runs"


@key("sample-end")
async def _(s):
    await s.press("7")
    await s.send_result(sample_views.running())
    await s.press("f")
    assert s.asked == [Errand.END_SAMPLING]
    await s.send_result(sample_views.ended())
    assert "5 of 605 looks gave no stack" in s.text
    await s.press("f")
    assert s.asked[1] == SampleRequest(pids=(4211,)), "a new one, its price is on the screen"


@key("sample-all")
async def _(s):
    await s.press("F")
    assert "(the whole job" in s.text
    await s.press("f")
    assert s.asked == [SampleRequest(everyone=True)]
    await s.send_result(sample_views.running())
    await s.press("F", "escape", "F")
    assert (len(s.asked), s.view.overlay) == (1, Overlay.NONE), "one at a time"


@key("hot")
async def _(s):
    await s.send_result(sample_views.ended())
    await s.press("7")
    assert "7 hot functions" in s.text
    await s.press("y")
    assert s.app.copied == "text of SampleUpdate"
    await s.press("6")
    assert s.view.overlay is Overlay.STACKS
    await s.press("7", "question_mark", "x")
    assert s.view.overlay is Overlay.SAMPLE
    await s.press("7")
    assert s.view.overlay is Overlay.NONE


@key("bundle")
async def _(s):
    await s.press("b")
    assert "b again writes a bundle here: 3 looks in 15 s, no stop" in s.text
    await s.press("j", "b")
    assert s.asked == [], "another key took the offer back"
    s.now_ns += int((OFFER_SECONDS + 1) * 1e9)
    await s.press("b")
    assert s.asked == [], "the offer has left the screen"
    await s.press("b")
    assert s.asked == [Errand.WRITE_BUNDLE]
    await s.send_result(Notice("bundle out (9 files, 80K)"))
    await s.until(lambda: "bundle out (9 files" in s.text)
    await s.press("q")
    assert s.app.text_left == "bundle out (9 files, 80K)"


@key("capture")
async def _(s):
    await s.press("t")
    assert "t again profiles 5 steps of one rank: its loop stands still" in s.text
    await s.press("b", "t")
    assert s.asked == [], "another key took the offer back"
    s.now_ns += int((OFFER_SECONDS + 1) * 1e9)
    await s.press("t")
    assert s.asked == [], "the offer has left the screen"
    await s.press("t")
    (asked,) = s.asked
    assert asked.pid == min((row.rank, row.pid) for row in s.view.frame.ranks)[1]
    await s.send_result(Notice("recording step 2 of 5", passing=True))
    await s.until(lambda: "recording step 2 of 5" in s.text)
    await s.send_result(Notice("capture done: 5 steps of 12.00 ms, /tmp/x"))
    await s.until(lambda: "capture done: 5 steps" in s.text)
    s.now_ns += int((MESSAGE_SECONDS + 1) * 1e9)
    await s.send(JOB)
    assert "capture done: 5 steps" in s.text, "who looked away still finds the file"
    await s.press("q")
    assert s.app.text_left == "capture done: 5 steps of 12.00 ms, /tmp/x"


@key("open-trace")
async def _(s):
    lent = []
    s.app.lend = lambda command: lent.append(command) or ("tpmon ended with 2" if len(lent) > 1 else "")
    await s.press("o")
    assert lent == [], "nothing was captured yet"
    await s.send_result(Notice("capture done: 5 steps, /tmp/x.json.gz", trace="/tmp/x.json.gz"))
    await s.until(lambda: "/tmp/x.json.gz  (o opens it)" in s.text)
    await s.press("o")
    assert lent == [("tpmon", "trace", "/tmp/x.json.gz")]
    await s.press("o")
    assert "/tmp/x.json.gz could not be shown: tpmon ended with 2" in s.text
    assert s.app.text_left == "capture done: 5 steps, /tmp/x.json.gz"


@key("looks")
async def _(s):
    await s.press("1", "j", "D")
    await s.send_result(dump_views.one_worker())
    await s.press("m")
    assert (s.asked[1].rounds, s.asked[1].every_s) == (3, 5.0)
    assert s.asked[1].pids == dump_views.one_worker().state.request.pids, "of what was shown"
    await s.send_result(dump_views.hung_three_looks())
    assert "frozen for at least 10 s" in s.text


@key("turn-stack")
async def _(s):
    await s.press("6", "enter")
    await s.send_result(dump_views.hung_once())
    assert "<module> train.py:260" in s.text, "the odd one is open"
    await s.press("enter")
    assert "<module> train.py:260" not in s.text
    await s.press("j", "enter", "j", "j")
    assert "- all_reduce" in s.text
    await s.send_result(dump_views.hung_three_looks())
    assert ">    main train.py:214  /srv/runs/vitl/train.py" in s.text, "cursor and open groups stay"


@key("open-stack")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("right")
    assert ">    <module> train.py:260" in s.text, "it is open: into its stack"
    await s.press("G", "right")
    assert "QueueFeederThread of ranks 8-15" in s.text


@key("close-stack")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("j", "j", "left")
    assert ">- rank 11" in s.text
    await s.press("left")
    assert ">+ rank 11" in s.text
    await s.press("left")
    assert ">+ rank 11" in s.text


@key("tree")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_three_looks())
    await s.press("T")
    assert ">  8x <module> train.py:260" in s.text
    assert "     7x train_step engine.py:88" in s.text
    assert "= rank 11: state D, frozen for at least 10 s" in s.text
    await s.press("j", "enter")
    assert ">+ 8x main train.py:214" in s.text
    assert "engine.py:88" not in s.text.split("train.py:214")[1]
    await s.press("right", "T")
    assert ">- rank 11: save_shard" in s.text


@key("whole")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("j", "j", "j", "j", "enter", "w")
    assert "     - wrapper c10d_logger.py:81" in s.text
    assert "     - all_reduce distributed_c10d.py:2800" in s.text
    assert "     train_step engine.py:88" in s.text
    await s.press("w")
    assert "wrapper c10d_logger.py" not in s.text


@key("edit")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    called = []

    def plan(frame, environ):
        called.append(frame)
        return Missing("$EDITOR is not set")

    before, editor.plan_edit = editor.plan_edit, plan
    try:
        await s.press("o")
        await s.until(lambda: "$EDITOR is not set" in s.text)
        await s.press("j", "j", "o")
        await s.until(lambda: len(called) == 2)
    finally:
        editor.plan_edit = before
    assert called[0] == StackFrame("save_shard", "/srv/runs/vitl/checkpoint.py", 212), "its innermost line"
    assert called[1] == StackFrame("main", "/srv/runs/vitl/train.py", 214), "the line under the cursor"


@key("copy-dump")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_three_looks())
    await s.press("y")
    assert s.app.copied == "text of DumpUpdate"
    await s.until(lambda: "copied all of it" in s.text)


@key("stop-and-read")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("R", "R")
    assert s.asked == [], "nothing failed: there is nothing to stop for"
    await s.send_result(dump_views.torn())
    await s.press("R")
    assert "R again reads 1 process with a stop" in s.text
    assert s.asked == []
    await s.press("j", "R")
    assert s.asked == [], "another key took the price back"
    s.now_ns += int((PRICE_SECONDS + 1) * 1e9)
    await s.press("R")
    assert s.asked == [], "the price has left the screen"
    await s.press("R")
    assert s.asked == [DumpRequest(Asker.KEY, block=True)]


@key("native")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("N")
    assert "N again reads the C frames of" in s.text
    await s.press("L")
    assert "N again" not in s.text
    await s.press("N")
    assert s.asked == [], "the price of another look stood there"
    await s.press("N")
    assert s.asked == [DumpRequest(Asker.KEY, native=True)]


@key("variables")
async def _(s):
    await s.press("6")
    await s.send_result(dump_views.hung_once())
    await s.press("L")
    assert "nothing is stopped" in s.text
    assert s.asked == []
    await s.press("L")
    assert s.asked == [DumpRequest(Asker.KEY, variables=True)]


def test_with_readonly_no_key_stops_anything():
    async def check(s):
        await s.press("6")
        await s.send_result(dump_views.torn())
        await s.press("R", "R", "N", "N")
        assert s.asked == []
        assert "with a stop" not in s.text
        await s.press("d")
        assert s.asked == [DumpRequest(Asker.KEY)], "a look stops nothing"

    drive(check, readonly=True)


def test_a_dump_of_the_hang_watch_is_a_hint_and_d_shows_it():
    async def check(s):
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

    drive(check)


def test_a_paused_picture_takes_a_dump_of_the_key_alone():
    async def check(s):
        await s.press("p")
        await s.send_result(dump_views.hung_three_looks(Asker.WATCH))
        assert s.view.dump is NOT_APPLICABLE
        await s.press("d")
        assert len(s.asked) == 1
        await s.send_result(dump_views.hung_once())
        assert "7 of 8 ranks wait" in s.text
        assert "PAUSED" in s.text
        await s.press("p", "q")
        assert not s.app.is_running

    drive(check)


def test_q_ends_the_screen_at_once_while_a_dump_is_read():
    async def check(s):
        await s.press("d")
        await s.send_result(dump_views.hung_running())
        await s.press("q")
        assert (s.app.return_code, s.app.is_running) == (ExitCode.OK, False)

    drive(check)


def test_a_job_that_has_ended_is_not_asked_and_its_last_stacks_stay():
    async def check(s):
        await s.send_result(dump_views.hung_once())
        await s.send(replace(JOB, target=make_target(state=TargetState.ENDED, ended="exit 1")))
        await s.press("d")
        assert (s.asked, s.view.overlay) == ([], Overlay.NONE)
        await s.press("6")
        assert "7 of 8 ranks wait" in s.text

    drive(check)


def test_a_refused_dump_says_why():
    async def check(s):
        await s.press("d")
        refused = dump_views.make_update(running=False, refused="no process to look at")
        await s.send_result(refused)
        assert "! no process to look at" in s.text
        assert is_known(s.view.dump)

    drive(check)


def test_a_burst_of_dump_states_is_painted_once():
    async def check(s):
        await s.press("6")
        before = s.painted
        await s.send_result(*[dump_views.hung_running()] * 40, dump_views.hung_once())
        assert "7 of 8 ranks wait" in s.text
        assert s.painted - before <= 3

    drive(check)


def _paste(text: str):
    from textual.events import Paste

    return Paste(text)


def test_a_burst_is_painted_once_and_loses_no_event():
    async def check(s):
        before = s.painted
        frames = [replace(JOB, facts=f"burst {n}", events=(make_event(f"event {n}"),)) for n in range(50)]
        await s.send(*frames)
        assert "burst 49" in s.text
        assert s.painted - before <= 3
        assert [event.text for event in s.view.events][-50:] == [f"event {n}" for n in range(50)]

    drive(check)


def test_events_are_bounded():
    async def check(s):
        many = tuple(make_event(f"event {n}") for n in range(400))
        await s.send(replace(JOB, events=many), replace(JOB, events=many))
        assert len(s.view.events) == 500

    drive(check)


def test_before_the_first_reading_the_screen_says_so():
    async def check(s):
        assert isinstance(s.view.frame, Missing)
        assert "waiting for the first reading" in s.text
        await s.press("j", "e", "y", "1", "1", "question_mark")
        assert s.view.overlay is Overlay.HELP

    drive(check, frames=())


def test_a_stalled_session_is_repainted_and_its_age_grows():
    async def check(s):
        s.now_ns += 90_000_000_000
        await s.until(lambda: "LATE" in s.text)

    drive(check)


def test_the_end_of_the_target_leaves_the_last_frame_and_the_keys():
    async def check(s):
        ended = make_target(state=TargetState.ENDED, ended="exit 137 (SIGKILL)")
        await s.send(replace(JOB, target=ended, processes=()))
        assert "SIGKILL" in s.text
        await s.press("question_mark")
        assert s.view.overlay is Overlay.HELP
        assert s.app.is_running

    drive(check)


def test_no_escape_sequence_of_others_reaches_the_screen():
    async def check(s):
        await s.send_result(Notice("no capture; try tpmon run -- a\x1b]0;title\x07b"))
        await s.until(lambda: "run -- a?]0;title?b" in s.text)
        s.app.say("could not be opened: \x1b[31mred")
        assert s.view.message == "could not be opened: ?[31mred"
        assert s.app.text_left == "no capture; try tpmon run -- a?]0;title?b"

    drive(check)


def test_a_key_that_is_not_in_the_table_does_nothing():
    async def check(s):
        before = s.view
        await s.press("ctrl+p", "ctrl+q", "t", "b", "o", "m", "R", "8", "space", "alt+s", "f5")
        assert replace(s.view, now_ns=0) == replace(before, now_ns=0)
        assert s.app.is_running
        assert len(s.app.screen_stack) == 1

    drive(check)


def test_the_cursor_stays_on_its_process_when_rows_move():
    async def check(s):
        await s.press("j", "j")
        held = s.view.cursor_pid
        moved = tuple(replace(p, cpu_pct=100.0 - p.cpu_pct) for p in JOB.processes)
        await s.send(replace(JOB, processes=moved))
        assert s.view.cursor_pid == held
        await s.send(replace(JOB, processes=tuple(p for p in moved if p.pid != held)))
        assert s.view.cursor_pid in panes.rows_of(s.view)

    drive(check)


def test_every_size_is_painted_whole():
    async def check(s):
        for columns, rows in ((40, 50), (20, 5), (200, 50), (80, 24), (1, 1)):
            await s.pilot.resize_terminal(columns, rows)
            await s.pilot.pause()
            lines = s.text.split("\n")
            assert len(lines) <= rows
            assert "4211" in s.text or columns == 1

    drive(check)


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

    async def run() -> None:
        async with session.app.run_test() as session.pilot:
            await session.send(replace(JOB, facts="boom"))

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert isinstance(session.app.crash, ZeroDivisionError)
    assert session.app.return_code == ExitCode.BUG


def test_only_changed_rows_are_sent():
    async def check(s):
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

    drive(check)


def test_a_row_is_as_wide_as_the_screen_whatever_stands_in_it():
    async def check(s):
        canvas = s.app.query_one(Canvas)
        for text in ("日本語" * 30, "x" + "日本語" * 30, "e\u0301" * 200, "", "short"):
            canvas.set_lines([((text, Ink.PLAIN),)])
            strip = canvas.render_line(0)
            assert strip.cell_length == 41
            assert sum(segment.cell_length for segment in strip) == 41

    drive(check, size=(41, 12))


def test_without_colour_only_bold_and_reverse_are_left():
    for ink, style in ink_styles(colour=False).items():
        assert style.color is None
        assert style.bgcolor is None
        assert not style.dim
        assert style.reverse or ink is not Ink.CURSOR
    assert any(style.color for style in ink_styles(colour=True).values())


def test_the_bell_is_for_a_verdict_that_turns_bad() -> None:
    bad = make_frame(verdict=make_finding(kind=Kind.HUNG, cause="lock"))
    calm = make_frame(verdict=make_finding(kind=Kind.COMPUTE_BOUND, cause="cpu"))
    new = (make_event("verdict: other", kind=EventKind.VERDICT),)
    other = (make_event("worker 4221 gone"),)
    assert turns_bad(Update(bad, ()), new)
    assert not turns_bad(Update(bad, ()), other)
    assert not turns_bad(Update(calm, ()), new)
    assert not turns_bad(Update(make_frame(), ()), new)
