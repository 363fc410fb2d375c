"""The part of ``trace`` that writes a slice: choose what is kept, write it, say how much it is."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.errors import ExitCode, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.write import Output
from tpmon.trace.reading.read import Progress, read_trace
from tpmon.trace.reading.slice import choose_gaps, choose_steps

MOST_GAPS = 1000
_TRY = "tpmon trace FILE --slice small.json.gz --steps 3-5"


@dataclass(frozen=True, slots=True)
class AskedSlice:
    """Hold what was typed for a slice: the new file, and steps ("3-5") or how many gaps; "" for none."""

    out: str
    steps: str
    gaps: str


def run_slice(files: Sequence[str], asked: AskedSlice, progress: Progress, output: Output) -> int:
    """Write the slice of one trace that was asked for, and say how much it is."""
    from tpmon.trace.reading.slice_write import write_slice  # noqa: PLC0415  # not needed by an analysis

    out, steps, gaps = asked.out, asked.steps, asked.gaps
    if not out:
        raise UsageError("--steps and --top-gaps say what a slice holds: it needs --slice OUT", _TRY)
    if bool(steps) == bool(gaps):
        raise UsageError("--slice takes one of --steps and --top-gaps", _TRY)
    if len(files) != 1:
        raise UsageError(f"--slice takes one trace, found {len(files)}", "name one FILE")
    if not out.endswith((".json", ".json.gz")):
        raise UsageError(f"--slice: {out} ends in neither .json nor .json.gz", _TRY)
    if gaps and not (gaps.isascii() and gaps.isdecimal() and 0 < int(gaps[:9]) <= MOST_GAPS):
        raise UsageError(f"--top-gaps takes a number from 1 to {MOST_GAPS}, found {gaps!r}", "--top-gaps 3")
    trace = read_trace(files[0], progress)
    choice = choose_steps(trace, steps) if steps else choose_gaps(trace, int(gaps))
    del trace
    written = write_slice(files[0], out, choice, progress)
    size = format_bytes(written.bytes)
    said = f"{out}: {choice.what}, {written.kept:,} of {written.events:,} events, {size}"
    lines = [clean_text(said, 400)]
    if written.left_out:
        lines.append(f"{written.left_out:,} events that are no clean JSON are left out")
    output.write_lines(*lines)
    return ExitCode.OK
