"""What a niced process of its own does with a trace: sum it up in one look, or mark its steps.

Its memory goes with it, and it ends when its standard input does, so that it never outlives tpmon.

kineto records on demand without ``ProfilerStep#``, without which no viewer shows steps. Such a trace has the
optimizer's updates: a step goes from one to the next. The events stay as they stand in the file, byte for
byte; the marks go before them and say who made them.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpmon.errors import TpmonError
from tpmon.model.codec import decode, encode, to_plain
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.trace import STEP_DURING, STEPS_DURING, SummaryReply, TraceSummary
from tpmon.model.results.trace_tables import CountedSteps, MarkedSteps
from tpmon.trace.figures.breakdown import break_down, find_activity
from tpmon.trace.figures.operators import nest_operators, sum_operators
from tpmon.trace.figures.steady import find_steady, leave_odd
from tpmon.trace.figures.steps import UNCOUNTED, find_steps, number_first
from tpmon.trace.reading.columns import Ints, group, percentile
from tpmon.trace.reading.read import Trace, read_rank, read_trace, read_world_size
from tpmon.trace.reading.schema import STEP, Category, Id, is_node_of_backward, is_optimizer, is_step
from tpmon.trace.reading.spans import unite_rows

NICENESS = 10
TOP_OPERATORS = 10
_NO_STEPS = Missing("the trace marks no steps, and nothing repeats")


def main(source: str, *marking: str) -> int:
    """Write the summary of a trace to standard output, or mark its steps and say what came of it.

    A line of JSON has the answer, also why there is no summary; where marking failed a line says why.
    ``marking`` are the further arguments of ``write_marked`` as text, none for a summary.
    """
    os.nice(NICENESS)  # the CPUs are the training's
    gc.disable()  # a trace has no cycles, and this process ends with its answer
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    if marking:
        return _mark(source, *marking)
    try:
        reply = SummaryReply(summarize(source))
    except TpmonError as error:
        reply = SummaryReply(Missing(error.what))
    except ImportError as error:
        reply = SummaryReply(Missing(f"no summary: {error}"))
    except MemoryError:
        reply = SummaryReply(Missing("too little memory to read the trace"))
    sys.stdout.write(encode(reply) + "\n")
    return 0


def _mark(source: str, target: str, most: str, told: str = "", counted: str = "") -> int:
    try:
        loop = decode(CountedSteps, counted) if counted else UNCOUNTED
        sys.stdout.write(encode(write_marked(source, target, int(most), told, loop)) + "\n")
    except (TpmonError, OSError, MemoryError) as error:
        sys.stdout.write(f"{error or type(error).__name__}\n")
        return 1
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock is held at the end of the interpreter
        pass
    os._exit(1)


def summarize(path: str) -> TraceSummary:
    """Read the trace at ``path`` and sum it up; TpmonError where ``read_trace`` raises one."""
    trace = read_trace(path)
    steps = find_steps(trace)
    steady = leave_odd(trace, find_steady(trace, steps))
    kept = steady.steps
    lengths = steady.measure(kept.start, kept.end) / 1e6
    return TraceSummary(
        path=trace.path,
        rank=read_rank(trace),
        world_size=read_world_size(trace),
        events=sum(trace.phases.values()),
        steps=len(steps.names) if steps.marked else 0,
        repeats=len(kept.names) if steady.repeated else 0,
        judged_steps=len(kept.names) if steps.marked else 0,
        left_out_us=(steady.left_ns + steady.apart_ns) / 1000,
        step_ms=float(lengths.mean()) if steady.unit else _NO_STEPS,
        step_p50_ms=percentile(lengths, 50) if steady.unit else _NO_STEPS,
        step_p95_ms=percentile(lengths, 95) if steady.unit else _NO_STEPS,
        split_us=break_down(find_activity(trace), kept, steady.cuts)[0],
        kernels=int(trace.select(Category.KERNEL).sum()),
        operators=sum_operators(trace, nest_operators(trace), TOP_OPERATORS),
        lost=trace.lost,
    )


_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEAD_BYTES = 4 << 20
_LEVEL = 5
_CONDITIONS = "tpmon"
_MADE_BY = "tpmon: from one update of the optimizer to the next"


@dataclass(frozen=True, slots=True)
class Marks:
    """Hold the thread that updates, start and end of each step in ns of the trace; ``why`` there is none."""

    thread: tuple[Id, Id]
    steps: tuple[tuple[int, int], ...]
    why: str = ""


def find_updates(trace: Trace, most: int) -> Marks:
    """Find the thread that updates, and its first ``most`` steps; none where the trace has marks already.

    The first step begins with the recording, which begins with the end of an update. A step ends with one
    update: of several optimizers with that of the last one.
    """
    host = trace.host
    kinds = host.category != Category.GPU_ANNOTATION
    nothing: tuple[Id, Id] = (0, 0)
    if not len(host.name) or (trace.named(host, is_step) & kinds).any():
        return Marks(nothing, (), "it has marks, or no events of the host")
    rows = np.flatnonzero(trace.named(host, is_optimizer) & kinds)
    if not len(rows):
        return Marks(nothing, (), "no update of an optimizer is in it")
    tracks = group(host.track[rows])
    track = tracks.keys[tracks.count.argmax()]
    rows = rows[host.track[rows] == track]
    nodes = np.flatnonzero(trace.named(host, is_node_of_backward) & kinds)
    own = unite_rows(host, nodes[host.track[nodes] == track])
    inside = own.within(host.start[rows], host.start[rows] + 1) > 0
    if 2 * int(inside.sum()) > len(rows):
        return Marks(nothing, (), "the optimizer updates within the backward pass, many times in a step")
    rows = _choose_last(trace, rows, nodes)
    begin = int(host.start[host.track == track].min())
    first = int(host.end[rows[0]])
    if len(rows) > 1 and len(nodes) and int(host.start[nodes].min()) >= first:
        begin, rows = first, rows[1:]  # the recording began between two updates of a step of before
    rows = rows[:most]
    ends = host.end[rows].tolist()
    starts = [begin, *ends[:-1]]
    return Marks(trace.tracks[int(track)], tuple(zip(starts, ends, strict=True)))


def _choose_last(trace: Trace, rows: Ints, nodes: Ints) -> Ints:
    """Return of updates those that end a step: before the next backward pass, and of one name.

    The name is that with the fewest updates, of several such the one with most time after it.
    """
    host = trace.host
    ends = host.end[rows]
    if len(nodes):
        passed = np.searchsorted(host.start[nodes], ends, side="right")
        rows = rows[np.append(passed[1:] > passed[:-1], True)]
        ends = host.end[rows]
    after = host.start[rows][1:] - ends[:-1]
    groups = group(host.name[rows])
    names, counts = groups.keys, groups.count
    often = counts >= min(2, int(counts.max()))  # once beside others that come again: cut off, or rare
    fewest = int(counts[often].min())
    # The window cuts a cycle anywhere: one of its names may be there once more than the others.
    likely = names[often & (counts <= fewest + 1)].tolist()
    rest = {name: after[host.name[rows[:-1]] == name] for name in likely}
    last = max(likely, key=lambda name: float(np.median(rest[name])) if len(rest[name]) else 0.0)
    found: Ints = rows[host.name[rows] == last]
    return found


def write_marked(
    source: str, target: str, most: int, told: str = "", counted: CountedSteps | Missing = UNCOUNTED
) -> MarkedSteps:
    """Write the trace at ``source``, its steps marked, to the file ``target`` (packed).

    ``told`` are its conditions as JSON, which go before the events. Where the loop counted its steps the
    marks have its numbers, else they begin at 0.
    TpmonError where ``source`` is no trace, OSError where ``target`` cannot be written.
    """
    trace = read_trace(source)
    updates = find_updates(trace, most)
    marks, why = updates.steps, updates.why
    first = number_first(marks, trace.header.base_time_ns, counted)
    if told:
        told = json.dumps({**json.loads(told), **_tell_marks(marks, why, first)})
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with (
        open(source, "rb") as events,
        os.fdopen(descriptor, "wb") as packed,
        gzip.GzipFile(os.path.basename(target), "wb", _LEVEL, packed) as stream,
    ):
        head = events.read(_HEAD_BYTES)
        found = _LIST.search(head)
        if found is None:
            marks, why = (), "its list of events was not found"
        begin, cut = found.span() if found is not None else (0, 0)
        stream.write(head[:begin])
        if told and found is not None:
            stream.write(f'"{_CONDITIONS}": {told},\n'.encode())
        stream.write(head[begin:cut])
        for number, mark in enumerate(marks, known_or(first, 0)):
            stream.write(b"\n" + _write_mark(number, mark, updates.thread, opens=mark is marks[0]) + b",")
        stream.write(head[cut:])
        shutil.copyfileobj(events, stream, 1 << 20)
    return MarkedSteps(len(marks), first, why)


def _tell_marks(marks: Sequence[tuple[int, int]], why: str, first: Known[int]) -> dict[str, Any]:
    """Return what the marks of a trace add to its conditions: its first step, and the median of all."""
    told: dict[str, Any] = {"first_step": first} if is_known(first) else {}
    if not marks:
        return {**told, STEP_DURING: to_plain(Missing(why)), STEPS_DURING: 0}
    median_ns = float(np.median([end - start for start, end in marks]))
    return {**told, STEP_DURING: median_ns / 1e6, STEPS_DURING: len(marks)}


def _round(time_ns: int, towards: float) -> float:
    """Return the double of microseconds beside the one that is nearest to a time."""
    return math.nextafter(time_ns / 1000, towards)


def _write_mark(number: int, mark: tuple[int, int], thread: tuple[Id, Id], *, opens: bool) -> bytes:
    process, tid = thread
    # Readers add these as doubles, which at this size are 1 ns apart: a step may not end in the next one, nor
    # before the update that ends it, nor the first begin after its first event. A difference is exact.
    start = _round(mark[0], -math.inf if opens else math.inf)
    end = _round(mark[1], math.inf)
    event = {
        "ph": "X", "cat": "user_annotation", "name": f"{STEP}{number}", "pid": process, "tid": tid,
        "ts": start, "dur": end - start, "args": {"made by": _MADE_BY},
    }  # fmt: skip
    return json.dumps(event).encode()
