"""Paint the verdict: word, cause, confidence, what to try, evidence, what was ruled out.

The block above the panes fills the lines that it is given, the most needed first; ``v`` shows all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.figures import HISTORIES
from tpmon.model.frame import EventKind, Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.text import job_words
from tpmon.model.units import count_cells, format_seconds
from tpmon.model.verdict import BEFORE_THE_END, END_CAUSES, IN_WORDS, Evidence, Finding, SinceIs, pick_code
from tpmon.ui.kit.ink import DOT
from tpmon.ui.monitor.alerts import age_of, say_moment
from tpmon.ui.monitor.panes.cpu import mean_of, thin
from tpmon.ui.monitor.state import ViewState
from tpmon.view.layout import (
    CUT_MARK,
    Ink,
    Line,
    Size,
    Span,
    cut,
    fit_line,
    lay_text,
    line_width,
    pad,
    pad_line,
    set_in,
    spark,
    wrap,
    wrap_all,
    wrap_indented,
)

NARROW = 60
"""Below this width a row has no history, and of its source only the age."""
WIDE = 100
"""From this width on sources form a column; else they end at the end of the line."""
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


def _draw(view: ViewState, row: Evidence, cells: int) -> str:
    history = HISTORIES.get(row.name)
    if history is None:
        return " " * cells
    values = [mean_of([history.series(pulse) for pulse in group]) for group in thin(view.pulses, cells)]
    return spark(values, cells, history.top or _top_of(row, values))


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


def write_reading(view: ViewState, row: Evidence, sign: str, widths: Widths) -> str:
    """Write sign, name, value and history; a long name may take room of a short value, and vice versa."""
    room = widths.name + widths.value
    value = cut_value(row, widths)
    text = f" {sign} {pad(row.name, room - count_cells(value))}  {value}"
    return f"{text}  {_draw(view, row, widths.history)}" if widths.history else text


def paint_evidence(view: ViewState, row: Evidence, sign: str, widths: Widths, width: int) -> Line:
    """Paint one reading: sign, name, value, history, source and age."""
    head = write_reading(view, row, sign, widths)
    age = say_age(view, row)
    if width < NARROW:
        return fit_line(((f"{head}  ", Ink.PLAIN), (age, Ink.DIM)), width)
    head = head if width >= WIDE else head.rstrip()
    source = cut(row.source, max(0, width - count_cells(head) - len(age) - 5))
    told = f"{source}, {age}"
    gap = 2 if width >= WIDE else max(2, width - 1 - count_cells(head) - count_cells(told))
    return fit_line(((head + " " * gap, Ink.PLAIN), (told, Ink.DIM)), width)


INKS = {0: Ink.GOOD, 10: Ink.WARN, 11: Ink.STRONG, 12: Ink.BAD}
TRY = "Try: "


def kind_ink(finding: Finding) -> Ink:
    """Return the ink of a verdict word by its exit code."""
    return INKS[pick_code(finding.kind, finding.cause)]


def flow(items: Sequence[Span], width: int, gap: int) -> list[Line]:
    """Lay pieces out in lines, breaking between them; a piece wider than a line is broken at spaces."""
    lines: list[list[Span]] = []
    left = 0
    for text, ink in items:
        if not text:
            continue
        if lines and count_cells(text) + gap <= left:
            lines[-1] += [(" " * gap, Ink.PLAIN), (text, ink)]
            left -= count_cells(text) + gap
            continue
        for piece in wrap_all(text, max(1, width - 1)):
            lines.append([(" ", Ink.PLAIN), (piece, ink)])
            left = width - 1 - count_cells(piece)
    return [tuple(line) for line in lines]


def list_head(finding: Finding, since: str, share: str) -> list[Span]:
    """Return the pieces of the first lines: word, cause, confidence, onset, cost."""
    return [
        (job_words.name_kind(finding), kind_ink(finding)),
        (job_words.name_cause(finding), Ink.STRONG),
        (job_words.say_confidence(finding), Ink.PLAIN),
        (since, Ink.PLAIN),
        (share, Ink.PLAIN),
    ]


def paint_headline(frame: Frame, finding: Finding, width: int) -> list[Line]:
    """Paint word, cause, confidence, onset and, where it takes no further line, the cost.

    An onset that is a lower bound is always shown, another one only where there is room.
    """
    gap = 3 if width >= 100 else 2
    whole, short = (
        job_words.say_since_in_full(finding, frame.taken),
        job_words.say_since(finding, frame.taken),
    )
    if finding.since_is is SinceIs.LOWER_BOUND:
        short = whole
    share = job_words.say_share(finding)

    def lay(since: str, share: str) -> list[Line]:
        return flow(list_head(finding, since, share), width, gap)

    least = lay(short, "")
    richer = (lay(whole, share), lay(short, share))
    return next((lines for lines in richer if len(lines) <= len(least)), least)


def paint_try(finding: Finding, width: int) -> list[Line]:
    """Paint what to try, wrapped, and its ceiling."""
    tried = job_words.list_try(finding)
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


def _paint_rows(view: ViewState, finding: Finding, width: int, most: int) -> list[Line]:
    rows = (*finding.evidence, *finding.against)[:most]
    hidden = len(finding.evidence) + len(finding.against) - len(rows)
    widths = fit_widths(rows, width)
    signs = "+" * len(finding.evidence) + "-" * len(finding.against)
    lines = [paint_evidence(view, row, sign, widths, width) for row, sign in zip(rows, signs, strict=False)]
    if not lines or not hidden:
        return lines
    more = f"  +{hidden} more, v" if width >= NARROW else f"  +{hidden}, v"
    last, room = rows[-1], width - count_cells(more)
    fitted = fit_widths(rows, room)
    if room < NARROW <= width:  # without history, and below the values above it
        fitted = Widths(min(widths.name, room - AGE_WIDTH - 7 - widths.value), widths.value, 0)
    if cut_value(last, fitted) == cut_value(last, widths):
        short = paint_evidence(view, last, signs[len(rows) - 1], fitted, room)
        lines[-1] = (*short, (more, Ink.DIM))
    elif len(lines) > 1:  # a cut figure would read as another one: the count gets its own line
        lines[-1] = fit_line(((f"   +{hidden + 1} more, v", Ink.DIM),), width)
    return lines


def _paint_list(sign: str, label: str, texts: tuple[str, ...], width: int) -> list[Line]:
    """Paint a list in one line, with its reasons where they fit, else only names."""
    if not texts:
        return []
    head = f" {sign} {label}: "
    room = max(1, width - len(head))
    told = ", ".join(texts)
    if count_cells(told) > room:
        told = job_words.shorten(tuple(text.partition(" (")[0] for text in texts), room)
    return [fit_line(((head, Ink.DIM), (cut(told, room), Ink.PLAIN)), width)]


def _paint_both_lists(finding: Finding, width: int) -> list[Line]:
    """Paint what was ruled out and what is unknown in one line; narrow panes get counts."""
    if not finding.unknown or not finding.ruled_out:
        return []
    unknown = _paint_list("?", "unknown", finding.unknown, width // 2)[0]
    left = width - line_width(unknown) - 1
    ruled_out = _paint_list("-", "not", finding.ruled_out, left)[0]
    if width < NARROW and any(CUT_MARK in text for text, _ in (*ruled_out, *unknown)):
        told = f" - {len(finding.ruled_out)} ruled out  ? {len(finding.unknown)} unknown, v"
        return [fit_line(((told, Ink.DIM),), width)]
    return [(*pad_line(ruled_out, left), *unknown)]


def paint_verdict(view: ViewState, frame: Frame, finding: Finding, width: int, most: int) -> list[Line]:
    """Paint at most ``most`` lines: evidence goes first, then ends of texts, never the word."""
    facts = [fact.strip() for fact in frame.facts.split(f" {DOT} ") if fact.strip()]
    texts: dict[str, list[Line]] = {
        "head": paint_headline(frame, finding, width),
        "summary": lay_text(finding.summary, width),
        "try": paint_try(finding, width),
        "evidence": [],
        "both": _paint_both_lists(finding, width),
        "ruled out": _paint_list("-", "ruled out", finding.ruled_out, width),
        "unknown": _paint_list("?", "unknown", finding.unknown, width),
        "facts": set_in(wrap(facts, max(1, width - 2), f" {DOT} "), Ink.DIM),
    }
    wanted = {name: len(lines) for name, lines in texts.items()}
    wanted["evidence"] = len(finding.evidence) + len(finding.against)
    shares = share_lines(wanted, most)
    texts["evidence"] = _paint_rows(view, finding, width, shares["evidence"])
    return [line for name, lines in texts.items() for line in _cut_text(lines, shares[name], width)]


_ORDER = (
    ("head", 4),
    ("summary", 1),
    ("try", 2),
    ("try", 6),
    ("summary", 3),
    ("evidence", 1),
    ("both", 1),
    ("evidence", 2),
    ("ruled out", 1),
    ("unknown", 1),
    ("evidence", 4),
    ("facts", 99),
    ("evidence", 99),
    ("try", 99),
)
"""The parts in the order in which they get lines, and how many they may have by then."""


def share_lines(wanted: dict[str, int], most: int) -> dict[str, int]:
    """Share ``most`` lines in the order of need; facts come whole or not at all.

    The two lists share one line until each can have its own.
    """
    given = dict.fromkeys(wanted, 0)
    left = max(1, most)
    for name, up_to in _ORDER:
        if name in ("ruled out", "unknown") and given["both"]:
            if left < 1 or name == "unknown":
                continue
            given |= {"both": 0, "ruled out": 1, "unknown": 1}
            left -= 1
            continue
        share = min(wanted[name] - given[name], up_to - given[name])
        if name == "facts" and share > left:
            continue
        given[name] += max(0, min(share, left))
        left = most - sum(given.values())
    return given


def _cut_text(lines: Sequence[Line], count: int, width: int) -> list[Line]:
    """Return the first ``count`` lines; the last ends in a mark where there are more."""
    shown = list(lines[:count])
    if shown and len(lines) > count:
        shown[-1] = (*fit_line(shown[-1], width - 2), (f" {CUT_MARK}", Ink.PLAIN))
    return shown


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
            finding.kind.value.upper(),
            job_words.name_cause(finding),
            job_words.say_confidence(finding),
            since,
        )
        said = f"last verdict: {'  '.join(filter(None, pieces))}"
    return fit_line(((f" {said}", Ink.PLAIN),), width)


def paint_verdict_briefly(frame: Frame, finding: Finding, size: Size) -> list[Line]:
    """Paint the verdict for the smallest screens: the word in its own line, then cause, onset, try."""
    width = size.width
    word = job_words.name_kind(finding)
    if count_cells(word) > width - 1:
        word = finding.kind.value.upper()
    lines: list[Line] = [fit_line(((f" {word}", kind_ink(finding)),), width)]
    since = job_words.say_since(finding, frame.taken)
    if count_cells(since) >= width:
        since = since.partition(" (")[0]
    told: list[Span] = [(job_words.name_cause(finding), Ink.STRONG), (since, Ink.PLAIN)]
    lines += flow(told, width, 2)
    tried = [
        text for line in job_words.list_try(finding)[:1] for text in wrap_all(TRY + line, max(1, width - 1))
    ]
    lines += set_in(tried, Ink.STRONG)
    lines += flow([(finding.summary, Ink.PLAIN), (job_words.say_confidence(finding), Ink.PLAIN)], width, 2)
    return _cut_text(lines, size.height, width) if size.height > 1 else lines[:1]


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
        head = write_reading(view, row, sign, widths).rstrip()
        if CUT_MARK in head:
            texts = wrap_all(f"{row.name}: {job_words.say_value(row)}", max(8, width - 4))
            lines += set_in(texts, head=f" {sign} ")
        elif count_cells(head) + count_cells(source) + 2 < width:
            lines.append(((f"{head}  ", Ink.PLAIN), (source, Ink.DIM)))
            continue
        else:
            lines.append(((head, Ink.PLAIN),))
        lines += lay_text(source, width, Ink.DIM, "     ")
    return lines


def _paint_section(heading: str, texts: Iterable[Sequence[str]]) -> list[Line]:
    """Paint texts below a heading, with wrapped lines indented further; nothing without texts."""
    lines = [line for pieces in texts for line in set_in(pieces, head="   ", hang="     ")]
    return [((f" {heading}", Ink.TITLE),), *lines] if lines else []
