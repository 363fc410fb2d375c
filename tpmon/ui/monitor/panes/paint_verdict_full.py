"""Paint the verdict when it has the screen to itself: all evidence, and the verdicts before it."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.frame import EventKind, Frame
from tpmon.model.known import is_known
from tpmon.model.text.verdict_words import list_also, say_ceiling, say_share, say_since_in_full, say_value
from tpmon.model.verdict import Finding
from tpmon.ui.kit.cells import CUT_MARK, cut, fit_line, width_of, wrap_all, wrap_indented
from tpmon.ui.monitor.moments import say_moment
from tpmon.ui.monitor.panes.evidence import fit_widths, say_age, write_reading
from tpmon.ui.monitor.panes.verdict import TRY, flow, list_head, paint_try
from tpmon.ui.monitor.state import Ink, Line, ViewState


def paint_verdict_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint everything that the verdict rests on, the notes, the facts, and the verdicts before it."""
    frame = view.frame
    if not is_known(frame):
        return []
    finding = frame.verdict
    room = max(8, width - 4)
    if not is_known(finding):
        lines: list[Line] = [((cut(f" no verdict: {finding.reason}", width), Ink.STRONG),)]
    else:
        lines = _paint_whole_head(frame, finding, width)
        lines += paint_try(finding, width)
        if not is_known(finding.ceiling):
            pieces = wrap_all(say_ceiling(finding), max(8, width - 2 - len(TRY)))
            lines += [((f" {' ' * len(TRY)}{piece}", Ink.DIM),) for piece in pieces]
        lines += _paint_whole_rows(view, finding, width)
        lines += _paint_also(finding, room)
        for heading, texts in (("ruled out", finding.ruled_out), ("unknown", finding.unknown)):
            lines += _paint_section(heading, texts or ("nothing",), room)
    lines += _paint_section("notes", frame.notes, room)
    lines += _paint_section("facts", (frame.facts,), room)
    told = [f"{say_moment(view, e.time)} {e.text}" for e in view.events if e.kind is EventKind.VERDICT]
    lines += _paint_section("verdicts so far, newest first", told[::-1], room)
    return [fit_line(line, width) for line in lines]


def _paint_whole_head(frame: Frame, finding: Finding, width: int) -> list[Line]:
    head = list_head(finding, say_since_in_full(finding, frame.taken), say_share(finding))
    lines = flow(head, width, 2)
    return lines + [((f" {text}", Ink.PLAIN),) for text in wrap_all(finding.summary, max(8, width - 2))]


def _paint_whole_rows(view: ViewState, finding: Finding, width: int) -> list[Line]:
    """Paint every reading; a source that does not fit beside it stands in a line below."""
    rows = (*finding.evidence, *finding.against)
    widths = fit_widths(rows, width)
    signs = "+" * len(finding.evidence) + "-" * len(finding.against)
    lines: list[Line] = [((" evidence", Ink.TITLE),)]
    if not rows:
        lines.append((("   none", Ink.PLAIN),))
    for row, sign in zip(rows, signs, strict=True):
        source = f"{row.source}, {say_age(view, row)}"
        head = write_reading(view, row, sign, widths).rstrip()
        if CUT_MARK in head:
            texts = wrap_all(f"{row.name}: {say_value(row)}", max(8, width - 4))
            lines += [((f" {' ' if n else sign} {text}", Ink.PLAIN),) for n, text in enumerate(texts)]
        elif width_of(head) + width_of(source) + 2 < width:
            lines.append(((f"{head}  ", Ink.PLAIN), (source, Ink.DIM)))
            continue
        else:
            lines.append(((head, Ink.PLAIN),))
        lines += [((f"     {text}", Ink.DIM),) for text in wrap_all(source, max(8, width - 6))]
    return lines


def _paint_also(finding: Finding, room: int) -> list[Line]:
    """Paint what else may help; what is pasted stands set in below what it is for."""
    lines: list[Line] = []
    for texts in list_also(finding):
        pieces = [piece for text in texts for piece in wrap_indented(text, room - 1)]
        lines += [((f" {'    ' if n else '  '}{piece}", Ink.PLAIN),) for n, piece in enumerate(pieces)]
    return [((" also try", Ink.TITLE),), *lines] if lines else []


def _paint_section(heading: str, texts: Sequence[str], room: int) -> list[Line]:
    if not texts:
        return []
    lines: list[Line] = [((f" {heading}", Ink.TITLE),)]
    for text in texts:
        lines += [
            ((f" {'  ' if not n else '    '}{piece}", Ink.PLAIN),)
            for n, piece in enumerate(wrap_all(text, room - 1))
        ]
    return lines
