"""Drive the screen of traces and snapshots by its keys, and note which rows of its table were used."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.goldens.trace_views import make_run
from tpmon.errors import ExitCode
from tpmon.model.known import Missing
from tpmon.ui.traces.app import TraceApp
from tpmon.ui.traces.keys import find_trace_key
from tpmon.ui.traces.state import TraceControls, TraceView

_SIGNS = {"greater_than_sign": ">", "less_than_sign": "<", "left_curly_bracket": "{", "right_curly_bracket": "}"}
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
