"""Drive the screen of traces and snapshots by its keys, and note which rows of its table were used."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.goldens.trace_views import make_run
from tpmon.errors import ExitCode
from tpmon.model.known import Missing
from tpmon.ui.kit.keys import Overlay, Search
from tpmon.ui.traces.app import TraceApp
from tpmon.ui.traces.keys import find_trace_key
from tpmon.ui.traces.state import TraceControls, TraceView

_SIGNS = {"greater_than_sign": ">", "less_than_sign": "<", "left_curly_bracket": "{", "right_curly_bracket": "}"}
SEARCHES = (Search(), Search("a", goal="a", left=16))
"""Nothing is searched; something is, and something typed, and what is shown does not begin on the left."""
NO_STACKS = Missing("no stacks here")


class Driven:
    """Drive a screen by its keys; ``places`` notes what lines were asked for."""

    def __init__(self, run: str, place=NO_STACKS) -> None:
        self.places: list[tuple[int, str]] = []
        self.run = make_run(run)
        self.used: set[str] = set()

        def find_line(file: int, name: str):
            self.places.append((file, name))
            return place(name) if callable(place) else place

        self.app = TraceApp(self.run.subject, TraceControls(self.run.look, find_line, self.run.group), ascii_only=False)

    @property
    def view(self) -> TraceView:
        return self.app.view

    @property
    def text(self) -> str:
        return self.app._canvas.text()

    async def press(self, *names: str) -> None:
        for name in names:
            key = find_trace_key(_SIGNS.get(name, name), self.view)
            if key is not None:
                self.used.add(key.id)
            await self.pilot.press(name)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, self.text
            await asyncio.sleep(0.01)


def drive(run: str, check: Callable[[Driven], Awaitable[None]], size=(100, 40), **given) -> Driven:
    driven = Driven(run, **given)

    async def play() -> None:
        async with driven.app.run_test(size=size) as driven.pilot:
            await driven.pilot.pause()
            await check(driven)

    asyncio.run(play())
    return driven


async def stop_and_go(d: Driven) -> None:
    left: list[object] = []
    d.app.leave = left.append  # type: ignore[method-assign]
    d.app.action_suspend_process = lambda: left.append("stopped")  # type: ignore[method-assign]
    await d.press("ctrl+z", "q", "ctrl+c")
    assert left == ["stopped", ExitCode.OK, ExitCode.OK]


async def search(d: Driven) -> None:
    """Find text in what is over the tabs, go on to tabs and rows by name and number."""
    await d.press("2", "G", "enter")
    over = d.view.overlay
    assert over in (Overlay.DETAILS, Overlay.STACK)
    await d.press("/", "e", "z", "backspace")
    assert (d.view.overlay, d.view.search.text) == (Overlay.FIND, "e")
    assert d.text.splitlines()[-1].startswith(" /e_")
    await d.press("enter")
    assert d.view.overlay is over
    first = d.view.message
    assert first.startswith("match ")
    await d.press("n")
    assert d.view.message != first
    await d.press("N")
    assert d.view.message == first
    await d.press("l", "l", "h")
    assert d.view.search.left == 16
    assert "from column 17" in d.text
    await d.press("h", "escape")
    assert (d.view.overlay, d.view.search.text) == (Overlay.NONE, "e"), "the next match may be elsewhere"
    await d.press("escape")
    assert d.view.search == Search()
    tab = d.view.tab
    await d.press("l")
    assert d.view.tab is not tab
    await d.press("h")
    assert d.view.tab is tab
    await d.press(":", "2", "3", "backspace", "enter")
    assert d.view.cursor == 1
    await d.press(":", *"ove", "enter")
    assert d.view.tab.name == "OVERVIEW"
    await d.press(":", *"zz", "enter")
    assert "no such place: a number, overview, " in d.text
    left: list[object] = []
    d.app.leave = left.append  # type: ignore[method-assign]
    await d.press(":", "q", "enter")
    assert left == [ExitCode.OK]
