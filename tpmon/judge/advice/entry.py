"""The shape of a remedy and of an explanation. Knows none by name."""

from __future__ import annotations

from enum import Enum

from tpmon.judge.answers.needs import Need
from tpmon.model.frozen import dataclass
from tpmon.model.known import NotApplicable
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
    paste: str
    ceiling: str
    risk: Risk
    proof: str
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


@dataclass(frozen=True, slots=True)
class Explanation:
    """Say what a verdict means, what tpmon sees of it, and what it is confused with.

    ``what_to_do`` is for a row without remedies: what a person does then.
    """

    kind: Kind
    cause: str | NotApplicable
    means: str
    sees: str
    confused_with: str
    what_to_do: str = ""
