"""Mark the steps of a trace that kineto recorded on demand, from one update of the optimizer to the next.

Such a trace has the optimizer's updates and no ``ProfilerStep#``, without which no viewer shows steps. The
events stay as they stand in the file, byte for byte; the marks go before them and say who made them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import threading

import numpy as np

from tpmon.errors import TpmonError
from tpmon.model.frozen import dataclass
from tpmon.trace.classes import STEP, flag, is_optimizer, is_step
from tpmon.trace.read import Trace, read_trace
from tpmon.trace.schema import Category, Id

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEAD_BYTES = 4 << 20
_LEVEL = 5
_MADE_BY = "tpmon: from one update of the optimizer to the next"


@dataclass(frozen=True, slots=True)
class Mark:
    """Hold one step on the clock of the trace, in ns."""

    start: int
    end: int


def find_updates(trace: Trace, most: int) -> tuple[tuple[Id, Id], tuple[Mark, ...]]:
    """Find the thread that updates, and its first ``most`` steps; none where the trace has marks already.

    The first step begins with the recording, which begins with the end of an update.
    """
    host = trace.host
    kinds = host.category != Category.GPU_ANNOTATION
    if not len(host.name) or (flag(trace.names, is_step)[host.name] & kinds).any():
        return (0, 0), ()
    rows = np.flatnonzero(flag(trace.names, is_optimizer)[host.name] & kinds)
    if not len(rows):
        return (0, 0), ()
    tracks, counts = np.unique(host.track[rows], return_counts=True)
    track = tracks[counts.argmax()]
    rows = rows[host.track[rows] == track][:most]
    ends = (host.start[rows] + host.duration[rows]).tolist()
    starts = [int(host.start[host.track == track].min()), *ends[:-1]]
    return trace.tracks[int(track)], tuple(Mark(*pair) for pair in zip(starts, ends, strict=True))


def write_marked(source: str, target: str, most: int) -> int:
    """Write the trace at ``source``, its steps marked, to the new file ``target`` (packed); return how many.

    Raises:
        TpmonError: where ``source`` is no trace.
        OSError: where ``target`` cannot be written.
    """
    thread, marks = find_updates(read_trace(source), most)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with (
        open(source, "rb") as events,
        os.fdopen(descriptor, "wb") as packed,
        gzip.GzipFile(os.path.basename(target), "wb", _LEVEL, packed) as stream,
    ):
        head = events.read(_HEAD_BYTES)
        found = _LIST.search(head)
        if found is None:
            marks = ()
        cut = found.end() if found is not None else 0
        stream.write(head[:cut])
        for number, mark in enumerate(marks):
            stream.write(b"\n" + _write_mark(number, mark, thread) + b",")
        stream.write(head[cut:])
        shutil.copyfileobj(events, stream, 1 << 20)
    return len(marks)


def _write_mark(number: int, mark: Mark, thread: tuple[Id, Id]) -> bytes:
    process, tid = thread
    event = {
        "ph": "X", "cat": "user_annotation", "name": f"{STEP}{number}", "pid": process, "tid": tid,
        "ts": mark.start / 1000, "dur": (mark.end - mark.start) / 1000, "args": {"made by": _MADE_BY},
    }  # fmt: skip
    return json.dumps(event).encode()


def main(source: str, target: str, most: str) -> int:
    """Do so in a process of its own, niced; write the number of marks to standard output."""
    os.nice(10)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        sys.stdout.write(f"{write_marked(source, target, int(most))}\n")
    except (TpmonError, OSError, MemoryError) as error:
        sys.stdout.write(f"{error or type(error).__name__}\n")
        return 1
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock is held at the end of the interpreter
        pass
    os._exit(1)
