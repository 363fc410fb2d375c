"""The list of jobs by its pilot: every key of its table; and its picture at every size."""

import asyncio
from dataclasses import replace

import pytest
from textual.events import Paste

from tests.frames import NOW, NOW_NS
from tests.painted import inks_of, join, texts_of
from tests.rosters import make_roster, make_row, make_rows
from tpmon.errors import ExitCode
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.units import count_cells
from tpmon.model.verdict import Kind
from tpmon.ui.jobs import keys as job_keys
from tpmon.ui.jobs.app import JobsApp
from tpmon.ui.jobs.keys import JOB_KEYS, job_keys_shown, say_job_unused
from tpmon.ui.jobs.layout import paint_jobs
from tpmon.ui.jobs.state import begin_jobs_view, list_job_rows
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.kit.shell import MESSAGE_SECONDS
from tpmon.view.jobs import JobOrder
from tpmon.view.layout import Ink, Size


class Driven:
    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.preferred: list[list[int]] = []
        view = begin_jobs_view(NOW, NOW_NS, ascii_only=False)
        self.app = JobsApp(
            view, lambda roots: self.preferred.append([one.pid for one in roots]), lambda: self.now_ns, lambda: NOW
        )

    @property
    def view(self):
        return self.app.view

    @property
    def pid(self) -> int:
        return self.view.cursor.pid

    @property
    def text(self) -> str:
        return self.app._canvas.text()

    async def press(self, *names: str) -> None:
        await self.pilot.press(*names)
        await self.pilot.pause()

    async def send(self, *rows, **changes) -> None:
        self.app.receive(make_roster(rows or None, **changes))
        await self.pilot.pause()


def drive(check, size=(120, 40)) -> Driven:
    driven = Driven()

    async def play() -> None:
        async with driven.app.run_test(size=size) as driven.pilot:
            await driven.pilot.pause()
            await check(driven)

    asyncio.run(play())
    return driven


ORDER = [5300, 9000, 6100, 7000, 8000, 4211, 9900]
"""The rows, ill ones first."""
PRESSED = (
    (
        "quit",
        ("q",),
        lambda d: (d.app.return_code, d.app.is_running, d.app.chosen),
        (ExitCode.OK, False, NOT_APPLICABLE),
    ),
    ("interrupt", ("slash", "x", "ctrl+c"), lambda d: (d.app.return_code, d.app.is_running), (ExitCode.OK, False)),
    ("help", ("question_mark",), lambda d: ("comes back" in d.text, d.view.overlay), (True, Overlay.HELP)),
    ("help", ("f1", "x"), lambda d: d.view.overlay, Overlay.NONE),
    ("close", ("question_mark", "escape"), lambda d: d.view.overlay, Overlay.NONE),
    ("close", ("slash", "v", "escape"), lambda d: (d.view.overlay, d.view.filter_text), (Overlay.NONE, "")),
    ("attach", ("j", "j", "enter"), lambda d: (d.app.chosen.pid, d.app.is_running), (6100, False)),
    ("attach", ("G", "enter"), lambda d: (d.app.chosen, d.view.message), (NOT_APPLICABLE, "this job has ended")),
    ("down", ("j", "down"), lambda d: d.pid, ORDER[2]),
    ("up", ("j", "j", "up", "k", "k"), lambda d: d.pid, ORDER[0]),
    ("page-down", ("pagedown",), lambda d: d.pid, ORDER[-1]),
    ("page-up", ("G", "pageup"), lambda d: d.pid, ORDER[0]),
    ("first", ("G", "g"), lambda d: d.pid, ORDER[0]),
    ("first", ("G", "home"), lambda d: d.pid, ORDER[0]),
    ("last", ("G",), lambda d: d.pid, ORDER[-1]),
    ("last", ("end",), lambda d: d.pid, ORDER[-1]),
    ("sort", ("s",), lambda d: (d.view.order, d.view.message), (JobOrder.CPU, "sorted: by CPU")),
    ("sort", ("s",) * 5, lambda d: d.view.order, JobOrder.ILL),
    ("filter", ("slash", *"vit"), lambda d: (d.view.typed, d.pid), ("/vit_", 6100)),
    (
        "filter-keep",
        ("slash", *"vit", "enter"),
        lambda d: (d.view.overlay, "filter: vit" in d.text),
        (Overlay.NONE, True),
    ),
    ("filter-erase", ("slash", *"vit", "backspace"), lambda d: d.view.filter_text, "vi"),
    ("filter-clear", ("slash", *"vit", "enter", "escape"), lambda d: (d.view.filter_text, d.pid), ("", 6100)),
    ("copy-screen", ("Y",), lambda d: "finetune.py" in d.app.copied, True),
)


@pytest.mark.parametrize(("keys", "look", "seen"), [one[1:] for one in PRESSED], ids=[one[0] for one in PRESSED])
def test_every_key_does_what_it_says(keys, look, seen):
    async def check(d: Driven) -> None:
        await d.send()
        await d.press(*keys)
        assert look(d) == seen

    drive(check)


def test_each_key_of_the_table_is_tried():
    tried = {one[0] for one in PRESSED} | {"suspend", "redraw"}  # the same on every screen
    assert {key.id for key in JOB_KEYS} == set(job_keys.USES) == tried
    for key in JOB_KEYS:
        word, priority = key.footer
        assert (bool(key.help), bool(key.section), priority > 0) == (True, True, bool(word)), key.id


def test_no_key_means_two_things_at_once_and_one_without_a_meaning_says_so():
    view = replace(begin_jobs_view(NOW, NOW_NS, ascii_only=False), roster=make_roster())
    for overlay in (Overlay.NONE, Overlay.HELP, Overlay.FILTER):
        for text in ("", "v"):
            for cursor in (NOT_APPLICABLE, make_rows()[0].reading.root):
                shown = replace(view, overlay=overlay, filter_text=text, cursor=cursor)
                named = [name for key in JOB_KEYS if key.when.holds(shown) for name in key.keys]
                assert len(set(named)) == len(named), shown
    assert say_job_unused("x", view) == "x has no meaning, ? shows the keys"
    assert say_job_unused("f12", view) == ""


def test_the_cursor_stays_on_its_job_and_each_that_it_comes_to_is_judged_sooner():
    async def check(d: Driven) -> None:
        await d.send()
        assert d.preferred == [[5300]]
        await d.press("j", "j")
        await d.send(*(row for row in make_rows() if row.reading.root.pid != 9000))
        assert d.pid == 6100
        assert ">" in next(line for line in d.text.splitlines() if "vit.train" in line)
        await d.send(*(row for row in make_rows() if row.reading.root.pid not in (6100, 9000)))
        assert d.pid == 7000, "what took its place"
        await d.press("slash")
        d.app.post_message(Paste("zzz"))
        await d.pilot.pause()
        assert "no job has 'zzz' in it" in d.text
        assert d.view.cursor is NOT_APPLICABLE
        await d.press("escape")
        assert d.pid == 5300
        assert d.preferred == [[5300], [9000], [6100], [7000], [], [5300]]
        await d.press("slash", *"train")
        assert d.preferred[-1] == [7000, 4211], "what a filter shows alone, too"

    drive(check)


def test_a_message_goes_after_a_while():
    async def check(d: Driven) -> None:
        await d.send()
        await d.press("x")
        assert "x has no meaning" in d.text
        d.now_ns += int(MESSAGE_SECONDS * 1e9) + 1
        await d.send()
        assert "x has no meaning" not in d.text

    drive(check)


def paint(width, height, rows=None, **changes):
    view = replace(begin_jobs_view(NOW, NOW_NS, ascii_only=False), roster=make_roster(rows))
    view = replace(view, cursor=make_rows()[0].reading.root, **changes)
    return paint_jobs(view, Size(width, height), job_keys_shown(view))


@pytest.mark.parametrize("rows", [None, ()], ids=["full", "empty"])
@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 50), (40, 8), (20, 5), (12, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("overlay", [Overlay.NONE, Overlay.HELP, Overlay.FILTER])
def test_a_picture_fits_every_size(size, rows, overlay):
    lines = texts_of(paint(*size, rows, overlay=overlay))
    assert len(lines) == size[1]
    assert max(map(count_cells, lines)) <= size[0]


def test_forty_columns_keep_script_pace_and_verdict():
    text = join(paint(40, 20))
    for words in ("finetune.py", "log 26m", "hung", "3.21 step/s", "balanced", "data-bound", "looking", "stopped"):
        assert words in text
    assert "3 ill" in text


def test_verdicts_have_the_colours_of_their_grades():
    lines = paint(120, 40)
    for word, ink in (("hung", Ink.BAD), ("stopped", Ink.BAD), ("data-bound", Ink.WARN), ("looking", Ink.DIM)):
        assert inks_of(lines[3:-1], word) == {ink}
    assert inks_of(paint(120, 40, [make_row(1), make_row(2, kind=Kind.BALANCED)])[3:], "balanced") == {Ink.GOOD}
    text = join(lines)
    assert "<02:41" in text or "<03:02" in text, "since before the time that a lower bound gives"


def test_an_empty_list_says_what_it_looks_for_and_how_to_start():
    text = join(paint(80, 24, ()))
    assert "no training job on this machine so far" in text
    assert "tpmon demo" in text
    waiting = begin_jobs_view(NOW, NOW_NS, ascii_only=False)
    assert "looks for training jobs" in join(paint_jobs(waiting, Size(80, 24), job_keys_shown(waiting)))


def test_many_jobs_scroll_with_the_cursor_and_what_was_not_read_is_said():
    rows = [make_row(1000 + at, f"job{at:03d}.py") for at in range(60)]
    view = replace(
        begin_jobs_view(NOW, NOW_NS, ascii_only=True), roster=make_roster(rows, unread=2), cursor=rows[59].reading.root
    )
    assert len(list_job_rows(view)) == 60
    text = join(paint_jobs(view, Size(80, 24), job_keys_shown(view)))
    assert ">1059" in text
    assert "of 60" in text
    assert "2 Python processes that may be jobs could not be read" in text
    assert text.isascii()
