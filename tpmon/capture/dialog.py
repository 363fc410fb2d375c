"""Ask on a screen for a capture: what can be chosen, its price in words, yes or no, its progress.

A capture goes on only after a yes to the present question, and ends by itself where none comes.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from tpmon.capture.bus import open_bus
from tpmon.capture.files import locate, read_free_bytes
from tpmon.capture.nsys import HOLDS_SLOT, judge_nsys, traces_cuda
from tpmon.capture.plan import (
    MOST_BYTES,
    MOST_ENTRIES,
    MOST_EVENTS,
    MeasuredPace,
    count_alike,
    known_paces,
    parse_pace,
    say_count,
    say_length,
    say_ms,
)
from tpmon.errors import TpmonError
from tpmon.hook.bus import wire_capture
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import (
    CAPTURE_WAITS,
    UNKNOWN,
    CaptureAnswer,
    CaptureAsked,
    CaptureChoice,
    CaptureKind,
    CaptureOffers,
    CapturePrice,
    CaptureStage,
    CaptureState,
    CaptureUpdate,
    can_be,
    plan_anew,
    refuse,
)
from tpmon.model.units import clean_text, format_bytes, format_seconds
from tpmon.own_command import call_as_owner

YES_S = 600.0
"""How long a price waits for its answer."""

YES_EVERY_S = 0.1
"""Between two looks for the answer of a person, who waits for the next step anyway."""

NO_ANSWER = "nobody said yes in ten minutes"
UNWANTED = "nobody waits for it any more"

_OPEN = (CaptureStage.ASKED, *CAPTURE_WAITS)
"""Another choice can be made: nothing is recorded."""

_PLANS = (CaptureStage.HOOKLESS, CaptureStage.PLANNED)
"""Here a plan begins; at the other questions it stays as it is."""

NOT_YET = {
    CaptureStage.HOOKLESS: "there is no hook in it, and nothing is written yet",
    CaptureStage.HOOKING: "nothing is written yet: once more",
    CaptureStage.PLANNED: "not begun",
}


class ChosenAnewError(Exception):
    """Report that another choice has made this plan void."""


@dataclass(frozen=True, slots=True)
class CaptureAsker:
    """Hold whom a capture is for: a command that prints, or a screen.

    ``tell`` takes a line of progress, ``stopped`` tells whether it is unwanted. ``agreed`` takes the stage
    and the lines of a price, and is called until it returns True.
    """

    tell: Callable[[str], None]
    stopped: Callable[[], bool] = lambda: False
    agreed: Callable[[CaptureStage, Sequence[str]], bool] = lambda _stage, _said: True


R = TypeVar("R")


class WindowLead(ABC, Generic[R]):
    """Lead one capture: tell its progress, and wait at each price; ``R`` is how a window ends."""

    def __init__(self, asked: CaptureAsked, asker: CaptureAsker, *, stays_slower: bool) -> None:
        """Ask for nothing yet; ``stays_slower``: launches on the GPU stay slower after a profile."""
        self.asked = asked
        self.price: Known[CapturePrice] = Missing("no step was profiled to size it")
        self._asker = asker
        self._stays_slower = stays_slower
        self._last_said = ""

    @abstractmethod
    def _find_ended(self) -> R | None:
        """Return how it ends where a process ended; None while all run."""

    @abstractmethod
    def _end_all(self, state: CaptureState, reason: str) -> R:
        """Return how a window ends by this state, for this reason."""

    def _pause(self) -> None:
        time.sleep(YES_EVERY_S)

    def _await_yes(self, stage: CaptureStage, said: Sequence[str]) -> R | None:
        """Wait until the asker agrees, and return None; return how it ended where they do not."""
        limit = time.monotonic() + YES_S
        while not self._asker.agreed(stage, said):
            if ended := self._find_ended():
                return ended
            if self._asker.stopped() or time.monotonic() > limit:
                return self._end_all(CaptureState.CANCELLED, UNWANTED if self._asker.stopped() else NO_ANSWER)
            self._pause()
        return None

    def _say_waiting(self, text: str) -> None:
        if text and text != self._last_said:
            self._say(text)

    def _say(self, text: str) -> None:
        self._last_said = text
        self._asker.tell(text)


class CaptureDialog:
    """Hold one dialog: the thread of the capture tells and asks, the screen chooses and answers."""

    def __init__(
        self, told: Callable[[CaptureUpdate], None], left: Callable[[], bool] = lambda: False
    ) -> None:
        """Say nothing yet; ``left`` tells whether the screen is gone."""
        self._told = told
        self._left = left
        self._lock = threading.RLock()
        self._now = CaptureUpdate(CaptureStage.ASKED, "")
        self._no = threading.Event()
        self._yes_to: CaptureStage | None = None
        self._planned = self._now.choice
        self._good: Applicable[CaptureChoice] = NOT_APPLICABLE
        self._owed = ""

    # The screen

    def answer(self, answer: CaptureAnswer) -> None:
        """Take an answer from any thread; a yes to another question than the present one does not count."""
        with self._lock:
            if not answer.goes:
                self._no.set()
            elif (answer.stage, answer.choice) == (self._now.stage, self._now.choice):
                self._yes_to = answer.stage

    def choose(self, choice: CaptureChoice) -> None:
        """Change the choice, from any thread, and plan anew; too late once recording began."""
        with self._lock:
            if self._now.stage in _OPEN and choice != self._now.choice:
                self._yes_to = None
                self._show(plan_anew(self._now, choice))
            else:
                self._told(self._now)

    # The thread of the capture

    def offer(self, offers: CaptureOffers) -> None:
        """Show what can be chosen on this run."""
        with self._lock:
            choice = can_be(self._now.choice, offers)
            self._show(replace(self._now, offers=offers, choice=choice))

    def begin(self) -> CaptureChoice:
        """Return the present choice, to be planned next."""
        with self._lock:
            self._planned = self._now.choice
            return self._planned

    def stopped(self) -> bool:
        """Tell whether the capture is unwanted."""
        return self._no.is_set() or self._left()

    def tell(self, line: str) -> None:
        """Show what happens now, unless the dialog was left at a price."""
        with self._lock:
            if not self._is_left():
                self._show(replace(self._now, line=line))

    def agreed(self, stage: CaptureStage, said: Sequence[str]) -> bool:
        """Show the question, once; return whether a yes came; ChosenAnewError after another choice."""
        with self._lock:
            if self._now.choice != self._planned:
                raise ChosenAnewError
            if self._now.stage is not stage:
                self._yes_to = None
                line = NOT_YET.get(stage, "not recorded yet")
                if stage in _PLANS:
                    self._good = self._planned
                    self._show(replace(self._now, stage=stage, plan=tuple(said), price=(), line=line))
                else:
                    self._show(replace(self._now, stage=stage, price=tuple(said), line=line))
                return False
            if self._yes_to is not stage:
                return False
            if stage is CaptureStage.HOOKLESS:
                return True  # it is asked once more
            # Without a probe the plan is the price.
            sized = stage is CaptureStage.PLANNED and self._planned.kind is CaptureKind.TRACE
            hooks = stage is CaptureStage.HOOKING
            after = CaptureStage.SIZING if sized or hooks else CaptureStage.RECORDING
            line = "puts the hook in" if hooks else "waiting for the end of a step"
            self._show(replace(self._now, stage=after, line=line))
            return True

    def take_back(self, why: str) -> bool:
        """Go back from an impossible choice to the last good one, and say why; return whether one is left."""
        with self._lock:
            offers, good = self._now.offers, self._good
            if self._now.stage is not CaptureStage.ASKED or not is_known(offers) or not is_known(good):
                return False
            less = refuse(self._planned, good, why, offers)
            if less is None:
                return False
            wanted = good if self._now.choice == self._planned else self._now.choice
            self._show(replace(plan_anew(self._now, can_be(wanted, less)), offers=less))
            return True

    def warn(self, line: str) -> None:
        """Keep what a person has to do for the end, whoever left before."""
        with self._lock:
            self._owed = line

    def end(self, line: str, report: Sequence[str] = (), trace: str = "") -> None:
        """Show the outcome; no line where the dialog was left at a price, but for a warning."""
        with self._lock:
            said = "; ".join(filter(None, ("" if self._is_left() else line, self._owed)))
            ended = CaptureStage.ENDED
            self._show(replace(self._now, stage=ended, line=said, report=tuple(report), trace=trace))

    def _is_left(self) -> bool:
        return self.stopped() and self._now.stage in _OPEN

    def _show(self, update: CaptureUpdate) -> None:
        self._now = update
        self._told(update)


NO_CUDA = "this process does not use CUDA"
COUNT_APART = "the ranks do not count the same steps: they were hooked at different times"
COUNTS_LATE = "it counts from when its hook was put in"
_NSYS = "run --nsys -- COMMAND"


@dataclass(frozen=True, slots=True)
class RankHook:
    """Hold the pace of a rank's loop; ``lacks`` says why its hook cannot be asked, "" where it can."""

    pid: int
    rank: Applicable[int]
    lacks: str
    pace: Known[MeasuredPace]

    @property
    def who(self) -> str:
        """Name it by rank, or by process."""
        return f"rank {self.rank}" if is_known(self.rank) else f"process {self.pid}"


def read_hook(process: Identity, rank: Applicable[int]) -> RankHook:
    """Read the pages of a rank's hook, and close them again."""
    try:
        bus = open_bus(process)
    except TpmonError as error:
        return RankHook(process.pid, rank, error.what, Missing(error.what))
    try:
        late = bus.header.put_in_ns > 0
        pace = Missing(COUNTS_LATE) if late else parse_pace(bus.read_records())
        return RankHook(process.pid, rank, "", pace)
    finally:
        bus.close()


def judge_offers(
    meant: RankHook, ranks: Sequence[RankHook], above: Sequence[Sequence[str]], *, uses_cuda: bool
) -> CaptureOffers:
    """Return what can be chosen for one of the ``ranks``; command lines ``above`` it come nearest first."""
    traced = HOLDS_SLOT if uses_cuda and traces_cuda(above) else ""
    kept = meant.lacks or ("" if uses_cuda else NO_CUDA)
    ranged = judge_range(meant.lacks, above) or ("" if uses_cuda else NO_CUDA)
    reasons = {CaptureKind.TRACE: traced, CaptureKind.SNAPSHOT: kept, CaptureKind.NSYS_RANGE: ranged}
    refused = tuple((kind, why) for kind, why in reasons.items() if why)
    return CaptureOffers(meant.who, len(ranks), refused, _judge_every(ranks))


def judge_range(lacks: str, above: Sequence[Sequence[str]]) -> str:
    """Say why no range can be opened for nsys, by nsys itself first, "" where one can."""
    return judge_nsys(above) or lacks


def advise_on_slot(pid: int, lacks: str, above: Sequence[Sequence[str]]) -> str:
    """Say what to try where nsys records the GPU: a range where one is possible, else a new start."""
    if refusal := judge_range(lacks, above):
        again = f"by {call_as_owner(pid, _NSYS)}, whose nsys can be asked for ranges"
        return f"start the run again without nsys, or {again} ({refusal})"
    return f"tpmon capture {pid} --cuda-profiler has nsys record"


def _judge_every(ranks: Sequence[RankHook]) -> str:
    if len(ranks) < 2:
        return "it is the only rank on this machine"
    for one in ranks:
        if one.lacks:
            return one.lacks
    known = known_paces([one.pace for one in ranks])
    return COUNT_APART if len(known) > 1 and not count_alike(known) else ""


_FIRST_START = (
    "the first profile of a process on CUDA takes seconds to begin, in which Python pauses; the other"
    " ranks wait in their collectives, and NCCL ends the run where that exceeds the timeout of their group"
)
_ALONE = Missing("no other rank waits")
_NO_PROBE = f"{UNKNOWN}how long the loop pauses"

STAYS_SLOWER = (
    "on CUDA launches may stay slower after it until the process ends, also where only one step was profiled:"
    " torch's profiler stays attached (docs/capture.md, What it costs, says what TEARDOWN_CUPTI=1 at the"
    " start of a run does about it, and at what risk)"
)


def say_plan(
    asked: CaptureAsked,
    pid: int,
    rank: int,
    step_ms: Known[float],
    ranks: int = 1,
    *,
    stays_slower: bool = False,
    timeout_s: Known[int] = _ALONE,
) -> tuple[str, ...]:
    """Return which steps the hook would record and where to, in lines, before anything is asked of the run.

    ``rank`` is -1 for none; of several ``ranks`` it is the first. ``stays_slower``: launches stay slower
    after a profile. ``timeout_s``: how long the other ranks wait, 0 for unknown.
    """
    who = f"rank {rank}, process {pid}" if rank >= 0 else f"process {pid}"
    who = f"all {ranks} ranks here" if ranks > 1 else who
    each = " of each" if ranks > 1 else ""
    steps = say_length(asked, asked.steps)
    pace = _say_pace(asked, step_ms)
    if asked.kind is CaptureKind.SNAPSHOT:
        what = f"the CUDA allocator's history over {steps} of {who}"
        most = format_bytes(MOST_ENTRIES * wire_capture.ENTRY_BYTES)
        room = (
            f"the newest {MOST_ENTRIES:,} allocations and their stacks, at most some {most} of memory and"
            f" disk{each}, into {_say_folder(asked, pid)}"
        )
        unknown = f"{_NO_PROBE} while that is written; what keeps the stacks makes each allocation slower"
        return what, pace, room, unknown
    if asked.kind is CaptureKind.NSYS_RANGE:
        what = f"{steps} of {who}, as a range for the nsys in front of the run"
        room = "nsys writes the report, into the folder in which it was started; how large is not known"
        unknown = f"{_NO_PROBE} while nsys begins and ends: the loop waits for the GPU at both ends"
        return what, pace, room, unknown
    what = f"{steps} of {who}, by torch.profiler from {'their' if ranks > 1 else 'its'} step hook"
    if asked.timed:
        what = f"{asked.seconds:g} s of {who}, which ends no step that the hook sees: woken by SIGURG"
        pace = "how long a step takes is not known"
    unknown = (
        f"{UNKNOWN}how long the loop pauses, how much memory and disk it takes. One step"
        f"{each} is profiled and thrown away to tell that: the loop pauses for some milliseconds,"
        " longer the first time, on a GPU up to seconds"
    )
    return what, pace, _say_room(asked, pid, each), *say_of_cuda(stays_slower, timeout_s), unknown


def say_of_cuda(stays_slower: bool, timeout_s: Known[int] = _ALONE) -> tuple[str, ...]:
    """Return lines on what a profile costs on CUDA beyond any probe; ``timeout_s`` as in ``say_plan``."""
    stays = (STAYS_SLOWER,) if stays_slower else ()
    if not is_known(timeout_s):
        return stays
    limit = format_seconds(timeout_s) if timeout_s else "10 min, unless the program sets another one"
    return *stays, f"{_FIRST_START}: {limit}"


def say_plan_of_kineto(
    asked: CaptureAsked, pid: int, *, hooked: bool, stays_slower: bool = False
) -> tuple[str, ...]:
    """Return the plan of a window by kineto; a ``hooked`` run is asked for its conditions afterwards."""
    what = (
        f"{say_count(asked.steps, 'update')} of an optimizer in process {pid}, by kineto's own thread: the"
        " loop goes on while it writes"
    )
    ends = (
        "once ordered it ends with its last update alone: a validation between two of them is recorded too,"
        " and no limit of time or size ends it before"
    )
    unknown = f"{UNKNOWN}how much memory and disk it takes. One update is recorded first to tell that"
    asks = (
        "the hook tells the conditions afterwards: the first time it looks for the model among Python's"
        " objects, and the loop pauses for 20 to 50 ms for each 100,000 of them"
    )
    stays = say_of_cuda(stays_slower)
    return what, _say_room(asked, pid), ends, *((asks,) if hooked else ()), *stays, unknown


def say_cut(asked: CaptureAsked, step_ms: Known[float]) -> str:
    """Say that fewer steps than asked for fit into the seconds, "" where all do."""
    if asked.by_seconds or not is_known(step_ms) or step_ms * asked.steps <= asked.seconds * 1e3:
        return ""
    held = max(math.ceil(asked.seconds * 1e3 / step_ms), 1)
    return f"some {held} of {say_count(asked.steps, 'step')}: {asked.seconds:g} s hold no more"


def _say_pace(asked: CaptureAsked, step_ms: Known[float]) -> str:
    if not is_known(step_ms):
        return f"how long a step takes is not known: {step_ms.reason}"
    recorded_ms = min(step_ms * asked.steps, asked.seconds * 1e3)
    cut = say_cut(asked, step_ms)
    return (
        f"a step takes {step_ms:.1f} ms now: about {say_ms(recorded_ms)} are recorded"
        f"{f', {cut}' if cut else ''}"
    )


def _say_room(asked: CaptureAsked, pid: int, each: str = "") -> str:
    return (
        f"a trace of at most {MOST_EVENTS:,} events and {format_bytes(MOST_BYTES)}{each}, packed afterwards,"
        f" into {_say_folder(asked, pid)}"
    )


def _say_folder(asked: CaptureAsked, pid: int) -> str:
    free = read_free_bytes(locate(pid, asked.folder).here)
    left = f"{format_bytes(free)} free there" if is_known(free) else f"free space not read: {free.reason}"
    return f"{clean_text(asked.folder, 400)}: {left}"
