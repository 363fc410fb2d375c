"""Check the keys that ask for something: dumps, samples, bundles."""

from tests.goldens import dump_views, sample_views
from tests.ui.monitor.driving import Checks
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.known import Missing
from tpmon.model.results.sample import SampleRequest
from tpmon.model.stacks import StackFrame
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.controls import Errand, Notice
from tpmon.ui.monitor.requests import OFFER_SECONDS
from tpmon.ui.monitor.state import PRICE_SECONDS
from tpmon.ui.terminal_io import editor

CHECKS = Checks()


@CHECKS.of("dump")
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


@CHECKS.of("dump-row")
async def _(s):
    await s.press("j", "D")
    assert s.asked == [DumpRequest(Asker.KEY, pids=(panes.rows_of(s.view)[0],))]
    await s.press("6", "1", "j", "D")
    assert s.asked[1].pids == (4211, 4221, 4222, 4223), "a rank with its workers"
    assert s.view.overlay is Overlay.STACKS
    await s.press("escape")
    assert s.view.cursor_pid == 4211, "the cursor is where it was"


@CHECKS.of("stacks")
async def _(s):
    await s.press("6")
    assert "no stacks read yet: d reads" in s.text
    assert s.asked == []
    await s.press("6")
    assert s.view.overlay is Overlay.NONE
    await s.send_result(dump_views.hung_once())
    await s.press("6", "question_mark")
    assert "3 dumps" in s.text
    await s.press("x")
    assert s.view.overlay is Overlay.STACKS, "the help goes back to where it was opened"
    await s.press("v", "escape", "escape")
    assert s.view.overlay is Overlay.NONE


@CHECKS.of("sample")
async def _(s):
    await s.press("f")
    assert s.view.overlay is Overlay.SAMPLE
    assert "f samples 4 processes at 20 Hz for 10 s: about" in s.text
    assert "the job is never stopped (rank 0 with its workers" in s.text
    assert s.asked == [], "the price comes first"
    await s.press("escape", "3", "j", "f")
    assert s.view.to_sample == SampleRequest(pids=(s.view.cursor_pid,)), "the row of the cursor"
    assert f"(process {s.view.cursor_pid}" in s.text


@CHECKS.of("sample-start")
async def _(s):
    await s.press("f", "f")
    assert s.asked == [SampleRequest(pids=(4211,))]
    await s.send_result(sample_views.running())
    assert "sampling: 4 of 10 s" in s.text
    assert "decode data.py:88" in s.text
    await s.press("escape", "f")
    assert len(s.asked) == 1, "back to what runs"


@CHECKS.of("sample-end")
async def _(s):
    await s.get(sample_views.running(), "7")
    await s.press("f")
    assert s.asked == [Errand.END_SAMPLING]
    await s.send_result(sample_views.ended())
    assert "5 of 605 samples gave no stack" in s.text
    await s.press("f")
    assert s.asked[1] == SampleRequest(pids=(4211,)), "a new one, its price is on the screen"


@CHECKS.of("sample-write")
async def _(s):
    await s.get(sample_views.running(), "7")
    await s.press("w")
    assert s.asked == [], "not before all are there"
    await s.send_result(sample_views.ended())
    assert "w write" in s.text
    await s.press("w")
    assert s.asked == [Errand.WRITE_SAMPLES]
    await s.send_result(Notice("wrote tpmon-sample-1"))
    await s.until(lambda: "wrote tpmon-sample-1" in s.text)


@CHECKS.of("sample-all")
async def _(s):
    await s.press("F")
    assert "(the whole job" in s.text
    await s.press("f")
    assert s.asked == [SampleRequest(everyone=True)]
    await s.send_result(sample_views.running())
    await s.press("F", "escape", "F")
    assert (len(s.asked), s.view.overlay) == (1, Overlay.NONE), "one at a time"


@CHECKS.of("hot")
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


@CHECKS.of("bundle")
async def _(s):
    await s.press("b")
    assert "b again writes a bundle here: 3 dumps in 15 s, no stop" in s.text
    await s.press("j", "b")
    assert s.asked == [], "another key took the offer back"
    s.now_ns += int((OFFER_SECONDS + 1) * 1e9)
    await s.press("b")
    assert s.asked == [], "the offer has left the screen"
    await s.press("f", "b")
    assert s.asked == [], "another key that asks first took the offer back as well"
    await s.press("escape", "b", "b")
    assert s.asked == [Errand.WRITE_BUNDLE]
    await s.send_result(Notice("bundle out (9 files, 80K)"))
    await s.until(lambda: "bundle out (9 files" in s.text)
    await s.press("q")
    assert s.app.text_left == "bundle out (9 files, 80K)"


@CHECKS.of("looks")
async def _(s):
    await s.get(dump_views.one_worker(), "1", "j", "D")
    await s.press("m")
    assert (s.asked[1].rounds, s.asked[1].every_s) == (3, 5.0)
    assert s.asked[1].pids == dump_views.one_worker().state.request.pids, "of what was shown"
    await s.send_result(dump_views.hung_three_looks())
    assert "frozen for at least 10 s" in s.text


@CHECKS.of("turn-stack")
async def _(s):
    await s.get(dump_views.hung_once(), "6", "enter")
    assert "<module> train.py:260" in s.text, "the odd one is open"
    await s.press("enter")
    assert "<module> train.py:260" not in s.text
    await s.press("j", "enter", "j", "j")
    assert "- all_reduce" in s.text
    await s.send_result(dump_views.hung_three_looks())
    assert ">    main train.py:214  /srv/runs/vitl/train.py" in s.text, "cursor and open groups stay"


@CHECKS.of("open-stack")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    await s.press("right")
    assert ">    <module> train.py:260" in s.text, "it is open: into its stack"
    await s.press("G", "right")
    assert "QueueFeederThread of ranks 8-15" in s.text


@CHECKS.of("close-stack")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    await s.press("j", "j", "left")
    assert ">- rank 11" in s.text
    await s.press("left")
    assert ">+ rank 11" in s.text
    await s.press("left")
    assert ">+ rank 11" in s.text


@CHECKS.of("tree")
async def _(s):
    await s.get(dump_views.hung_three_looks(), "6")
    await s.press("T")
    assert ">  8x <module> train.py:260" in s.text
    assert "     7x train_step engine.py:88" in s.text
    assert "= rank 11: state D, frozen for at least 10 s" in s.text
    await s.press("j", "enter")
    assert ">+ 8x main train.py:214" in s.text
    assert "engine.py:88" not in s.text.split("train.py:214")[1]
    await s.press("right", "T")
    assert ">- rank 11: save_shard" in s.text


@CHECKS.of("whole")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    await s.press("j", "j", "j", "j", "enter", "w")
    assert "     - wrapper c10d_logger.py:81" in s.text
    assert "     - all_reduce distributed_c10d.py:2800" in s.text
    assert "     train_step engine.py:88" in s.text
    await s.press("w")
    assert "wrapper c10d_logger.py" not in s.text


@CHECKS.of("edit")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    called = []

    def plan(frame, environ, pid):
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


@CHECKS.of("copy-dump")
async def _(s):
    await s.get(dump_views.hung_three_looks(), "6")
    await s.press("y")
    assert s.app.copied == "text of DumpUpdate"
    await s.until(lambda: "copied all of it" in s.text)


@CHECKS.of("stop-and-read")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
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
    await s.press("b", "R")
    assert s.asked == [], "another key that asks first took the price back as well"
    assert "R again reads 1 process with a stop" in s.text
    await s.press("R")
    torn = dump_views.torn().dump.errors[0].pid
    assert s.asked == [DumpRequest(Asker.KEY, block=True, block_pids=(torn,))], "no other may be stopped"


@CHECKS.of("native")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    await s.press("N")
    assert "N again reads the C frames of" in s.text
    await s.press("L")
    assert "N again" not in s.text
    await s.press("N")
    assert s.asked == [], "the price of another look stood there"
    await s.press("N")
    assert s.asked == [DumpRequest(Asker.KEY, native=True)]


@CHECKS.of("variables")
async def _(s):
    await s.get(dump_views.hung_once(), "6")
    await s.press("L")
    assert "nothing is stopped" in s.text
    await s.press("b", "L")
    assert "nothing is stopped" in s.text
    assert s.asked == []
    await s.press("L")
    assert s.asked == [DumpRequest(Asker.KEY, variables=True)]


@CHECKS.of("record")
async def _(s):
    await s.press("ctrl+r")
    assert s.asked == [Errand.RECORD]
    assert "begins to record ..." in s.text
    assert " REC " not in s.text
    await s.send_result(Notice("records in a.tpmon, from 4m10s ago on; ctrl-r ends it", passing=True, records=True))
    assert "from 4m10s ago on" in s.text
    assert " REC " in s.text.splitlines()[0]
    await s.press("/", "ctrl+r", "escape")
    assert s.asked == [Errand.RECORD], "not while a filter is typed"
    await s.press("ctrl+r")
    assert s.asked == [Errand.RECORD] * 2
    assert "ends the recording ..." in s.text
    await s.send_result(Notice("recorded 12 Frames in a.tpmon, 40K", records=False))
    assert " REC " not in s.text
    assert list(s.app.notices) == ["recorded 12 Frames in a.tpmon, 40K"], "printed again at the end"
