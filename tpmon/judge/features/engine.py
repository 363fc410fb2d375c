"""Judge the rules that are conjunctions: from conditions on figures the whole answer follows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Claim,
    FigureReading,
    Suspicion,
    by_conditions,
    reading,
    take_heaviest,
    tell,
)
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.stacks.profile import Share
from tpmon.model.figures import Figure
from tpmon.model.known import Applicable, Known, is_known, map_known
from tpmon.model.process import ProcessSample
from tpmon.model.text.job_words import say_value
from tpmon.model.verdict import Kind

Of = TypeVar("Of")
Text = Union[str, Callable[[Of, Scene], str]]
Rows = tuple[FigureReading, ...]


def write_text(text: Text[Of], of: Of, scene: Scene) -> str:
    """Return words that may depend on what is judged."""
    return text if isinstance(text, str) else text(of, scene)


class Proof(Claim):
    """Ask in turn what a cause needs, and keep what decides: a Claim whose conditions are on figures.

    What was not read leaves the cause unsure, a figure that is not past its threshold clears it; those that
    are make the evidence, and the margin is the least of theirs. Values are in the unit of their row, but
    shares, which are 0-1 for the rules and % for eyes.
    """

    def __init__(self, what: str, scene: Scene) -> None:
        super().__init__(what)
        self.scene = scene
        self.margin = math.inf
        self.evidence: Rows = ()
        self.shown: Rows = ()

    def at_least(
        self, figure: Figure, value: Known[float], least: float, *, sure: float = 1.0, **more: Any
    ) -> float:
        """Return a value that reaches a threshold, where the margin is ``sure``; else that ends the rule."""
        known, words = self._need(figure, value, **more)
        self.clear(known < least, f"{words}, below {say_value(tell(self.read(figure, least)))}")
        self.add(figure, known, sure * known / least, **more)
        return known

    def below(
        self, figure: Figure, value: Known[float], most: float, *, sure: float = 1.0, **more: Any
    ) -> float:
        """Return a value that is below a threshold, where the margin is ``sure``; else that ends the rule."""
        known, words = self._need(figure, value, **more)
        self.clear(known >= most, f"{words}, not below {say_value(tell(self.read(figure, most)))}")
        self.add(figure, known, sure * most / known if known > 0 else math.inf, **more)
        return known

    def add(self, figure: Figure, value: Known[float], margin: float = math.inf, **more: Any) -> None:
        """Take a value as evidence that has no threshold here."""
        self.evidence += (self.read(figure, value, **more),)
        self.margin = min(self.margin, margin)

    def show(self, figure: Figure, value: Known[float], **more: Any) -> None:
        """Show a value that does not decide."""
        self.shown += (self.read(figure, value, **more),)

    def read(self, figure: Figure, value: Known[float], **more: Any) -> FigureReading:
        """Return a value as a row of evidence."""
        scale = 100 if figure.unit.startswith("%") else 1
        return reading(figure, map_known(lambda known: scale * known, value), self.scene.frame, **more)

    def suspect(
        self,
        kind: Kind,
        cause: Applicable[str],
        weight: float | Share,
        summary: str,
        *needs: Need,
        process: ProcessSample | None = None,
        **more: Any,
    ) -> Suspicion:
        """Make the suspicion, all conditions of which hold; ``process`` is the one that it points at."""
        # A Share of the time is the weight, and what the cause costs.
        if isinstance(weight, Share):
            more |= {"share": weight.ratio, "share_low": weight.low, "share_high": weight.high}
            weight = weight.ratio
        if process is not None:
            more |= {"pid": process.pid, "rank": process.rank}
        margin = self.margin if self.margin < math.inf else 1.0
        more |= {"evidence": self.evidence, "shows": self.shown, "observed": frozenset(needs)}
        return Suspicion(kind, cause, weight, margin, summary=summary, **more)

    def _need(self, figure: Figure, value: Known[float], **more: Any) -> tuple[float, str]:
        row = self.read(figure, value, **more)
        return self.known(value, f"{row.name}: "), f"{row.name} {say_value(tell(row))}"


Term = Callable[[Proof, Of], None]
"""A condition of a conjunction, which it takes into a proof; where it does not hold, that ends the rule."""


def proves(what: str) -> Callable[[Callable[[Proof, Scene], Answer]], Rule]:
    """Make the rule of the cause ``what``, by conditions, of a function that begins with its proof."""

    def widen(judge: Callable[[Proof, Scene], Answer]) -> Rule:
        judge_one = by_conditions(judge)
        return wraps(judge)(lambda scene: judge_one(Proof(what, scene), scene))

    return widen


def of_ranks(what: str) -> Callable[[Callable[[Proof, RankScene, Scene], Answer]], Rule]:
    """Make the same of a function that judges one rank: the heaviest answer."""

    def widen(judge: Callable[[Proof, RankScene, Scene], Answer]) -> Rule:
        judge_one = by_conditions(judge)

        @wraps(judge)
        def judge_all(scene: Scene) -> Answer:
            return take_heaviest([judge_one(Proof(what, scene), one, scene) for one in scene.ranks], what)

        return judge_all

    return widen


def reaches(
    figure: Figure,
    read: Callable[[Of, Scene], Known[float]],
    limit: float,
    *,
    sure: float = 1.0,
    must: bool = True,
) -> Term[Of]:
    """Make the condition that a figure reaches its threshold; where it need not, it agrees if it does."""

    def take(proof: Proof, of: Of) -> None:
        value = read(of, proof.scene)
        if must:
            proof.at_least(figure, value, limit, sure=sure)
        elif is_known(value) and value >= limit:
            proof.add(figure, value)

    return take


def given(holds: Callable[[Of, Scene], Known[bool]], why: Text[Of], *, is_doubt: bool = False) -> Term[Of]:
    """Make a condition that has no threshold; ``is_doubt``: where it does not hold nothing can be told."""

    def take(proof: Proof, of: Of) -> None:
        if not proof.known(holds(of, proof.scene)):
            (proof.doubt if is_doubt else proof.clear)(True, write_text(why, of, proof.scene))

    return take


def tells(
    figure: Figure,
    read: Callable[[Of, Scene], Known[float]],
    *,
    margin: Callable[[Of, Scene], float] = lambda *_: math.inf,
    decides: bool = True,
) -> Term[Of]:
    """Take a figure that has no threshold as evidence; where it decides nothing it is only shown."""

    def take(proof: Proof, of: Of) -> None:
        value = read(of, proof.scene)
        proof.add(figure, value, margin(of, proof.scene)) if decides else proof.show(figure, value)

    return take
