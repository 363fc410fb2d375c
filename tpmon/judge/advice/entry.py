"""The shape of a remedy and of an explanation, and the reader of both tables. Knows none by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import LazyTable, Verbatim, make_row, read_table
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, NotApplicable
from tpmon.model.verdict import Kind


class Risk(str, Enum):
    """Say what a remedy may do to the science of the run."""

    NONE = "none"
    NUMERICS = "numerics"
    EXPERIMENT = "changes the experiment"


class Language(str, Enum):
    """Name the language of what is pasted."""

    PYTHON = "python"
    SHELL = "sh"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Hold one entry of the catalogue.

    ``title``, ``paste`` and ``ceiling`` are templates of ``str.format`` over the fields of
    ``RunFacts``. ``title`` begins in lower case: it also follows "if ...:". It is certain when
    all ``needs`` were observed; an observed ``never_with`` rules it out, an observed ``first_with`` puts
    it before the others that are as certain. ``adds_workers`` marks what makes more loader processes,
    for which cores and memory must be there, ``adds_threads`` what makes a rank's pool larger, for
    which a core for each new thread must be free, ``caps_workers`` what names the most workers that a
    quota pays for, which is worth nothing to a rank that has no more.
    """

    id: str
    title: str
    applies: str
    not_when: str
    needs: tuple[Need, ...]
    paste: Verbatim
    ceiling: str
    proof: str
    risk: Risk = Risk.NONE
    never_with: tuple[Need, ...] = ()
    first_with: tuple[Need, ...] = ()
    language: Language = Language.PYTHON
    adds_workers: bool = False
    adds_threads: bool = False
    caps_workers: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """Hold a remedy filled in for one run; ``text`` begins with "if" unless it is ``certain``."""

    remedy: Remedy
    certain: bool
    text: str
    paste: str
    ceiling: str


Cause = str | NotApplicable
"""A cause of the table, or NOT_APPLICABLE for a kind that has none."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Say what a verdict means, how tpmon sees it, what it is often confused with, and what to do.

    ``remedies`` are names of the catalogue, best first. ``what_to_do`` is for a row without any: what a
    person does then.
    """

    means: str
    sees: str
    confused_with: str
    remedies: tuple[str, ...] = ()
    what_to_do: str = ""


_VERDICTS = "catalogue/verdicts.toml"
_AREAS = ("data", "host", "gpu", "ranks", "progress")


def _read_explanations() -> Mapping[tuple[Kind, Cause], Mapping[str, object]]:
    found: dict[tuple[Kind, Cause], Mapping[str, object]] = {}
    for name, rows in read_table(__file__, _VERDICTS).items():
        if "means" in rows:
            found[Kind(name), NOT_APPLICABLE] = rows
        else:
            found.update(((Kind(name), cause), row) for cause, row in rows.items())
    return found


EXPLANATIONS = LazyTable(
    (_read_explanations,),
    lambda key, row: make_row(Explanation, f"{_VERDICTS}: {key[0].value}: {key[1]}", row),
)
"""What each verdict means, by its row of the table of kinds."""
CATALOGUE = LazyTable(
    (partial(read_table, __file__, f"catalogue/{area}.toml") for area in _AREAS),
    lambda name, row: make_row(Remedy, name, {"id": name, **row}),
)
"""The remedies by their name."""
