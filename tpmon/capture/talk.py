"""Talk with whoever asked for a capture on a screen: its price, yes or no, how far it is, what came of it.

A capture that nobody answers for asks nothing of the run: it goes on only after a yes to the very
question that stands, and ends by itself where none comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.model.capture import CAPTURE_WAITS, CaptureAnswer, CaptureStage, CaptureUpdate

YES_S = 600.0
"""So long a price waits for its answer."""

YES_EVERY_S = 0.1
"""How often the answer is looked for: a person gives it, and waits for the next step anyway."""

NO_ANSWER = "nobody said yes in ten minutes"

_NEXT = {CaptureStage.PLANNED: CaptureStage.SIZING, CaptureStage.PRICED: CaptureStage.RECORDING}


Agreed = Callable[[CaptureStage, Sequence[str]], bool]
"""Tells whether whoever asked goes on, by the stage and what is said of the price; asked until it does."""


def agree_always(_stage: CaptureStage, _said: Sequence[str]) -> bool:
    """Go on: who called a command has asked for it, and reads the price while it runs."""
    return True


class Talk:
    """Hold one talk: the thread of the capture tells and asks, the screen answers."""

    def __init__(
        self, told: Callable[[CaptureUpdate], None], left: Callable[[], bool] = lambda: False
    ) -> None:
        """Say nothing yet; ``left`` tells that the screen is gone."""
        self._told = told
        self._left = left
        self._now = CaptureUpdate(CaptureStage.ASKED, "")
        self._no = threading.Event()
        self._yes_to: CaptureStage | None = None

    def answer(self, answer: CaptureAnswer) -> None:
        """Take an answer from any thread; a yes to another question than the one that stands is none."""
        if not answer.goes:
            self._no.set()
        elif answer.stage is self._now.stage:
            self._yes_to = answer.stage

    def stopped(self) -> bool:
        """Tell whether whoever asked wants no more of it."""
        return self._no.is_set() or self._left()

    def tell(self, line: str) -> None:
        """Say what happens now; nothing more of a price that was left."""
        if not self._is_left():
            self._show(replace(self._now, line=line))

    def agreed(self, stage: CaptureStage, said: Sequence[str]) -> bool:
        """Put the question where it does not stand yet; tell whether a yes to it came."""
        if self._now.stage is not stage:
            self._yes_to = None
            if stage is CaptureStage.PLANNED:
                self._show(replace(self._now, stage=stage, plan=tuple(said), price=(), line="not begun"))
            else:
                self._show(replace(self._now, stage=stage, price=tuple(said), line="not recorded yet"))
            return False
        if self._yes_to is not stage:
            return False
        self._show(replace(self._now, stage=_NEXT[stage], line="waiting for the end of a step"))
        return True

    def end(self, line: str, report: Sequence[str] = (), trace: str = "") -> None:
        """Say what came of it; nothing of a price that was read and left."""
        said = "" if self._is_left() else line
        self._show(replace(self._now, stage=CaptureStage.ENDED, line=said, report=tuple(report), trace=trace))

    def _is_left(self) -> bool:
        return self.stopped() and self._now.stage in (CaptureStage.ASKED, *CAPTURE_WAITS)

    def _show(self, update: CaptureUpdate) -> None:
        self._now = update
        self._told(update)
