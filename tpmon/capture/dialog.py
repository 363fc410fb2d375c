"""Talk with whoever asked for a capture on a screen: its price, yes or no, how far it is, what came of it.

A capture that nobody answers for asks nothing of the run: it goes on only after a yes to the very
question that stands, and ends by itself where none comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.capture import (
    CAPTURE_WAITS,
    CaptureAnswer,
    CaptureChoice,
    CaptureKind,
    CaptureOffers,
    CaptureStage,
    CaptureUpdate,
)
from tpmon.model.results.capture_choice import can_be, plan_anew, refuse

YES_S = 600.0
"""So long a price waits for its answer."""

YES_EVERY_S = 0.1
"""How often the answer is looked for: a person gives it, and waits for the next step anyway."""

NO_ANSWER = "nobody said yes in ten minutes"

_OPEN = (CaptureStage.ASKED, *CAPTURE_WAITS)
"""While another choice can be made: nothing is recorded."""


class ChosenAnewError(Exception):
    """Say that whoever asked has chosen otherwise meanwhile: this plan is nobody's any more."""


Agreed = Callable[[CaptureStage, Sequence[str]], bool]
"""Tells whether whoever asked goes on, by the stage and what is said of the price; asked until it does."""


def agree_always(_stage: CaptureStage, _said: Sequence[str]) -> bool:
    """Go on: who called a command has asked for it, and reads the price while it runs."""
    return True


class Talk:
    """Hold one talk: the thread of the capture tells and asks, the screen chooses and answers."""

    def __init__(
        self, told: Callable[[CaptureUpdate], None], left: Callable[[], bool] = lambda: False
    ) -> None:
        """Say nothing yet; ``left`` tells that the screen is gone."""
        self._told = told
        self._left = left
        self._lock = threading.RLock()
        self._now = CaptureUpdate(CaptureStage.ASKED, "")
        self._no = threading.Event()
        self._yes_to: CaptureStage | None = None
        self._planned = self._now.choice
        self._good: Applicable[CaptureChoice] = NOT_APPLICABLE

    # The screen

    def answer(self, answer: CaptureAnswer) -> None:
        """Take an answer from any thread; a yes to another question than the one that stands is none."""
        with self._lock:
            if not answer.goes:
                self._no.set()
            elif (answer.stage, answer.choice) == (self._now.stage, self._now.choice):
                self._yes_to = answer.stage

    def choose(self, choice: CaptureChoice) -> None:
        """Choose otherwise, from any thread: what stands is planned anew. Too late once it is recorded."""
        with self._lock:
            if self._now.stage in _OPEN and choice != self._now.choice:
                self._yes_to = None
                self._show(plan_anew(self._now, choice))
            else:
                self._told(self._now)

    # The thread of the capture

    def offer(self, offers: CaptureOffers) -> None:
        """Say what can be chosen on this run."""
        with self._lock:
            choice = can_be(self._now.choice, offers)
            self._show(replace(self._now, offers=offers, choice=choice))

    def begin(self) -> CaptureChoice:
        """Return what is chosen now: that is planned next."""
        with self._lock:
            self._planned = self._now.choice
            return self._planned

    def stopped(self) -> bool:
        """Tell whether whoever asked wants no more of it."""
        return self._no.is_set() or self._left()

    def tell(self, line: str) -> None:
        """Say what happens now; nothing more of a price that was left."""
        with self._lock:
            if not self._is_left():
                self._show(replace(self._now, line=line))

    def agreed(self, stage: CaptureStage, said: Sequence[str]) -> bool:
        """Put the question where it does not stand yet; tell whether a yes to it came.

        Raises:
            ChosenAnewError: where something else is chosen than what this question is about.
        """
        with self._lock:
            if self._now.choice != self._planned:
                raise ChosenAnewError
            if self._now.stage is not stage:
                self._yes_to = None
                if stage is CaptureStage.PLANNED:
                    self._good = self._planned
                    self._show(replace(self._now, stage=stage, plan=tuple(said), price=(), line="not begun"))
                else:
                    self._show(replace(self._now, stage=stage, price=tuple(said), line="not recorded yet"))
                return False
            if self._yes_to is not stage:
                return False
            # the plan of what no probe sizes is its price
            sized = stage is CaptureStage.PLANNED and self._planned.kind is CaptureKind.TRACE
            after = CaptureStage.SIZING if sized else CaptureStage.RECORDING
            self._show(replace(self._now, stage=after, line="waiting for the end of a step"))
            return True

    def take_back(self, why: str) -> bool:
        """Go back to the choice before one that cannot be, and say why; tell whether there is one."""
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

    def end(self, line: str, report: Sequence[str] = (), trace: str = "") -> None:
        """Say what came of it; nothing of a price that was read and left."""
        with self._lock:
            said = "" if self._is_left() else line
            ended = CaptureStage.ENDED
            self._show(replace(self._now, stage=ended, line=said, report=tuple(report), trace=trace))

    def _is_left(self) -> bool:
        return self.stopped() and self._now.stage in _OPEN

    def _show(self, update: CaptureUpdate) -> None:
        self._now = update
        self._told(update)
