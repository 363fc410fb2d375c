"""Write hot functions as text: who was sampled, what they did, the functions, and what was lost."""

from __future__ import annotations

from tpmon.model.sample import HotFunction, HotGroup, HotSample
from tpmon.model.units import clean_text, count_of
from tpmon.report.dump_errors import write_errors
from tpmon.report.text import WIDTH, cut, lay_figures, lay_paragraph
from tpmon.view.dump import Means
from tpmon.view.sample import (
    FUNCTIONS,
    MOST_FUNCTIONS,
    YOURS,
    count_without_turn,
    name_function,
    name_group,
    pick_shown,
    say_cost,
    say_ended,
    say_group,
    say_lost,
    say_phases,
    say_waiting,
    say_what,
)
from tpmon.view.table import Figure, Figures

AGAIN = Means("again: tpmon sample {pid}")
_LINE_CHARS = 400
_FIGURES: Figures[HotFunction] = (
    *FUNCTIONS,
    Figure("code", lambda one: cut(one.package or YOURS, 16), left=True),
    Figure("function", name_function, left=True),
)


def write_sample(hot: HotSample, most: int = MOST_FUNCTIONS) -> list[str]:
    """Write every part of the job with its ``most`` functions, main threads first, then what was lost."""
    lines = lay_paragraph("sample", say_what(hot))
    for group in hot.groups:
        lines += ["", *_write_group(group, most)]
    lines += ["", *_write_end(hot)]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _write_group(group: HotGroup, most: int) -> list[str]:
    if waiting := say_waiting(group):
        return [cut(waiting, WIDTH)]
    lines = [cut(say_group(group), WIDTH)]
    if phases := say_phases(group):
        lines.append(cut(f"  {phases}", WIDTH))
    shown, hidden = pick_shown(group, most)
    lines += lay_figures(_FIGURES, shown)
    if hidden:
        lines.append(f"         {count_of(hidden, 'more function')}")
    return lines


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
