"""Choose the remedies of the catalogue that fit a cause in this run, best first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from functools import partial

from tpmon.judge.advice.facts import RunFacts, count_threads_in_free, count_workers_in_quota, size_loader
from tpmon.judge.advice.fields import fill, fill_paste, names_all
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import LazyTable, Verbatim, convert, make_row, read_sections, read_table
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, NotApplicable, is_known, known_or
from tpmon.model.verdict import Kind


class Risk(str, Enum):
    """Say what a remedy may do to the science of the run."""

    NONE = "none"
    NUMERICS = "numerics"
    EXPERIMENT = "changes the experiment"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Hold one entry of the catalogue.

    ``title``, ``paste`` and ``ceiling`` are templates of ``str.format`` over the fields of ``RunFacts``;
    ``title`` begins in lower case, as it also follows "if ...:". Of several pastes the first is taken whose
    things were all read. It is certain when all ``needs`` were observed; an observed ``never_with`` rules it
    out, an observed ``first_with`` puts it before equally certain ones. ``adds_workers``: more loader
    processes, which need cores and memory. ``adds_threads``: a larger pool of a rank, which needs a free core
    for each thread. ``caps_workers``: names the most workers that a quota pays for, which is no help to a
    rank that has no more.
    """

    id: str
    title: str
    paste: tuple[Verbatim, ...]
    needs: tuple[Need, ...] = ()
    ceiling: str = "{gain}"  # what its cause costs, where no more is said
    risk: Risk = Risk.NONE
    never_with: tuple[Need, ...] = ()
    first_with: tuple[Need, ...] = ()
    adds_workers: bool = False
    adds_threads: bool = False
    caps_workers: bool = False
    keys: str = ""
    """The keys that do on the screen what is pasted elsewhere."""


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


def _read_remedies() -> Mapping[tuple[Kind, Cause], object]:
    found: dict[tuple[Kind, Cause], object] = {}
    for kind, rows in read_table(__file__, "catalogue/verdicts.toml").items():
        for cause, names in rows.items() if isinstance(rows, dict) else [(NOT_APPLICABLE, rows)]:
            found[Kind(kind), cause] = names
    return found


def _make_remedy(name: str, row: Mapping[str, object]) -> Remedy:
    paste = row.get("paste")
    return make_row(Remedy, name, {"id": name, **row, "paste": [paste] if isinstance(paste, str) else paste})


REMEDIES = LazyTable((_read_remedies,), lambda _, names: convert(tuple[str, ...], names))
"""The names of the remedies of each verdict, best first, by its row of the table of kinds."""
_AREAS = ("data", "host", "gpu", "ranks", "progress")
CATALOGUE = LazyTable(
    (partial(read_sections, __file__, f"catalogue/{area}.toml") for area in _AREAS), _make_remedy
)


def _more_workers_help(observed: frozenset[Need], facts: RunFacts) -> bool:
    if Need.WORKERS_CPU_BOUND in observed and Need.CORES_FREE not in observed:
        return False
    proposal = size_loader(facts)
    if not is_known(proposal) or not is_known(facts.workers_per_rank):
        return True
    return proposal > facts.workers_per_rank


_ALWAYS_SEEN = frozenset(
    (
        *(Need.GPU_PRESENT, Need.DESCRIPTORS_SHARED, Need.DESCRIPTORS_OWN, Need.NO_WORKERS),
        *(Need.WORKERS_PRESENT, Need.BATCHES_PINNED, Need.RANKS_ELSEWHERE, Need.NCCL_PATH_OFF),
        *(Need.FROZEN, Need.TRACED, Need.STOPPED, Need.FP16_CORES_ALONE),
    )
)
"""The process list and the driver always tell these: not observed means that it is not so."""
_SEEN_IN_STACKS = frozenset(
    (
        *(Need.REQUESTS_REFUSED, Need.ONLY_FORWARD, Need.LOGGING_IN_STACK, Need.SAVE_IN_STACK),
        Need.VALIDATION_IN_STACK,
    )
)
"""The same for stacks. Not a synchronise or a copy: ``.item()`` and ``.to()`` run in C and leave no frame."""
_SEEN_IN_LOOKS = frozenset(
    (
        *(Need.RANK_GONE, Need.ONE_RANK_ALONE, Need.GRADIENTS_AWAITED, Need.LOCK_WAIT, Need.HOLDER_SEEN),
        *(Need.FORKED_WITHOUT_THREADS, Need.POOL_FROZEN, Need.FILE_LOCK_WAIT, Need.LOCK_FILE_LEFT),
        *(Need.QUEUE_WAIT, Need.QUEUE_FULL, Need.THREAD_LEFT, Need.SOCKET_WAIT, Need.PROCESS_WAIT),
        *(Need.NOBODY_AT_PIPE, Need.BLOCKED_READ, Need.GPU_WAIT, Need.SPINNING, Need.INPUT_WAIT),
    )
)
"""The same for the look at all threads of a job that stands still: it waits for one thing."""
_WRAPPERS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK))
"""A model is wrapped in one of them: where one was seen, the other is known to be absent."""


def _tells(need: Need, observed: frozenset[Need]) -> bool:
    """Tell whether a need that was not observed is known not to be so."""
    if need in _WRAPPERS:
        return bool(observed & _WRAPPERS)
    if need in _SEEN_IN_LOOKS:
        return Need.STACKS_TOLD in observed
    return need in _ALWAYS_SEEN or (need in _SEEN_IN_STACKS and Need.STACKS_READ in observed)


def _fits(remedy: Remedy, observed: frozenset[Need], facts: RunFacts, denied: frozenset[Need]) -> bool:
    # Nobody is to be sent to look at "rank R".
    named = names_all(remedy.title, facts) and any(names_all(one, facts) for one in remedy.paste)
    absent = any(need not in observed and (need in denied or _tells(need, observed)) for need in remedy.needs)
    if absent or not named or observed.intersection(remedy.never_with):
        return False
    most = known_or(count_workers_in_quota(facts), -1)
    if remedy.caps_workers and known_or(facts.workers_per_rank, math.inf) <= most:
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


def choose(
    kind: Kind,
    cause: Cause,
    observed: frozenset[Need],
    facts: RunFacts,
    denied: frozenset[Need] = frozenset(),
) -> tuple[Chosen, ...]:
    """Return the remedies of one row of the table for one run; KeyError where there is no such row."""
    # What would do harm (more workers on cores that are used up) is left out, not put behind an "if".
    filled = [
        fill_remedy(CATALOGUE[name], observed, facts)
        for name in REMEDIES[kind, cause]
        if _fits(CATALOGUE[name], observed, facts, denied)
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
