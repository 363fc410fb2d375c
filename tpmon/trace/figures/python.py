"""Python functions of a trace, and which line an operator or kernel belongs to.

By time: the innermost Python function of the trace around the longest event of that name. A trace
holds Python functions only where it was recorded with stacks.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.timeline import CodePlace
from tpmon.model.results.trace_tables import FrameRow
from tpmon.trace.conditions import read_told
from tpmon.trace.figures.steps import match_calls
from tpmon.trace.reading.classes import flag
from tpmon.trace.reading.columns import Ints, Small, distinct
from tpmon.trace.reading.nesting import Nest, nest
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

MOST_FRAMES = 1000
"""Rows of the table of functions."""
_PLACE = re.compile(r"^(?P<file>[^<(]*\.py)\(\d+\): ")
_MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class Stacks:
    """Hold the Python functions nested by time, and for each the innermost line of the program around it.

    ``line`` is a number of the trace's names, that of the function itself where it is of the program, -1
    where there is none.
    """

    nest: Nest
    line: Ints


def is_own_line(name: str) -> bool:
    """Tell whether a function is of the program: not of torch, nor of Python's own library."""
    found = _PLACE.match(name)
    if found is None:
        return False
    first = found["file"].split("/")[0]
    return first != "torch" and first.removesuffix(".py") not in sys.stdlib_module_names


def nest_python(trace: Trace) -> Stacks:
    """Nest the Python functions of each thread that runs operators, of all where none does.

    Other threads (a progress bar, a monitor) only wait, and would lead the table.
    """
    python, host = trace.python, trace.host
    working = distinct(host.track[host.category == Category.OP])
    rows = np.flatnonzero(np.isin(python.track, working))
    rows = rows if len(rows) else np.arange(len(python.start))
    nested = nest(rows, python.start[rows], python.duration[rows], python.track[rows])
    own = flag(trace.names, is_own_line)
    names = python.name[nested.row].astype(np.int64)
    line = np.where(own[names], names, -1) if len(names) else names
    order = np.argsort(nested.depth, kind="stable")
    edges = (
        np.searchsorted(nested.depth[order], np.arange(int(nested.depth.max()) + 2)) if len(order) else [0]
    )
    for deep in range(1, len(edges) - 1):
        rows = order[edges[deep] : edges[deep + 1]]
        rows = rows[(line[rows] < 0) & (nested.parent[rows] >= 0)]
        line[rows] = line[nested.parent[rows]]
    return Stacks(nested, line)


def find_lines(stacks: Stacks, tracks: Small, times: Ints) -> Ints:
    """Return the innermost line of the program around each time on its thread, -1 for none."""
    place = stacks.nest.find(tracks, times)
    found = np.full(len(times), -1, dtype=np.int64)
    inside = place >= 0
    found[inside] = stacks.line[place[inside]]
    return found


def sum_frames(trace: Trace, stacks: Stacks) -> tuple[FrameRow, ...]:
    """Sum the Python functions by name, the largest time of its own first."""
    nested = stacks.nest
    if not len(nested.row):
        return ()
    python = trace.python
    duration = python.duration[nested.row]
    self_ns = np.maximum(duration - nested.child_ns, 0)
    names = python.name[nested.row].astype(np.int64)
    numbers, place = np.unique(names, return_inverse=True)
    outer = _find_outermost(place, nested.start, nested.end, python.track[nested.row])
    total = np.bincount(place, weights=np.where(outer, duration, 0))
    own = np.bincount(place, weights=self_ns)
    count = np.bincount(place)
    callers = _find_callers(place, stacks.line, self_ns)
    order = np.argsort(-own, kind="stable")
    found = []
    for at in order.tolist():
        name = trace.names[numbers[at]]
        if name.startswith(_MODULE):
            continue
        line = callers[at]
        caller: Applicable[str] = NOT_APPLICABLE
        if line >= 0 and line != numbers[at]:
            caller = clean_name(trace.names[line])
        found.append(FrameRow(clean_name(name), int(count[at]), total[at] / 1000, own[at] / 1000, caller))
    return tuple(found[:MOST_FRAMES])


def _find_outermost(
    place: Ints, start: Ints, end: Ints, track: Small
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which calls do not run inside of another one of the same function: recursion counts once."""
    order = np.lexsort((start, track, place))
    first = int(start.min())
    span = int(end.max()) - first + 1
    group = np.cumsum(
        np.append(0, (np.diff(place[order]) != 0) | (np.diff(track[order]) != 0)).astype(np.int64)
    )
    outer = np.ones(len(place), dtype=np.bool_)
    if span * (int(group[-1]) + 1) >= 1 << 62:
        return outer
    shift = group * span - first
    reach = np.maximum.accumulate(end[order] + shift)
    outer[order[1:]] = start[order[1:]] + shift[1:] >= reach[:-1]
    return outer


def _find_callers(place: Ints, line: Ints, self_ns: Ints) -> Ints:
    """Return for each function the line of the program that has most of its own time, -1 for none."""
    wide = int(line.max()) + 2
    pairs, pair_of = np.unique(place.astype(np.int64) * wide + line + 1, return_inverse=True)
    spent = np.bincount(pair_of, weights=self_ns)
    order = np.argsort(spent, kind="stable")
    found = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    found[pairs[order] // wide] = pairs[order] % wide - 1  # the last of equal keys stays: the largest
    return found


_FRAME = re.compile(r"^(?P<file>[^\n]*\.pyx?)\((?P<line>\d{1,9})\): ?(?P<function>.*)$")
_PACKAGES = frozenset(("torch", "torchvision", "torchaudio", "numpy", "site-packages", "dist-packages"))
_MOST_FOLDERS = 64
_FOLDER_CHARS = 4096
_MOST_TRIED = 4
NO_STACKS = Missing("the trace has no stacks: tpmon capture --stacks, or with_stack=True, records them")
NO_FRAME = Missing("no Python function of the trace is around it: it ran on a thread without any")
NOT_THERE = Missing("the trace has no event of this name")


def parse_frame(text: str, folders: tuple[str, ...] = ()) -> Known[CodePlace]:
    """Read the name of a Python function as torch writes it: ``train.py(131): train``."""
    found = _FRAME.match(text)
    if found is None:
        return Missing(f"{clean_name(text, 80)} names no line of a file")
    return CodePlace(
        clean_name(found["function"], 200), found["file"], min(int(found["line"]), 10**9), folders
    )


def rank_frame(frame: str) -> int:
    """Tell how near a Python function is to the user: 0 their own, 1 of Python's library, 2 of torch."""
    path = frame.partition("(")[0]
    parts = {part.removesuffix(".py") for part in path.split("/")}
    if frame.startswith("<") or parts & _PACKAGES:
        return 2
    return int(path.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names)


def read_folders(trace: Trace) -> tuple[str, ...]:
    """Return the working directory and sys.path of the run, as a capture of tpmon wrote them down."""
    told = read_told(trace)
    listed = told.get("sys_path")
    folders = [told.get("folder"), *(listed if isinstance(listed, list) else ())]
    good = [one for one in folders if isinstance(one, str) and one.startswith("/") and "\0" not in one]
    return tuple(one for one in dict.fromkeys(good) if len(one) < _FOLDER_CHARS)[:_MOST_FOLDERS]


def find_line(trace: Trace, name: str) -> Known[CodePlace]:
    """Return the line of Python that calls the operator, or launches the kernel or copy, of this name.

    ``name`` may also be a Python function, and is then the place itself.
    """
    folders = read_folders(trace)
    place = parse_frame(name, folders)
    if is_known(place):
        return place
    if not len(trace.python.start):
        return NO_STACKS
    tracks, times = _find_events(trace, name)
    if not len(times):
        return NOT_THERE
    for track, time in zip(tracks.tolist(), times.tolist(), strict=True):
        frame = _innermost(trace, track, time)
        if frame:
            return parse_frame(frame, folders)
    return NO_FRAME


def _find_events(trace: Trace, name: str) -> tuple[Ints, Ints]:
    """Return thread and time of the longest events of a name, on threads with Python functions first."""
    numbers = [number for number, one in enumerate(trace.names) if clean_name(one, 600)[:400] == name[:400]]
    host = trace.host
    rows = np.flatnonzero(np.isin(host.name, numbers) & (host.category != Category.GPU_ANNOTATION))
    tracks, times, lengths = host.track[rows], host.start[rows], host.duration[rows]
    if not len(rows):
        calls = match_calls(trace)
        work = np.flatnonzero(np.isin(trace.work.name, numbers) & (calls >= 0))
        launch = calls[work]
        tracks, times, lengths = (
            trace.calls.track[launch],
            trace.calls.start[launch],
            trace.work.duration[work],
        )
    has_python = np.isin(tracks, distinct(trace.python.track))
    order = np.lexsort((-lengths, ~has_python))[:_MOST_TRIED]
    return tracks[order].astype(np.int64), times[order]


def _innermost(trace: Trace, track: int, time: int) -> str:
    """Return the innermost function of the user's around a time, else of a library; "" for none."""
    python = trace.python
    until = int(np.searchsorted(python.start, time, side="right"))
    around = np.flatnonzero(
        (python.start[:until] + python.duration[:until] > time) & (python.track[:until] == track)
    )
    names = [trace.names[python.name[row]] for row in reversed(around.tolist())]
    return min((name for name in names if _FRAME.match(name)), key=rank_frame, default="")
