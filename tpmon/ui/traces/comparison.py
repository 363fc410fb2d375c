"""The tab of a comparison: whether the change helped in one line, then what got faster or slower."""

from __future__ import annotations

import os

from tpmon.model.known import is_known
from tpmon.model.results.trace import Change, TraceComparison
from tpmon.model.units import clean_text
from tpmon.ui.kit.cells import Ink
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet
from tpmon.ui.kit.table import Cell, Column, Item
from tpmon.ui.traces.state import TabAnswer
from tpmon.view.trace import NA, ms_of_us, name_change, shorten_kernel

_SHOWN_US = 0.5
"""A change of less is 0.000 ms in the table: neither faster nor slower."""
_TITLES = {
    "phase": "of a step, exclusive",
    "idle": "idle by cause, of a step",
    "operator": "operators, host self of a step",
    "kernel": "kernels of a step",
}


def answer_change(comparison: TraceComparison) -> TabAnswer:
    """Say in one line whether the change helped, with its noise, or why that cannot be said."""
    word, ink = _name_result(comparison)
    items = [Item(0, word, ink)]
    if is_known(comparison.helped):
        items.append(Item(1, f"{comparison.ratio:.2f}x{_say_noise(comparison)}", Ink.STRONG))
    elif comparison.differences:
        items.append(Item(1, clean_text(comparison.differences[0]), Ink.STRONG))
    else:
        items.append(Item(1, comparison.helped.reason, Ink.STRONG))
    steps = f"{comparison.before_ms:,.3f} -> {comparison.after_ms:,.3f} ms"
    if is_known(comparison.helped) and comparison.unchecked:
        names = [name.partition(" (")[0] for name in comparison.unchecked]
        items.append(Item(2, f"if {' and '.join(names)} are the same", Ink.STRONG))
    items.append(Item(3, f"step {steps}", Ink.DIM))
    brief = f"{items[1].text}, {steps}"
    before = clean_text(os.path.basename(comparison.before))
    return TabAnswer(tuple(items), word, ink, (brief, f"against {before}"))


def _name_result(comparison: TraceComparison) -> tuple[str, Ink]:
    if not is_known(comparison.helped):
        return "! NO ANSWER", Ink.WARN
    if comparison.helped:
        return ("IT HELPED?", Ink.STRONG) if comparison.unchecked else ("IT HELPED", Ink.GOOD)
    low, high = comparison.ratio_low, comparison.ratio_high
    if is_known(low) and is_known(high) and low <= 1 <= high:
        return "NO DIFFERENCE", Ink.STRONG
    if comparison.ratio < 1:
        return "! SLOWER", Ink.WARN
    return f"FASTER, SHORT OF {comparison.target:g}x", Ink.STRONG


def _say_noise(comparison: TraceComparison) -> str:
    low, high = comparison.ratio_low, comparison.ratio_high
    return f" (95 %: {low:.2f} to {high:.2f})" if is_known(low) and is_known(high) else ""


def list_changes(comparison: TraceComparison) -> list[Block]:
    """Say whether the change helped, then list phases, causes of idle time, operators and kernels."""
    _word, ink = _name_result(comparison)
    blocks: list[Block] = [Paragraph("result", clean_text(comparison.summary, 1000), ink)]
    blocks += [Paragraph("differs", clean_text(one, 1000), Ink.WARN) for one in comparison.differences]
    if comparison.unchecked and comparison.differences:  # else the summary says it
        blocks.append(Paragraph("note", f"not checked: {', '.join(comparison.unchecked)}"))
    files = f"{clean_text(comparison.before, 1000)} -> {clean_text(comparison.after, 1000)}"
    blocks.append(Paragraph("against", files))
    for part, title in _TITLES.items():
        rows = tuple(change for change in comparison.changes if change.part == part)
        if rows:
            blocks.append(_changes_sheet(part, title, rows))
        elif part == "idle":
            blocks.append(
                Paragraph(NA, "idle time by cause: not both traces have device work and host events")
            )
    return blocks


def _changes_sheet(part: str, title: str, rows: tuple[Change, ...]) -> Sheet[Change]:
    findable = part in ("operator", "kernel")
    return Sheet(
        title,
        (
            Column("before ms", 11, 3, lambda row: ms_of_us(row.before_us)),
            Column("after ms", 11, 2, lambda row: ms_of_us(row.after_us)),
            Column("change ms", 11, 1, _paint_change),
            Column(part, 16, 0, _name_row, right=False, grows=True),
        ),
        rows,
        _say_change,
        (
            ("change ms", lambda row: row.after_us - row.before_us),
            ("before ms", lambda row: row.before_us),
            ("after ms", lambda row: row.after_us),
        ),
        source=(lambda row: row.name) if findable else (lambda _row: ""),
        findable=findable,
    )


def _name_row(row: Change) -> str:
    return shorten_kernel(row.name) if row.part == "kernel" else name_change(row)


def _paint_change(row: Change) -> Cell:
    """Write a change in milliseconds, with the ink of what got faster or slower."""
    change_us = row.after_us - row.before_us
    text = f"{change_us / 1000:+,.3f}"
    if abs(change_us) < _SHOWN_US:
        return text, Ink.DIM
    return text, Ink.WARN if change_us > 0 else Ink.GOOD


def _say_change(row: Change) -> str:
    change_us = row.after_us - row.before_us
    return (
        f"{name_change(row)}: {ms_of_us(row.before_us)} ms before, {ms_of_us(row.after_us)} ms after, "
        f"{change_us / 1000:+,.3f} ms"
    )
