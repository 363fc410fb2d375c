"""Paint a verdict: its badge with what it costs, one sentence, what to do, why, and what else was seen. Pure.

It fills the lines that it is given, the most needed first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import MappingProxyType

from tpmon.model.figures import BAD_SIDES, Bad
from tpmon.model.known import is_known, known_or
from tpmon.model.text import job_words
from tpmon.model.units import count_cells, count_of, format_pct
from tpmon.model.verdict import Confidence, Evidence, Finding, VerdictCode, pick_code
from tpmon.own_command import as_called
from tpmon.view.finding.pieces import (
    LABEL_CELLS,
    NARROW,
    WIDE,
    cut_text,
    flow,
    lay_pieces,
    share_lines,
    write_label,
)
from tpmon.view.layout import (
    Ink,
    Line,
    Size,
    Span,
    cut,
    draw_bar,
    fit_line,
    lay_text,
    line_width,
    pad,
    set_in,
    wrap_all,
    wrap_indented,
)

BAR_CELLS = 18
SHORT_BAR_CELLS = 10
NOTICE_PCT, MUCH_PCT = 20.0, 50.0
"""A loss below the first is worth a notice; from the second on more than half of the time is lost."""
_BADGES = MappingProxyType(
    {
        VerdictCode.FINE: Ink.BADGE_GOOD,
        VerdictCode.HELD: Ink.BADGE_WARN,
        VerdictCode.UNDECIDED: Ink.BADGE,
        VerdictCode.HUNG: Ink.BADGE_BAD,
    }
)
TRY = "Try: "


def badge_ink(finding: Finding) -> Ink:
    """Return the ink of a verdict word: by its exit code, and a loss by how large it is."""
    code = pick_code(finding.kind, finding.cause)
    if code == VerdictCode.HELD and is_known(finding.share_pct):
        if finding.share_pct < NOTICE_PCT:
            return Ink.BADGE_NOTICE
        if finding.share_pct >= MUCH_PCT:
            return Ink.BADGE_BAD
    return _BADGES[VerdictCode(code)]


_SURE = MappingProxyType({Confidence.HIGH: "###", Confidence.MEDIUM: "##-", Confidence.LOW: "#--"})
MOST_GAIN = 100.0
"""Times; beyond this a ceiling is no figure to promise."""


def _say_gain(finding: Finding, *, narrow: bool) -> str:
    """Write what the run gains at most: "up to 2.4x faster", narrow "2.4x"; "" where that is not known."""
    share = known_or(finding.share_pct, 0.0)
    if not is_known(finding.ceiling) or not 0 < share < 100:
        return ""
    gain = 100 / (100 - share)
    if gain >= MOST_GAIN:
        return f"more than {MOST_GAIN:.0f}x{'' if narrow else ' faster'}"
    return f"{gain:.1f}x" if narrow else f"up to {gain:.1f}x faster"


def list_short_head(finding: Finding, since: str, *, narrow: bool) -> list[Line]:
    """Return the pieces of the first lines: badge, cause, cost and ceiling, how sure, since when."""
    badge: Line = ((f" {job_words.name_kind(finding)} ", badge_ink(finding)),)
    cause: Line = ((job_words.name_cause(finding), Ink.STRONG),)
    gain, cost = _say_gain(finding, narrow=narrow), ""
    if is_known(finding.share_pct):
        pct = f"{format_pct(finding.share_pct)} %"
        cost = f"{pct} -> {gain}" if narrow and gain else f"costs {pct}"
        if gain and not narrow:
            cost = f"costs {pct} of every step -> {gain}"
    lost = badge_ink(finding) is Ink.BADGE_BAD and pick_code(finding.kind, finding.cause) == VerdictCode.HELD
    costs: Line = ((cost, Ink.BAD if lost else Ink.STRONG),)
    sure = "" if job_words.is_undecided(finding) else _SURE[finding.confidence]
    told: Line = ((sure if narrow or not sure else f"sure {sure}", Ink.PLAIN),)
    when: Line = ((since, Ink.PLAIN),)
    return [badge, costs, told, cause, when] if narrow else [badge, cause, costs, told, when]


def paint_headline(finding: Finding, taken: datetime, width: int) -> list[Line]:
    """Paint the badge, the cause, what it costs, how sure that is and since when."""
    narrow, since = width < NARROW, job_words.say_since(finding, taken)
    pieces = list_short_head(finding, since, narrow=narrow)
    return lay_pieces(pieces, width, 3 if width >= WIDE else 2, "", 1)


def list_try(finding: Finding) -> list[str]:
    """Return what to do on this screen: by its keys where they do it, else as it is typed in a shell."""
    if is_known(finding.try_keys):
        return [finding.try_keys]
    return [as_called(line) for line in job_words.list_try(finding)]


def split_try(finding: Finding) -> tuple[str, list[str]]:
    """Return what to do in words, by keys where they do it, and the lines of code that are pasted for it."""
    if is_known(finding.try_keys):
        return finding.try_keys, []
    code = as_called(known_or(finding.try_code, ""))
    lines = list_try(finding)
    if not code or not lines:
        return " ".join(lines), []
    text = as_called(known_or(finding.try_, ""))
    return text.removesuffix(code).rstrip(), [line for line in code.splitlines() if line.strip()]


def paint_do(finding: Finding, width: int) -> tuple[list[Line], list[Line]]:
    """Paint what to do, and its code; a narrow screen has room for one of them, below a label."""
    words, code = split_try(finding)
    if not words and not code:
        return [], []
    if width < NARROW:
        room = max(8, width - 3)
        shown = [text for line in code or [words] for text in wrap_indented(line, room)]
        return [((" DO", Ink.TITLE), (" (y copies)", Ink.DIM))], set_in(shown, head="  ")
    room = max(8, width - LABEL_CELLS - 1)
    told = [text for line in words.splitlines() for text in wrap_all(line, room)]
    if len(code) == 1 and len(told) == 1 and count_cells(f"{told[0]} {code[0]}") <= room:
        told, code = [], [f"{told[0]} {code[0].strip()}"]
    pasted = [text for line in code for text in wrap_indented(line, room)]
    blanks = " " * LABEL_CELLS
    return set_in(told, head=blanks), set_in(pasted, head=blanks)


def _draw_share(row: Evidence, value: float, cells: int) -> Line:
    """Draw a percentage: much of what is bad in red, or what is missing of something good."""
    side = BAD_SIDES.get(row.name)
    ink = Ink.NOTICE if side is None else Ink.BAD if side is Bad.HIGH else Ink.GOOD
    return draw_bar(value / 100, cells, ink, Ink.BAD if side is Bad.LOW else Ink.DIM)


def _is_share(row: Evidence) -> bool:
    """Tell whether a reading is a percentage of a whole, which a bar can show."""
    return row.unit == "%" and is_known(row.value) and 0 <= row.value <= 100


def _piece(row: Evidence, bar: int, width: int) -> Line:
    """Write one reading: name, value and, of a percentage, a bar; words end where the line does."""
    value = job_words.say_value(row)
    name = cut(row.name, max(8, width - min(count_cells(value), width // 2) - 1))
    value = cut(value, max(4, width - count_cells(name) - 1))
    piece: Line = ((f"{name} ", Ink.PLAIN), (value, Ink.PLAIN if row.text else Ink.STRONG))
    if not _is_share(row) or not is_known(row.value):
        return piece
    if line_width(piece) + 1 + bar > width:
        return piece
    return (*piece, (" ", Ink.PLAIN), *_draw_share(row, row.value, bar))


def paint_why(rows: Sequence[Evidence], label: str, width: int) -> list[Line]:
    """Paint readings behind a label, as many beside each other as fit; a narrow screen has columns."""
    if not rows:
        return []
    if width < NARROW:
        numbers = [row for row in rows if is_known(row.value)]  # words do not fit, and the sentence has them
        return [_paint_narrow_row(row, width) for row in numbers or rows]
    bar = BAR_CELLS if width >= WIDE else SHORT_BAR_CELLS
    room = max(8, width - LABEL_CELLS)
    return lay_pieces([_piece(row, bar, room) for row in rows], width, 3, write_label(label))


def _paint_narrow_row(row: Evidence, width: int) -> Line:
    value, bar = job_words.say_value(row), 0
    if _is_share(row) and is_known(row.value):
        value, bar = f"{format_pct(row.value)} %", SHORT_BAR_CELLS
    room = max(1, width - 2 - (bar + 1 if bar else 0))
    value = cut(value, max(6, room // 2) if bar else room * 2 // 3)
    name = pad(row.name, max(1, room - count_cells(value) - 1))
    line: Line = ((f" {name} ", Ink.PLAIN), (value, Ink.PLAIN if row.text else Ink.STRONG))
    if bar and is_known(row.value):
        line = (*line, (" ", Ink.PLAIN), *_draw_share(row, row.value, bar))
    return fit_line(line, width)


def _say_rest(finding: Finding, hidden: int) -> str:
    """Name what the verdict in full has beyond what is shown."""
    told = [f"{hidden} more readings" if hidden else "all evidence"]
    if finding.ruled_out:
        told.append(f"{count_of(len(finding.ruled_out), 'cause')} ruled out")
    if finding.unknown:
        told.append(f"{len(finding.unknown)} unknown")
    return f"v: {', '.join(told)}"


Notes = Callable[[int], list[Line]]


def has_no_notes(_most: int) -> list[Line]:
    """Paint no notes."""
    return []


MOST_NOTES = 4
ROOMY = 8
"""A block of fewer lines has no notes, and no last line that counts the rest."""


def paint_finding(
    finding: Finding, taken: datetime, width: int, most: int, notes: Notes = has_no_notes, *, has_whole: bool
) -> list[Line]:
    """Paint at most ``most`` lines: ends of texts and evidence go first, never the badge.

    ``notes`` paints so many lines of what else was seen; with ``has_whole`` the last line says what else
    there is to read, and the key for that.
    """
    undecided = pick_code(finding.kind, finding.cause) == VerdictCode.UNDECIDED
    words, code = paint_do(finding, width)
    texts: dict[str, list[Line]] = {
        "head": paint_headline(finding, taken, width),
        "summary": lay_text(finding.summary, width),
        "do": words,
        "code": code,
        "why": paint_why(finding.evidence, "WHY", width),
        "but": paint_why(finding.against, "BUT", width),
        "unknown": _paint_unknown(finding.unknown, width) if undecided else [],
        "notes": notes(MOST_NOTES) if most >= ROOMY else [],
    }

    def lay(most: int) -> tuple[list[Line], int, int]:
        shares = share_lines({name: len(lines) for name, lines in texts.items()}, most, _ORDER)
        parts = texts | {"notes": notes(shares["notes"])}
        rows = ("why", "but") if width < NARROW else ()
        hidden = sum(len(texts[name]) - shares[name] for name in rows)
        return _join_parts(parts, shares, width), hidden, shares["notes"]

    lines, hidden, shown = lay(most)
    if most < ROOMY or not has_whole:
        return lines
    said = _say_rest(finding, hidden)
    blanks = width - 1 - line_width(lines[-1]) - count_cells(said)
    if blanks >= 3:
        return [*lines[:-1], (*lines[-1], (" " * blanks, Ink.PLAIN), (said, Ink.DIM))]
    shorter, hidden, left = lay(most - 1)
    if shown and not left:
        return lines
    return [*shorter, fit_line(((f" {_say_rest(finding, hidden)}", Ink.DIM),), width)]


def _join_parts(parts: dict[str, list[Line]], shares: dict[str, int], width: int) -> list[Line]:
    """Put the parts below each other, each with its share of lines; rows of readings are not cut."""
    lines: list[Line] = []
    for name, part in parts.items():
        is_rows = width < NARROW and name in ("why", "but")
        shown = part[: shares[name]] if is_rows else cut_text(part, shares[name], width)
        if shown and name == ("do" if shares["do"] else "code") and width >= NARROW:
            (text, ink), *more = shown[0]
            shown[0] = ((write_label("DO"), Ink.TITLE), (text.removeprefix(" " * LABEL_CELLS), ink), *more)
        lines += shown
    return lines


def _paint_unknown(texts: tuple[str, ...], width: int) -> list[Line]:
    """Paint what could not be read in one line, with the reasons where they fit."""
    if not texts:
        return []
    head = " ? " if width < NARROW else write_label("?")
    room = max(1, width - count_cells(head) - 1)
    told = ", ".join(texts)
    if count_cells(told) > room:
        told = job_words.shorten(tuple(text.partition(" (")[0] for text in texts), room)
    return [fit_line(((head, Ink.TITLE), (cut(told, room), Ink.PLAIN)), width)]


_ORDER = (
    ("head", 4),
    ("summary", 1),
    ("code", 1),
    ("do", 1),
    ("summary", 2),
    ("code", 2),
    ("why", 1),
    ("do", 2),
    ("code", 3),
    ("notes", 1),
    ("why", 2),
    ("but", 1),
    ("unknown", 1),
    ("summary", 3),
    ("why", 3),
    ("notes", 3),
    ("do", 4),
    ("code", 5),
    ("why", 99),
    ("but", 99),
    ("notes", 99),
    ("do", 99),
    ("code", 99),
)
"""The parts in the order in which they get lines, and how many they may have by then."""


def paint_briefly(finding: Finding, taken: datetime, size: Size) -> list[Line]:
    """Paint the verdict for the smallest screens: the word in its own line, then cause, onset, try."""
    width = size.width
    word = job_words.name_kind(finding)
    if count_cells(word) > width - 1:
        word = job_words.write_kind(finding)
    lines: list[Line] = [fit_line(((f" {word}", badge_ink(finding)),), width)]
    since = job_words.say_since(finding, taken)
    if count_cells(since) >= width:
        since = since.partition(" (")[0]
    told: list[Span] = [(job_words.name_cause(finding), Ink.STRONG), (since, Ink.PLAIN)]
    lines += flow(told, width, 2)
    tried = [text for line in list_try(finding)[:1] for text in wrap_all(TRY + line, max(1, width - 1))]
    lines += set_in(tried, Ink.STRONG)
    lines += flow([(finding.summary, Ink.PLAIN), (job_words.say_confidence(finding), Ink.PLAIN)], width, 2)
    return cut_text(lines, size.height, width) if size.height > 1 else lines[:1]
