"""Describe stacks and what to try: dumps, failures, variables, hot functions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from tpmon.model.dump import DumpError, DumpThread, ErrorKind, ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.doctor import TreeLine
from tpmon.model.results.sample import CountedFunction, HotFunction, HotGroup, HotSample, pick_functions
from tpmon.model.text.dump_words import (
    list_numbers,
    list_state,
    name_processes,
    name_threads,
    say_count,
    say_end,
    say_other,
)
from tpmon.model.units import clean_text, count_of, format_clock
from tpmon.view.layout import Figures, TableFigure

_DOCTORS = (ErrorKind.DENIED, ErrorKind.NO_SPY, ErrorKind.UNKNOWN_PYTHON)
"""These do not pass by themselves."""
_PASSING = (ErrorKind.BUSY, ErrorKind.TRACED)
_SPYS_OWN = (ErrorKind.LATE, ErrorKind.FAILED)
"""These may pass, or py-spy does not work here."""


@dataclass(frozen=True, slots=True)
class Means:
    """Hold how a person tries ``again``, and with a ``stop`` of the process, with "{pid}"; "" for no way."""

    again: str
    stop: str = ""


def group_errors(errors: Iterable[DumpError]) -> list[tuple[DumpError, ...]]:
    """Group processes that could not be read by the reason, in the order of the reasons."""
    of_reason: dict[tuple[ErrorKind, str], list[DumpError]] = {}
    for error in errors:
        of_reason.setdefault((error.kind, error.reason), []).append(error)
    return [tuple(those) for those in of_reason.values()]


def name_failed(errors: Sequence[DumpError]) -> str:
    """Name processes together: "ranks 0-3", "8 workers", "helper 4711"."""
    words = []
    for role in Role:
        those = [error for error in errors if error.role is role]
        ranks = [error.rank for error in those if is_known(error.rank)]
        if role is Role.RANK and len(ranks) == len(those) > 0:
            words.append(f"rank{'s' if len(those) > 1 else ''} {list_numbers(ranks)}")
        elif len(those) == 1:
            words.append(f"{role.value} {those[0].pid}")
        elif those:
            words.append(f"{len(those)} {role.value}s")
    return " and ".join(words)


def suggest(errors: Sequence[DumpError], means: Means) -> str:
    """Write what to do about processes that could not be read for one reason, "" for nothing."""
    kind, pid = errors[0].kind, str(errors[0].pid)
    again, doctor = means.again.replace("{pid}", pid), f"tpmon doctor {pid}"
    if kind in _DOCTORS:
        return f"{doctor} says what to allow or to install"
    if kind in _PASSING:
        return again
    if kind not in _SPYS_OWN:
        return ""
    stop = f"; {means.stop.replace('{pid}', pid)}" if means.stop and kind is ErrorKind.FAILED else ""
    return f"{again}{stop}; if it stays so, {doctor} tries py-spy"


_TEXT_CHARS = 400
"""Of a line: a dump of another host is foreign text."""


def describe_group(group: StackGroup, *, with_host: bool = False) -> tuple[str, str]:
    """Return who is in a group, of main threads also what they do; then state, wait, motion and CPU."""
    if group.threads[0].kind is ThreadKind.MAIN:
        who = name_processes(group.threads, with_host=with_host)
        said = f"{say_count(group)}{who}: {group.doing}", ", ".join(list_state(group))
    else:
        said = name_threads(group, with_host=with_host), say_other(group)
    return clean_text(said[0], _TEXT_CHARS), clean_text(said[1], _TEXT_CHARS)


@dataclass(frozen=True, slots=True)
class StackLine:
    """Hold one line of a stack, "- " before that of a library, and the variables ``below`` it."""

    shown: ShownFrame
    text: str
    below: Sequence[str]


def describe_frames(group: StackGroup, frames: Sequence[ShownFrame]) -> list[StackLine]:
    """Return the lines of the stack of a group, outermost first."""
    variables = _list_locals(group, frames)
    return [
        StackLine(shown, _write_line(shown), variables.get(place, ())) for place, shown in enumerate(frames)
    ]


def _write_line(shown: ShownFrame) -> str:
    return clean_text(f"{'' if shown.is_users else '- '}{shown.text}", _TEXT_CHARS)


@dataclass(frozen=True, slots=True)
class Branch:
    """Hold one line of merged stacks: text, who ends there, and the ``count`` of threads where it changes."""

    line: TreeLine
    count: str
    text: str
    ends: Sequence[str]


def describe_tree(
    tree: Iterable[TreeLine], *, with_host: bool = False, closed: Collection[int] = ()
) -> Iterator[Branch]:
    """Yield the lines of merged stacks; those whose marks are ``closed`` have no ends."""
    threads: dict[int, int] = {}
    for line in tree:
        threads[line.mark] = line.threads
        is_closed = line.mark in closed
        told = "" if threads.get(line.parent) == line.threads and not is_closed else f"{line.threads}x "
        text = _write_line(line.shown) if is_known(line.shown) else line.ends[0].doing
        ends = () if is_closed else line.ends
        said = [clean_text(f"= {say_end(group, with_host=with_host)}", _TEXT_CHARS) for group in ends]
        yield Branch(line, told, clean_text(text, _TEXT_CHARS), said)


MOST_VARIABLES = 12
"""Of one frame; JSON has more."""
MOST_VALUES = 3


def _list_locals(group: StackGroup, frames: Sequence[ShownFrame]) -> dict[int, list[str]]:
    """Return the variables below each shown frame, by its place in ``frames``."""
    if not is_known(group.frames):
        return {}
    lines: dict[int, list[str]] = {}
    place = len(group.frames)
    # From the innermost outwards: the outermost may be left out, and a recursion repeats lines.
    for shown in range(len(frames) - 1, -1, -1):
        if not frames[shown].is_users:
            continue
        place = next(
            (index for index in range(place - 1, -1, -1) if group.frames[index] == frames[shown].frame), -1
        )
        if place < 0:
            break
        if found := _write_frame(group.threads, place):
            lines[shown] = found
    return lines


def _write_frame(threads: Sequence[DumpThread], place: int) -> list[str]:
    values: dict[str, dict[str, list[DumpThread]]] = {}
    for thread in threads:
        for one in thread.locals if is_known(thread.locals) else ():
            if one.frame == place:
                for variable in one.variables:
                    values.setdefault(variable.name, {}).setdefault(variable.value, []).append(thread)
    lines = [f"{name} = {_say_values(by_value)}" for name, by_value in list(values.items())[:MOST_VARIABLES]]
    rest = len(values) - MOST_VARIABLES
    lines += [f"... {rest} more"] if rest > 0 else []
    return [clean_text(line, _TEXT_CHARS) for line in lines]


def _say_values(by_value: dict[str, list[DumpThread]]) -> str:
    if len(by_value) == 1:
        return next(iter(by_value))
    commonest = sorted(by_value.items(), key=lambda entry: -len(entry[1]))
    words = [f"{value} ({name_processes(those)})" for value, those in commonest[:MOST_VALUES]]
    rest = len(by_value) - MOST_VALUES
    return ", ".join([*words, f"{rest} more {'value' if rest == 1 else 'values'}"] if rest > 0 else words)


LEAST_PCT = 1.0
"""A smaller share is left out."""
MOST_PHASES = 5
MOST_FUNCTIONS = 12
MOST_OTHERS = 4
"""Functions of other than main threads, which mostly wait."""
WAITING_PCT = 95.0
"""Other threads that wait so much of the time get one line."""
YOURS = "yours"
"""Code of no package."""
_COUNTED = {
    CountedFunction.RUNNING: "; counted: samples where it ran",
    CountedFunction.GIL: "; counted: samples where it held the GIL",
}


def say_what(hot: HotSample) -> str:
    """Write who was sampled, how long and how often: "3 processes of train.py for 10.0 s at 20 Hz"."""
    short = hot.seconds < hot.asked_seconds - 1
    span = f"{hot.seconds:.1f} of {hot.asked_seconds:g} s" if short else f"{hot.seconds:.1f} s"
    several = hot.asked_processes != hot.sampled_processes
    sampled = f"{hot.sampled_processes} of {count_of(hot.asked_processes, 'process', 'processes')}"
    whom = sampled if several else count_of(hot.sampled_processes, "process", "processes")
    return f"{whom} of {hot.script} for {span} at {hot.rate_hz} Hz{_COUNTED.get(hot.counted, '')}"


def name_group(group: HotGroup) -> str:
    """Name a part of the job: "rank 0", "other threads of ranks 0-3", "2 loader workers of rank 0"."""
    ranks = f"rank{'s' if len(group.ranks) > 1 else ''} {list_numbers(group.ranks)}" if group.ranks else ""
    if group.role is Role.RANK:
        name = ranks or count_of(group.processes, "rank")
    else:
        noun = "loader worker" if group.role is Role.WORKER else group.role.value
        name = count_of(group.processes, noun) + (f" of {ranks}" if ranks else "")
    return name if group.main else f"other threads of {name}"


def say_group(group: HotGroup) -> str:
    """Write who a group is, how often it was sampled, and how much CPU its main threads had."""
    words = [f"{name_group(group)}: {count_of(group.looks, 'sample')}{_say_precision(group)}"]
    if group.samples < group.looks:
        words.append(f"{group.samples} counted")
    if is_known(group.cpu_pct):
        words.append(f"on a CPU {group.cpu_pct:.0f} %")
    if is_known(group.delay_pct) and group.delay_pct >= LEAST_PCT:
        # The kernel counts a wait when it ends, with its part before the first sample.
        most = 100.0 - min(known_or(group.cpu_pct, 0.0), 100.0)
        words.append(f"waiting for one {min(group.delay_pct, most):.0f} %")
    return ", ".join(words)


def _say_precision(group: HotGroup) -> str:
    """Write the 95 % margin of a share of about a half, by the number of samples."""
    return f" (+- {100 / math.sqrt(group.looks):.0f} points)" if group.main and group.looks else ""


def say_phases(group: HotGroup) -> str:
    """Write in which phases of the step the ranks were, "" where none is known."""
    phases = [f"{one.phase} {one.pct:.0f} %" for one in group.phases[:MOST_PHASES] if one.pct >= LEAST_PCT]
    return ", ".join(phases)


def say_waiting(group: HotGroup) -> str:
    """Write one line for other than main threads that always wait, whose functions tell nothing; else ""."""
    if group.main or group.waiting_pct < WAITING_PCT:
        return ""
    return f"{say_group(group)}, {group.waiting_pct:.0f} % in frames that wait"


def pick_shown(group: HotGroup, most: int = MOST_FUNCTIONS) -> tuple[tuple[HotFunction, ...], int]:
    """Return the functions of a group to show, and how many are not shown."""
    shown = tuple(pick_functions(group.functions, most if group.main else min(most, MOST_OTHERS)))
    return shown, len(group.functions) + group.more_functions - len(shown)


def name_function(function: HotFunction) -> str:
    """Name a function with its file and its most frequent line."""
    name = function.function.replace("<locals>.", "")
    place = f" {function.file.rpartition('/')[2]}:{function.line}" if function.file else ""
    return f"{name}{place}"


def say_ended(hot: HotSample) -> str:
    """Write how many of the sampled processes ended meanwhile."""
    if hot.ended_processes >= hot.asked_processes:
        return f"all that was sampled ended after {hot.seconds:.1f} s"
    return f"{hot.ended_processes} of {hot.asked_processes} processes ended meanwhile"


def count_without_turn(hot: HotSample) -> int:
    """Count the processes that had no turn before the time was over."""
    return max(0, hot.asked_processes - hot.sampled_processes - len(hot.errors))


def say_lost(hot: HotSample) -> str:
    """Write how many samples gave no stack, and how late py-spy was."""
    looks = sum(group.looks for group in hot.groups if group.main) + hot.lost_samples
    lost = (
        f"{hot.lost_samples} of {count_of(looks, 'sample')} gave no stack" if hot.lost_samples else "nothing"
    )
    late = f"; py-spy was up to {hot.behind_s:.1f} s late" if hot.behind_s else ""
    return f"{lost}{late}"


def say_cost(hot: HotSample) -> str:
    """Write when and where it was, and what it cost."""
    share = hot.spy_cpu_ms / (10 * hot.seconds) if hot.seconds else 0.0
    when = f"{format_clock(hot.taken)} on {hot.host}"
    return f"{when}, py-spy used {hot.spy_cpu_ms:.0f} ms of CPU, {share:.1f} % of a core, stopped nothing"


_pct_1 = "{:.1f}".format
FUNCTIONS: Figures[HotFunction] = (
    TableFigure("self %", lambda one: one.self_pct, _pct_1, 1, 6),
    TableFigure("total %", lambda one: one.total_pct, _pct_1, 2, 7),
    TableFigure("waits %", lambda one: one.waiting_pct, _pct_1, 5, 7),
    TableFigure("samples", lambda one: one.total_samples, str, 6, 7),
    TableFigure("code", lambda one: clean_text(one.package or YOURS), keep=4, width=10, left=True),
    TableFigure("function", lambda one: clean_text(name_function(one), 400), width=16, left=True, grows=True),
)
