"""Name who holds a process by ptrace: a debugger, strace, a profiler."""

from __future__ import annotations

from tpmon.model.known import Known, Missing
from tpmon.model.stops import Tracer
from tpmon.model.text.redaction import admit_text, hide_words
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import PROC, read_file
from tpmon.probe.proc.access import parse_tracer

_COMMAND_CHARS = 160
_READ_BYTES = 4096
_ELSEWHERE = Missing("its tracer is in another container: its PID is not told here")


def read_tracer(pid: int, tid: int, proc: str = PROC) -> Known[Tracer]:
    """Read who traces one thread of a process; each thread may have a tracer of its own."""
    try:
        tracer = parse_tracer(read_file(f"{proc}/{pid}/task/{tid}/status", 65_536))
    except (OSError, ValueError) as error:
        return Missing(f"its tracer: {error}")
    return name_tracer(tracer, proc) if tracer else _ELSEWHERE


def name_tracer(pid: int, proc: str = PROC) -> Tracer:
    """Name a tracer by its PID, its name and its command line."""
    try:
        name = admit_text(read_file(f"{proc}/{pid}/comm", 64).decode("utf-8", "replace").strip(), 32)
    except OSError:
        name = "?"  # it has just let go
    return Tracer(pid, name or "?", _read_command(pid, proc))


def _read_command(pid: int, proc: str) -> Known[str]:
    try:
        raw = read_file(f"{proc}/{pid}/cmdline", _READ_BYTES)
    except OSError as error:
        return Missing(f"its command line: {error.strerror}")
    words = [word.decode("utf-8", "replace") for word in raw.rstrip(b"\0").split(b"\0") if word]
    if not words:
        return Missing("it has no command line")
    return clean_text(" ".join(hide_words(words)), _COMMAND_CHARS)
