"""The screen of a trace by its pilot: every key of its table, the editor, copies; and the tab of a comparison."""

from dataclasses import replace

import pytest

from tests.goldens.trace_views import make_run
from tests.painted import join
from tests.ui.traces.trace_driven import SEARCHES, Driven, drive, search, stop_and_go
from tpmon.model.known import Missing, is_known
from tpmon.model.results.trace import Change
from tpmon.model.results.trace_tables import CodePlace, Stretch
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.terminal_io import editor
from tpmon.ui.traces.keys import TRACE_KEYS, find_trace_key, say_trace_unused, trace_keys_shown
from tpmon.ui.traces.layout import page_of_trace, paint_trace
from tpmon.ui.traces.state import WHOLE, SnapshotTab, Tab
from tpmon.ui.traces.subject import TRACE_TABS
from tpmon.ui.traces.tabs import action_along, action_closer, action_wider, list_blocks
from tpmon.view.blocks import Paragraph, Sheet
from tpmon.view.layout import Ink, Size
from tpmon.view.trace_blocks import list_changes


async def walk_tabs(d: Driven) -> None:
    assert d.view.tab is Tab.RANKS, "several ranks are shown beside each other first"
    for tab in TRACE_TABS:
        await d.press(str(tab.value))
        assert d.view.tab is tab
        assert f"══ {tab.value} {tab.name.lower()}" in d.text
    await d.press("tab")
    assert d.view.tab is Tab.OVERVIEW
    await d.press("shift+tab")
    assert d.view.tab is Tab.RANKS
    await d.press("greater_than_sign")
    assert (d.view.file, "rank 1 of 2" in d.text) == (1, True)
    await d.press("less_than_sign")
    assert d.view.file == 0
    await d.press("}", "j", "enter")
    assert (d.view.file, d.view.tab) == (1, Tab.OVERVIEW), "enter on a rank opens its trace"
    await d.press("z")
    assert d.view.message == "z has no meaning, ? shows the keys"
    await d.press("?")
    assert "help" in d.text
    assert "these keys" in d.text or "the keys that work now" in d.text
    await d.press("x")
    assert d.view.overlay is Overlay.NONE


async def walk_time(d: Driven) -> None:
    assert "all 5 steps" in d.text
    await d.press("right")
    assert d.view.stretch == Stretch(0, 1)
    assert "step 7" in d.text
    await d.press("]")
    assert "step 8" in d.text
    await d.press("left")
    assert "step 7" in d.text
    await d.press("+")
    assert "part 1 of 2 of step 7" in d.text
    await d.press("right", "right")
    assert "part 1 of 2 of step 8" in d.text
    await d.press("-", "-")
    assert "steps 8 to 9" in d.text
    await d.press("0")
    assert d.view.stretch == WHOLE
    await d.press("1", "G", "enter")
    assert "step 11" in d.text, "enter on a step draws it"


async def walk_rows(d: Driven) -> None:
    await d.press("3")
    await d.press("right_curly_bracket")
    assert ">12.000  93.8 %     20" in d.text, "the first row of the next table"
    await d.press("right_curly_bracket", "right_curly_bracket")
    assert d.view.cursor == 0, "after the last table comes the first"
    await d.press("left_curly_bracket")
    assert "> 35.050  49.950      5  train.py(88): train" in d.text
    await d.press("a")
    assert "n/a      no shapes in the trace: record_shapes=True records them" in d.text
    await d.press("a")
    assert "operators by line of the program" in d.text
    assert "12.000  12.000         5.000    5.000     20  aten::addmm   train.py(88): train" in d.text
    await d.press("a")
    assert "operators by name" in d.text
    assert "by line of the program" not in d.text
    await d.press("s")
    assert "sorted: gpu self ms" in d.text
    assert "gpu self msv" in d.text
    await d.press("S")
    assert "gpu self ms^" in d.text
    await d.press("/", "m", "m", "x", "backspace")
    assert "/mm_" in d.text
    assert "aten::addmm" in d.text
    assert "aten::relu" not in d.text
    d.app.paste("!")
    await d.press("enter")
    assert d.view.filter_text == "mm!"
    await d.press("escape")
    assert d.view.filter_text == ""
    await d.press("/", "a", "escape")
    assert (d.view.overlay, d.view.filter_text) == (Overlay.NONE, "")
    await d.press("G")
    last = d.view.cursor
    await d.press("k", "up", "pageup", "pagedown", "g", "home")
    assert d.view.cursor == 0 < last
    await d.press("end", "home", "enter")
    assert d.view.overlay is Overlay.DETAILS
    assert "host total" in d.text
    await d.press("escape")
    await d.press("ctrl+l", "y")
    assert d.app.copied == "aten::item", "the row under the cursor, whole"
    await d.press("Y")
    assert "══ 3 ops" in d.app.copied
    await d.press("1", "g", "y")
    assert d.app.copied.startswith("DATA-BOUND (no-workers), confidence low: 30 % of the window is waiting")


async def ask_for_lines(d: Driven) -> None:
    await d.press("3", "o")
    await d.until(lambda: "no stacks here" in d.text)
    await d.press("2", "G", "o")
    await d.until(lambda: len(d.places) == 2)
    assert d.places == [(0, "aten::addmm"), (0, "train.py(88): train")]


def test_every_key_of_the_table_does_what_it_says():
    ranks = drive("ranks", walk_tabs)
    used = ranks.used | drive("one", walk_time).used | drive("one", walk_rows).used
    used |= drive("one", stop_and_go).used | drive("one", search).used | drive("one", ask_for_lines).used
    elsewhere = {"device", "against", "snapshot-tab"}
    assert {key.id for key in TRACE_KEYS} - used == elsewhere, "these have tests of their own"


def test_the_editor_opens_the_line_below_the_folder_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("a\nb\n")
    said = tmp_path / "said"
    program = tmp_path / "editor.sh"
    program.write_text(f'#!/bin/sh\necho "$@" > {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(program))
    monkeypatch.delenv("VISUAL", raising=False)
    lent: list[tuple[str, ...]] = []

    async def check(d):
        d.app.lend = lambda command: lent.append(tuple(command)) or ""  # type: ignore[method-assign]
        await d.press("3", "o")
        await d.until(lambda: bool(lent))
        await d.until(lambda: "was at" in d.text)

    drive("one", check, place=CodePlace("train", "train.py", 2, (str(tmp_path / "none"), str(tmp_path))))
    assert lent == [(str(program), "+2", f"{tmp_path}/train.py")]


def test_a_line_that_is_not_here_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {"EDITOR": "env"}
    told = editor.plan_place(CodePlace("f", "x/train.py", 3), "/beside", environ)
    assert told.reason.startswith(f"x/train.py:3 is not below {tmp_path}")
    told = editor.plan_place(CodePlace("f", "x/train.py", 3, ("/a", "/b")), "/beside", environ)
    assert "none of the 2 folders of the run's sys.path" in told.reason
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "train.py").write_text("1\n")
    found = editor.plan_place(CodePlace("f", "x/train.py", 3), "/beside", environ)
    assert found.command == ("env", "+3", f"{tmp_path}/x/train.py")
    assert is_known(editor.plan_place(CodePlace("f", f"{tmp_path}/x/train.py", 1, ("/a",)), "/", environ))


# The table


def list_views():
    for run in ("one", "ranks", "cpu", "pair", "refused", "snapshot", "cards", "bare", "held-nothing"):
        for tab in make_run(run).subject.tabs:
            for overlay in Overlay:
                for stretch in (WHOLE, Stretch(1, 1), Stretch(1, 1, 0, 4096)):
                    for text in ("", "a"):
                        yield make_run(run).view(
                            80, tab=tab, overlay=overlay, stretch=stretch, filter_text=text, cursors=(5,) * 7
                        )


def test_no_key_means_two_things_and_each_does_something():
    assert len({key.id for key in TRACE_KEYS}) == len(TRACE_KEYS)
    for view in list_views():
        works = [key for key in TRACE_KEYS if key.when.holds(view)]
        names = [name for key in works for name in key.keys]
        assert len(set(names)) == len(names), view
        for key in works:
            if callable(key.deed):
                assert key.deed(view) != view, (key.id, view)


def test_the_help_promises_no_zoom_that_does_nothing_now():
    for stretch, words in (
        (WHOLE, {"closer"}),
        (Stretch(0, 1), {"closer, wider, all steps"}),
        (Stretch(0, 1, 0, 4096), {"wider, all steps"}),
    ):
        view = make_run("ranks").view(80, tab=Tab.RANKS, overlay=Overlay.HELP, stretch=stretch)
        zoom = [key for key in trace_keys_shown(view) if key.keys[0] in ("+", "-", "0")]
        assert {key.brief for key in zoom} == words


@pytest.mark.parametrize("tab", [*TRACE_TABS, Tab.AGAINST, *SnapshotTab])
def test_the_help_fits_the_common_screen(tab):
    run = "pair" if tab is Tab.AGAINST else "ranks" if isinstance(tab, Tab) else "snapshot"
    view = make_run(run).view(80, tab=tab, overlay=Overlay.HELP, cursors=(9,) * 7, filter_text="a")
    keys = trace_keys_shown(view)
    text = join(paint_trace(view, Size(80, 24), keys))
    assert page_of_trace(view, Size(80, 24), keys)[1] == 0
    for key in keys:
        assert f" {key.keys[0]} " in text, key


def test_a_key_that_does_nothing_says_why():
    view = make_run("one").view(80)
    assert say_trace_unused("Z", view) == "Z has no meaning, ? shows the keys"
    assert say_trace_unused(" ", view) == "space has no meaning, ? shows the keys"
    assert say_trace_unused("n", view) == "n works in a trace of several devices"
    assert say_trace_unused("f12", view) == ""
    assert say_trace_unused("7", view) == "7 works with --against"
    assert Tab.AGAINST not in view.subject.tabs
    assert find_trace_key("7", view) is find_trace_key("n", view) is None
    both = replace(view, timeline=replace(view.timeline, devices=(0, 3)))
    key = find_trace_key("n", both)
    assert [key.deed(both).lane, key.deed(key.deed(both)).lane] == [1, 0], "the next device has a timeline of its own"
    lost = replace(view, timeline=Missing("not kept"))
    assert find_trace_key("+", lost) is None
    assert say_trace_unused("+", lost) == "not kept"


def test_zoom_goes_from_all_steps_to_a_part_of_one_and_back():
    view = make_run("one").view(80)
    seen = []
    for _ in range(4):
        view = action_closer(view)
        seen.append(view.stretch)
    assert seen == [Stretch(0, 3), Stretch(0, 2), Stretch(0, 1), Stretch(0, 1, 0, 2)]
    view = action_along(view, 1)
    assert view.stretch == Stretch(0, 1, 1, 2)
    assert action_along(view, 1).stretch == Stretch(1, 1, 0, 2)
    assert action_along(replace(view, stretch=Stretch(4, 1, 1, 2)), 1).stretch == Stretch(4, 1, 1, 2)
    assert action_along(replace(view, stretch=WHOLE), -1).stretch == Stretch(4, 1)
    for wanted in (Stretch(0, 1), Stretch(0, 2), Stretch(0, 4), WHOLE):
        view = action_wider(view)
        assert view.stretch == wanted


def comparison_of(run: str):
    found = make_run(run).subject.comparison
    assert is_known(found)
    return found


async def read_the_answer(d: Driven) -> None:
    assert d.view.tab is Tab.AGAINST, "what was asked for is open at first"
    lines = d.text.splitlines()
    assert lines[1].startswith(" IT HELPED?  1.21x (95 %: 1.20 to 1.22)")
    first = next(number for number, line in enumerate(lines) if "══ 7 against" in line)
    assert lines[first + 1].startswith(">result   it helped: mean step 12.080 ms before, 10.000 ms after")
    assert "against before.pt.trace.json" in lines[0]
    await d.press("y")
    assert d.app.copied == comparison_of("pair").summary
    await d.press("tab")
    assert d.view.tab is Tab.OVERVIEW, "after the last tab comes the first"
    await d.press("shift+tab")
    assert d.view.tab is Tab.AGAINST
    await d.press("3")
    assert "DATA-BOUND" in d.text.splitlines()[1], "the other tabs are of the trace alone"
    await d.press("7")
    assert d.view.tab is Tab.AGAINST
    await d.press("?")
    assert "what changed" in d.text
    await d.press("x", "8")
    assert d.view.message == "8 has no meaning, ? shows the keys"
    await d.press("right", "left", "+", "-", "0")
    assert (d.view.stretch, d.view.tab) == (WHOLE, Tab.AGAINST)


async def walk_changes(d: Driven) -> None:
    await d.press("G")
    assert "> " in d.text
    await d.press("y")
    assert d.app.copied == "at::native::copy_kernel: 1.400 ms before, 0.000 ms after, -1.400 ms"
    await d.press("o")
    await d.until(lambda: "no stacks here" in d.text)
    assert d.places == [(0, "at::native::copy_kernel")], "the whole name is looked for in the trace after"
    await d.press("k", "up", "enter")
    assert d.view.overlay is Overlay.DETAILS
    assert "before" in d.text
    await d.press("escape", "pageup", "pagedown", "home", "j", "j")
    assert find_trace_key("o", d.view) is None, "a phase has no line"
    assert say_trace_unused("o", d.view).startswith("o works on an operator")
    await d.press("s")
    assert "sorted: change ms" in d.text
    assert d.text.count("change msv") == 5, "all of its tables are sorted alike"
    await d.press("S")
    assert "change ms^" in d.text
    await d.press("/", "k", "e", "x", "backspace", "enter")
    assert "copy_kernel" in d.text
    assert "DataLoader" not in d.text
    await d.press("escape", "right_curly_bracket", "left_curly_bracket", "ctrl+l", "Y")
    assert "══ 7 against" in d.app.copied


def test_every_key_beside_a_comparison_does_what_it_says():
    used: set[str] = set()
    for walk in (read_the_answer, walk_changes, search, stop_and_go):
        used |= drive("pair", walk, size=(120, 50)).used
    pair = make_run("pair")
    given = {"tab": Tab.AGAINST, "filter_text": "a"}
    views = [
        pair.view(100, **given, overlay=overlay, stretch=stretch, cursors=(0,) * 6 + (place,), search=searched)
        for searched in SEARCHES
        for overlay in Overlay
        for stretch in (WHOLE, Stretch(0, 1))
        for place in range(20)
    ]
    assert {key.id for key in TRACE_KEYS if any(key.when.holds(view) for view in views)} == used
    assert "against" in used


NOISE = "1.21x (95 %: 1.20 to 1.22)"
FEW = "fewer than 3 steps in one of them"
UNTOLD = ("world size", "batch, shapes and types (not recorded: record_shapes=True)")


def no_help(ratio, low, high):
    return {"helped": False, "ratio": ratio, "ratio_low": low, "ratio_high": high}


@pytest.mark.parametrize(
    ("changes", "word", "beside", "ink"),
    [
        ({"unchecked": ()}, "IT HELPED", NOISE, Ink.GOOD),
        (no_help(0.8, 0.7, 0.9), "! SLOWER", "0.80x (95 %: 0.70 to 0.90)", Ink.WARN),
        (no_help(1.1, 0.9, 1.2), "NO DIFFERENCE", "1.10x (95 %: 0.90 to 1.20)", Ink.STRONG),
        ({"helped": False, "target": 1.5}, "FASTER, SHORT OF 1.5x", NOISE, Ink.STRONG),
        ({"helped": Missing(FEW), "ratio_low": Missing("few")}, "! NO ANSWER", FEW, Ink.WARN),
        ({"unchecked": UNTOLD}, "IT HELPED?", NOISE, Ink.STRONG),
        ({"helped": Missing("no steps are marked")}, "! NO ANSWER", "no steps are marked", Ink.WARN),
    ],
)
def test_the_answer_is_one_word_with_its_noise(changes, word, beside, ink):
    comparison = replace(comparison_of("pair"), **changes)
    answer = replace(make_run("pair").subject, comparison=comparison).answer(0, Tab.AGAINST)
    assert (answer.word, answer.items[0].text, answer.items[1].text, answer.ink) == (word, word, beside, ink)
    assert answer.texts[0].startswith(beside)
    if word.startswith("IT HELPED"):
        condition = "if world size and batch, shapes and types are the same"
        assert (condition in [item.text for item in answer.items]) is word.endswith("?")


def test_every_change_of_the_comparison_is_in_a_table_and_without_a_device_no_cause_of_idle_time():
    comparison = comparison_of("pair")
    tables = [block for block in list_changes(comparison) if isinstance(block, Sheet)]
    assert tuple(row for table in tables for row in table.rows) == comparison.changes
    assert [table.findable for table in tables] == [False, False, True, True, True]
    left = tuple(change for change in comparison.changes if change.part != "idle")
    said = [block for block in list_changes(replace(comparison, changes=left)) if isinstance(block, Paragraph)]
    assert Paragraph("n/a", "idle time by cause: not both traces have device work and host events") in said


def test_sorting_goes_from_slower_to_faster_and_back():
    rows = tuple(Change("operator", name, 10.0, 10.0 + more) for name, more in (("a", -5), ("b", 5), ("c", 1)))
    run = make_run("pair")
    subject = replace(run.subject, comparison=replace(comparison_of("pair"), changes=rows))
    for turned, names in ((False, ["b", "c", "a"]), (True, ["a", "c", "b"])):
        view = replace(run.view(80, tab=Tab.AGAINST, sort=1, sort_reversed=turned), subject=subject)
        (table,) = [block for block in list_blocks(view) if isinstance(block, Sheet)]
        assert [row.name for row in table.rows] == names


def test_names_of_somebody_else_send_no_escape_sequence():
    odd = "\x1b[2Jodd"
    run = make_run("pair")
    hostile = replace(comparison_of("refused"), before=f"/tmp/{odd}.json", differences=(odd,), summary=f"not so: {odd}")
    for size in (Size(120, 40), Size(20, 5)):
        view = replace(run.view(size.width, tab=Tab.AGAINST), subject=replace(run.subject, comparison=hostile))
        text = join(paint_trace(view, size))
        assert "[2Jodd" in text
        assert "\x1b" not in text
