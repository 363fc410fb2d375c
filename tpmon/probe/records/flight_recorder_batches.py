"""Take the batches out of a FlightRecorder: calls that were made together are done together. Pure.

torch writes down each call of a batch (batch_isend_irecv, coalesced collectives) and one entry that closes
it, all with one number of a collective. The state of the closing entry alone is kept up; the calls before it
stay "scheduled" for ever. A batch of sends and receives takes a number of a collective, too, and ranks of a
pipeline make different numbers of batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tpmon.model.frozen import dataclass

_CLOSES = (":coalesced", "_coalesced")
_GLOO = "gloo:"
"""It makes no batches."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold what decides whether an entry is shown: most are done long ago, and only counted.

    ``sequence`` counts collectives, or transfers where it is one; ``collective`` is the number of the batch.
    """

    group: tuple[str, str]
    name: str
    sequence: int
    collective: int | None
    is_transfer: bool
    is_done: bool
    raw: Mapping[object, object]


@dataclass(frozen=True, slots=True)
class Settled:
    """Hold the calls of one process group, how many batches of transfers there were, and the last entry."""

    entries: tuple[Entry, ...]
    batches: int
    newest: Entry


def settle_batches(entries: Sequence[Entry], *, renumber: bool) -> Settled:
    """Give the calls of each batch the state of the entry that closes it; ``entries`` are of one group.

    A batch of collectives becomes the entry that closes it. With ``renumber`` collectives are counted
    without the batches of transfers.
    """
    settled: list[Entry] = []
    batches = 0
    for _, run in groupby(entries, key=lambda one: one.collective):
        same = list(run)
        end = next((index for index, one in enumerate(same) if one.name.endswith(_CLOSES)), None)
        if end is None:
            # The last one may be on its way: its end is recorded when all calls of it are made.
            found, dropped = (same, []) if same[-1] is entries[-1] else _divide_unclosed(same)
            number = len({one.sequence for one in dropped if one.is_transfer})
        else:
            found = [*_close(same[:end], same[end]), *same[end + 1 :]]
            number = int(_is_of_transfers(same[:end], same[end]))
        settled += (_shift(one, batches) for one in found) if renumber else found
        batches += number
    return Settled(tuple(settled), batches, entries[-1])


def _is_of_transfers(members: Sequence[Entry], closing: Entry) -> bool:
    return all(one.is_transfer for one in members) if members else closing.is_transfer


def _close(members: Sequence[Entry], closing: Entry) -> Iterable[Entry]:
    if not members:
        return (closing,)
    transfers = [replace(one, is_done=closing.is_done) for one in members if one.is_transfer]
    return transfers if _is_of_transfers(members, closing) else (*transfers, closing)


def _divide_unclosed(same: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return single calls, and those of a batch that was not closed, which nothing tells to be done or not.

    Within a CUDA graph the end of a batch is not recorded.
    """
    counts = Counter((one.is_transfer, one.sequence) for one in same if not one.name.startswith(_GLOO))
    single = [one for one in same if counts[one.is_transfer, one.sequence] < 2]
    return single, [one for one in same if counts[one.is_transfer, one.sequence] >= 2]


def _shift(entry: Entry, batches: int) -> Entry:
    return entry if entry.is_transfer or not batches else replace(entry, sequence=entry.sequence - batches)
