"""Judge by its command line whether the nsys in front of a run takes a range without ending it. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_RANGE = "cudaProfilerApi"
_ENDS_WELL = re.compile(r"stop|repeat(:\d+)?(:sync)?")
_SHORT = {"-c": "--capture-range"}


def judge_nsys(commands: Sequence[Sequence[str]]) -> str:
    """Say why a range must not be opened, "" when it may; ``commands`` stand above the run, nearest first."""
    for words in commands:
        if words and os.path.basename(words[0]) in ("nsys", "nsys-launcher"):
            return _judge_flags(_parse_flags(words[1:]))
    return "nsys is not in front of this run, and cannot be added to a running process"


def _judge_flags(flags: dict[str, str]) -> str:
    if flags.get("--capture-range") != _RANGE:
        return f"nsys in front of this run does not wait for a range: it lacks --capture-range={_RANGE}"
    end = flags.get("--capture-range-end", "stop-shutdown")
    if not _ENDS_WELL.fullmatch(end):
        return f"--capture-range-end={end} of nsys can end the run with the window"
    return ""


def _parse_flags(words: Sequence[str]) -> dict[str, str]:
    """Read --name=value, --name value and -c value, up to the program that nsys starts."""
    flags: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in ("profile", "launch"):
            continue
        if not word.startswith("-"):
            break
        name, sign, value = word.partition("=")
        name = _SHORT.get(name, name)
        if not sign and name in ("--capture-range", "--capture-range-end"):
            value = next(rest, "")
        flags[name] = value
    return flags
