"""Write hot functions as text: who was sampled, what they did, the functions, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump_errors import Means
from tpmon.model.sample import HotFunction, HotGroup, HotSample, pick_functions
from tpmon.model.sample_words import (
    count_without_turn,
    name_function,
    name_group,
    say_cost,
    say_ended,
    say_group,
    say_lost,
    say_phases,
    say_what,
)
from tpmon.model.units import clean_text
from tpmon.report.dump_errors import write_errors
from tpmon.report.table import WIDTH, count_of, cut, lay_columns, lay_paragraph

MOST_FUNCTIONS = 12
MOST_OTHERS = 4
"""Functions of threads that are no main thread, which mostly wait."""
WAITING_PCT = 95.0
"""Other threads that wait so much of the time are one line."""
AGAIN = Means("again: tpmon sample {pid}")
_LINE_CHARS = 400
_HEADERS = ("self %", "total %", "waits %", "samples", "code", "function")
_YOURS = "yours"


def write_sample(hot: HotSample, most: int = MOST_FUNCTIONS) -> list[str]:
    """Write every part of the job with its ``most`` functions, main threads first, then what was lost."""
    lines = lay_paragraph("sample", say_what(hot))
    for group in hot.groups:
        lines += ["", *_write_group(group, most if group.main else min(most, MOST_OTHERS))]
    lines += ["", *_write_end(hot)]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _write_group(group: HotGroup, most: int) -> list[str]:
    lines = [cut(say_group(group), WIDTH)]
    if not group.main and group.waiting_pct >= WAITING_PCT:
        return [cut(f"{lines[0]}, {group.waiting_pct:.0f} % in frames that wait", WIDTH)]
    phases = say_phases(group)
    if phases:
        lines.append(cut(f"  {phases}", WIDTH))
    shown = pick_functions(group.functions, most)
    if shown:
        lines += lay_columns(_HEADERS, map(_row, shown), left=("code", "function"))
    hidden = len(group.functions) + group.more_functions - len(shown)
    if hidden:
        lines.append(f"         {count_of(hidden, 'more function')}")
    return lines


def _row(function: HotFunction) -> Sequence[str]:
    return (
        f"{function.self_pct:.1f}",
        f"{function.total_pct:.1f}",
        f"{function.waiting_pct:.1f}",
        str(function.total_samples),
        cut(function.package or _YOURS, 16),
        name_function(function),
    )


def _write_end(hot: HotSample) -> list[str]:
    """Write what is not in the picture, and what making it cost."""
    lines = []
    lines += write_errors(hot.errors, AGAIN)
    waiting = count_without_turn(hot)
    if waiting:
        lines += lay_paragraph(
            "no turn", f"{waiting} more: the time was over before; more --seconds reach them"
        )
    if hot.ended_processes:
        lines += lay_paragraph("ended", say_ended(hot))
    lines += lay_paragraph("lost", say_lost(hot))
    return [*lines, *lay_paragraph("cost", say_cost(hot))]


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
