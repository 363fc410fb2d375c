"""The tab of a comparison: its answer first, its tables, every key that works beside it."""

from dataclasses import replace

import pytest

from tests.goldens.trace_views import make_run
from tests.ui.traces.trace_driven import Driven, drive, stop_and_go
from tpmon.model.known import Missing, is_known
from tpmon.model.results.trace import Change
from tpmon.model.results.trace_tables import Stretch
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.keys import TRACE_KEYS, find_trace_key, say_trace_unused
from tpmon.ui.traces.layout import paint_trace
from tpmon.ui.traces.state import WHOLE, Tab
from tpmon.ui.traces.tabs import list_blocks
from tpmon.view.blocks import Paragraph, Sheet
from tpmon.view.layout import Ink, Size
from tpmon.view.trace_blocks import list_changes


def answer_change(comparison):
    return replace(make_run("pair").subject, comparison=comparison).answer(0, Tab.AGAINST)


def comparison_of(run: str):
    found = make_run(run).subject.comparison
    assert is_known(found)
    return found


def text_of(view, size: Size) -> str:
    return "\n".join("".join(text for text, _ink in line) for line in paint_trace(view, size))


async def read_the_answer(d: Driven) -> None:
    assert d.view.tab is Tab.AGAINST, "what was asked for is open at first"
    lines = d.text.splitlines()
    assert lines[1].startswith(" IT HELPED?  1.21x (95 %: 1.20 to 1.22)")
    first = next(number for number, line in enumerate(lines) if "══ 7 against" in line)
    assert lines[first + 1].startswith(">result   it helped: mean step 12.080 ms before, 10.000 ms after")
    assert "against before.pt.trace.json" in lines[0]
    await d.press("y")
    assert d.app.copied == comparison_of("pair").summary


async def walk_tabs(d: Driven) -> None:
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


async def walk_rows(d: Driven) -> None:
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
    assert d.text.count("change msv") == 4, "all of its tables are sorted alike"
    await d.press("S")
    assert "change ms^" in d.text
    await d.press("/", "k", "e", "x", "backspace", "enter")
    assert "copy_kernel" in d.text
    assert "DataLoader" not in d.text
    await d.press("escape", "right_curly_bracket", "left_curly_bracket", "ctrl+l", "Y")
    assert "══ 7 against" in d.app.copied


async def walk_time(d: Driven) -> None:
    await d.press("right", "left", "+", "-", "0")
    assert d.view.stretch == WHOLE
    assert d.view.tab is Tab.AGAINST


def test_every_key_beside_a_comparison_does_what_it_says():
    used: set[str] = set()
    for walk in (read_the_answer, walk_tabs, walk_rows, walk_time, stop_and_go):
        used |= drive("pair", walk, size=(120, 50)).used
    pair = make_run("pair")
    given = {"tab": Tab.AGAINST, "filter_text": "a"}
    views = [
        pair.view(100, **given, overlay=overlay, stretch=stretch, cursors=(0,) * 6 + (place,))
        for overlay in Overlay
        for stretch in (WHOLE, Stretch(0, 1))
        for place in range(20)
    ]
    assert {key.id for key in TRACE_KEYS if any(key.when.holds(view) for view in views)} == used
    assert "against" in used


def test_without_another_trace_there_is_no_such_tab():
    view = make_run("one").view(80)
    assert Tab.AGAINST not in view.subject.tabs
    assert find_trace_key("7", view) is None
    assert say_trace_unused("7", view) == "7 works with --against"


@pytest.mark.parametrize(
    ("changes", "word", "beside", "ink"),
    [
        ({"unchecked": ()}, "IT HELPED", "1.21x (95 %: 1.20 to 1.22)", Ink.GOOD),
        (
            {"helped": False, "ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.9},
            "! SLOWER",
            "0.80x (95 %: 0.70 to 0.90)",
            Ink.WARN,
        ),
        (
            {"helped": False, "ratio": 1.1, "ratio_low": 0.9, "ratio_high": 1.2},
            "NO DIFFERENCE",
            "1.10x (95 %: 0.90 to 1.20)",
            Ink.STRONG,
        ),
        ({"helped": False, "target": 1.5}, "FASTER, SHORT OF 1.5x", "1.21x (95 %: 1.20 to 1.22)", Ink.STRONG),
        (
            {"helped": Missing("fewer than 3 steps in one of them"), "ratio_low": Missing("few")},
            "! NO ANSWER",
            "fewer than 3 steps in one of them",
            Ink.WARN,
        ),
        (
            {"unchecked": ("world size", "batch, shapes and types (not recorded: record_shapes=True)")},
            "IT HELPED?",
            "1.21x (95 %: 1.20 to 1.22)",
            Ink.STRONG,
        ),
        ({"helped": Missing("no steps are marked")}, "! NO ANSWER", "no steps are marked", Ink.WARN),
    ],
)
def test_the_answer_is_one_word_with_its_noise(changes, word, beside, ink):
    answer = answer_change(replace(comparison_of("pair"), **changes))
    assert (answer.word, answer.items[0].text, answer.items[1].text, answer.ink) == (word, word, beside, ink)
    assert answer.texts[0].startswith(beside)
    if word.startswith("IT HELPED"):
        condition = "if world size and batch, shapes and types are the same"
        assert (condition in [item.text for item in answer.items]) is word.endswith("?")


def test_every_change_of_the_comparison_is_in_a_table():
    comparison = comparison_of("pair")
    tables = [block for block in list_changes(comparison) if isinstance(block, Sheet)]
    assert tuple(row for table in tables for row in table.rows) == comparison.changes
    assert [table.findable for table in tables] == [False, False, True, True]


def test_traces_without_a_device_have_no_causes_of_idle_time():
    comparison = comparison_of("pair")
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
        text = text_of(view, size)
        assert "[2Jodd" in text
        assert "\x1b" not in text
