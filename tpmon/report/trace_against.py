"""Write what changed between two traces as text: one line that says it, then the parts."""

from __future__ import annotations

from tpmon.model.results.trace_change import Change, TraceComparison
from tpmon.model.units import clean_text
from tpmon.report.text import lay_columns, lay_paragraph
from tpmon.view.trace_words import ms_of_us, name_change

_PARTS = {
    "phase": "of a step",
    "idle": "idle by cause",
    "operator": "operator, host self",
    "kernel": "kernel",
}
_LINE_CHARS = 400


def write_comparison(comparison: TraceComparison, top: int) -> list[str]:
    """Write the verdict, then at most ``top`` operators and kernels, those that changed most first."""
    lines = lay_paragraph("against", f"{comparison.before} -> {comparison.after}")
    lines += lay_paragraph("result", comparison.summary)
    for difference in comparison.differences:
        lines += lay_paragraph("differs", difference)
    for part, name in _PARTS.items():
        rows = [_row(change) for change in comparison.changes if change.part == part][: max(top, 8)]
        if rows:
            headers = ("before ms", "after ms", "change", name)
            lines += ["", *lay_columns(headers, rows, left=(name,))]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _row(change: Change) -> tuple[str, str, str, str]:
    difference = change.after_us - change.before_us
    return (
        ms_of_us(change.before_us),
        ms_of_us(change.after_us),
        f"{difference / 1000:+,.3f}",
        name_change(change),
    )
