"""Write as text which processes of a dump or a sample could not be read, why, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump import DumpError
from tpmon.model.known import is_known
from tpmon.model.units import count_of
from tpmon.report.text import lay_paragraph
from tpmon.view.dump import Means, group_errors, name_failed, suggest

MOST_REASONS = 12


def write_errors(errors: Sequence[DumpError], means: Means) -> list[str]:
    """Write a paragraph for each reason with what to try after it; reasons beyond the most are counted."""
    groups = group_errors(errors)
    hosts = {error.host for error in errors}
    lines: list[str] = []
    for those in groups[:MOST_REASONS]:
        where = f" on {', '.join(sorted({one.host for one in those}))}" if len(hosts) > 1 else ""
        lines += lay_paragraph("not read", f"{_name(those)}{where}: {those[0].reason}")
        if tip := suggest(those, means):
            lines += lay_paragraph("try", tip)
    left = sum(map(len, groups[MOST_REASONS:]))
    if left:
        lines += lay_paragraph("not read", count_of(left, "more process", "more processes"))
    return lines


def _name(errors: Sequence[DumpError]) -> str:
    """Name one process with its PID, several together."""
    first, *more = errors
    if more:
        return name_failed(errors)
    rank = f" (rank {first.rank})" if is_known(first.rank) else ""
    return f"{first.role.value} {first.pid}{rank}"
