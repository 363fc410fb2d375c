"""Choose the remedies of the catalogue that fit a cause in this run, best first.

Remedies and explanations are TOML tables. What was observed comes as a set of ``Need`` and ``RunFacts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial

from tpmon.judge.advice.facts import RunFacts, count_threads_in_free, may_exceed_quota, size_loader
from tpmon.judge.advice.fields import fill, fill_paste, names_all
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import LazyTable, Verbatim, make_row, read_table
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, NotApplicable, is_known, known_or
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

    ``title``, ``paste`` and ``ceiling`` are templates of ``str.format`` over the fields of ``RunFacts``;
    ``title`` begins in lower case, as it also follows "if ...:". It is certain when all ``needs`` were
    observed; an observed ``never_with`` rules it out, an observed ``first_with`` puts it before equally
    certain ones. ``adds_workers``: more loader processes, which need cores and memory. ``adds_threads``: a
    larger pool of a rank, which needs a free core for each thread. ``caps_workers``: names the most workers
    that a quota pays for, which is no help to a rank that has no more.
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
    """Explain a verdict; ``remedies`` are names of the catalogue, best first; without any, ``what_to_do``."""

    means: str
    sees: str
    confused_with: str
    remedies: tuple[str, ...] = ()
    what_to_do: str = ""


_VERDICTS = ("catalogue/verdicts.toml", "catalogue/verdicts-host.toml", "catalogue/verdicts-job.toml")
_AREAS = ("data", "host", "gpu", "ranks", "progress")


def _read_explanations() -> Mapping[tuple[Kind, Cause], Mapping[str, object]]:
    found: dict[tuple[Kind, Cause], Mapping[str, object]] = {}
    for name, rows in (one for file in _VERDICTS for one in read_table(__file__, file).items()):
        if "means" in rows:
            found[Kind(name), NOT_APPLICABLE] = rows
        else:
            found.update(((Kind(name), cause), row) for cause, row in rows.items())
    return found


EXPLANATIONS = LazyTable(
    (_read_explanations,), lambda key, row: make_row(Explanation, f"verdicts: {key[0].value}: {key[1]}", row)
)
"""What each verdict means, by its row of the table of kinds."""
CATALOGUE = LazyTable(
    (partial(read_table, __file__, f"catalogue/{area}.toml") for area in _AREAS),
    lambda name, row: make_row(Remedy, name, {"id": name, **row}),
)
"""The remedies by name."""


def _more_workers_help(observed: frozenset[Need], facts: RunFacts) -> bool:
    if Need.WORKERS_CPU_BOUND in observed and Need.CORES_FREE not in observed:
        return False
    proposal = size_loader(facts)
    if not is_known(proposal) or not is_known(facts.workers_per_rank):
        return True
    return proposal > facts.workers_per_rank


_ALWAYS_SEEN = frozenset(
    (
        Need.GPU_PRESENT,
        Need.DESCRIPTORS_SHARED,
        Need.DESCRIPTORS_OWN,
        Need.NO_WORKERS,
        Need.WORKERS_PRESENT,
        Need.BATCHES_PINNED,
        Need.RANKS_ELSEWHERE,
        Need.NCCL_PATH_OFF,
        Need.FROZEN,
        Need.TRACED,
        Need.STOPPED,
        Need.FP16_CORES_ALONE,
    )
)
"""The process list and the driver always tell these: not observed means that it is not so."""
_SEEN_IN_STACKS = frozenset(
    (
        Need.REQUESTS_REFUSED,
        Need.ONLY_FORWARD,
        Need.LOGGING_IN_STACK,
        Need.SAVE_IN_STACK,
        Need.VALIDATION_IN_STACK,
    )
)
"""The same for stacks. Not a synchronise or a copy: ``.item()`` and ``.to()`` run in C and leave no frame."""


_WRAPPERS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK))
"""A model is wrapped in one of them: where one was seen, the other is known to be absent."""


def _tells(need: Need, observed: frozenset[Need]) -> bool:
    """Tell whether a need that was not observed is known not to be so."""
    if need is Need.HOLDER_SEEN:
        return Need.STACKS_TOLD in observed
    if need in _WRAPPERS:
        return bool(observed & _WRAPPERS)
    return need in _ALWAYS_SEEN or (need in _SEEN_IN_STACKS and Need.STACKS_READ in observed)


def _fits(remedy: Remedy, observed: frozenset[Need], facts: RunFacts) -> bool:
    if observed.intersection(remedy.never_with):
        return False
    if any(need not in observed and _tells(need, observed) for need in remedy.needs):
        return False
    if not names_all(remedy.title, facts) or not names_all(remedy.paste, facts):
        return False  # nobody is to be sent to look at "rank R"
    if remedy.caps_workers and not may_exceed_quota(facts):
        return False
    if remedy.adds_threads and known_or(count_threads_in_free(facts), 2) <= 1:
        return False
    return not remedy.adds_workers or _more_workers_help(observed, facts)


def fill_remedy(remedy: Remedy, observed: frozenset[Need], facts: RunFacts) -> Chosen:
    """Write one remedy for one run; needs that were not observed come first, after "if"."""
    unseen = [need.value for need in remedy.needs if need not in observed]
    title = fill(remedy.title, facts)
    return Chosen(
        remedy=remedy,
        certain=not unseen,
        text=f"if {' and '.join(unseen)}: {title}" if unseen else title,
        paste=fill_paste(remedy.paste, facts),
        ceiling=fill(remedy.ceiling, facts),
    )


def choose(kind: Kind, cause: Cause, observed: frozenset[Need], facts: RunFacts) -> tuple[Chosen, ...]:
    """Return the remedies of one row of the table for one run; KeyError where there is no such row.

    Those with the fewest unseen needs come first; among these ``first_with`` ones, then those with most seen
    needs, then in the order of the table. What would do harm (more workers on cores that are used up) is left
    out, not put behind an "if".
    """
    filled = [
        fill_remedy(CATALOGUE[name], observed, facts)
        for name in EXPLANATIONS[kind, cause].remedies
        if _fits(CATALOGUE[name], observed, facts)
    ]
    return tuple(
        sorted(
            filled,
            key=lambda one: (
                sum(need not in observed for need in one.remedy.needs),
                not observed.intersection(one.remedy.first_with),
                0 if one.certain else -len((observed - _ALWAYS_SEEN).intersection(one.remedy.needs)),
            ),
        )
    )
