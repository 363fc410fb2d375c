"""Say in words what was sampled, of whom, how well it is known and what was lost. Pure."""

from __future__ import annotations

import math

from tpmon.model.known import is_known, known_or
from tpmon.model.process import Role
from tpmon.model.sample import CountedFunction, HotFunction, HotGroup, HotSample, pick_functions
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.units import count_of, format_clock
from tpmon.view.table import Figures, TableFigure

LEAST_PCT = 1.0
"""A share below this is not worth a word."""
MOST_PHASES = 5
MOST_FUNCTIONS = 12
MOST_OTHERS = 4
"""Functions of threads that are no main thread, which mostly wait."""
WAITING_PCT = 95.0
"""Other threads that wait so much of the time are one line."""
YOURS = "yours"
"""The code that is of no package."""
_COUNTED = {
    CountedFunction.RUNNING: "; counted: samples where it ran",
    CountedFunction.GIL: "; counted: samples where it held the GIL",
}


def say_what(hot: HotSample) -> str:
    """Say who was sampled, how long and how often: "3 processes of train.py for 10.0 s at 20 Hz"."""
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
    """Say who a group is, how often it was seen, and how much CPU its main threads had."""
    words = [f"{name_group(group)}: {count_of(group.looks, 'sample')}{_say_precision(group)}"]
    if group.samples < group.looks:
        words.append(f"{group.samples} counted")
    if is_known(group.cpu_pct):
        words.append(f"on a CPU {group.cpu_pct:.0f} %")
    if is_known(group.delay_pct) and group.delay_pct >= LEAST_PCT:
        # The kernel counts a wait when it ends, also what of it was before the first look.
        most = 100.0 - min(known_or(group.cpu_pct, 0.0), 100.0)
        words.append(f"waiting for one {min(group.delay_pct, most):.0f} %")
    return ", ".join(words)


def _say_precision(group: HotGroup) -> str:
    """Say how well a share of about a half is known from so many looks: 95 of 100 times within that."""
    return f" (+- {100 / math.sqrt(group.looks):.0f} points)" if group.main and group.looks else ""


def say_phases(group: HotGroup) -> str:
    """Say in which phases of the step the ranks were, "" where none is known."""
    phases = [f"{one.phase} {one.pct:.0f} %" for one in group.phases[:MOST_PHASES] if one.pct >= LEAST_PCT]
    return ", ".join(phases)


def say_waiting(group: HotGroup) -> str:
    """Say who waits all the time and is no main thread, "" for others: their functions tell nothing."""
    if group.main or group.waiting_pct < WAITING_PCT:
        return ""
    return f"{say_group(group)}, {group.waiting_pct:.0f} % in frames that wait"


def pick_shown(group: HotGroup, most: int = MOST_FUNCTIONS) -> tuple[tuple[HotFunction, ...], int]:
    """Return the functions of a group that are shown, and how many are not."""
    shown = tuple(pick_functions(group.functions, most if group.main else min(most, MOST_OTHERS)))
    return shown, len(group.functions) + group.more_functions - len(shown)


def name_function(function: HotFunction) -> str:
    """Name a function with its file and the line of it that was seen most often."""
    name = function.function.replace("<locals>.", "")
    place = f" {function.file.rpartition('/')[2]}:{function.line}" if function.file else ""
    return f"{name}{place}"


def say_ended(hot: HotSample) -> str:
    """Say how many of the sampled processes ended meanwhile."""
    if hot.ended_processes >= hot.asked_processes:
        return f"all that was sampled ended after {hot.seconds:.1f} s"
    return f"{hot.ended_processes} of {hot.asked_processes} processes ended meanwhile"


def count_without_turn(hot: HotSample) -> int:
    """Count the processes that had no turn before the time was over."""
    return max(0, hot.asked_processes - hot.sampled_processes - len(hot.errors))


def say_lost(hot: HotSample) -> str:
    """Say how many looks gave no stack, and how late py-spy was."""
    looks = sum(group.looks for group in hot.groups if group.main) + hot.lost_samples
    lost = (
        f"{hot.lost_samples} of {count_of(looks, 'sample')} gave no stack" if hot.lost_samples else "nothing"
    )
    late = f"; py-spy was up to {hot.behind_s:.1f} s late" if hot.behind_s else ""
    return f"{lost}{late}"


def say_cost(hot: HotSample) -> str:
    """Say when and where it was, and what it cost."""
    share = hot.spy_cpu_ms / (10 * hot.seconds) if hot.seconds else 0.0
    when = f"{format_clock(hot.taken)} on {hot.host}"
    return f"{when}, py-spy used {hot.spy_cpu_ms:.0f} ms of CPU, {share:.1f} % of a core, stopped nothing"


def _pct_1(value: float) -> str:
    return f"{value:.1f}"


FUNCTIONS: Figures[HotFunction] = (
    TableFigure("self %", lambda one: one.self_pct, _pct_1, 1, 6),
    TableFigure("total %", lambda one: one.total_pct, _pct_1, 2, 7),
    TableFigure("waits %", lambda one: one.waiting_pct, _pct_1, 5, 7),
    TableFigure("samples", lambda one: one.total_samples, str, 6, 7),
)
"""What is measured of a function; its package and its name stand behind it."""
