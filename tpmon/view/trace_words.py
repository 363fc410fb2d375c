"""Words of traces that the screen and the text have in common."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from tpmon.model.known import Applicable, Known, NotApplicable, is_known
from tpmon.model.results.trace import Communication, RankRow, RankTable, TraceFile, TraceVerdict
from tpmon.model.results.trace_change import Change
from tpmon.model.results.trace_gaps import DeviceGaps, LargeGap
from tpmon.model.results.trace_tables import PatternRow
from tpmon.model.units import clean_text, format_bytes

NA = "n/a"
CAUSES = {
    "data": "data",
    "sync_explicit": "explicit sync",
    "sync_implicit": "implicit sync",
    "alloc": "allocator",
    "launch": "launch and calls",
    "cpu_op": "CPU operator",
    "comms": "communication",
    "sync": "sync",
    "compute": "compute",
    "compile": "torch.compile",
    "idle": "idle, cause unknown",
    "other": "other",
}
"""What holds an idle device or a host, and what a verdict shares its window among."""
HOST_CAUSES = {key: CAUSES[key] for key in ("data", "comms", "sync", "alloc", "compute", "other")}
"""What a host did in a trace without device work."""
KINDS = {
    "kernel": "kernels",
    "memcpy": "memcpy",
    "memset": "memset",
    "communication": "exposed communication",
    "runtime": "runtime calls",
    "data_loader": "DataLoader",
    "cpu": "CPU operators",
    "other": "other",
}
"""What a step is made of."""

_NAME_CHARS = 20
_PATH_CHARS = 1000
_COMMON = ("(anonymous namespace)::", "at::native::", "at::", "c10::", "std::")
_ENDINGS = (".gz", ".json", ".trace", ".pt")


def number(value: Applicable[float], digits: int = 1) -> str:
    """Write a number, or n/a where it is not known."""
    return f"{value:,.{digits}f}" if is_known(value) else NA


def ms_of_us(value: Applicable[float]) -> str:
    """Write microseconds as milliseconds."""
    return f"{value / 1000:,.3f}" if is_known(value) else NA


def pct(value: Applicable[float]) -> str:
    """Write a percentage."""
    return f"{value:.1f} %" if is_known(value) else NA


def size(value: Applicable[float]) -> str:
    """Write bytes."""
    return format_bytes(value) if is_known(value) else NA


def thousands(value: int) -> str:
    """Write a count."""
    return f"{value:,}"


def said(value: object) -> str:
    """Write text, or n/a where it is not known."""
    return str(value) if is_known(value) else NA


def name_cause(cause: Known[str]) -> str:
    """Name what held a device in a gap."""
    return CAUSES[cause] if is_known(cause) else NA


def say_gap(gap: LargeGap) -> str:
    """Name what a gap was in: its call, its operator and its line, as far as they are known."""
    known = [text for text in (gap.call, gap.operator, gap.source) if is_known(text) and text]
    return " ".join(known) or "-"


def say_idle(gaps: DeviceGaps) -> str:
    """Say how long a device was idle."""
    share = pct(100 * gaps.idle / (gaps.window or 1.0))
    return f"{ms_of_us(gaps.idle)} of {ms_of_us(gaps.window)} ms, {share}"


def say_communication(comms: Communication) -> str:
    """Say how long there was communication, and how much of it computation hid."""
    hidden = 100 * comms.overlap_us / comms.comm_us if comms.comm_us else 0.0
    exposed = f"{ms_of_us(comms.exposed_us)} ms exposed"
    return f"{ms_of_us(comms.comm_us)} ms, {hidden:.1f} % of it hidden by computation, {exposed}"


def say_missing(table: RankTable) -> str:
    """Say of which ranks there is no trace."""
    named = ", ".join(map(str, table.missing[:20])) + (" ..." if len(table.missing) > 20 else "")
    return f"no trace of rank {named}"


def say_pattern(pattern: PatternRow) -> str:
    """Say what costs time, and how much."""
    return f"{pattern.name}, {pct(pattern.share_pct)} of the window: {pattern.seen}"


def name_change(change: Change) -> str:
    """Name what changed between two traces, a kernel or an operator by its own name."""
    words = {"phase": KINDS, "idle": CAUSES}.get(change.part, {})
    return words.get(change.name, change.name)


def say_growth(value: Applicable[int]) -> str:
    """Write by how much memory grew, with its sign."""
    if not is_known(value):
        return NA
    return f"-{format_bytes(-value)}" if value < 0 else f"+{format_bytes(value)}"


def name_ranks(rows: Sequence[RankRow]) -> dict[str, str]:
    """Name the rows of ranks by their paths: by the file where the rank does not tell them apart."""
    counts = Counter(row.rank for row in rows if is_known(row.rank))
    alike = [row.path for row in rows if not is_known(row.rank) or counts[row.rank] > 1]
    files = name_files(alike)
    names = {}
    for row in rows:
        rank = str(row.rank) if is_known(row.rank) else ""
        names[row.path] = f"{rank} {files.get(row.path, '')}".strip()
    return names


def name_files(paths: Sequence[str], most: int = _NAME_CHARS) -> dict[str, str]:
    """Name files without their endings, so short that the names still differ.

    Where one is too long, what all begin with goes first, as far as that is needed, then the ends.
    """
    names = {path: _strip(clean_text(os.path.basename(path), 1000)) for path in paths}
    longest = max(map(len, names.values()), default=0)
    if longest > most:
        letters = zip(*names.values(), strict=False)
        shared = len(list(takewhile(lambda chars: len(set(chars)) == 1, letters)))
        dropped = min(shared, longest - most + 1)
        if dropped and len(names) > 1:
            names = {path: f"…{name[dropped:]}" for path, name in names.items()}
    return {path: name if len(name) <= most else f"{name[: most - 1]}…" for path, name in names.items()}


def _strip(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


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
