"""Play a recording: hand out its Frames at the pace at which they were taken, or at another one.

Stands where a session stands for a job: the only owner of a thread, and the only place that waits.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Union

from tpmon.errors import UsageError
from tpmon.model.frame import Event
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, NotApplicable, is_known
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.recording import Hole, Moment, RecordedEvent, VerdictSpan
from tpmon.model.results.replay import SPEEDS, JumpTo, JumpToFrame, Playback, TimeJump, TimeMove
from tpmon.view.events import EVENT_LIMIT, is_everyday, keep_newest

if TYPE_CHECKING:
    from tpmon.model.frame import Frame
    from tpmon.record.recording import Recording

UPDATES_HZ = 10.0
"""No eye follows more: a faster recording leaves Frames out, and none of their events."""
REFRESH_S = 0.5
"""A file that is still written is looked at so often."""
READINGS_EVERY_S = 2.0
"""While it plays, the recorded stacks nearest in time are looked for so often."""
JUMP_NS = 10_000_000_000
GRACE_S = 2.0
"""A change that was passed so lately is not gone back to once more."""

Sink = Callable[[Update], None]
Kept = Union[DumpUpdate, SampleUpdate]
KeptSink = Callable[[Kept], None]
_BACK = (TimeMove.FRAME_BACK, TimeMove.SECONDS_BACK, TimeMove.CHANGE_BACK, TimeMove.BEGIN)


class Player:
    """Play in the caller's thread (``run``) or in a daemon thread (``start``)."""

    def __init__(self, recording: Recording, at: Moment, *, speed: float = 1.0, paused: bool = False) -> None:
        """Take over a recording, and begin with the Frame ``at`` once it runs."""
        self._recording = recording
        self._sinks: tuple[Sink, ...] = ()
        self._kept_sinks: tuple[KeptSink, ...] = ()
        self._kept: list[Applicable[Kept]] = [NOT_APPLICABLE, NOT_APPLICABLE]
        self._kept_s = -math.inf
        self._shown = at
        self._frame: tuple[int, Frame] | None = None
        self._speed = speed
        self._paused = paused
        self._live = False
        self._refreshed_s = 0.0
        self._verdicts: tuple[VerdictSpan, ...] = ()
        self._holes: tuple[Hole, ...] = ()
        self._marked: tuple[RecordedEvent, ...] = ()
        self._events: list[Event] = []
        self._event_ns: list[int] = []
        self._places: list[list[int]] = []
        """Of everyday events and of others, where they stand among all."""
        self._stops: list[int] = []
        """The numbers of the Frames with another verdict or an event."""
        self._orders: deque[TimeMove | TimeJump] = deque()
        self._wake = threading.Event()
        self._stopped = threading.Event()

    def start(
        self,
        on_error: Callable[[BaseException], None],
        sinks: Sequence[Sink],
        kept_sinks: Sequence[KeptSink] = (),
    ) -> None:
        """Run in a daemon thread until ``stop``; an exception goes to ``on_error`` and ends it."""

        def play() -> None:
            try:
                self.run(sinks, kept_sinks)
            except BaseException as error:  # noqa: BLE001  # the screen shows it and ends with exit 1
                on_error(error)

        threading.Thread(target=play, name="tpmon-player", daemon=True).start()

    def ask(self, order: TimeMove | TimeJump) -> None:
        """Move through the recording as soon as the Frame in hand is shown; in any thread."""
        self._orders.append(order)
        self._wake.set()

    def stop(self) -> None:
        """End after the Frame in hand; never waits for it."""
        self._stopped.set()
        self._wake.set()

    def run(self, sinks: Sequence[Sink], kept_sinks: Sequence[KeptSink] = ()) -> None:
        """Play until ``stop``, and close the recording.

        ``kept_sinks`` get the dump and the hot functions that were recorded nearest to what is shown.
        """
        self._sinks, self._kept_sinks = tuple(sinks), tuple(kept_sinks)
        try:
            self._refresh(anew=True)
            self._hand_out(soon=True)
            due_s = time.monotonic()
            while not self._stopped.is_set():
                following, wait_s = self._plan()
                now_s = time.monotonic()
                due_s = max(due_s + wait_s, now_s)  # a late Frame starts a new rhythm, never a burst
                if self._wake.wait(None if math.isinf(wait_s) else due_s - now_s):
                    self._wake.clear()
                    due_s = time.monotonic()
                    if self._obey():
                        self._hand_out(soon=True)
                elif is_known(following):
                    self._shown = following
                    self._hand_out()
                elif self._follow():
                    self._hand_out()
        finally:
            self._recording.close()

    def _plan(self) -> tuple[Applicable[Moment], float]:
        """Return which Frame comes next by itself, if any, and the seconds until there is something to do."""
        if self._paused:
            return NOT_APPLICABLE, REFRESH_S if self._live else math.inf
        at, wait_s = self._shown, 0.0
        while wait_s < 1 / UPDATES_HZ:
            after = self._recording.step(at.n, 1)
            if after.n <= at.n:
                break
            wait_s += self._measure_gap(at, after) / self._speed
            at = after
        if at.n == self._shown.n:
            return NOT_APPLICABLE, REFRESH_S if self._live else 0.0
        return at, wait_s

    def _measure_gap(self, before: Moment, after: Moment) -> float:
        """Return the seconds between two Frames; a hole passes like any other interval."""
        usual_s = max(self._read_frame().interval_s, self._recording.subject.every_s)
        gap_s = (after.taken_ns - before.taken_ns) / 1e9
        return gap_s if 0 < gap_s < 2 * usual_s else usual_s

    def _follow(self) -> bool:
        """Look for what was written since, pause where nothing more will come; tell what changed."""
        moved = self._refresh()
        if self._paused:
            return moved
        if moved:
            self._shown = self._recording.last
        elif not self._live:
            self._paused = True
        return moved or self._paused

    def _refresh(self, *, anew: bool = False) -> bool:
        """Read what the recording says of itself, where that is more than last time; tell whether it is."""
        self._refreshed_s = time.monotonic()
        self._live = self._recording.is_live()  # asked first: what its writer wrote last is not missed
        if not (self._recording.refresh() or anew):
            return False
        events = self._recording.events()
        self._events, self._event_ns = [one.event for one in events], [one.n for one in events]
        everyday = [is_everyday(one.event) for one in events]
        self._marked = tuple(one for one, often in zip(events, everyday, strict=True) if not often)
        self._places = [[at for at, often in enumerate(everyday) if often is sort] for sort in (True, False)]
        self._verdicts, self._holes = self._recording.verdicts(), self._recording.holes()
        self._stops = sorted({one.n for one in self._marked} | {one.first_n for one in self._verdicts})
        return True

    # Orders

    def _obey(self) -> bool:
        """Do what was asked for, and tell whether that changes what is shown."""
        before = self._shown, self._speed, self._paused
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, JumpTo):
                self._shown = self._recording.find(order.wall_ns)
            elif isinstance(order, JumpToFrame):
                self._shown = self._recording.moment(order.n)
            elif order is TimeMove.PLAY:
                self._paused = not self._paused
            elif order in (TimeMove.SLOWER, TimeMove.FASTER):
                self._speed = _next_speed(self._speed, faster=order is TimeMove.FASTER)
            else:
                self._move(order)
        return before != (self._shown, self._speed, self._paused)

    def _move(self, move: TimeMove) -> None:
        recording, shown = self._recording, self._shown
        if move in (TimeMove.FRAME_BACK, TimeMove.FRAME_ON):
            self._paused = True
            target = shown
        elif move in (TimeMove.SECONDS_BACK, TimeMove.SECONDS_ON):
            target = recording.find(shown.wall_ns + (-JUMP_NS if move in _BACK else JUMP_NS))
        elif move in (TimeMove.CHANGE_BACK, TimeMove.CHANGE_ON):
            target = self._find_change(back=move in _BACK)
        else:
            self._refresh()
            target = recording.first if move is TimeMove.BEGIN else recording.last
            self._paused = self._paused and not (self._live and move is TimeMove.END)
        # A hole is left, and a change whose Frame was thinned away is passed.
        if move in _BACK:
            self._shown = target if target.n < shown.n else recording.step(shown.n, -1)
        else:
            self._shown = target if target.n > shown.n else recording.step(shown.n, 1)

    def _find_change(self, *, back: bool) -> Moment:
        """Return the first Frame of the nearest change before or after what is shown, else that end."""
        recording, n = self._recording, self._shown.n
        if back:
            passed = 0 if self._paused else math.ceil(GRACE_S * self._speed / self._read_frame().interval_s)
            place = bisect_left(self._stops, n - passed) - 1
        else:
            place = bisect_right(self._stops, n)
        if not 0 <= place < len(self._stops):
            return recording.first if back else recording.last
        stop = self._stops[place]
        found = recording.moment(stop)
        return found if found.n >= stop else recording.step(found.n, 1)

    # What is handed out

    def _read_frame(self) -> Frame:
        n = self._shown.n
        if self._frame is None or self._frame[0] != n:
            try:
                frame = self._recording.frame(n)
            except UsageError:  # its writer has thinned it away meanwhile
                self._shown = self._recording.moment(n)
                if self._shown.n == n:
                    raise
                frame = self._recording.frame(self._shown.n)
            self._frame = (self._shown.n, frame)
        return self._frame[1]

    def _hand_out(self, *, soon: bool = False) -> None:
        """Hand out what is shown, and ``soon``, else now and then, what was read on demand around it."""
        now_s = time.monotonic()
        if self._live and now_s - self._refreshed_s >= REFRESH_S:
            self._refresh()
        frame, n = self._read_frame(), self._shown.n
        playback = Playback(
            self._shown,
            self._recording.first,
            self._recording.last,
            self._speed,
            self._paused,
            self._live,
            self._verdicts,
            self._marked,
            self._holes,
        )
        update = Update(frame, self._recording.pulses(n), playback, self._list_events(n))
        for sink in self._sinks:
            sink(update)
        if self._kept_sinks and (soon or now_s - self._kept_s >= READINGS_EVERY_S):
            self._kept_s = now_s
            self._hand_out_kept(n)

    def _list_events(self, n: int) -> tuple[Event, ...]:
        """Return the events up to a Frame that a screen keeps, without a look at all of a long night."""
        until = bisect_right(self._event_ns, n)
        newest: list[int] = []
        for places in self._places:
            end = bisect_left(places, until)
            newest += places[max(0, end - EVENT_LIMIT) : end]
        return keep_newest([self._events[at] for at in sorted(newest)])

    def _hand_out_kept(self, n: int) -> None:
        for place, found in enumerate((self._recording.dump_near(n), self._recording.sample_near(n))):
            if not isinstance(found, (Missing, NotApplicable)) and found != self._kept[place]:
                self._kept[place] = found
                for sink in self._kept_sinks:
                    sink(found)


def _next_speed(speed: float, *, faster: bool) -> float:
    if faster:
        return next((one for one in SPEEDS if one > speed), speed)
    return next((one for one in reversed(SPEEDS) if one < speed), speed)
