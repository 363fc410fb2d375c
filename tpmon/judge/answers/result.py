"""What a rule may answer: a suspicion with its evidence, a cleared cause, or what it could not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar, Union

from tpmon.judge.answers.needs import Need
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.verdict import Evidence, Kind


@dataclass(frozen=True, slots=True)
class FigureReading:
    """Hold a figure as it was read: evidence is made of these, so none is without its row in the table.

    ``of`` fills the braces of the row; ``origins`` are those that it was read from, or that agree on it.
    """

    figure: Figure
    value: Known[float]
    age_s: Known[float]
    source: str
    of: str = ""
    text: str = ""
    origins: frozenset[Origin] = frozenset()

    @property
    def name(self) -> str:
        """Return its name on the screen, in text and in JSON."""
        return self.figure.label.format(self.of)

    @property
    def unit(self) -> str:
        """Return its unit there."""
        return self.figure.unit.format(self.of)


def tell(row: FigureReading) -> Evidence:
    """Return a reading as a Finding shows it."""
    return Evidence(row.name, row.value, row.unit, row.text, row.source, row.age_s)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Name a cause with what speaks for and against it.

    ``weight`` ranks suspicions of different kinds: the share of the run's time (0-1) that would be saved
    without the cause, as far as known. ``margin`` is how far the deciding figure is past its threshold (1.0:
    at it, 2.0: twice). ``evidence`` decides, ``shows`` is only shown beside it: the origins that make the
    cause sure are those of the evidence, where they are not given.
    """

    kind: Kind
    cause: Applicable[str]
    weight: float
    margin: float
    origins: frozenset[Origin] = frozenset()
    summary: str = ""
    evidence: tuple[FigureReading, ...] = ()
    against: tuple[FigureReading, ...] = ()
    unread: tuple[str, ...] = ()
    """What could speak against it but was not read, in words: not read does not mean not there."""
    share: Applicable[float] = NOT_APPLICABLE
    share_low: Applicable[float] = NOT_APPLICABLE
    share_high: Applicable[float] = NOT_APPLICABLE
    """Share of the step time that the cause costs, 0-1, with its 95 % interval."""
    observed: frozenset[Need] = frozenset()
    """Needs of the catalogue that the rule itself observed."""
    pid: Applicable[int] = NOT_APPLICABLE
    rank: Applicable[int] = NOT_APPLICABLE
    card: Applicable[int] = NOT_APPLICABLE
    """The one process, rank or card that it points at."""
    needed_ratio: Applicable[float] = NOT_APPLICABLE
    """Batches per second that the compute could take, over those that the loader makes."""
    cores_free: Applicable[float] = NOT_APPLICABLE
    """CPUs that more threads of the job could use, where the rule knows them."""
    since_ns: Applicable[int] = NOT_APPLICABLE
    """CLOCK_MONOTONIC of its onset, where the history shows it."""
    held_ns: Applicable[int] = NOT_APPLICABLE
    """CLOCK_MONOTONIC since when it holds; a lower bound if that is the first reading."""
    is_exact: bool = False
    """The hook measured its share: no interval is needed."""
    seen: bool = False
    """It happened in this very second, as an end does: duration makes it no surer."""
    shows: tuple[FigureReading, ...] = ()

    def __post_init__(self) -> None:
        """Take the origins from the evidence."""
        if not self.origins:
            origins = frozenset().union(*(row.origins for row in self.evidence))
            object.__setattr__(self, "origins", origins)


@dataclass(frozen=True, slots=True)
class Cleared:
    """Say in a few words that a cause was checked and is not there: "swap (0 B)"."""

    text: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """Say what could not be determined, and why: "storage (io of the workers: permission denied)"."""

    text: str


Answer = Union[Suspicion, Cleared, Unsure]
Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
Key = tuple[Kind, Applicable[str]]
"""Two suspicions with the same key are the same verdict."""


class EarlyAnswer(Exception):  # noqa: N818  # no error: a condition of a rule has said it all
    """Carry the answer of a rule out of the condition that decides it."""

    def __init__(self, answer: Cleared | Unsure) -> None:
        super().__init__(answer.text)
        self.answer = answer


def by_conditions(judge: Callable[Arguments, Value]) -> Callable[Arguments, Value | Cleared | Unsure]:
    """Make the first condition that does not hold the answer of a rule."""

    @wraps(judge)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value | Cleared | Unsure:
        try:
            return judge(*args, **kwargs)
        except EarlyAnswer as early:
            return early.answer

    return answer


class Claim:
    """Ask in turn what a cause needs, in a rule ``by_conditions``; ``what`` names the cause in words."""

    def __init__(self, what: str) -> None:
        self.what = what

    def known(self, value: Value | Missing, where: str = "") -> Value:
        """Return a value; one that was not read leaves the cause unsure, for its reason."""
        if isinstance(value, Missing):
            raise EarlyAnswer(Unsure(f"{self.what} ({where}{value.reason})"))
        return value

    def clear(self, holds: bool, why: str) -> None:
        """Clear the cause if ``holds``."""
        if holds:
            raise EarlyAnswer(Cleared(f"{self.what} ({why})"))

    def doubt(self, holds: bool, why: str) -> None:
        """Leave the cause unsure if ``holds``."""
        if holds:
            raise EarlyAnswer(Unsure(f"{self.what} ({why})"))


def reading(
    figure: Figure,
    value: Known[float],
    frame: Frame,
    *,
    of: object = "",
    text: str = "",
    source: str = "",
    origins: Iterable[Origin] = (),
) -> FigureReading:
    """Return a Frame's reading as evidence, with its group's age and source; ``of`` fills the braces."""
    source = source or figure.source or getattr(frame.sources, figure.group)
    age_s: Known[float] = getattr(frame.ages_s, figure.group)
    return reading_aged(figure, value, age_s, of=of, text=text, source=source, origins=origins)


def reading_aged(
    figure: Figure,
    value: Known[float],
    age_s: Known[float],
    *,
    of: object = "",
    text: str = "",
    source: str = "",
    origins: Iterable[Origin] = (),
) -> FigureReading:
    """Return a reading as evidence with an age of its own, not that of its group in the Frame.

    One that was not read is from nowhere.
    """
    told = frozenset(origins) or figure.origins
    if isinstance(value, Missing) and not text:
        told = frozenset()
    return FigureReading(figure, value, age_s, source or figure.source, str(of), text, told)


def take_heaviest(answers: Sequence[Answer], what: str) -> Answer:
    """Return the heaviest suspicion, else what is unsure, else what was cleared."""
    found = [one for one in answers if isinstance(one, Suspicion)]
    if found:
        return max(found, key=lambda one: one.weight)
    unsure = [one for one in answers if isinstance(one, Unsure)]
    return next(iter(unsure or answers), Unsure(f"{what} (no rank was read)"))
