"""The screen of a fleet by its pilot: every key of its table; how it chooses its form, and fits every size."""

import asyncio
from dataclasses import replace

import pytest

from tests.fleet.nodes import make_node, make_rank_summary, make_silent
from tests.frames import NOW, NOW_NS
from tests.goldens.fleet_views import build_report, folded, many
from tests.painted import find_wrong, inks_of, join, texts_of
from tpmon.errors import ExitCode
from tpmon.judge.nodes import FleetMemory, join_fleet
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.fleet import FleetStacks, NodeState
from tpmon.model.units import count_cells
from tpmon.ui.fleet import keys as fleet_keys
from tpmon.ui.fleet.app import FleetApp
from tpmon.ui.fleet.controls import FleetControls
from tpmon.ui.fleet.keys import FLEET_KEYS, fleet_keys_shown, say_fleet_unused
from tpmon.ui.fleet.layout import paint_fleet, plan_at
from tpmon.ui.fleet.state import FleetNews, FleetOrder, Form, StacksNews, begin_fleet_view, list_shown
from tpmon.ui.kit.keys import Overlay
from tpmon.view.fleet.nodes import NodeOrder
from tpmon.view.layout import Ink, Size

FEW = "few"
ORDER = ["gpu2", "gpu6", "gpu5", "gpu0", "gpu1", "gpu3", "gpu4", "gpu7"]
"""The one that is accused, the one that is gone, the one with a hot card, and the good ones."""


class Driven:
    def __init__(self, report, stacks=NOT_APPLICABLE) -> None:
        self.now_ns = NOW_NS
        self.asked: list[FleetOrder] = []
        controls = FleetControls(lambda _sink: None, self.asked.append, lambda _stacks: "all stacks", lambda: None)
        view = begin_fleet_view(NOW, NOW_NS, FleetNews(report, stacks), ascii_only=False)
        self.app = FleetApp(view, controls, lambda: self.now_ns, lambda: NOW)

    @property
    def view(self):
        return self.app.view

    @property
    def node(self) -> str:
        return self.view.cursor

    @property
    def text(self) -> str:
        return self.app._canvas.text()

    async def press(self, *names: str) -> None:
        await self.pilot.press(*names)
        await self.pilot.pause()

    async def tell(self, report=None, stacks=NOT_APPLICABLE) -> None:
        self.app.receive(FleetNews(report or self.view.news.report, stacks))
        await self.pilot.pause()


def drive(check, report=None, stacks=NOT_APPLICABLE, size=(120, 40)) -> Driven:
    driven = Driven(report or build_report(FEW), stacks)

    async def play() -> None:
        async with driven.app.run_test(size=size) as driven.pilot:
            await driven.pilot.pause()
            await check(driven)

    asyncio.run(play())
    return driven


OPENED = (Overlay.STACKS, [FleetOrder.STACKS])
PRESSED = (
    ("quit", ("q",), lambda d: (d.app.return_code, d.app.is_running, d.app.chosen), (ExitCode.OK, False, "")),
    ("interrupt", ("slash", "x", "ctrl+c"), lambda d: (d.app.return_code, d.app.is_running), (ExitCode.OK, False)),
    ("help", ("question_mark",), lambda d: ("comes back" in d.text, d.view.overlay), (True, Overlay.HELP)),
    ("help", ("f1", "x"), lambda d: d.view.overlay, Overlay.NONE),
    ("open-node", ("enter",), lambda d: (d.app.chosen, d.app.is_running), ("gpu2", False)),
    ("open-node", ("j", "enter"), lambda d: (d.app.chosen, d.view.message[:41]), ("", "only a live node has a screen; gpu6: gone")),
    ("close", ("question_mark", "escape"), lambda d: d.view.overlay, Overlay.NONE),
    ("close", ("slash", "v", "escape"), lambda d: (d.view.overlay, d.view.filter_text), (Overlay.NONE, "")),
    ("fold-all", ("d",), lambda d: (d.view.overlay, d.asked), OPENED),
    ("bundle-all", ("b",), lambda d: (d.asked, "for a bundle" in d.text), ([FleetOrder.BUNDLE], True)),
    ("record-all", ("r", "ctrl+r"), lambda d: d.asked, [FleetOrder.RECORD] * 2),
    ("stacks-read", ("6",), lambda d: (d.view.overlay, d.asked), (Overlay.STACKS, [])),
    ("stacks-read", ("6", "6"), lambda d: d.view.overlay, Overlay.NONE),
    ("copy-try", ("y",), lambda d: "torch.save(" in d.app.copied, True),
    ("copy-stacks", ("6", "y"), lambda d: d.app.copied, "all stacks"),
    ("down", ("j", "down"), lambda d: d.node, ORDER[2]),
    ("up", ("j", "j", "up", "k", "k"), lambda d: d.node, ORDER[0]),
    ("left", ("j", "j", "h", "left", "h"), lambda d: d.node, ORDER[0]),
    ("right", ("l", "right"), lambda d: d.node, ORDER[2]),
    ("page-down", ("pagedown",), lambda d: d.node, ORDER[-1]),
    ("page-up", ("G", "pageup"), lambda d: d.node, ORDER[0]),
    ("first", ("G", "g"), lambda d: d.node, ORDER[0]),
    ("last", ("end",), lambda d: d.node, ORDER[-1]),
    ("form", ("z",), lambda d: (d.view.form, d.view.message), (Form.ROWS, "drawn: a row a node")),
    ("form", ("z",) * 4, lambda d: d.view.form, NOT_APPLICABLE),
    ("sort", ("s",), lambda d: (d.view.order, d.view.message, d.node), (NodeOrder.NAME, "sorted: by name", "gpu2")),
    ("sort", ("s",) * 4, lambda d: d.view.order, NodeOrder.WORST),
    ("filter", ("slash", *"therm"), lambda d: (d.view.typed, d.node), ("/therm_", "gpu5")),
    ("filter-keep", ("slash", *"therm", "enter"), lambda d: (d.view.overlay, "filter: therm" in d.text), (Overlay.NONE, True)),
    ("filter-erase", ("slash", *"thx", "backspace"), lambda d: d.view.filter_text, "th"),
    ("filter-clear", ("slash", *"therm", "enter", "escape"), lambda d: (d.view.filter_text, d.node), ("", "gpu5")),
    ("copy-screen", ("Y",), lambda d: "pretrain_vision.py" in d.app.copied, True),
)  # fmt: skip


@pytest.mark.parametrize(("keys", "look", "seen"), [one[1:] for one in PRESSED], ids=[one[0] for one in PRESSED])
def test_every_key_does_what_it_says(keys, look, seen):
    async def check(d: Driven) -> None:
        await d.press(*keys)
        assert look(d) == seen

    drive(check, stacks=folded())


def test_what_became_of_a_recording_is_said_once_and_a_mark_shows_that_it_goes_on():
    async def check(d: Driven) -> None:
        news = replace(d.view.news, notices=("records 8 nodes in /home/me/runs",), records=True)
        d.app.receive(news)
        await d.pilot.pause()
        assert ("records 8 nodes" in d.text, " REC " in d.text.splitlines()[0]) == (True, True)
        await d.press("s")
        d.app.receive(replace(news, records=False))
        await d.pilot.pause()
        assert ("records 8 nodes" in d.text, "REC" in d.text) == (False, False)

    drive(check)


def test_each_key_of_the_table_is_tried():
    tried = {one[0] for one in PRESSED} | {"suspend", "redraw"}  # the same on every screen
    assert {key.id for key in FLEET_KEYS} == set(fleet_keys.USES) == tried
    for key in FLEET_KEYS:
        word, priority = key.footer
        assert (bool(key.help), bool(key.section), priority > 0) == (True, True, bool(word)), key.id


def test_no_key_means_two_things_at_once_and_one_without_a_meaning_says_so():
    begun = begin_fleet_view(NOW, NOW_NS, FleetNews(build_report(FEW)), ascii_only=False)
    for overlay in (Overlay.NONE, Overlay.HELP, Overlay.FILTER, Overlay.STACKS):
        for text in ("", "v"):
            for cursor in ("", "gpu2"):
                for stacks in (NOT_APPLICABLE, StacksNews(1, 2), folded()):
                    news = replace(begun.news, stacks=stacks)
                    view = replace(begun, overlay=overlay, filter_text=text, cursor=cursor, news=news)
                    named = [name for key in FLEET_KEYS if key.when.holds(view) for name in key.keys]
                    assert len(set(named)) == len(named), view
    assert say_fleet_unused("x", begun) == "x has no meaning, ? shows the keys"
    assert say_fleet_unused("f12", begun) == ""


def test_the_cursor_goes_over_glyphs_by_lines_and_stays_on_its_node():
    async def check(d: Driven) -> None:
        per_line = plan_at(d.view, Size(120, 40)).grid.per_line
        names = [one.node for one in list_shown(d.view)]
        assert per_line == 100
        await d.press("l", "j")
        assert d.node == names[1 + per_line]
        assert f"{d.node}: live" in d.text
        await d.press(*("l",) * 20, *("j",) * 5)
        assert d.node == names[-1], "the last line is shorter"
        await d.press("k", "g", "l", "l", "d")
        assert d.node == names[2]
        await d.press("escape")
        await d.tell(many(300))
        assert d.node == names[2], "other nodes are there now"
        await d.press("slash", *"nothing")
        assert "no node has 'nothing' in it" in d.text
        assert d.node == ""
        await d.press("enter", "enter", "escape")
        assert d.node == names[0], "where nothing was under the cursor it begins anew"

    drive(check, many(512))


def test_stacks_are_waited_for_with_a_count_and_scroll_and_are_not_asked_for_twice():
    async def check(d: Driven) -> None:
        await d.press("d")
        await d.tell(stacks=StacksNews(3, 8))
        assert "3 of 8 nodes" in d.text
        await d.press("d")
        assert (d.asked, d.view.message) == ([FleetOrder.STACKS], "the stacks are read already: wait for their end")
        await d.tell(stacks=folded())
        assert not find_wrong("not read: gpu3: no answer|rank 2 on gpu2: hold train.py:12|~3 of 8", d.text)
        await d.press("j", "j", "j")
        assert "not read: gpu3" not in d.text
        await d.press("G", "G", "k")
        assert "all_reduce" in d.text
        await d.press("escape")
        assert d.view.is_bare
        await d.press("6")
        assert "rank 2 on gpu2" in d.text

    drive(check, size=(80, 16))


def test_an_old_report_says_how_late_it_is():
    async def check(d: Driven) -> None:
        assert " LIVE " in d.text
        d.now_ns += 8 * 10**9
        d.app.repaint()
        await d.pilot.pause()
        assert "LATE 8.0 s" in d.text
        await d.tell()
        assert " LIVE " in d.text

    drive(check)


def view_of(report, **changes):
    return replace(begin_fleet_view(NOW, NOW_NS, FleetNews(report), ascii_only=False), **changes)


def paint(report, width, height, **changes):
    view = view_of(report, **changes)
    return paint_fleet(view, Size(width, height), fleet_keys_shown(view))


CHOSEN = (
    (8, (120, 40), Form.ROWS),
    (8, (80, 24), Form.ROWS),
    (48, (120, 40), Form.CARDS),
    (48, (80, 24), Form.GLYPHS),
    (512, (200, 50), Form.GLYPHS),
    (512, (40, 30), Form.ROWS),
)


@pytest.mark.parametrize(("nodes", "size", "form"), CHOSEN)
def test_the_form_is_that_which_shows_most_and_has_room(nodes, size, form):
    assert plan_at(view_of(many(nodes)), Size(*size)).form is form


@pytest.mark.parametrize("form", [NOT_APPLICABLE, *Form], ids=str)
@pytest.mark.parametrize("size", [(200, 50), (120, 40), (80, 24), (40, 30), (40, 8), (20, 5), (12, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("overlay", [Overlay.NONE, Overlay.HELP, Overlay.FILTER, Overlay.STACKS])
def test_a_picture_fits_every_size(size, overlay, form):
    for nodes in (1, 48, 700):
        lines = texts_of(paint(many(nodes), *size, overlay=overlay, form=form))
        assert len(lines) == size[1]
        assert max(map(count_cells, lines)) <= size[0]


def test_forty_columns_have_the_counts_and_the_worst_nodes():
    text = join(paint(many(512), 40, 30))
    assert not find_wrong("! 12 held back|r 5 refused|? 6 undecided|gpu029 refused|gpu031 late|gpu017 data-bound", text)


def test_glyphs_and_words_have_the_colours_of_their_grades():
    lines = paint(many(48), 120, 40)
    for words, ink in (("! 2 held", Ink.WARN), ("r 1 refused", Ink.BAD), ("43 good", Ink.GOOD)):
        assert inks_of(lines, words) == {ink}
    rows = paint(build_report(FEW), 120, 40)[11:]
    for words, ink in (("gone", Ink.BAD), ("gpu-throttled", Ink.WARN), ("compute-bound", Ink.GOOD)):
        assert ink in inks_of(rows, words)


def test_a_name_and_a_reason_of_another_machine_reach_no_terminal_as_they_came():
    node = replace(make_silent("n1", NodeState.GONE, "\x1b[2Jgone\x07"), node="n\x1b]0;x")
    other = make_node("n2", make_rank_summary(0), script="\x1b]0;x\x07")
    stacks = StacksNews(0, 2, FleetStacks(Missing("no answer"), (("n1", "\x1b[2J"),)))
    for overlay in (Overlay.NONE, Overlay.STACKS):
        for form in Form:
            news = FleetNews(join_fleet(FleetMemory(), (node, other), NOW), stacks)
            lines = paint(news.report, 120, 40, overlay=overlay, form=form, news=news)
            assert all(text.isprintable() for text in texts_of(lines))


def test_what_is_not_known_is_said_and_no_node_is_called_good_before_it_tells():
    text = join(paint(build_report("starting"), 80, 24))
    assert not find_wrong("no verdict: no node tells of the job so far|0 of 8 nodes|starting|~good", text)
    assert not is_known(build_report("starting").verdict)
