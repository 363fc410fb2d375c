"""A recording while it is played: what is shown of it, how fast, and where one can go."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Union

from tpmon.model.frozen import dataclass

if TYPE_CHECKING:  # a live screen knows these keys, and does without recordings
    from tpmon.model.results.recording import Hole, Moment, RecordedEvent, VerdictSpan

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Those of the keys; any between the first and the last can be asked for."""


class TimeMove(Enum):
    """Name the moves through a recording by the id of their key."""

    PLAY = "play"
    """Pause, or go on."""
    FRAME_BACK = "frame-back"
    FRAME_ON = "frame-on"
    SECONDS_BACK = "seconds-back"
    SECONDS_ON = "seconds-on"
    CHANGE_BACK = "change-back"
    """To the verdict before, or to an event, whichever is nearer."""
    CHANGE_ON = "change-on"
    BEGIN = "begin"
    END = "end"
    SLOWER = "play-slower"
    FASTER = "play-faster"


@dataclass(frozen=True, slots=True)
class JumpTo:
    """Ask for the newest Frame at or before a UNIX time."""

    wall_ns: int


@dataclass(frozen=True, slots=True)
class JumpToFrame:
    """Ask for a Frame by its number."""

    n: int


TimeJump = Union[JumpTo, JumpToFrame]


@dataclass(frozen=True, slots=True)
class Playback:
    """Hold which Frame of a recording is shown, how the next ones come, and what there is to go to.

    ``live`` is set while the file is still written. ``events`` are those that do not happen every day.
    """

    shown: Moment
    begin: Moment
    end: Moment
    speed: float
    paused: bool
    live: bool
    verdicts: tuple[VerdictSpan, ...]
    events: tuple[RecordedEvent, ...]
    holes: tuple[Hole, ...]

    @property
    def is_over(self) -> bool:
        """Tell whether the last Frame is shown, and no other will come."""
        return self.shown.n >= self.end.n and not self.live

    @property
    def follows(self) -> bool:
        """Tell whether each Frame is shown when it is written."""
        return self.shown.n >= self.end.n and self.live and not self.paused
