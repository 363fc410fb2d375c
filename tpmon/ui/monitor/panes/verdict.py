"""Paint the verdict: its badge with what it costs, one sentence, what to do, why, and what else was seen.

The block above the panes fills the lines that it is given, the most needed first; ``v`` shows all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.figures import BAD_SIDES, HISTORIES
from tpmon.model.frame import EventKind, Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.text import job_words
from tpmon.model.units import count_cells, format_seconds
from tpmon.model.verdict import BEFORE_THE_END, END_CAUSES, IN_WORDS, Evidence, Finding
from tpmon.ui.monitor.alerts import age_of, say_moment
from tpmon.ui.monitor.panes.cpu import mean_of, thin
from tpmon.ui.monitor.panes.header import paint_notes
from tpmon.ui.monitor.state import ViewState
from tpmon.view.finding.block import TRY, badge_ink, list_try, paint_finding
from tpmon.view.finding.pieces import NARROW, WIDE, flow, write_label
from tpmon.view.layout import (
    CUT_MARK,
    Ink,
    Line,
    Span,
    cut,
    draw_history,
    fit_line,
    lay_text,
    line_width,
    pad,
    set_in,
    wrap_all,
    wrap_indented,
)

AGE_WIDTH = 6


@dataclass(frozen=True, slots=True)
class Widths:
    """Hold the widths of the columns of evidence; ``history`` 0 leaves that column out."""

    name: int
    value: int
    history: int


def fit_widths(rows: Sequence[Evidence], width: int) -> Widths:
    """Fit the columns to names and values, up to a third of the row each."""
    names = max((count_cells(row.name) for row in rows), default=0)
    values = max((count_cells(job_words.say_value(row)) for row in rows), default=0)
    if width < NARROW:
        room = width - AGE_WIDTH - 7
        value = max(0, min(values, 16, room - 8))
        return Widths(max(8, room - value), value, 0)
    drawn = any(row.name in HISTORIES for row in rows)
    history = 30 if width >= 150 else 20 if width >= WIDE else 12
    return Widths(min(names, max(14, width // 3)), min(values, max(10, width // 3)), history if drawn else 0)


def draw_reading(view: ViewState, row: Evidence, cells: int) -> Line:
    """Draw the history of a reading, red where it was bad; nothing for one without."""
    history = HISTORIES.get(row.name)
    if history is None or not cells:
        return ()
    values = [mean_of([history.series(pulse) for pulse in group]) for group in thin(view.pulses, cells)]
    return draw_history(values, cells, history.top or _top_of(row, values), BAD_SIDES.get(row.name))


def _top_of(row: Evidence, values: Sequence[Known[float]]) -> float:
    known = [value for value in values if is_known(value)]
    if row.unit == "%" and known and is_known(row.value) and row.value > 0:
        return known[-1] * 100 / row.value
    return max(known, default=0.0)


def say_age(view: ViewState, row: Evidence) -> str:
    """Write the age of a reading at painting."""
    return format_seconds(age_of(view, row.age_s)) if is_known(row.age_s) else "age ?"


def cut_value(row: Evidence, widths: Widths) -> str:
    """Write the value of a reading, cut to the room beside its name."""
    return cut(
        job_words.say_value(row), max(widths.value, widths.name + widths.value - count_cells(row.name))
    )


def write_reading(row: Evidence, sign: str, widths: Widths) -> str:
    """Write sign, name and value; a long name may take room of a short value, and vice versa."""
    room = widths.name + widths.value
    value = cut_value(row, widths)
    return f" {sign} {pad(row.name, room - count_cells(value))}  {value}"


def list_head(finding: Finding, since: str, share: str) -> list[Span]:
    """Return the pieces of the first lines: word, cause, confidence, onset, cost."""
    return [
        (job_words.name_kind(finding), badge_ink(finding)),
        (job_words.name_cause(finding), Ink.STRONG),
        (job_words.say_confidence(finding), Ink.PLAIN),
        (since, Ink.PLAIN),
        (share, Ink.PLAIN),
    ]


def paint_verdict(frame: Frame, finding: Finding, width: int, most: int) -> list[Line]:
    """Paint at most ``most`` lines of a verdict, with the notes of its Frame."""
    label = "" if width < NARROW else write_label("ALSO")
    return paint_finding(
        finding,
        frame.taken,
        width,
        most,
        lambda shown: paint_notes(frame, width, shown, label),
        has_whole=True,
    )


def paint_last_verdict(frame: Frame, finding: Finding, width: int) -> Line:
    """Paint the verdict before the job ended in one line."""
    before = next((row.text for row in finding.evidence if row.name == BEFORE_THE_END), "")
    if before:
        said = f"last verdict: {before}"
    elif known_or(finding.cause, "") in END_CAUSES.values():  # the line above says how it ended
        words = (f"{row.name}: {row.text}" for row in finding.evidence if row.value == IN_WORDS)
        said = next(words, finding.summary)
    else:
        since = job_words.say_since(finding, frame.taken)
        pieces = (
            job_words.write_kind(finding),
            job_words.name_cause(finding),
            job_words.say_confidence(finding),
            since,
        )
        said = f"last verdict: {'  '.join(filter(None, pieces))}"
    return fit_line(((f" {said}", Ink.PLAIN),), width)


def paint_try(finding: Finding, width: int) -> list[Line]:
    """Paint what to try, wrapped, and its ceiling."""
    tried = list_try(finding)
    if not tried:
        return []
    ceiling = job_words.say_ceiling(finding) if is_known(finding.ceiling) else ""
    room = max(8, width - 2 - len(TRY))
    texts = [text for line in tried for text in wrap_indented(line, room)]
    lines: list[list[Span]] = [
        [(f" {' ' * len(TRY) if n else TRY}", Ink.TITLE), (text, Ink.STRONG)] for n, text in enumerate(texts)
    ]
    if ceiling and count_cells(texts[-1]) + 3 + count_cells(ceiling) <= room:
        lines[-1].append((f"   {ceiling}", Ink.PLAIN))
    elif ceiling:
        lines += [[(f" {' ' * len(TRY)}{text}", Ink.PLAIN)] for text in wrap_all(ceiling, room)]
    return [tuple(line) for line in lines]


def paint_verdict_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint all evidence of the verdict, the notes, the facts, and earlier verdicts."""
    frame = view.frame
    if not is_known(frame):
        return []
    finding = frame.verdict
    room = max(8, width - 4) - 1
    lines: list[Line]
    if not is_known(finding):
        lines = [((f" no verdict: {finding.reason}", Ink.STRONG),)]
    else:
        since = job_words.say_since_in_full(finding, frame.taken)
        lines = flow(list_head(finding, since, job_words.say_share(finding)), width, 2)
        lines += [*lay_text(finding.summary, width), *paint_try(finding, width)]
        if not is_known(finding.ceiling):
            lines += lay_text(job_words.say_ceiling(finding), width, Ink.DIM, f" {' ' * len(TRY)}")
        lines += _paint_whole_rows(view, finding, width)
        also = (
            [piece for text in one for piece in wrap_indented(text, room)]
            for one in job_words.list_also(finding)
        )
        lines += _paint_section("also try", also)
        for heading, texts in (("ruled out", finding.ruled_out), ("unknown", finding.unknown)):
            lines += _paint_section(heading, (wrap_all(text, room) for text in texts or ("nothing",)))
    told = [f"{say_moment(view, e.time)} {e.text}" for e in view.events if e.kind is EventKind.VERDICT]
    rest = {"notes": frame.notes, "facts": (frame.facts,), "verdicts so far, newest first": told[::-1]}
    for heading, said in rest.items():
        lines += _paint_section(heading, (wrap_all(text, room) for text in said))
    return [fit_line(line, width) for line in lines]


def _paint_whole_rows(view: ViewState, finding: Finding, width: int) -> list[Line]:
    """Paint every reading; a source that does not fit beside it gets a line below."""
    rows = (*finding.evidence, *finding.against)
    widths = fit_widths(rows, width)
    signs = "+" * len(finding.evidence) + "-" * len(finding.against)
    lines: list[Line] = [((" evidence", Ink.TITLE),)]
    if not rows:
        lines.append((("   none", Ink.PLAIN),))
    for row, sign in zip(rows, signs, strict=True):
        source = f"{row.source}, {say_age(view, row)}"
        said = write_reading(row, sign, widths)
        head: Line = ((said, Ink.PLAIN),)
        if drawn := draw_reading(view, row, widths.history):
            head = (*head, ("  ", Ink.PLAIN), *drawn)
        if CUT_MARK in said:
            texts = wrap_all(f"{row.name}: {job_words.say_value(row)}", max(8, width - 4))
            lines += set_in(texts, head=f" {sign} ")
        elif line_width(head) + count_cells(source) + 2 < width:
            lines.append((*head, ("  ", Ink.PLAIN), (source, Ink.DIM)))
            continue
        else:
            lines.append(head)
        lines += lay_text(source, width, Ink.DIM, "     ")
    return lines


def _paint_section(heading: str, texts: Iterable[Sequence[str]]) -> list[Line]:
    """Paint texts below a heading, with wrapped lines indented further; nothing without texts."""
    lines = [line for pieces in texts for line in set_in(pieces, head="   ", hang="     ")]
    return [((f" {heading}", Ink.TITLE),), *lines] if lines else []
