"""Words of traces that the screen and the text have in common."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from tpmon.model.known import Applicable, Known, is_known
from tpmon.model.trace import RankRow
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
_ENDINGS = (".gz", ".json", ".trace", ".pt")


def name_cause(cause: Known[str]) -> str:
    """Name what held a device in a gap."""
    return CAUSES[cause] if is_known(cause) else NA


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
