"""The screen of memory snapshots: its tabs, every key that works on it, stacks whose frames open."""

from dataclasses import replace

import pytest

from tests.goldens.trace_views import make_run
from tests.painted import join, texts_of
from tests.ui.traces.trace_driven import SEARCHES, Driven, drive, search, stop_and_go
from tpmon.model.known import Missing, is_known
from tpmon.model.results.trace_tables import CodePlace
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.keys import TRACE_KEYS, find_trace_key, say_trace_unused, trace_keys_shown
from tpmon.ui.traces.layout import page_of_trace, paint_trace
from tpmon.ui.traces.snapshots import SnapshotSubject
from tpmon.ui.traces.state import SnapshotTab
from tpmon.ui.traces.tabs import list_blocks
from tpmon.view.blocks import Paragraph
from tpmon.view.layout import Size
from tpmon.view.snapshot import find_frame, say_lost

OWN = "/home/me/train.py"


def paragraphs(view) -> list[Paragraph]:
    return [block for block in list_blocks(view) if isinstance(block, Paragraph)]


def subject_of(run: str, **changes) -> SnapshotSubject:
    """Return a snapshot whose file holds something else."""
    report = make_run(run).subject.report
    return SnapshotSubject(replace(report, files=(replace(report.files[0], **changes),)))


async def walk_tabs(d: Driven) -> None:
    assert d.view.tab is SnapshotTab.OVERVIEW
    assert "timeline" not in d.text
    assert " ! FULL, OUT OF MEMORY: 900M were asked for" in d.text
    for tab in SnapshotTab:
        await d.press(str(tab.value))
        assert d.view.tab is tab
        assert f"══ {tab.value} {tab.name.lower()}" in d.text
    await d.press("tab")
    assert d.view.tab is SnapshotTab.OVERVIEW
    await d.press("shift+tab")
    assert d.view.tab is SnapshotTab.OOM
    await d.press("5")
    assert d.view.message == "5 works in a trace, with nothing over the tabs"
    await d.press("+")
    assert d.view.message == "+ works where there is a timeline"
    await d.press("?")
    assert "4 oom (requests that failed)" in d.text or "one tab" in d.text
    assert "next step" not in d.text
    await d.press("x")
    assert d.view.overlay is Overlay.NONE


async def walk_stack(d: Driven) -> None:
    await d.press("3", "j", "enter")
    assert d.view.overlay is Overlay.STACK
    assert "══ stack" in d.text
    assert "200M in 1 block, 200M asked for" in d.text
    assert ">train.py:10" in d.text, "the cursor begins on the line that the stack is known by"
    await d.press("o")
    await d.until(lambda: "no stacks here" in d.text)
    assert d.places == [(0, f"{OWN}:10 forward_pass")]
    await d.press("j", "y")
    assert d.app.copied == f"{OWN}:20 main"
    await d.press("down")
    assert ">train.py:20" in d.text, "it stays on the last frame"
    await d.press("home", "y")
    assert d.app.copied == "200M in 1 block, 200M asked for"
    await d.press("j")
    assert find_trace_key("o", d.view) is None, "a frame of C++ without a file has no line"
    await d.press("G", "k", "k", "k", "up", "pagedown", "pageup", "g", "end")
    await d.press("escape")
    assert (d.view.overlay, d.view.cursor) == (Overlay.NONE, 1), "the row is where it was"


async def walk_rows(d: Driven) -> None:
    await d.press("1", "right_curly_bracket", "left_curly_bracket", "2", "o")
    await d.until(lambda: bool(d.places))
    assert d.places == [(0, f"{OWN}:10 build")]
    await d.press("y")
    assert d.app.copied.splitlines() == [
        f"100M in 1 block, 100M asked for: {OWN}:10 build",
        "  in at::empty",
        "  in /opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py:125 forward",
        f"  in {OWN}:10 build",
    ]
    await d.press("s")
    assert "sorted: bytes" in d.text
    await d.press("S")
    assert "bytes^" in d.text
    await d.press("/", "b", "u", "x", "backspace", "enter")
    assert "train.py:10 build" in d.text
    assert "backward_pass" not in d.text.partition("2 live")[2].partition("══")[2]
    await d.press("escape", "ctrl+l", "Y")
    assert "══ 2 live" in d.app.copied
    await d.press("1", "G", "k", "k", "enter")
    assert d.view.overlay is Overlay.DETAILS, "what has no stack shows its fields"


def test_every_key_on_a_snapshot_does_what_it_says():
    used: set[str] = set()
    for walk in (walk_tabs, walk_stack, walk_rows, search, stop_and_go):
        used |= drive("snapshot", walk).used
    works = {
        key.id
        for tab in SnapshotTab
        for overlay in Overlay
        for text in ("", "a")
        for one in SEARCHES
        for place in range(14)
        for key in TRACE_KEYS
        if key.when.holds(
            make_run("snapshot").view(100, tab=tab, overlay=overlay, filter_text=text, cursors=(place,) * 7, search=one)
        )
    }
    assert works == used
    assert not works & {"along", "back", "closer", "wider", "whole", "device", "tab", "against"}


def test_several_snapshots_are_walked_like_ranks():
    first, second = make_run("snapshot").subject.report, make_run("bare").subject.report
    subject = SnapshotSubject(replace(first, files=(*first.files, *second.files)))
    view = replace(make_run("snapshot").view(100), subject=subject)
    key = find_trace_key(">", view)
    after = key.deed(view)
    assert after.file == 1
    text = join(paint_trace(after, Size(100, 30)))
    assert "2 of 2" in text
    assert "6.0M allocated" in text


def test_a_frame_whose_file_is_not_here_says_so(monkeypatch):
    monkeypatch.setenv("EDITOR", "env")
    lent: list[tuple[str, ...]] = []

    async def open_frame(d: Driven) -> None:
        d.app.lend = lambda command: lent.append(tuple(command)) or ""  # type: ignore[method-assign]
        await d.press("4", "enter", "o")
        await d.until(lambda: "cannot open /home/me/train.py:10 here" in d.text)

    drive("snapshot", open_frame, size=(160, 40), place=find_frame)
    assert lent == []


# What the tabs hold


def test_the_card_that_failed_is_named_before_one_that_holds_more():
    failed, other = make_run("cards").subject.report.files[0].devices
    large = replace(other, pieces=replace(other.pieces, reserved_bytes=1 << 40))
    subject = subject_of("cards", devices=(failed, large))
    assert subject.head(0).brief == "GPU 0"
    assert subject.answer(0, SnapshotTab.LIVE).word == "! FULL, 900M asked"


def test_a_stack_that_was_not_recorded_says_so():
    view = make_run("bare").view(80, tab=SnapshotTab.LIVE)
    assert find_trace_key("o", view) is None
    assert say_trace_unused("o", view).startswith("o works on an operator")
    key = find_trace_key("enter", view)
    opened = key.deed(view)
    assert opened.overlay is Overlay.STACK
    assert "_record_memory_history() was not on" in paragraphs(opened)[1].text


def test_what_was_lost_is_said():
    lost = replace(make_run("snapshot").subject.report.files[0].lost, events=2)
    subject = subject_of("snapshot", lost=lost)
    view = replace(make_run("snapshot").view(80), subject=subject)
    assert say_lost(lost) == "could not be read: 2 events"
    assert ("lost", "could not be read: 2 events") in [(one.label, one.text) for one in paragraphs(view)]
    assert "! not whole" in [item.text for item in subject.head(0).right]


def test_a_long_stack_is_walked_to_its_end():
    (device,) = make_run("snapshot").subject.report.files[0].devices
    frames = tuple(f"/a/b.py:{number} f{number}" for number in range(40))
    long = replace(device.live[0], frames=frames, line=frames[7])
    subject = subject_of("snapshot", devices=(replace(device, live=(long,)),))
    view = replace(make_run("snapshot").view(80, tab=SnapshotTab.LIVE), subject=subject)
    key = find_trace_key("enter", view)
    opened = key.deed(view)
    for scroll, seen in ((opened.scroll, ">b.py:7 "), (999, ">b.py:39 ")):
        lines = paint_trace(replace(opened, scroll=scroll), Size(80, 24), trace_keys_shown(opened))
        assert any(line.startswith(seen) for line in texts_of(lines))
    assert page_of_trace(opened, Size(80, 24), trace_keys_shown(opened))[0] > 10


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("/home/me/train.py:10 build", CodePlace("build", "/home/me/train.py", 10)),
        ("a b.py:3 <lambda>", CodePlace("<lambda>", "a b.py", 3)),
        ("/x/alloc.cpp:12 c10::Allocator::raw(int)", CodePlace("c10::Allocator::raw(int)", "/x/alloc.cpp", 12)),
        ("at::empty", None),
    ],
)
def test_a_frame_names_its_line(frame, place):
    found = find_frame(frame)
    assert found == place if place else isinstance(found, Missing)
    assert is_known(found) is (place is not None)
