"""Write hot functions as text: who was sampled, what they did, the functions, and what was lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpmon.model.dump_words import list_numbers
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.model.sample import Counted, HotFunction, HotGroup, HotSample, pick_functions
from tpmon.model.units import clean_text, format_clock
from tpmon.report.table import WIDTH, count_of, cut, lay_columns, lay_paragraph

MOST_FUNCTIONS = 12
MOST_OTHERS = 4
"""Functions of threads that are no main thread, which mostly wait."""
WAITING_PCT = 95.0
"""Other threads that wait so much of the time are one line."""
MOST_PHASES = 5
MOST_ERRORS = 6
_LEAST_PCT = 1.0
_LINE_CHARS = 400
_HEADERS = ("self %", "total %", "waits %", "samples", "code", "function")
_COUNTED = {
    Counted.RUNNING: "; counted: samples where it ran",
    Counted.GIL: "; counted: samples where it held the GIL",
}
_YOURS = "yours"


def write_sample(hot: HotSample, most: int = MOST_FUNCTIONS) -> list[str]:
    """Write every part of the job with its ``most`` functions, main threads first, then what was lost."""
    lines = lay_paragraph("sample", _say_what(hot))
    for group in hot.groups:
        lines += ["", *_write_group(group, most if group.main else min(most, MOST_OTHERS))]
    lines += ["", *_write_end(hot)]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _say_what(hot: HotSample) -> str:
    short = hot.seconds < hot.asked_seconds - 1
    span = f"{hot.seconds:.1f} of {hot.asked_seconds:g} s" if short else f"{hot.seconds:.1f} s"
    several = hot.asked_processes != hot.sampled_processes
    whom = f"{hot.sampled_processes} of {hot.asked_processes} processes" if several else _processes(hot)
    return f"{whom} of {hot.script} for {span} at {hot.rate_hz} Hz{_COUNTED.get(hot.counted, '')}"


def _processes(hot: HotSample) -> str:
    return f"{hot.sampled_processes} process{'' if hot.sampled_processes == 1 else 'es'}"


def name_group(group: HotGroup) -> str:
    """Name a part of the job: "rank 0", "other threads of ranks 0-3", "2 loader workers of rank 0"."""
    ranks = f"rank{'s' if len(group.ranks) > 1 else ''} {list_numbers(group.ranks)}" if group.ranks else ""
    if group.role is Role.RANK:
        name = ranks or f"{group.processes} process{'' if group.processes == 1 else 'es'}"
    else:
        noun = "loader worker" if group.role is Role.WORKER else group.role.value
        name = count_of(group.processes, noun) + (f" of {ranks}" if ranks else "")
    return name if group.main else f"other threads of {name}"


def _write_group(group: HotGroup, most: int) -> list[str]:
    words = [f"{name_group(group)}: {count_of(group.looks, 'look')}{_say_error(group)}"]
    if group.samples < group.looks:
        words.append(f"{group.samples} counted")
    if is_known(group.cpu_pct):
        words.append(f"on a CPU {group.cpu_pct:.0f} %")
    if is_known(group.delay_pct) and group.delay_pct >= _LEAST_PCT:
        words.append(f"waiting for one {group.delay_pct:.0f} %")
    lines = [cut(", ".join(words), WIDTH)]
    if not group.main and group.waiting_pct >= WAITING_PCT:
        return [cut(f"{lines[0]}, {group.waiting_pct:.0f} % in frames that wait", WIDTH)]
    phases = [f"{one.phase} {one.pct:.0f} %" for one in group.phases[:MOST_PHASES] if one.pct >= _LEAST_PCT]
    if phases:
        lines.append(cut(f"  {', '.join(phases)}", WIDTH))
    shown = pick_functions(group.functions, most)
    if shown:
        lines += lay_columns(_HEADERS, map(_row, shown), left=("code", "function"))
    hidden = len(group.functions) + group.more_functions - len(shown)
    if hidden:
        lines.append(f"         {count_of(hidden, 'more function')}")
    return lines


def _say_error(group: HotGroup) -> str:
    """Say how well a share of about a half is known from so many looks: 95 of 100 times within that."""
    return f" (+- {100 / math.sqrt(group.looks):.0f} points)" if group.main and group.looks else ""


def _row(function: HotFunction) -> Sequence[str]:
    name = function.function.replace("<locals>.", "")
    place = f" {function.file.rpartition('/')[2]}:{function.line}" if function.file else ""
    return (
        f"{function.self_pct:.1f}",
        f"{function.total_pct:.1f}",
        f"{function.waiting_pct:.1f}",
        str(function.total_samples),
        cut(function.package or _YOURS, 16),
        f"{name}{place}",
    )


def _write_end(hot: HotSample) -> list[str]:
    """Write what is not in the picture, and what making it cost."""
    lines = []
    for error in hot.errors[:MOST_ERRORS]:
        rank = f" (rank {error.rank})" if is_known(error.rank) else ""
        lines += lay_paragraph("not read", f"{error.role.value} {error.pid}{rank}: {error.reason}")
    if len(hot.errors) > MOST_ERRORS:
        lines += lay_paragraph("not read", f"{len(hot.errors) - MOST_ERRORS} more processes")
    waiting = hot.asked_processes - hot.sampled_processes - len(hot.errors)
    if waiting > 0:
        lines += lay_paragraph(
            "no turn", f"{waiting} more: the time was over before; more --seconds reach them"
        )
    if hot.ended_processes:
        lines += lay_paragraph("ended", _say_ended(hot))
    lines += lay_paragraph("lost", say_lost(hot))
    when = f"{format_clock(hot.taken)} on {hot.host}"
    used = f"py-spy used {hot.spy_cpu_ms:.0f} ms of CPU, {_share(hot):.1f} % of a core, stopped nothing"
    return [*lines, *lay_paragraph("cost", f"{when}, {used}")]


def _share(hot: HotSample) -> float:
    return hot.spy_cpu_ms / (10 * hot.seconds) if hot.seconds else 0.0


def _say_ended(hot: HotSample) -> str:
    if hot.ended_processes >= hot.asked_processes:
        return f"all that was sampled ended after {hot.seconds:.1f} s"
    return f"{hot.ended_processes} of {hot.asked_processes} processes ended meanwhile"


def say_lost(hot: HotSample) -> str:
    """Say how many looks gave no stack, and how late py-spy was."""
    looks = sum(group.looks for group in hot.groups if group.main) + hot.lost_samples
    lost = f"{hot.lost_samples} of {count_of(looks, 'look')} gave no stack" if hot.lost_samples else "nothing"
    late = f"; py-spy was up to {hot.behind_s:.1f} s late" if hot.behind_s else ""
    return f"{lost}{late}"


def write_progress(hot: HotSample) -> str:
    """Write one line while sampling goes on: the time, and of each part of the job its hottest function."""
    parts = []
    for group in hot.groups:
        if group.main and group.functions:
            first = group.functions[0]
            where = f"{first.function} {first.file.rpartition('/')[2]}:{first.line}"
            parts.append(f"{name_group(group)}: {where} {first.self_pct:.0f} %")
    what = "; ".join(parts) or "nothing yet"
    return clean_text(f"{hot.seconds:.0f} of {hot.asked_seconds:g} s: {what}", _LINE_CHARS)
