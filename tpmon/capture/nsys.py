"""Write the command line of an nsys that captures on request, and judge the one in front of a run. Pure.

nsys (Nsight Systems) collects between cudaProfilerStart and Stop if told to; by default Stop ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from tpmon.hook.bus.wire_capture import CUPTI_LIBRARIES, INJECTED, find_mapped
from tpmon.model.text.redaction import admit_text

_RANGE = "cudaProfilerApi"
_ENDS_WELL = re.compile(r"stop|repeat(:\d+)?(:sync)?")
_SHORT = {"-c": "--capture-range", "-t": "--trace"}
_NAMES = ("nsys", "nsys-launcher")
_INTERPRETERS = ("sh", "bash", "dash", "zsh")
_COMMANDS = ("profile", "launch", "start")
_MOST_ENVIRONMENT = 1 << 20
_DEFAULT_TRACE = "cuda,opengl,nvtx,osrt"

HOLDS_SLOT = "nsys in front of this run holds the GPU's one profiling slot (CUPTI)"


def write_nsys_command(nsys: str, program: Sequence[str]) -> list[str]:
    """Return the command for a program under an nsys that waits for ranges and goes on after each.

    nsys writes a report for each range into the folder of the start: ``report1.nsys-rep`` and so on.
    """
    return [
        nsys,
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        f"--capture-range={_RANGE}",
        "--capture-range-end=repeat",
        *program,
    ]


def judge_nsys(commands: Sequence[Sequence[str]]) -> str:
    """Say why a range must not be opened, "" when it may; ``commands`` stand above the run, nearest first."""
    found = [flags for words in commands if (flags := _parse_nsys(words)) is not None]
    if not found:
        return "nsys is not in front of this run, and cannot be added to a running process"
    # nsys starts helpers of its own, whose command lines have none of these flags.
    flags = next((flags for flags in found if "--capture-range" in flags), found[0])
    if flags.get("--capture-range") != _RANGE:
        return f"nsys in front of this run does not wait for a range: it lacks --capture-range={_RANGE}"
    end = flags.get("--capture-range-end", "stop-shutdown")
    return (
        ""
        if _ENDS_WELL.fullmatch(end)
        else f"--capture-range-end={end} of nsys can end the run with the window"
    )


def traces_cuda(commands: Sequence[Sequence[str]]) -> bool:
    """Tell whether an nsys in front of the run records CUDA: torch.profiler cannot then."""
    for words in commands:
        flags = _parse_nsys(words)
        if flags is not None:
            return "cuda" in flags.get("--trace", _DEFAULT_TRACE).split(",")
    return False


def find_other_tool(pid: int) -> str:
    """Return the library by which a tool other than nsys holds CUPTI's slot in a process, "" for none."""
    words: list[bytes] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        words = file.read(_MOST_ENVIRONMENT).split(b"\0")
    named = b"%s=" % INJECTED.encode()
    injected = next((word[len(named) :] for word in words if word.startswith(named)), b"").strip()
    mapped = find_mapped(CUPTI_LIBRARIES, f"/proc/{pid}/maps")
    return mapped or admit_text(os.fsdecode(os.path.basename(injected)))


def _parse_nsys(words: Sequence[str]) -> dict[str, str] | None:
    """Return the flags of an nsys, called by its name or by a shell script of that name; else None."""
    at = 1 if len(words) > 1 and os.path.basename(words[0]) in _INTERPRETERS else 0
    if at >= len(words) or os.path.basename(words[at]) not in _NAMES:
        return None
    return _parse_flags(words[at + 1 :])


def _parse_flags(words: Sequence[str]) -> dict[str, str]:
    """Parse --name=value, --name value and -c value up to the program: each option of nsys takes a value."""
    flags: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0] in _COMMANDS:
        rest.pop(0)
    while rest and rest[0].startswith("-"):
        name, sign, value = rest.pop(0).partition("=")
        if not sign and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        flags[_SHORT.get(name, name)] = value
    return flags
