"""The words that the screen of a trace has in common: of verdicts, of files, of causes and kinds of time."""

from __future__ import annotations

from tpmon.model.known import NotApplicable, is_known
from tpmon.model.trace import TraceFile, TraceVerdict
from tpmon.model.units import clean_text, format_bytes

_PATH_CHARS = 1000
_COMMON = ("(anonymous namespace)::", "at::native::", "at::", "c10::", "std::")


def shorten_kernel(name: str) -> str:
    """Take out of the name of a kernel what most of them begin with, so that a cut one still tells which."""
    short = name.removeprefix("void ")
    for part in _COMMON:
        short = short.replace(part, "")
    return short or name


def name_verdict(verdict: TraceVerdict) -> str:
    """Name a verdict with its cause and how sure it is."""
    cause = verdict.cause
    named = "" if isinstance(cause, NotApplicable) or not is_known(cause) else f" ({cause})"
    return f"{verdict.kind.value.upper()}{named}, confidence {verdict.confidence}"


def name_rank(file: TraceFile) -> str:
    """Say which rank a trace is of."""
    rank = f"rank {file.rank}" if is_known(file.rank) else "rank unknown"
    return f"{rank} of {file.world_size}" if is_known(file.world_size) else rank


def say_file(file: TraceFile) -> str:
    """Say which file it is and what it is of."""
    cards = dict.fromkeys(card.name for card in file.overview.gpus if is_known(card.name))
    parts = [
        clean_text(file.path, _PATH_CHARS),
        name_rank(file),
        f"{file.events:,} events",
        f"{format_bytes(file.json_bytes)} of JSON",
        ", ".join(cards),
        f"on {file.host}" if is_known(file.host) else "",
        file.backend if is_known(file.backend) else "",
        file.versions,
    ]
    return ", ".join(part for part in parts if part)
