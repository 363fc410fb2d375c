"""Name the known call that takes most of the time, by frames of libraries, else by its line. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.knowledge import Verbatim, hold_table
from tpmon.judge.stacks.classify import find_users, is_at, is_library, is_native, name_line
from tpmon.judge.stacks.profile import main_stacks
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, known_or
from tpmon.model.stacks import StackFrame, StackSlice
from tpmon.model.verdict import Kind

# What each threshold is, and where it comes from: docs/thresholds.toml.
LEAST_SHARE = 0.2
LEAST_SAMPLES = 20
MOST_SLICES = 12


@dataclass(frozen=True, slots=True)
class HotCall:
    """Hold one call of the table; ``waste``: made in each step or sample, it is a mistake."""

    text: Verbatim
    words: str
    title: str
    paste: Verbatim
    frames: tuple[str, ...] = ()
    waste: bool = False


@dataclass(frozen=True, slots=True)
class HotSpot:
    """Hold the call with its place in the program, "train.py:19"."""

    call: HotCall
    place: str


CALLS = hold_table(HotCall, __file__, "catalogue/hot.toml")


@lru_cache(maxsize=4096)
def _name_frame(frame: StackFrame) -> str:
    places = ((name, place.split()) for name, row in CALLS.items() for place in row.frames)
    named = (name for name, (path, *functions) in places if any(is_at(frame, path, one) for one in functions))
    return next(named, "") if is_library(frame.file) else ""


@lru_cache(maxsize=1024)
def _name_text(text: str) -> str:
    return next((name for name, row in CALLS.items() if re.compile(row.text).search(text)), "")


def find_call(frames: Sequence[StackFrame], texts: Mapping[tuple[str, int], str]) -> tuple[str, str]:
    """Return the name of the known call that a stack is in, "" for none, and the program's line."""
    # The text of the line counts only where it runs in C: a library's frame below it tells what runs.
    index = find_users(frames)
    below = [frame for frame in reversed(frames[index + 1 :]) if not is_native(frame.file)]
    name = next(filter(None, map(_name_frame, below)), "")
    if index < 0:
        return name, ""
    own = frames[index]
    if not below:
        name = _name_text(texts.get((own.file, own.line), "").partition("#")[0])
    return name, name_line(own)


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
        slices = (one for frame in reversed(scene.history) for one in known_or(frame.stacks, ()))
        scene.answers[key] = _find_hot_of(islice((one for one in slices if one.pid in pids), MOST_SLICES))
    found: Applicable[HotSpot] = scene.answers[key]
    return found


def _find_hot_of(slices: Iterable[StackSlice]) -> Applicable[HotSpot]:
    counts: Counter[tuple[str, str]] = Counter()
    for taken in slices:
        texts = {(one.file, one.line): one.text for one in known_or(taken.source, ())}
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
