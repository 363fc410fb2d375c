"""Compare what ranks called under one number of a process group: name, sizes, types. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod

from tpmon.model.results.collectives import CallDifference, CollectiveCall
from tpmon.model.text.dump_words import list_numbers

_ALIKE = frozenset(
    (
        "all_reduce",
        "all_reduce_barrier",
        "allreduce_coalesced",
        "broadcast",
        "_broadcast_oop",
        "reduce",
        "_reduce_oop",
        "_all_gather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
    )
)
"""Collectives whose input has the same size and type on every rank. In others sizes may differ."""


def find_differences(calls: Mapping[int, CollectiveCall]) -> tuple[CallDifference, ...]:
    """Say what the ranks called where that is not the same, those of the most ranks first.

    ``calls`` are by rank, all of one number; () where they fit.
    """
    if found := _divide(calls, _say_name):
        return found
    if any(call.name not in _ALIKE for call in calls.values()):
        return ()
    return _divide(calls, _say_size) or _divide(calls, _say_type)


def _divide(
    calls: Mapping[int, CollectiveCall], say: Callable[[CollectiveCall], str]
) -> tuple[CallDifference, ...]:
    words = {rank: said for rank, call in calls.items() if (said := say(call))}
    counts = Counter(words.values())
    if len(counts) < 2:
        return ()
    ordered = sorted(counts, key=lambda said: (-counts[said], said))
    return tuple(
        CallDifference(tuple(sorted(rank for rank in words if words[rank] == said)), said) for said in ordered
    )


def _say_name(call: CollectiveCall) -> str:
    return call.name


def _say_size(call: CollectiveCall) -> str:
    # Other shapes of as many elements are legal.
    count = sum(prod(size) for size in call.input_sizes)
    return f"{call.name} of {count} elements" if call.input_sizes else ""


def _say_type(call: CollectiveCall) -> str:
    types = ", ".join(dict.fromkeys(call.input_types))
    return f"{call.name} of {types}" if types else ""


def say_differences(differences: Sequence[CallDifference]) -> str:
    """Say who called what: "ranks 0-6 called all_reduce of 16 elements, rank 7 called broadcast"."""
    return ", ".join(f"{name_numbers(one.ranks)} called {one.words}" for one in differences)


def name_numbers(ranks: Sequence[int]) -> str:
    """Name ranks by their numbers: "ranks 0-2,4", "rank 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {list_numbers(ranks)}"
