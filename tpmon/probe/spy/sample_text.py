"""Parse what ``py-spy record`` says beside the stacks: how many looks failed, how late it was. Pure."""

from __future__ import annotations

import re

from tpmon.model.frozen import dataclass

_SUMMARY = re.compile(rb"Samples: (\d{1,12}) Errors: (\d{1,12})")
_BEHIND = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)s behind in sampling")
"""py-spy says it from one second on, as a Rust Duration in seconds."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """Hold py-spy's own count: ``errors`` looks gave no stack; ``behind_s`` is the worst delay it told."""

    errors: int
    behind_s: float


def parse_remarks(output: bytes) -> Remarks:
    """Find the remarks in the output of ``py-spy record``; a program's stacks may hold the same words.

    The summary is the last one, which py-spy writes after the stacks.
    """
    lines = [line for line in output.split(b"\n") if not line.startswith(b"thread (")]
    summaries = [found for line in lines if (found := _SUMMARY.search(line))]
    delays = [float(found[1]) for line in lines for found in _BEHIND.finditer(line)]
    return Remarks(int(summaries[-1][2]) if summaries else 0, max(delays, default=0.0))
