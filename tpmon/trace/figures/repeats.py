"""What repeats in a trace without marked steps, and stands in for them: marks of the program, or operators.

The number must be that of the iterations of a loop, so none is better than a wrong one: layers of a model
repeat too, a validation comes every few steps, two optimizers take turns. The outermost events of the thread
that computes are read as words. A loop is a run of equal sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.trace.figures.steps import INCOMPLETE, TraceSteps, lay_steps
from tpmon.trace.reading.columns import EventTable, Ints, Mask, Small, group
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import (
    Category,
    begins,
    is_comm_host,
    is_loader,
    is_node_of_backward,
    is_optimizer,
)
from tpmon.trace.reading.spans import unite_rows

LEAST_REPEATS = 3
COVERS = 0.5
"""Share (0-1) of what a trace holds that repeats at least: of the operators, or of the time of a module."""
_WIDE = 1 / LEAST_REPEATS
"""Share (0-1) of the time of a trace from which on an event holds repeats, and is none."""
_MOST_IN_ONE = 16
"""How often a word may stand in one repeat that is looked for by it."""
_RAREST = 12
"""By so many of the rarest words repeats are looked for."""
_LAYER = 48
"""The most operators of a layer: longer runs of equal parts are not looked for within a repeat."""
_ALIKE = 0.6
"""Share (0-1) of equal parts from which on each is an iteration: of two in turn each is a half."""
_ODD = 0.1
"""Share (0-1) of parts that may be of another kind: a critic trained five times as often leaves a sixth."""
WARM = 1.5
"""Steps or repeats in front that take this many times as long as those behind them are warm-up."""
_BACKWARD = -1
"""Stands for a backward pass in another thread."""

_is_module = begins(r"nn\.Module: ")
_of_optimizers = begins(r"Optimizer\.")
_of_a_loop = begins(
    r"aten::(?:item|_local_scalar_dense|argmax|multinomial|embedding|rand|randn|randint|randperm|normal_|uniform_)$"
)
"""What a loop does once to its input or with its output, and a layer of a model does not."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Hold the outermost events of one thread in order, by the numbers of their names."""

    track: int
    word: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class LoopRun:
    """Hold where words repeat: from ``first`` on, ``count`` words, ``length`` of them each time."""

    first: int
    count: int
    length: int

    @property
    def times(self) -> int:
        """Return how many whole repeats there are."""
        return self.count // self.length


def find_repeats(trace: Trace) -> tuple[TraceSteps, str] | None:
    """Find what repeats, and its name; None where nothing does, or it may be a part of an iteration.

    Each repeat lasts to the next one: what is marked is often a part of a step.
    """
    said = _read_sentence(trace)
    run = find_run(said.word)
    updates = int(trace.named(trace.host, is_optimizer).sum())
    if 0 < updates < LEAST_REPEATS:
        return None
    named = _find_marks(trace, said, run)
    if named is not None:
        starts, each = _gather(trace, said, *named)
        name = trace.names[named[0]]
        return None if starts is None else _lay(trace, starts, name if each == 1 else f"{each} x {name}")
    if run is not None and _is_iteration(trace, said.word[run.first : run.first + run.length]):
        at = run.first + run.length * np.arange(run.times)
        name = f"{run.length} operators from {trace.names[int(said.word[run.first])]} on"
        return _lay(trace, said.start[at], name, int(said.end[run.first + run.times * run.length - 1]))
    if trace.named(trace.host, is_node_of_backward).any():
        return None  # a module may run several times for one backward pass
    python = trace.python
    rows = _most_repeated(python, python.track, trace.named(python, _is_module))
    if not len(rows) or python.duration[rows].sum() < COVERS * (python.end[rows[-1]] - python.start[rows[0]]):
        return None
    return _lay(trace, python.start[rows], trace.names[int(python.name[rows[0]])])


def _lay(trace: Trace, start: Ints, name: str, until: int | None = None) -> tuple[TraceSteps, str] | None:
    """Lay repeats from each start to the next; the last ends as the work does, or at ``until``."""
    if len(start) < LEAST_REPEATS:
        return None
    each = np.diff(start)
    tables = (one for one in (trace.host, trace.calls, trace.work) if len(one.start))
    last = max((int(one.end.max()) for one in tables), default=0) if until is None else until
    ends = np.append(start[1:], min(max(last, int(start[-1])), int(start[-1] + each.max())))
    if ends[-1] - start[-1] < INCOMPLETE * np.median(each):
        start, ends = start[:-1], ends[:-1]
    names = tuple(f"{name} {number}" for number in range(1, len(start) + 1))
    return lay_steps(trace, names, start, ends, marked=False), name


# Words.


def _read_sentence(trace: Trace) -> Sentence:
    """Read the outermost events of the thread that computes; one word for each backward pass elsewhere."""
    host = trace.host
    kinds = (host.category == Category.OP) | (host.category == Category.ANNOTATION)
    nodes = trace.named(host, is_node_of_backward)
    rows = np.flatnonzero(kinds)
    empty = np.zeros(0, dtype=np.int64)
    if not len(rows):
        return Sentence(-1, empty, empty, empty)
    span = int(host.end[rows].max()) - int(host.start[rows].min())
    rows = rows[host.duration[rows] < _WIDE * span]
    track = _choose_track(host.track[rows], host.duration[rows], ~nodes[rows])
    own = rows[host.track[rows] == track]
    own = own[_are_outermost(host.start[own], host.end[own])]
    word, start, end = host.name[own].astype(np.int64), host.start[own], host.end[own]
    nodes = nodes & (host.track != track)
    if bool(nodes.any()) and len(start):
        begun = host.start[nodes]
        place, at = np.unique(np.searchsorted(start, begun), return_index=True)
        word = np.insert(word, place, _BACKWARD)
        start, end = np.insert(start, place, begun[at]), np.insert(end, place, begun[at])
    return Sentence(track, word, start, end)


def _choose_track(tracks: Small, duration: Ints, counts: Mask) -> int:
    """Return the thread in which most of the time lies, of those that do more than a backward pass."""
    groups = group(tracks)
    if not len(groups.keys):
        return -1
    first = np.full(len(groups.keys), len(tracks), dtype=np.int64)
    np.minimum.at(first, groups.place, np.arange(len(tracks)))
    begins_itself = counts[np.minimum(first, len(tracks) - 1)]
    totals = np.where(begins_itself, groups.sum(duration), -1)
    return int(groups.keys[int(np.argmax(totals))])


def _are_outermost(start: Ints, end: Ints) -> Mask:
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[:-1]))
    found: Mask = start >= reach
    return found


def find_run(word: Ints) -> LoopRun | None:
    """Find the shortest sentence that repeats over most of the words; None where none does often enough."""
    if len(word) < LEAST_REPEATS:
        return None
    middle = word[len(word) // 4 :]
    groups = group(middle)
    rare = groups.keys[np.argsort(groups.count, kind="stable")]
    rare = rare[np.sort(groups.count) >= LEAST_REPEATS - 1][:_RAREST]
    found = [run for name in rare.tolist() if (run := _find_by(word, name)) is not None]
    return min(found, key=lambda run: run.length, default=None)


def _find_by(word: Ints, name: int) -> LoopRun | None:
    at = np.flatnonzero(word == name)
    tried = set()
    for each in range(1, min(_MOST_IN_ONE, len(at) - 1) + 1):
        apart = at[each:] - at[:-each]
        length = int(apart[len(apart) // 2])
        if length in tried or length * LEAST_REPEATS > len(word):
            continue
        tried.add(length)
        first, count = _longest(word[length:] == word[:-length])
        run = LoopRun(first, count + length, length)
        if run.times >= LEAST_REPEATS and run.count >= COVERS * len(word):
            return run
    return None


def _longest(same: Mask) -> tuple[int, int]:
    """Return where the longest run of true values begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    begin, lengths = edges[::2], edges[1::2] - edges[::2]
    at = int(np.argmax(lengths))
    return int(begin[at]), int(lengths[at])


# Whether a sentence is an iteration.


def _is_iteration(trace: Trace, word: Ints) -> bool:
    """Tell whether a sentence without a mark is one iteration, and not a layer of it or several of them.

    With one backward pass it is. Without one it has layers, or what only a loop does.
    """
    names = trace.names
    passes = [one == _BACKWARD or is_node_of_backward(names[one]) for one in word.tolist()]
    starts = sum(now and not before for before, now in zip([passes[-1], *passes], passes, strict=False))
    if any(passes):
        return starts == 1
    loops = [_of_a_loop(names[one]) for one in word.tolist()]
    layer = find_layer(word)
    if layer is None:
        return any(loops)
    first, length = layer
    inside = np.arange(first, first + length) % len(word)
    part = word[inside]
    return not any(loops[one] for one in inside.tolist()) and find_layer(part) is None


def find_layer(word: Ints) -> tuple[int, int] | None:
    """Find the part that repeats in a row over half of a sentence: its place and length; None for none.

    The sentence is read as one that follows itself.
    """
    whole = len(word)
    twice = np.concatenate((word, word))
    for length in range(1, min(whole // 2, _LAYER) + 1):
        first, count = _longest(twice[length:] == twice[:-length])
        covered = min(count + length, whole)
        if covered >= max(2 * length, COVERS * whole) and covered < whole:
            return first % whole, length
    return None


# Marks.


def _find_marks(trace: Trace, said: Sentence, run: LoopRun | None) -> tuple[int, Ints] | None:
    """Return the name of the marks that stand for iterations, and their rows; None without any.

    Updates of optimizers go first, as a loader feeds validations too. Other marks that come several times in
    what repeats stand in each layer.
    """
    once = said.word[run.first : run.first + run.length].tolist() if run is not None else []
    host = trace.host
    is_mark = host.category == Category.ANNOTATION
    known = is_mark | (host.category == Category.OP)  # torch before 1.12 writes all as operators
    others = is_mark & ~trace.named(host, _is_common) & ~trace.named(host, is_comm_host)
    nodes = trace.named(host, is_node_of_backward) & (host.track == said.track)
    passes = unite_rows(host, np.flatnonzero(nodes))
    for test in (is_optimizer, _of_optimizers, None, is_loader):
        rows = known & trace.named(host, test) if test else others
        marks = _most_repeated(host, host.track, rows)
        if not len(marks):
            continue
        if bool((passes.within(host.start[marks], host.start[marks] + 1) > 0).any()):
            continue  # one for each parameter, within the backward pass
        name = int(host.name[marks[0]])
        if test is not None or once.count(name) <= 1:
            return name, marks
    return None


def _is_common(name: str) -> bool:
    return _of_optimizers(name) or is_loader(name)


def _gather(trace: Trace, said: Sentence, name: int, rows: Ints) -> tuple[Ints | None, int]:
    """Return where iterations begin that marks stand for, and the marks in each; None where it is untold."""
    start = trace.host.start[rows]
    if int(trace.host.track[rows[0]]) != said.track:
        return start, 1
    place = np.searchsorted(said.start, start, side="right") - 1
    apart = np.diff(place)
    if len(apart) and int(apart.min()) <= 1 < int(apart.max()) and not _hold_passes(trace, rows):
        alone = np.append(True, apart > 1)  # one after the other without work in between: of one iteration
        start, place = start[alone], place[alone]
    bounds = np.append(place, len(said.word))
    parts = [tuple(said.word[one:two].tolist()) for one, two in pairwise(bounds.tolist())]
    if is_loader(trace.names[name]) and len(parts) > 1 and len(parts[-1]) == 1 < len(parts[-2]):
        start, parts = start[:-1], parts[:-1]  # a loader that has no more
    if not _is_common(trace.names[name]):
        return start if _are_even(parts) else None, 1
    each = count_in_one(parts)
    return (None, 1) if each is None else (start[len(start) % each :: each], each)


def _hold_passes(trace: Trace, rows: Ints) -> bool:
    """Tell whether most marks hold backward passes: an optimizer that computes the loss itself (L-BFGS)."""
    host = trace.host
    passes = unite_rows(host, trace.named(host, is_node_of_backward))
    return 2 * int((passes.within(host.start[rows], host.end[rows]) > 0).sum()) > len(rows)


def count_in_one(parts: Sequence[tuple[int, ...]]) -> int | None:
    """Return how many parts make one iteration; None where it cannot be told.

    Where most are alike each is one, if the others hold more: a validation, a line of a log. Two optimizers
    take turns, and neither's part is the other's with something put in: a critic may be trained five times
    for each time of what it judges.
    """
    inner = (
        parts[1:-1] if len(parts) > LEAST_REPEATS + 1 else parts[:-1]
    )  # the last goes to the end of the trace
    counts = Counter(inner)
    alike, most = counts.most_common(1)[0]
    kinds = len(counts)
    if most > _ALIKE * len(inner):
        odd = sum(count for part, count in counts.items() if not _holds_in_order(part, alike))
        return _find_period(inner) if odd > _ODD * len(inner) else 1
    if kinds > _MOST_IN_ONE:
        return 1
    least = min(counts, key=len)
    period = _find_period(inner)
    return 1 if period and all(_holds(part, least) for part in counts) else period


def _find_period(parts: Sequence[tuple[int, ...]]) -> int | None:
    """Return after how many parts all come again in their order, at least twice; None without that."""
    for length in range(2, min(_MOST_IN_ONE, len(parts) // 2) + 1):
        if parts[length:] == parts[:-length]:
            return length
    return None


def _are_even(parts: Sequence[tuple[int, ...]]) -> bool:
    """Tell whether most parts hold about as many operators: marks of an iteration, not within one."""
    lengths = np.array([len(part) for part in parts])
    median = float(np.median(lengths))
    return float(((lengths * WARM >= median) & (lengths <= WARM * median)).mean()) > _ALIKE


def _holds_in_order(long: tuple[int, ...], short: tuple[int, ...]) -> bool:
    left = iter(long)
    return all(word in left for word in short)


def _holds(long: tuple[int, ...], short: tuple[int, ...]) -> bool:
    """Tell whether one part is the other with something put in at one place."""
    same = 0
    while same < min(len(long), len(short)) and long[same] == short[same]:
        same += 1
    left = len(short) - same
    return len(long) >= len(short) and (left == 0 or long[-left:] == short[same:])


def _most_repeated(table: EventTable, track: Small, rows: Mask) -> Ints:
    """Return the rows of the name that takes the longest of those that come often enough, on one thread.

    Of those that stand in one another the outer ones count.
    """
    found: Ints = np.flatnonzero(rows)
    groups = group(table.name[found])
    totals = np.where(groups.count >= LEAST_REPEATS, groups.sum(table.duration[found]), -1)
    if not len(totals) or totals.max() < 0:
        return found[:0]
    found = found[groups.place == int(np.argmax(totals))]
    tracks = group(track[found])
    found = found[tracks.place == int(np.argmax(tracks.count))]
    found = found[_are_outermost(table.start[found], table.end[found])]
    return found if len(found) >= LEAST_REPEATS else found[:0]
