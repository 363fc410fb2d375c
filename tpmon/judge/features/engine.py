"""Judge the rules that are conjunctions: from conditions on figures the whole answer follows. Pure.

What was not read leaves the cause unsure, the first condition that does not hold clears it, and all of them
make the suspicion: its evidence, its origins and its margin are those of the figures that decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, Union

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, EarlyAnswer, FigureReading, Suspicion, reading, tell
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.stacks.profile import Share
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, is_known, map_known
from tpmon.model.text.job_words import say_value
from tpmon.model.verdict import Kind

Of = TypeVar("Of")
Judged_contra = TypeVar("Judged_contra", contravariant=True)
"""What a rule judges: a starved rank, a card, a job."""
Text = Union[str, Callable[[Of, Scene], str]]
Rows = tuple[FigureReading, ...]


def _write(text: Text[Of], of: Of, scene: Scene) -> str:
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
        known = self._need(figure, value, **more)
        if known < least:
            self._clear(figure, known, f"below {say_value(tell(self.read(figure, least)))}", **more)
        return self._take(figure, known, sure * known / least, **more)

    def below(
        self, figure: Figure, value: Known[float], most: float, *, sure: float = 1.0, **more: Any
    ) -> float:
        """Return a value that is below a threshold, where the margin is ``sure``; else that ends the rule."""
        known = self._need(figure, value, **more)
        if known >= most:
            self._clear(figure, known, f"not below {say_value(tell(self.read(figure, most)))}", **more)
        return self._take(figure, known, sure * most / known if known > 0 else math.inf, **more)

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
        self, kind: Kind, cause: Applicable[str], weight: float, summary: str, **more: Any
    ) -> Suspicion:
        """Make the suspicion, all conditions of which hold."""
        margin = self.margin if self.margin < math.inf else 1.0
        return Suspicion(
            kind, cause, weight, margin, summary=summary, evidence=self.evidence, shows=self.shown, **more
        )

    def suspect_rank(
        self, kind: Kind, cause: str, rank: RankScene, share: Share, summary: str, **more: Any
    ) -> Suspicion:
        """Make the suspicion of a rank that loses a share of its time."""
        low, high, process = share.low, share.high, rank.process
        shares = {"share": share.ratio, "share_low": low, "share_high": high}
        return self.suspect(
            kind, cause, share.ratio, summary, pid=process.pid, rank=process.rank, **shares, **more
        )

    def _need(self, figure: Figure, value: Known[float], **more: Any) -> float:
        return value if is_known(value) else self.known(value, f"{self.read(figure, value, **more).name}: ")

    def _clear(self, figure: Figure, value: float, why: str, **more: Any) -> None:
        row = self.read(figure, value, **more)
        self.clear(True, f"{row.name} {say_value(tell(row))}, {why}")

    def _take(self, figure: Figure, value: float, margin: float, **more: Any) -> float:
        self.add(figure, value, margin, **more)
        return value


class Term(Protocol[Judged_contra]):
    """Take one condition of a conjunction into a proof; where it does not hold, that ends the rule."""

    def take(self, proof: Proof, of: Judged_contra, /) -> None:
        """Take it for what is judged."""


@dataclass(frozen=True, slots=True)
class Bound(Generic[Of]):
    """Hold the condition that a figure is past its threshold, and how it is read off what is judged."""

    figure: Figure
    read: Callable[[Of, Scene], Known[float]]
    limit: float
    is_upper: bool = False
    sure: float = 1.0
    must: bool = True
    """Else it is one more reading that agrees, where it is past its threshold."""

    def take(self, proof: Proof, of: Of) -> None:
        """Add the figure to the proof; where it is not past its threshold, that ends the rule."""
        value = self.read(of, proof.scene)
        if self.must:
            take = proof.below if self.is_upper else proof.at_least
            take(self.figure, value, self.limit, sure=self.sure)
        elif is_known(value) and (value < self.limit) is self.is_upper:
            proof.add(self.figure, value)


@dataclass(frozen=True, slots=True)
class Given(Generic[Of]):
    """Hold a condition that has no threshold, and what is said where it does not hold."""

    holds: Callable[[Of, Scene], Known[bool]]
    why: Text[Of]
    is_doubt: bool = False
    """Where it does not hold nothing can be told."""

    def take(self, proof: Proof, of: Of) -> None:
        """Let the rule go on; where the condition does not hold, that ends it."""
        if not proof.known(self.holds(of, proof.scene)):
            (proof.doubt if self.is_doubt else proof.clear)(True, _write(self.why, of, proof.scene))


Needs = Union[tuple[Need, ...], Callable[[Of, Scene], Iterable[Need]]]
Suspect = Callable[["Conjunction[Of]", Of, Proof], Suspicion]


@dataclass(frozen=True, slots=True)
class Conjunction(Generic[Of]):
    """Hold one cause as a row; called with a Scene it answers.

    ``about`` finds what is judged, or ends the rule where there is none; ``suspect`` makes the suspicion.
    """

    kind: Kind
    cause: str
    name: str
    about: Callable[[Scene], Of]
    suspect: Suspect[Of]
    holds: tuple[Term[Of], ...]
    says: Text[Of]
    proves: Needs[Of] = ()
    shows: tuple[Callable[[Of, Scene], Rows], ...] = ()

    def __call__(self, scene: Scene) -> Answer:
        """Judge a Scene."""
        proof = Proof(self.name, scene)
        try:
            of = self.about(scene)
            for one in self.holds:
                one.take(proof, of)
        except EarlyAnswer as early:
            return early.answer
        proof.shown += tuple(row for show in self.shows for row in show(of, scene))
        return self.suspect(self, of, proof)

    def observed(self, of: Of, scene: Scene) -> frozenset[Need]:
        """Return the needs that it proves."""
        return frozenset(self.proves(of, scene) if callable(self.proves) else self.proves)

    def say(self, of: Of, scene: Scene) -> str:
        """Return its words."""
        return _write(self.says, of, scene)
