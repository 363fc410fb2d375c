"""Build recordings for tests: what the player needs of one, in memory, and what the screen gets of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.frames import NOW, NOW_NS, later, make_event, make_frame, make_pulses
from tests.recordings import SUBJECT
from tpmon.model.frame import Event, EventKind, Frame, Pulse
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.recording import Hole, Moment, RecordedEvent, VerdictSpan
from tpmon.model.results.replay import Playback
from tpmon.model.verdict import Confidence, Kind

END_NS = round(NOW.timestamp() * 1e9)
"""UNIX time of the Frame that the builders of Frames make."""
SECOND_NS = 1_000_000_000


def make_moment(n: int, ago_s: float = 0.0) -> Moment:
    return Moment(n, NOW_NS - round(ago_s * 1e9), END_NS - round(ago_s * 1e9))


def make_span(first_n: int, last_n: int, kind: Kind, ago_s: tuple[float, float], cause: Any = NOT_APPLICABLE) -> Any:
    since, until = (END_NS - round(one * 1e9) for one in ago_s)
    return VerdictSpan(first_n, last_n, since, until, kind, cause, Confidence.HIGH, kind.value)


def make_recorded(n: int, text: str, ago_s: float, kind: EventKind = EventKind.PROCESS) -> RecordedEvent:
    return RecordedEvent(n, END_NS - round(ago_s * 1e9), make_event(text, ago_s, kind))


NIGHT = Playback(
    shown=make_moment(3601),
    begin=make_moment(1, 3600),
    end=make_moment(7201, -3600),
    speed=4.0,
    paused=False,
    live=False,
    verdicts=(
        make_span(20, 1799, Kind.STARTING, (3580, 1800)),
        make_span(1800, 5399, Kind.DATA_BOUND, (1800, -1800), "cpu-transform"),
        make_span(5400, 7201, Kind.HUNG, (-1800, -3600), "missing-rank"),
    ),
    events=(
        make_recorded(1, "attached to pid 4211", 3600, EventKind.ATTACH),
        make_recorded(4200, "rank 1 (4212) gone: SIGKILL", -600),
    ),
    holes=(Hole(END_NS - 3000 * SECOND_NS, END_NS - 2400 * SECOND_NS, "the machine was suspended"),),
)
"""Two hours, the first of them played: a start, slow data, a rank that dies, a hang."""


def make_playback(**fields: Any) -> Playback:
    return replace(NIGHT, **fields)


class Reel:
    """Stand in for a recording: Frames a second apart, and what it says of itself."""

    def __init__(self, frames: Sequence[Frame], **told: Any) -> None:
        self.all = list(frames)
        self.live = False
        self.coming: list[Frame] = []
        """Frames that are written, and found by ``refresh``."""
        self.dumps: dict[int, DumpUpdate] = told.pop("dumps", {})
        self.told = told
        self.subject = replace(SUBJECT, every_s=told.get("every_s", 0.0))
        self.closed = False

    @property
    def first(self) -> Moment:
        return self.moment(1)

    @property
    def last(self) -> Moment:
        return self.moment(len(self.all))

    def refresh(self) -> bool:
        self.all += self.coming
        moved, self.coming = bool(self.coming), []
        return moved

    def close(self) -> None:
        self.closed = True

    def is_live(self) -> bool:
        return self.live

    def moment(self, n: int) -> Moment:
        return self.place(n)

    def place(self, n: int) -> Moment:
        n = max(1, min(n, len(self.all)))
        frame = self.all[n - 1]
        return Moment(n, frame.taken_ns, END_NS + frame.taken_ns - NOW_NS)

    def find(self, wall_ns: int) -> Moment:
        found = [one for one in map(self.moment, range(1, len(self.all) + 1)) if one.wall_ns <= wall_ns]
        return found[-1] if found else self.first

    def step(self, n: int, by: int) -> Moment:
        return self.moment(n + by)

    def frame(self, n: int) -> Frame:
        return self.all[n - 1]

    def frames(self, first_n: int, last_n: int) -> Iterator[Frame]:
        yield from self.all[first_n - 1 : last_n]

    def pulses(self, n: int) -> tuple[Pulse, ...]:
        return make_pulses(self.frame(n), min(n, 3))

    def verdicts(self) -> tuple[VerdictSpan, ...]:
        return self.told.get("verdicts", ())

    def events(self) -> tuple[RecordedEvent, ...]:
        moments = map(self.place, range(1, len(self.all) + 1))
        return tuple(RecordedEvent(one.n, one.wall_ns, event) for one in moments for event in self.frame(one.n).events)

    def holes(self) -> tuple[Hole, ...]:
        return self.told.get("holes", ())

    def dump_near(self, n: int) -> Applicable[DumpUpdate]:
        near = min(self.dumps, key=lambda one: abs(one - n), default=None)
        return NOT_APPLICABLE if near is None else self.dumps[near]

    def sample_near(self, _n: int) -> Applicable[SampleUpdate]:
        return NOT_APPLICABLE


def make_frames(count: int, frame: Frame | None = None, **events: str) -> list[Frame]:
    """Make Frames a second apart, with an event each as ``n7="rank 1 gone"`` says."""
    base = make_frame() if frame is None else frame
    found = []
    for n in range(1, count + 1):
        here: tuple[Event, ...] = (make_event(events[f"n{n}"], count - n),) if f"n{n}" in events else ()
        found.append(later(base, n - count, facts=f"Frame {n}", events=here))
    return found
