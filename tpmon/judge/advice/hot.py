"""Name the known call that takes most of the time, by frames of libraries, else by its line. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice

from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.knowledge import LazyTable, Verbatim, make_row, read_table
from tpmon.judge.stacks.classify import find_users, is_at, is_library, is_native
from tpmon.judge.stacks.profile import main_stacks
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.stacks import StackFrame, StackSlice
from tpmon.model.verdict import Kind

LEAST_SHARE = 0.2
"""Share of the samples that a call must have to be named: below it its remedy gains less than a quarter."""
LEAST_SAMPLES = 20
MOST_SLICES = 12
"""Newest slices that are looked at: more cost more than a judgement may."""


@dataclass(frozen=True, slots=True)
class HotCall:
    """Hold one call of the table; ``waste``: made in each step or sample, it is a mistake."""

    frames: tuple[str, ...]
    text: Verbatim
    words: str
    title: str
    paste: Verbatim
    waste: bool = False


@dataclass(frozen=True, slots=True)
class HotSpot:
    """Hold the call with its place in the program, "train.py:19"."""

    call: HotCall
    place: str


_TABLE = "catalogue/hot.toml"
CALLS = LazyTable(
    (partial(read_table, __file__, _TABLE),), lambda name, row: make_row(HotCall, f"{_TABLE}: {name}", row)
)
"""The known calls by name."""


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, re.compile(row.text)) for name, row in CALLS.items())


@lru_cache(maxsize=1)
def _places() -> tuple[tuple[str, str, str], ...]:
    split = ((name, place.split()) for name, row in CALLS.items() for place in row.frames)
    return tuple((name, path, function) for name, (path, *functions) in split for function in functions)


@lru_cache(maxsize=4096)
def _name_frame(frame: StackFrame) -> str:
    if not is_library(frame.file):
        return ""
    return next((name for name, path, function in _places() if is_at(frame, path, function)), "")


@lru_cache(maxsize=1024)
def _name_text(text: str) -> str:
    return next((name for name, pattern in _patterns() if pattern.search(text)), "")


def find_call(frames: Sequence[StackFrame], texts: Mapping[tuple[str, int], str]) -> tuple[str, str]:
    """Return the name of the known call that a stack is in, "" for none, and the program's line.

    The text of the line counts only where it runs in C: a library's frame below it tells what runs.
    """
    index = find_users(frames)
    below = [frame for frame in reversed(frames[index + 1 :]) if not is_native(frame.file)]
    name = next(filter(None, map(_name_frame, below)), "")
    if index < 0:
        return name, ""
    own = frames[index]
    if not below:
        name = _name_text(texts.get((own.file, own.line), "").partition("#")[0])
    return name, f"{own.file.rpartition('/')[2]}:{own.line}"


def _list_pids(scene: Scene, suspicion: Suspicion) -> frozenset[int]:
    """Return whose time it is: the accused rank's, or its workers' where these load."""
    ranks = [one for one in scene.ranks if suspicion.pid in (one.process.pid, NOT_APPLICABLE)]
    workers = frozenset(worker.pid for rank in ranks for worker in rank.feeders)
    if suspicion.kind is Kind.DATA_BOUND and workers:
        return workers
    return frozenset(rank.process.pid for rank in ranks)


def find_hot(scene: Scene, suspicion: Suspicion) -> Applicable[HotSpot]:
    """Return the known call that most samples of the newest slices are in, if these are a fifth of all."""
    pids = _list_pids(scene, suspicion)
    key = ("hot call", pids)
    if key not in scene.answers:
        scene.answers[key] = _find_hot_of(pids, scene)
    found: Applicable[HotSpot] = scene.answers[key]
    return found


def _find_hot_of(pids: Collection[int], scene: Scene) -> Applicable[HotSpot]:
    counts: Counter[tuple[str, str]] = Counter()
    for taken in islice((one for one in _list_slices(scene) if one.pid in pids), MOST_SLICES):
        lines = taken.source if is_known(taken.source) else ()
        texts = {(one.file, one.line): one.text for one in lines}
        for stack in main_stacks(taken):
            counts[find_call(stack.frames, texts)] += stack.samples
    calls: Counter[str] = Counter()
    for (name, _), count in counts.items():
        calls[name] += count if name else 0
    best = max(calls, key=lambda name: (calls[name], name), default="")
    if not best or counts.total() < LEAST_SAMPLES or calls[best] < LEAST_SHARE * counts.total():
        return NOT_APPLICABLE
    places = {place: count for (name, place), count in counts.items() if name == best}
    return HotSpot(CALLS[best], max(places, key=lambda place: (places[place], place)))


def _list_slices(scene: Scene) -> Iterator[StackSlice]:
    for frame in reversed(scene.history):
        if is_known(frame.stacks):
            yield from frame.stacks
