"""The program's own parts: modules, ranges, Python functions, and the line of each operator.

A trace holds Python functions only where it was recorded with stacks. A line is the innermost one around the
longest event of a name. A module covers what its forward runs on its thread; work of the backward pass goes
to the one whose operator made the node of autograd, by the sequence number that both have.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.trace_tables import (
    CodePlace,
    FrameRow,
    IdleLine,
    ModuleRow,
    OperatorGroupRow,
    RangeRow,
)
from tpmon.model.text.redaction import hide
from tpmon.trace.compare import read_told
from tpmon.trace.figures.gaps import list_around
from tpmon.trace.figures.operators import Operators, match_nodes, tabulate_groups
from tpmon.trace.own_lines import LineOwner, ProgramCode, find_program, leads_in, rank_lines
from tpmon.trace.reading.columns import NAME_CHARS, Ints, Mask, Small, distinct, group
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category, flag, is_comm_host, is_loader, is_step
from tpmon.trace.reading.spans import Nest, Spans, intersect_total, nest, unite_rows

MOST_FRAMES = 1000
"""Rows of the table of functions."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Hold the Python functions nested by time, and of each the innermost line of the program around it.

    ``line`` is a number of the trace's names, that of the function itself where it is of the program, -1 for
    none.
    """

    nest: Nest
    line: Ints
    program: ProgramCode


def nest_python(trace: Trace) -> Stacks | None:
    """Nest the Python functions of each thread that runs operators, of all where none does; None without any.

    Other threads (a progress bar, a monitor) only wait, and would lead the table.
    """
    python, host = trace.python, trace.host
    if not len(python.start):
        return None
    working = distinct(host.track[host.category == Category.OP])
    wanted = np.flatnonzero(np.isin(python.track, working))
    nested = nest(python, wanted if len(wanted) else np.arange(len(python.start)))
    program = find_program(_find_starts(trace, nested))
    return Stacks(nested, _find_lines(trace, nested, program.is_own), program)


def _find_starts(trace: Trace, nested: Nest) -> list[str]:
    """Return the functions that are outermost, after what runs the program."""
    names = trace.python.name[nested.row]
    leads = flag(trace.names, leads_in)[names]
    outermost = nested.parent < 0
    for inner in nested.each_level():
        above = nested.parent[inner]
        outermost[inner] = outermost[above] & leads[above]
    return [trace.names[at] for at in distinct(names[outermost & ~leads]).tolist()]


def _find_lines(trace: Trace, nested: Nest, test: Callable[[str], bool]) -> Ints:
    """Return of each function the innermost one around it whose name passes a test, -1 for none."""
    names = trace.python.name[nested.row].astype(np.int64)
    line = np.where(flag(trace.names, test)[names], names, -1) if len(names) else names
    for inner in nested.each_level():
        rows = inner[line[inner] < 0]
        line[rows] = line[nested.parent[rows]]
    return line


def group_by_line(
    trace: Trace, ops: Operators, stacks: Stacks | None
) -> Applicable[tuple[OperatorGroupRow, ...]]:
    """Sum the operators by name and the line of the program that called them."""
    if stacks is None:
        return NOT_APPLICABLE
    if not len(ops.row) or not len(stacks.line):
        return ()
    place = stacks.nest.find(trace.host.track[ops.row], ops.start)
    lines = np.where(place >= 0, stacks.line[place], -1)
    return tabulate_groups(trace, ops, lines, trace.names.__getitem__)


MOST_LINES = 3
LEAST_LINE = 0.01
"""Share (0-1) of that time: a line with less is not worth one of these."""
_SAMPLES = 4000
_MOST_BESIDE = 1000
"""Functions of other threads that are looked at."""


def find_idle_lines(trace: Trace, stacks: Stacks, idle: Spans) -> tuple[IdleLine, ...]:
    """Find the lines of the program in which the thread with most Python stands in moments of ``idle``.

    The moments are evenly spaced. The innermost line counts that is of no library, else of none of torch's or
    Python's own.
    """
    if not idle.total or not len(stacks.line):
        return ()
    wanted = (np.arange(_SAMPLES) + 0.5) * (idle.total / _SAMPLES)
    at = np.searchsorted(idle.before, wanted, side="right") - 1
    times = idle.start[at] + (wanted - idle.before[at]).astype(np.int64)
    track = int(np.bincount(trace.python.track[stacks.nest.row]).argmax())
    place = stacks.nest.find(np.full(_SAMPLES, track, dtype=np.int32), times)
    own = _find_lines(trace, stacks.nest, lambda name: stacks.program.owner_of(name) is LineOwner.PROGRAM)
    lines = group(np.where(place >= 0, np.where(own >= 0, own, stacks.line)[place], -1))
    found = []
    for one in np.argsort(-lines.count, kind="stable").tolist():
        share = float(lines.count[one]) / _SAMPLES
        if lines.keys[one] >= 0 and share >= LEAST_LINE:
            name = clean_name(trace.names[lines.keys[one]])
            found.append(IdleLine(name, share * idle.total / 1000, 100 * share))
    return tuple(found[:MOST_LINES])


def find_beside(trace: Trace, program: ProgramCode) -> Applicable[str]:
    """Name the line of the program in which another thread stood as the recording began.

    Of threads that run no operator torch writes no more than these stacks, one behind the other.
    """
    python, host = trace.python, trace.host
    working = distinct(host.track[host.category == Category.OP])
    rows = np.flatnonzero(~np.isin(python.track, working))[: _MOST_BESIDE if len(working) else 0]
    names = [trace.names[number] for number in python.name[rows].tolist()]
    ends = [at for at, name in enumerate(names) if at + 1 == len(names) or ": _bootstrap" in names[at + 1]]
    inner = [names[at] for at in ends if program.owner_of(names[at]) is LineOwner.PROGRAM]
    return clean_name(inner[0]) if inner else NOT_APPLICABLE


def sum_frames(trace: Trace, stacks: Stacks) -> tuple[FrameRow, ...]:
    """Sum the Python functions by name, the largest time of its own first."""
    nested = stacks.nest
    if not len(nested.row):
        return ()
    python = trace.python
    duration = python.duration[nested.row]
    self_ns = np.maximum(duration - nested.child_ns, 0)
    groups = group(python.name[nested.row].astype(np.int64))
    outer = _find_outermost(groups.place, nested.start, nested.end, python.track[nested.row])
    total, own = groups.sum(np.where(outer, duration, 0)) / 1000, groups.sum(self_ns) / 1000
    callers = _find_callers(groups.place, stacks.line, self_ns)
    found = []
    for at in np.argsort(-own, kind="stable").tolist():
        number, line = groups.keys[at], callers[at]
        if not trace.names[number].startswith(MODULE):
            known = line >= 0 and line != number
            caller: Applicable[str] = clean_name(trace.names[line]) if known else NOT_APPLICABLE
            name = clean_name(trace.names[number])
            found.append(FrameRow(name, int(groups.count[at]), total[at], own[at], caller))
    return tuple(found[:MOST_FRAMES])


def _find_outermost(place: Ints, start: Ints, end: Ints, track: Small) -> Mask:
    """Tell which calls do not run inside of another one of the same function: recursion counts once."""
    order = np.lexsort((start, track, place))
    first = int(start.min())
    span = int(end.max()) - first + 1
    begins = (np.diff(place[order]) != 0) | (np.diff(track[order]) != 0)
    group = np.cumsum(np.append(0, begins).astype(np.int64))
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
    pairs = group(place.astype(np.int64) * wide + line + 1)
    ordered = pairs.keys[np.argsort(pairs.sum(self_ns), kind="stable")]
    found = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    found[ordered // wide] = ordered % wide - 1  # the last of equal keys stays: the largest
    return found


_FRAME = re.compile(r"^(?P<file>[^\n]*\.pyx?)\((?P<line>\d{1,9})\): ?(?P<function>.*)$")
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


def read_folders(trace: Trace) -> tuple[str, ...]:
    """Return the working directory and sys.path of the run, as a capture of tpmon wrote them down."""
    told = read_told(trace)
    listed = told.get("sys_path")
    folders = [told.get("folder"), *(listed if isinstance(listed, list) else ())]
    good = [one for one in folders if isinstance(one, str) and one.startswith("/") and "\0" not in one]
    return tuple(one for one in dict.fromkeys(good) if len(one) < _FOLDER_CHARS)[:_MOST_FOLDERS]


def find_line(trace: Trace, name: str) -> Known[CodePlace]:
    """Return the line of Python that calls or launches what has this name, or the function of this name."""
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
        lines = [line for line in rank_lines(list_around(trace, track, time)) if _FRAME.match(line[1])]
        if lines:
            return parse_frame(min(lines, key=lambda line: line[0])[1], folders)
    return NO_FRAME


def _find_events(trace: Trace, name: str) -> tuple[Ints, Ints]:
    """Return thread and time of the longest events of a name, on threads with Python functions first."""
    begin = name.removesuffix("…")  # where a name was cut, all that begin so are meant
    fits = str.__eq__ if begin == name else str.startswith
    numbers = [at for at, one in enumerate(trace.names) if fits(clean_name(one, NAME_CHARS), begin)]
    host = trace.host
    rows = np.flatnonzero(np.isin(host.name, numbers) & (host.category != Category.GPU_ANNOTATION))
    tracks, times, lengths = host.track[rows], host.start[rows], host.duration[rows]
    if not len(rows):
        work = np.flatnonzero(np.isin(trace.work.name, numbers) & (trace.work.call >= 0))
        calls, lengths = trace.work.call[work], trace.work.duration[work]
        tracks, times = trace.calls.track[calls], trace.calls.start[calls]
    has_python = np.isin(tracks, distinct(trace.python.track))
    order = np.lexsort((-lengths, ~has_python))[:_MOST_TRIED]
    return tracks[order].astype(np.int64), times[order]


MODULE = "nn.Module: "


def sum_modules(trace: Trace, ops: Operators) -> tuple[ModuleRow, ...]:
    """Sum the modules by name, the longest first; empty where the trace has none (with_stack=True)."""
    python = trace.python
    modules = nest(python, np.flatnonzero(trace.named(python, lambda name: name.startswith(MODULE))))
    if not len(modules.row):
        return ()
    own = python.duration[modules.row]
    self_ns = np.maximum(own - modules.child_ns, 0)
    has_device = len(trace.work.start) > 0
    forward = _sum_launched(trace, modules)
    backward = _sum_backward(trace, modules, ops)
    groups = group(python.name[modules.row])
    columns = (own, self_ns, modules.add_up(forward), forward, modules.add_up(backward), backward)
    sums = [groups.sum(column) / 1000 for column in columns]
    first = np.full(len(groups.keys), len(groups.place), dtype=np.int64)
    np.minimum.at(first, groups.place, np.arange(len(groups.place)))
    leading = sums[2 if has_device else 0] + sums[4]
    has_backward = bool(backward.any())
    tells = (has_device, has_device, has_backward, has_backward)
    found = []
    for at in np.lexsort((first, -leading)).tolist():
        above = int(modules.parent[first[at]])
        around = python.name[modules.row[above]]
        inside: Applicable[str] = _short(trace.names[around]) if above >= 0 else NOT_APPLICABLE
        pairs = zip(sums[2:], tells, strict=True)
        device = [float(column[at]) if told else NOT_APPLICABLE for column, told in pairs]
        total, alone = float(sums[0][at]), float(sums[1][at])
        name = _short(trace.names[groups.keys[at]])
        found.append(ModuleRow(name, inside, int(groups.count[at]), total, alone, *device))
    return tuple(found)


def _short(name: str) -> str:
    return clean_name(name.removeprefix(MODULE), 200)


def _sum_launched(trace: Trace, nested: Nest) -> Ints:
    """Sum the device work that calls inside of each module or range launched, in nanoseconds."""
    matched = np.flatnonzero(trace.work.call >= 0)
    calls = trace.work.call[matched]
    place = nested.find(trace.calls.track[calls], trace.calls.start[calls])
    found = np.zeros(len(nested.row), dtype=np.int64)
    np.add.at(found, place[place >= 0], trace.work.duration[matched[place >= 0]])
    return found


def _sum_backward(trace: Trace, modules: Nest, ops: Operators) -> Ints:
    """Sum what the backward pass of each module takes: on the device, or on the host without one."""
    found = np.zeros(len(modules.row), dtype=np.int64)
    if not len(ops.row):
        return found
    host, root = trace.host, ops.find_roots()
    nodes, made = match_nodes(trace, ops)
    module_of = np.full(len(ops.row), -1, dtype=np.int64)
    module_of[nodes] = modules.find(host.track[ops.row[made]], ops.start[made])
    if len(trace.work.start):
        rows = np.flatnonzero(ops.launchers >= 0)
        place, length = module_of[root[ops.launchers[rows]]], trace.work.duration[rows]
    else:
        place, length = module_of[nodes], host.duration[ops.row[nodes]]
    inside = place >= 0
    np.add.at(found, place[inside], length[inside])
    return found


MOST_RANGES = 1000
"""Rows of ranges; a program that writes numbers into the names makes one of each call."""


def sum_ranges(trace: Trace) -> tuple[RangeRow, ...]:
    """Sum the ranges by name, the longest on the host first, after them those of a device alone."""
    host = trace.host
    own = _are_of_program(trace)
    rows = np.flatnonzero((host.category == Category.ANNOTATION) & own)
    on_device = np.flatnonzero((host.category == Category.GPU_ANNOTATION) & own)
    if len(on_device):
        # A device repeats the ranges of the host: those that only it has were recorded without the host.
        there = np.zeros(len(trace.names), np.bool_)
        there[host.name[rows]] = True
        on_device = on_device[~there[host.name[on_device]]]
    return (*_sum_host(trace, rows), *_sum_device(trace, on_device))[:MOST_RANGES]


def _are_of_program(trace: Trace) -> Mask:
    """Tell which host events no mark of torch itself has named."""
    return ~trace.named(
        trace.host,
        lambda name: is_step(name) or is_loader(name) or is_comm_host(name) or name.startswith("Optimizer."),
    )


MOST_TRIED = 100
"""Names of ranges that are looked at: some programs name each request."""
MOST_OF_RANGE = 50.0
"""Percent of a time from which on the range that it is in is worth a line; less than that of the rest."""


def find_idle_range(trace: Trace, idle: Spans, window: tuple[int, int]) -> Applicable[IdleLine]:
    """Find the range of the program (record_function) that most of ``idle`` is in, and of the rest is not.

    A range around whole steps holds all of both and tells nothing.
    """
    host = trace.host
    rows = np.flatnonzero((host.category == Category.ANNOTATION) & _are_of_program(trace))
    rest = max(window[1] - window[0] - idle.total, 1)
    found: list[tuple[int, IdleLine]] = []
    groups = group(host.name[rows])
    longest = np.argsort(-groups.sum(host.duration[rows]), kind="stable")[:MOST_TRIED]
    for number in groups.keys[longest].tolist() if idle.total else ():
        spans = unite_rows(host, rows[host.name[rows] == number])
        inside, whole = intersect_total(spans, idle), spans.within_one(*window)
        pct = 100 * inside / idle.total
        if pct >= MOST_OF_RANGE and 100 * (whole - inside) < MOST_OF_RANGE * rest:
            name = clean_name(hide(trace.names[number]))
            found.append((whole, IdleLine(name, inside / 1000, pct)))
    return min(found, key=lambda one: one[0])[1] if found else NOT_APPLICABLE  # the innermost


def _sum_host(trace: Trace, rows: Ints) -> list[RangeRow]:
    host = trace.host
    ranges = nest(host, rows)
    own = host.duration[ranges.row]
    work = ranges.add_up(_sum_launched(trace, ranges))
    has_device = len(trace.work.start) > 0
    groups = group(host.name[ranges.row])
    sums = [groups.sum(column) / 1000 for column in (own, np.maximum(own - ranges.child_ns, 0), work)]
    found = []
    for at in np.argsort(-sums[0], kind="stable").tolist():
        total, alone, device = (float(one[at]) for one in sums)
        name, count = clean_name(hide(trace.names[groups.keys[at]])), int(groups.count[at])
        on_device = device if has_device else NOT_APPLICABLE
        found.append(RangeRow(name, count, total, alone, total / count, on_device))
    return found


def _sum_device(trace: Trace, rows: Ints) -> list[RangeRow]:
    """Sum ranges that the device alone has: from its first work in them to its last."""
    groups = group(trace.host.name[rows])
    sums = groups.sum(trace.host.duration[rows]) / 1000
    found = []
    for at in np.argsort(-sums, kind="stable").tolist():
        name = clean_name(hide(trace.names[groups.keys[at]]))
        none = (NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)
        found.append(RangeRow(name, int(groups.count[at]), *none, float(sums[at])))
    return found
