"""Write what a job recorded of its collectives: what does not end, and how far each rank is."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.collectives import CollectiveCall, Collectives, GroupRecord, RankRecord
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.units import count_of, format_clock
from tpmon.report.text import WIDTH, cut, lay_paragraph

LABEL = "calls"
MOST_FINDINGS = 4
MOST_ROWS = 12
_MOST_DIMENSIONS = 6


def write_collectives(one: Collectives) -> list[str]:
    """Write the summary, other open collectives, how far each rank is, and where that was read."""
    lines = lay_paragraph(LABEL, one.summary)
    for finding in one.findings[1:MOST_FINDINGS]:
        lines += lay_paragraph("", finding.summary)
    if len(one.findings) > MOST_FINDINGS:
        more = len(one.findings) - MOST_FINDINGS
        lines += lay_paragraph("", f"{more} more {'group waits' if more == 1 else 'groups wait'}")
    lines += _write_rows(one.records, {finding.group for finding in one.findings})
    return [*lines, *_write_sources(one)]


def _write_rows(records: Sequence[RankRecord], open_: set[str]) -> list[str]:
    """Write a line for ranks that are equally far in a group, the groups that wait alone where some do."""
    rows: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for group in record.groups:
            name = group.description or group.name
            if (not open_ or name in open_) and is_known(record.rank):
                rows.setdefault((name, _say_far(group)), []).append(record.rank)
    lines = [
        cut(f"  {name}: rank{'s' if len(ranks) > 1 else ''} {list_numbers(ranks)} {far}", WIDTH)
        for (name, far), ranks in rows.items()
    ]
    if len(lines) > MOST_ROWS:
        lines = [*lines[:MOST_ROWS], f"  {len(lines) - MOST_ROWS} more in the JSON"]
    return lines


def _say_far(group: GroupRecord) -> str:
    done = f"done up to {_name_call(group, group.last_done)}" if group.last_done else "done none"
    if group.last_called <= group.last_done:
        return f"{done}, called no more"
    ahead = group.last_called - group.last_done - 1
    more = f", {count_of(ahead, 'call')} ahead" if ahead else ""
    return f"{done}, in {_name_call(group, group.last_done + 1)}{more}"


def _name_call(group: GroupRecord, number: int) -> str:
    for call in group.calls:
        if call.sequence == number and not call.is_transfer:
            return f"{number} {call.name}{_say_shape(call)}"
    return str(number)


def _say_shape(call: CollectiveCall) -> str:
    sizes = "+".join("x".join(map(str, size[:_MOST_DIMENSIONS])) or "1" for size in call.input_sizes[:2])
    more = "+..." if len(call.input_sizes) > 2 else ""
    types = ",".join(dict.fromkeys(call.input_types))
    line = f" {call.line.file.rpartition('/')[2]}:{call.line.line}" if is_known(call.line) else ""
    return f" ({sizes}{more} {types}){line}" if sizes else line


def _write_sources(one: Collectives) -> list[str]:
    """Write where records were read; where there are none, why each source gave none."""
    if one.records:
        counts: dict[str, list[RankRecord]] = {}
        for record in one.records:
            counts.setdefault(record.source.value, []).append(record)
        said = [
            f"{source} ({count_of(len(those), 'rank')}, {format_clock(max(each.taken for each in those))})"
            for source, those in counts.items()
        ]
        said += ["NCCL RAS"] if one.ras else []
        return lay_paragraph("", f"from {', '.join(said)}")
    if one.ras:
        return lay_paragraph("", "from NCCL RAS")
    reasons = dict.fromkeys(f"{note.source.value}: {note.reason}" for note in one.notes if note.reason)
    return lay_paragraph("", "; ".join(reasons)) if reasons else []
