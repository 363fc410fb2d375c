"""Check the keys of a capture: its plan, its price, a yes to each, and no."""

from tests.goldens import capture_views
from tests.ui.monitor.driving import JOB, Checks
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureKind, CaptureStage, CaptureUpdate
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.app import MESSAGE_SECONDS
from tpmon.ui.monitor.controls import Notice

CHECKS = Checks()


@CHECKS.of("capture")
async def _(s):
    await s.press("t")
    (asked,) = s.asked
    assert asked.pid == min((row.rank, row.pid) for row in s.view.frame.ranks)[1]
    assert "reads what is known of its price" in s.text
    await s.press("t", "enter")
    assert len(s.asked) == 1, "there is no price yet to agree to"
    await s.send_result(capture_views.planned())
    assert "5 steps of rank 0, process 4211, by torch.profiler" in s.text
    assert "a step takes 12.0 ms now: about 60 ms are recorded" in s.text
    assert "41.2G free there" in s.text
    assert "t or Enter profiles one step and says the price; esc leaves" in s.text
    await s.press("v", "t")
    assert (len(s.asked), s.view.overlay) == (1, Overlay.CAPTURE), "back to what waits: no yes unread"


@CHECKS.of("capture-go")
async def _(s):
    await s.get(capture_views.planned(), "t")
    await s.press("t")
    assert s.asked[1:] == [CaptureAnswer(CaptureStage.PLANNED, goes=True)]
    await s.send_result(capture_views.priced())
    assert "5 steps: the loop pauses for about 31 ms, takes about 9.4 MiB of memory" in s.text
    assert "t or Enter records them at this price" in s.text
    assert "not known yet" not in s.text
    await s.press("j", "3", "8", "enter")
    assert len(s.asked) == 2, "a yes is said to what stands on the screen alone"
    await s.press("escape", "8", "enter")
    assert s.asked[2:] == [CaptureAnswer(CaptureStage.PRICED, goes=True)]
    await s.send_result(capture_views.dear())
    assert "the loop would pause for about 13.0 s, more than 2.0 s" in s.text
    assert "t or Enter records them all the same; esc leaves, nothing is recorded" in s.text
    await s.press("t")
    assert s.asked[3:] == [CaptureAnswer(CaptureStage.DEAR, goes=True)]
    await s.send_result(capture_views.cancelled())
    await s.get(capture_views.hookless(), "t")
    assert "the hook into pid 4211 (CPython 3.11.7)" in s.text
    assert "t or Enter asks once more; esc leaves, nothing is written" in s.text
    await s.press("t")
    assert s.asked[5:] == [CaptureAnswer(CaptureStage.HOOKLESS, goes=True)]
    await s.send_result(capture_views.hooking())
    assert "t or Enter writes it into the process now" in s.text
    await s.press("enter")
    assert s.asked[6:] == [CaptureAnswer(CaptureStage.HOOKING, goes=True)]


@CHECKS.of("capture-kind")
async def _(s):
    await s.press("c")
    assert "c works in the plan of a capture" in s.text
    await s.press("t", "c")
    assert len(s.asked) == 1, "not known yet what can be chosen"
    await s.send_result(capture_views.offered())
    assert "no allocator snapshot: this process does not use CUDA" in s.text
    await s.press("c")
    assert len(s.asked) == 1, "a trace alone can be"
    await s.send_result(capture_views.offered(cuda=True))
    assert "c allocator snapshot" in s.text
    await s.press("c")
    snapshot = CaptureChoice(CaptureKind.SNAPSHOT)
    assert s.asked[1:] == [snapshot]
    assert "reads what is known of its price" in s.text
    assert "by torch.profiler" not in s.text, "the plan before is not of a snapshot"
    await s.press("t", "enter")
    assert len(s.asked) == 2, "no yes to what is not known yet"
    await s.send_result(capture_views.offered_snapshot())
    assert "the CUDA allocator's history over 20 steps" in s.text
    assert "t or Enter records them and writes the file; esc leaves" in s.text
    await s.press("t")
    assert s.asked[2:] == [CaptureAnswer(CaptureStage.PLANNED, goes=True, choice=s.view.capture.choice)]
    assert s.asked[2].choice.kind is CaptureKind.SNAPSHOT
    await s.get(capture_views.offered(cuda=True, choice=snapshot), "escape", "t")
    await s.press("c")
    assert s.asked[-1] == CaptureChoice()


@CHECKS.of("capture-more")
async def _(s):
    await s.get(capture_views.offered(), "t")
    assert "+ more steps" in s.text
    await s.press("+", "=", "+")
    assert [one.steps for one in s.asked[1:]] == [10, 20, 50]
    assert "- 20, + 100" in s.text
    assert s.intervals == [], "here it is no key of the pace"
    await s.press("?", "+")
    assert (s.intervals, s.view.overlay) == ([], Overlay.CAPTURE), "nor in the help over it"
    await s.send_result(capture_views.offered(choice=CaptureChoice(steps=1_000)))
    await s.press("+")
    assert (len(s.asked), s.intervals) == (4, [])
    await s.send_result(capture_views.priced())
    await s.press("+")
    assert s.asked[4:] == [CaptureChoice(steps=10)]
    assert "pauses for about 31 ms" not in s.text, "that was the price of 5"
    await s.send_result(capture_views.recording())
    await s.press("+")
    assert (len(s.asked), s.intervals) == (5, [2.0]), "it records: the pace again"


@CHECKS.of("capture-fewer")
async def _(s):
    await s.get(capture_views.offered(), "t")
    await s.press("-", "-")
    assert [one.steps for one in s.asked[1:]] == [2, 1]
    await s.press("-")
    assert (len(s.asked), s.intervals) == (3, [])
    assert "- does nothing here" in s.text
    await s.press("escape")
    await s.press("-")
    assert s.intervals == [0.5]


@CHECKS.of("capture-ranks")
async def _(s):
    await s.get(capture_views.offered(), "t")
    assert "a all 2 here" in s.text
    await s.press("a")
    assert s.asked[1:] == [CaptureChoice(every=True)]
    assert "a rank 0 alone" in s.text
    await s.press("a")
    assert s.asked[2:] == [CaptureChoice()]
    await s.send_result(capture_views.chosen_anew())
    assert "not all: the ranks do not count the same steps" in s.text
    await s.press("a")
    assert len(s.asked) == 3
    assert "a works in the plan of a capture, of a job with several ranks here" in s.text


@CHECKS.of("capture-cancel")
async def _(s):
    await s.get(capture_views.recording(), "t")
    assert "recording step 2 of 5" in s.text
    assert "t cancel capture" in s.text
    await s.press("t")
    assert s.asked[1:] == [CaptureAnswer(CaptureStage.RECORDING, goes=False)]
    assert s.view.overlay is Overlay.CAPTURE
    await s.send_result(capture_views.cancelled())
    assert "capture cancelled: nobody waits for it any more" in s.text
    assert "cancel capture" not in s.text
    await s.press("t")
    assert len(s.asked) == 3, "another one, from its beginning on"


@CHECKS.of("capture-leave")
async def _(s):
    await s.get(capture_views.planned(), "t")
    await s.press("escape")
    assert s.asked[1:] == [CaptureAnswer(CaptureStage.PLANNED, goes=False)]
    assert s.view.overlay is Overlay.NONE
    await s.send_result(CaptureUpdate(CaptureStage.ENDED, ""))
    await s.press("8")
    assert "no capture yet: t says what one of a few steps costs" in s.text
    await s.get(capture_views.recording(), "escape", "t")
    await s.press("escape")
    assert s.asked[3:] == [CaptureAnswer(CaptureStage.RECORDING, goes=False)]
    assert s.view.overlay is Overlay.CAPTURE, "to be seen how it ends"
    await s.send_result(capture_views.cancelled())
    for hookless in (capture_views.hookless(), capture_views.hooking()):
        await s.get(hookless, "escape", "t")
        await s.press("escape")
        assert s.asked[-1] == CaptureAnswer(hookless.stage, goes=False)
        await s.send_result(CaptureUpdate(CaptureStage.ENDED, ""))
    await s.press("v", "escape", "q")
    assert not s.app.is_running


@CHECKS.of("capture-shown")
async def _(s):
    await s.press("8")
    assert "no capture yet" in s.text
    await s.get(capture_views.recording(), "8", "t")
    await s.press("8", "j")
    assert (len(s.asked), s.view.overlay) == (1, Overlay.NONE), "it goes on meanwhile"
    await s.send_result(capture_views.recording(3))
    assert "recording step 3 of 5 (t cancels)" in s.text
    await s.send_result(capture_views.done(), Notice("capture done: 5 steps, /x", trace="/x"))
    await s.until(lambda: "capture done: 5 steps, /x  (o opens it)" in s.text)
    s.now_ns += int((MESSAGE_SECONDS + 1) * 1e9)
    await s.send(JOB)
    assert "capture done: 5 steps" in s.text, "who looked away still finds the file"
    await s.press("8")
    assert "rank 0: steps 412-416; step before 12.00 ms, during 13.10 ms, after 12.05 ms" in s.text
    assert "fetch: scp node7:/runs/a" in s.text
    await s.press("y")
    assert s.app.copied == "text of CaptureUpdate"
    await s.press("escape", "q")
    assert s.app.text_left.endswith("capture done: 5 steps, /x")


@CHECKS.of("open-trace")
async def _(s):
    lent, told = [], []
    s.app.lend = lambda command, said: (
        told.append(said) or lent.append(command) or ("tpmon ended with 2" if len(lent) > 1 else "")
    )
    await s.press("o")
    assert lent == [], "nothing was captured yet"
    await s.send_result(Notice("capture done: 5 steps, /tmp/x.json.gz", trace="/tmp/x.json.gz"))
    await s.until(lambda: "/tmp/x.json.gz  (o opens it)" in s.text)
    await s.press("o")
    assert lent == [("tpmon", "trace", "/tmp/x.json.gz")]
    assert told == ["reading x.json.gz; q there returns here"], "on the shell's screen, for some seconds"
    await s.press("o")
    assert "/tmp/x.json.gz could not be shown: tpmon ended with 2" in s.text
    assert s.app.text_left == "capture done: 5 steps, /tmp/x.json.gz"
