"""Say the parts of a Finding in words, for the screen and for text alike. Knows no width and no colour."""

from __future__ import annotations

from datetime import datetime

from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.units import format_bytes, format_moment, format_pct, format_seconds
from tpmon.model.verdict import Evidence, Finding, Kind, SinceIs, pick_code

_SIGNS = {10: "!", 11: "?", 12: "!!"}
_RECENT_S = 120.0
"""Younger than this, a time of day carries its seconds."""


def name_kind(finding: Finding) -> str:
    """Write the verdict word with its sign: "! DATA-BOUND", "!! HUNG", and "COMPUTE-BOUND" for a calm one."""
    sign = _SIGNS.get(pick_code(finding.kind, finding.cause), "")
    return f"{sign} {finding.kind.value.upper()}".lstrip()


def name_cause(finding: Finding) -> str:
    """Write the cause, its reason where it could not be told, "" for a kind without causes."""
    if isinstance(finding.cause, Missing):
        return f"cause ? {finding.cause.reason}"
    return finding.cause if is_known(finding.cause) else ""


def join_cause(kind: Kind, cause: Applicable[str]) -> str:
    """Write kind and cause: "data-bound (cpu-transform)"."""
    return f"{kind.value} ({cause})" if is_known(cause) else kind.value


def name_verdict(finding: Finding) -> str:
    """Write kind and cause of a Finding."""
    return join_cause(finding.kind, finding.cause)


def is_undecided(finding: Finding) -> bool:
    """Tell whether the Finding says nothing that could be doubted or have begun."""
    return finding.kind is Kind.NOT_ENOUGH_EVIDENCE


def say_confidence(finding: Finding) -> str:
    """Write how much to trust it: "confidence high"; "" where nothing is claimed."""
    return "" if is_undecided(finding) else f"confidence {finding.confidence.value}"


def _say_span(seconds: float) -> str:
    """Write a duration whose end grows, so coarsely that it seldom changes: 3 s, 40 s, 26 min, 3h12m."""
    if seconds < 10:
        return f"{max(0, int(seconds))} s"
    if seconds < _RECENT_S:
        return f"{10 * int(seconds // 10)} s"
    return f"{int(seconds // 60)} min" if seconds < 5400 else format_seconds(seconds)


def say_since(finding: Finding, now: datetime) -> str:
    """Write since when, short: "since 03:02 (5 min)", "at least 26 min"; "" where nothing is claimed."""
    if is_undecided(finding):
        return ""
    seconds = (now - finding.since).total_seconds()
    span = _say_span(seconds)
    if finding.since_is is SinceIs.LOWER_BOUND:
        return f"at least {span}"
    clock = format_moment(finding.since, now, seconds=seconds < _RECENT_S)
    return f"since {clock} ({span})" if finding.since < now else f"since {clock}"


def say_since_source(finding: Finding) -> str:
    """Write what tells since when: "onset in the history", "last log write 02:41:11"."""
    if is_undecided(finding):
        return ""
    if finding.since_is is SinceIs.ONSET:
        return "onset in the history" if finding.since_source in ("", "history") else finding.since_source
    return finding.since_source


def say_since_in_full(finding: Finding, now: datetime) -> str:
    """Write since when and what tells it: "at least 26 min (last log write 02:41:11)"."""
    since, source = say_since(finding, now), say_since_source(finding)
    if not since or not source:
        return since
    return f"{since}, {source}" if finding.since_is is SinceIs.ONSET else f"{since} ({source})"


def say_share(finding: Finding) -> str:
    """Write what it costs with its interval: "costs 58 % (54 to 62)"; "" where that is not known."""
    if not is_known(finding.share_pct):
        return ""
    low, high = finding.share_low_pct, finding.share_high_pct
    told = f"costs {format_pct(finding.share_pct)} %"
    if not is_known(low) or not is_known(high):
        return told
    return f"{told} ({format_pct(low)} to {format_pct(high)})"


def list_try(finding: Finding) -> list[str]:
    """Return what to do, line by line as it is pasted; none where nothing is to be done."""
    tried = finding.try_
    if isinstance(tried, Missing):
        return [f"? {tried.reason}"]
    return [line for line in tried.splitlines() if line.strip()] if is_known(tried) else []


def list_also(finding: Finding) -> list[list[str]]:
    """Return what else may help, each line by line as it is pasted."""
    others = known_or(finding.also_try, ())
    return [lines for text in others if (lines := [line for line in text.splitlines() if line.strip()])]


def say_ceiling(finding: Finding) -> str:
    """Write what the run gains at most: "Ceiling: 2.4x if all of it goes away"; "" where there is none."""
    ceiling = finding.ceiling
    if isinstance(ceiling, Missing):
        return f"Ceiling: ? {ceiling.reason}"
    return f"Ceiling: {ceiling}" if is_known(ceiling) else ""


def say_value(evidence: Evidence) -> str:
    """Write the value of a reading with its unit, its words where those say it better, or the reason."""
    if evidence.text:
        return evidence.text
    value, unit = evidence.value, evidence.unit
    if isinstance(value, Missing):
        return f"? {value.reason}"
    if unit in ("bytes", "B"):
        return format_bytes(value)
    if unit in ("bytes/s", "B/s"):
        return f"{format_bytes(value)}/s"
    if unit == "s":
        return format_seconds(value)
    if unit == "%":
        return f"{format_pct(value)} %"
    number = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number}x" if unit == "x" else f"{number} {unit}".rstrip()


def shorten(texts: tuple[str, ...], most: int) -> str:
    """Join texts by commas up to ``most`` characters; what does not fit is counted: "a, b (+3 more)".

    The first one is always there, cut where it alone is too long.
    """
    whole = ", ".join(texts)
    for count in range(len(texts) - 1, 0, -1):
        if len(whole) <= most:
            return whole
        whole = f"{', '.join(texts[:count])} (+{len(texts) - count} more)"
    if len(texts) > 1 and len(whole) > most:
        rest = f"… (+{len(texts) - 1} more)"
        return texts[0][: max(1, most - len(rest))] + rest
    return whole
