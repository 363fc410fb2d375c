"""Drive the application by its pilot, with a stand-in for the session."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.frames import NOW_NS, make_frame, make_process, make_pulses, make_worker
from tpmon.model.frame import Frame
from tpmon.model.results.doctor import Update
from tpmon.ui.kit.canvas import Canvas
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.app import MonitorApp
from tpmon.ui.monitor.controls import Controls, Order, Result, ScreenOptions

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
        for update in updates:
            self.app.receive_result(update)
        await self.pilot.pause()

    async def get(self, result: Result, *keys: str) -> None:
        await self.press(*keys)
        await self.send_result(result)

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


def driven(**options):
    """Make a test of a check: the screen is driven, and the check looks at it."""

    def make(check: Callable[[Session], Awaitable[None]]) -> Callable[[], None]:
        return lambda: drive(check, **options) and None

    return make


class Checks(dict[str, Callable[[Session], Awaitable[None]]]):
    """Hold the checks of keys by the id of their row in the table."""

    def of(self, key_id: str):
        def register(check):
            assert key_id not in self
            self[key_id] = check
            return check

        return register

    def each(self, cases):
        """Register one check for many rows, whose cases are played one after the other."""

        def register(check):
            for key_id in dict.fromkeys(key_id for key_id, *_ in cases):

                async def play(s, mine=tuple(case for one, *case in cases if one == key_id)):
                    for case in mine:
                        await check(s, *case)

                self.of(key_id)(play)
            return check

        return register
