"""Tell how a request ended on one rank, and whether another may be written there yet.

A mailbox holds one request. Whoever writes over one that the hook has not read takes it away, and whoever
writes over a cancel lets the cancelled recording go on: so what was not answered yet is waited for, and a
request that was taken away all the same is told from one that waits.
"""

from __future__ import annotations

from enum import Enum

from tpmon.capture.bus import Bus, Progress
from tpmon.hook.bus import wire_capture
from tpmon.model.frozen import dataclass
from tpmon.model.results.capture import CaptureState

STATES = {
    wire_capture.STATE_REGISTERED: CaptureState.REGISTERED,
    wire_capture.STATE_ARMED: CaptureState.ARMED,
    wire_capture.STATE_WARMING: CaptureState.WARMING,
    wire_capture.STATE_RECORDING: CaptureState.RECORDING,
    wire_capture.STATE_WRITING: CaptureState.WRITING,
    wire_capture.STATE_VERIFIED: CaptureState.VERIFIED,
    wire_capture.STATE_REFUSED: CaptureState.REFUSED,
    wire_capture.STATE_MISSED: CaptureState.MISSED,
    wire_capture.STATE_CANCELLED: CaptureState.CANCELLED,
    wire_capture.STATE_EXPIRED: CaptureState.EXPIRED,
    wire_capture.STATE_FAILED: CaptureState.FAILED,
    wire_capture.STATE_YIELDED: CaptureState.YIELDED,
}

NOTHING = (0,) * wire_capture.CAPTURE_WORDS
ANOTHER_RANK = "another rank could not be captured"
_NOT_HEARD = "it was taken back before the hook heard of it"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold how a request ended on one rank."""

    state: CaptureState
    reason: str
    words: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int, float]:
        """Return the events and bytes that were written, and how many ms that took."""
        words = self.words
        spent_ns = words[wire_capture.CAP_CHANGED_NS] - words[wire_capture.CAP_ENDED_NS]
        return words[wire_capture.CAP_EVENTS], words[wire_capture.CAP_BYTES], spent_ns / 1e6


class Turn(Enum):
    """Say whether a request may be written into a mailbox."""

    FREE = "free"
    ENDING = "a cancel was not heard yet"
    TAKEN = "another request was not heard yet"


def judge_turn(bus: Bus, now_ns: int) -> Turn:
    """Tell whether a request may be written: nothing is lost that somebody waits for."""
    asked = bus.read_asked()
    if asked is None or bus.read_answer()[0] == asked.words[wire_capture.ASK_NUMBER]:
        return Turn.FREE
    kind = asked.words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_CANCEL:
        progress = bus.read_progress(asked.words[wire_capture.ASK_SUBJECT])
        under_way = progress is not None and progress.state not in wire_capture.FINAL_STATES
        return Turn.ENDING if under_way else Turn.FREE
    # Who waits gives up then; the request of a tpmon that was killed is in nobody's way.
    if bus.is_left(asked):
        return Turn.FREE
    return Turn.TAKEN if asked.words[wire_capture.ASK_EXPIRES_NS] > now_ns else Turn.FREE


def find_end(
    bus: Bus, number: int, progress: Progress | None, *, cancel: int = 0, seen: bool = False
) -> Outcome | None:
    """Return how a request ended, None while it may go on.

    ``cancel`` is the number of what took it back, 0 where nothing did; ``seen``: the hook told of it before.
    """
    if progress is not None and progress.state in wire_capture.FINAL_STATES:
        return Outcome(STATES[progress.state], progress.reason, progress.words)
    words = progress.words if progress is not None else NOTHING
    if end := bus.find_end():
        return Outcome(*end, words)
    answered, answer = bus.read_answer()
    if answered == number and answer == wire_capture.ANSWER_BUSY:
        return Outcome(CaptureState.BUSY, "another capture is under way there", words)
    if answered == number and answer == wire_capture.ANSWER_UNKNOWN:
        return Outcome(CaptureState.REFUSED, "the hook does not understand this request", words)
    if progress is not None or not _is_lost(bus, number, answered):
        return None
    if cancel:
        return Outcome(CaptureState.CANCELLED, _NOT_HEARD, words)
    if seen:
        return Outcome(CaptureState.FAILED, "another capture began before tpmon heard of its end", words)
    return Outcome(CaptureState.BUSY, "another capture was asked for at the same time", words)


def has_lost_cancel(bus: Bus, cancel: int) -> bool:
    """Tell whether another request took the place of a cancel, and was answered."""
    number = bus.read_asked_number()
    return number not in (0, cancel) and number == bus.read_answer()[0]


def _is_lost(bus: Bus, number: int, answered: int) -> bool:
    """Tell whether another request lies where ours lay and was answered, and the hook never took ours.

    In this order: what the hook says of a request it says before it answers the next.
    """
    asked = bus.read_asked_number()
    return asked not in (0, number) and asked == answered and bus.tells_of_another(number)


def unfinish(probe: Outcome) -> Outcome:
    """Tell a rank whose probe was fine, but not that of another, from one that recorded."""
    if probe.state is not CaptureState.VERIFIED:
        return probe
    return Outcome(CaptureState.CANCELLED, ANOTHER_RANK, NOTHING)
