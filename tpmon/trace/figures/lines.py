"""Which line of Python an operator, a kernel or a frame of a trace belongs to.

By time: the innermost Python function of the trace around the longest event of that name. A trace
holds Python functions only where it was recorded with stacks.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.timeline import CodePlace
from tpmon.trace.conditions import read_told
from tpmon.trace.figures.steps import match_calls
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

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
