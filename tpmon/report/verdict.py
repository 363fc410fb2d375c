"""Write the verdict of a Frame as text: one line, the block that ``--once`` begins with, or all of it."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import Missing, is_known
from tpmon.model.text.job_words import (
    list_also,
    list_try,
    name_cause,
    name_verdict,
    say_ceiling,
    say_confidence,
    say_share,
    say_since_in_full,
    say_value,
    shorten,
)
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Evidence, Finding
from tpmon.view.layout import LABEL_WIDTH, WIDTH, lay_paragraph, lay_phrases

MOST_EVIDENCE = 5


def write_check(frame: Frame) -> str:
    """Write the verdict as one line: what ``--check`` prints, and ``--plain`` when it changes."""
    finding = frame.verdict
    if isinstance(finding, Missing):
        return f"no verdict: {finding.reason}"
    sure = [say_confidence(finding), say_since_in_full(finding, frame.taken)]
    words = ", ".join(word for word in (name_verdict(finding), *sure) if word)
    tried = list_try(finding)
    advice = f". Try: {tried[0]}" if tried else ""
    notes = "".join(f". Note: {note}" for note in frame.notes)
    return f"{words}: {finding.summary}{advice}{notes}"


def write_verdict(frame: Frame, *, full: bool = True) -> list[str]:
    """Write the verdict as lines of at most 100 columns; what to paste keeps its lines, however long.

    With ``full`` all evidence, and everything that was ruled out or is unknown; else the most of it.
    """
    finding = frame.verdict
    if isinstance(finding, Missing):
        return lay_paragraph("verdict", f"none: {finding.reason}")
    words = [finding.kind.value.upper(), name_cause(finding), say_confidence(finding)]
    words += [say_since_in_full(finding, frame.taken), say_share(finding)]
    lines = lay_phrases("verdict", [word for word in words if word])
    lines += lay_paragraph("", finding.summary)
    lines += _write_try(finding, full=full)
    for label, rows in (("evidence", finding.evidence), ("against", finding.against)):
        shown = rows if full else rows[:MOST_EVIDENCE]
        texts = [_write_evidence(row) for row in shown]
        if len(shown) < len(rows):
            texts.append(f"and {len(rows) - len(shown)} more")
        for number, text in enumerate(texts):
            lines += lay_paragraph("" if number else label, text)
    if full:
        lines += _write_also(finding)
    for label, told in (("not", finding.ruled_out), ("unknown", finding.unknown)):
        if told and full:
            lines += lay_phrases(label, told)
        elif told:
            lines += lay_paragraph(label, shorten(told, WIDTH - LABEL_WIDTH))
    for note in frame.notes if full else ():
        lines += lay_paragraph("note", note)
    return lines


def _write_try(finding: Finding, *, full: bool) -> list[str]:
    tried = list_try(finding)
    lines = []
    for number, text in enumerate(tried):
        lines.append(f"{'' if number else 'try':<{LABEL_WIDTH}}{text}")
    if is_known(finding.ceiling) or full:
        ceiling = say_ceiling(finding)
        lines += lay_paragraph("", ceiling) if ceiling else []
    return lines


def _write_also(finding: Finding) -> list[str]:
    """Write what else may help; what is pasted keeps its lines, set in below what it is for."""
    lines: list[str] = []
    for first, *pasted in list_also(finding):
        lines.append(f"{'' if lines else 'also try':<{LABEL_WIDTH}}{first}")
        lines += [f"{'':<{LABEL_WIDTH}}  {text}" for text in pasted]
    return lines


def _write_evidence(row: Evidence) -> str:
    age = f"{format_seconds(row.age_s)} old" if is_known(row.age_s) else f"age ? {row.age_s.reason}"
    return f"{row.name}: {say_value(row)} ({row.source}, {age})"
