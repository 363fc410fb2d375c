"""The command ``trace``: find the files, analyse them one after the other, write the tables."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpmon.config import Options, SettingSource
from tpmon.errors import ExitCode, TpmonError, UsageError
from tpmon.model.codec import encode
from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.text import Output, complain
from tpmon.report.trace import TEXT_TABLES, TOP, write_comparison, write_report, write_tables
from tpmon.report.trace_csv import CHANGES, TABLES, explain_empty, write_changes_csv, write_csv
from tpmon.trace.analysis import ON_REQUEST, analyze
from tpmon.trace.compare import compare_traces
from tpmon.trace.reading.read import Progress, read_trace
from tpmon.trace.reading.slice import choose_gaps, choose_steps
from tpmon.trace.reading.sources import SNAPSHOT_ENDINGS, find_remote, is_remote, is_snapshot


def are_snapshots(files: Sequence[str]) -> bool:
    """Tell whether the files are memory snapshots.

    Raises:
        UsageError: where only some are.
    """
    found = [path for path in files if is_snapshot(path)]
    if found and len(found) < len(files):
        raise UsageError(f"{found[0]} is a memory snapshot beside traces", "give them in two calls")
    return bool(found)


def run_snapshots(files: Sequence[str], options: Options, table: str, top: int, output: Output) -> int:
    """Analyse memory snapshots; ``table`` is the one wanted as CSV, "" for all as text."""
    from tpmon.report.snapshot import (  # noqa: PLC0415  # 30 ms that a trace does not need
        SNAPSHOT_TABLES,
        write_snapshot_csv,
        write_snapshots,
    )
    from tpmon.trace.snapshot import analyze_snapshots  # noqa: PLC0415

    if table and table not in SNAPSHOT_TABLES:
        raise UsageError(
            f"a memory snapshot has no table {table!r}", f"--csv with one of {', '.join(SNAPSHOT_TABLES)}"
        )
    report = analyze_snapshots(files)
    if options.json:
        output.write_json(encode(report))
    elif table:
        output.write_lines(*write_snapshot_csv(report, table))
    else:
        output.write_lines(*write_snapshots(report, top))
    return ExitCode.OK


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
    from tpmon.trace.reading.slice import write_slice  # noqa: PLC0415  # not needed by an analysis

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


_ENDINGS = (".json", ".json.gz")
MOST_FILES = 4096
PROGRESS_AFTER_S = 1.0
_FLAGS = {
    "csv": "--csv",
    "top": "--top",
    "against": "--against",
    "target": "--target",
    "slice_out": "--slice",
    "steps": "--steps",
    "top_gaps": "--top-gaps",
    "table": "--table",
}
_TAKES = {"target": "a speed-up, beside --against"}
MOST_TOP = 100_000


@dataclass(frozen=True, slots=True)
class TraceAsked:
    """Hold what was typed: the table wanted as CSV, how many rows, the trace to compare to; "" for none.

    ``slice_out`` is the file for a slice of ``steps`` or of the ``top_gaps`` longest gaps. ``table`` is one
    table as text alone; in JSON it is added where it is made on request.
    """

    csv: str = ""
    top: str = ""
    against: str = ""
    target: str = ""
    slice_out: str = ""
    steps: str = ""
    top_gaps: str = ""
    table: str = ""


def find_files(given: Sequence[str]) -> list[str]:
    """Return the files that were named: directories stand for the traces in them, patterns for matches.

    Raises:
        UsageError: where one names nothing.
    """
    found: list[str] = []
    for one in given:
        if is_remote(one):
            files = [one] if one.endswith(SNAPSHOT_ENDINGS) else find_remote(one, _ENDINGS)
        elif os.path.isdir(one):
            names = sorted(name for name in os.listdir(one) if name.endswith(_ENDINGS))
            files = [path for path in (os.path.join(one, name) for name in names) if os.path.isfile(path)]
            if not files:
                raise UsageError(f"{one} holds no trace (*.json, *.json.gz)", "tpmon trace FILE...")
        elif not os.path.exists(one) and glob.has_magic(one):
            files = sorted(glob.glob(one))
            if not files:
                raise UsageError(f"nothing matches {one}", "tpmon trace FILE...")
        else:
            files = [one]
        found += files
    if len(found) > MOST_FILES:
        raise UsageError(f"{len(found)} files are too many, {MOST_FILES} at most", "name fewer")
    return list(dict.fromkeys(found))


class _Progress:
    """Say on standard error how far a long file is read, once a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_AFTER_S

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_AFTER_S
            complain(f"tpmon: read {format_bytes(done)} of {format_bytes(total)}")


def _parse_top(text: str) -> int:
    if not text:
        return TOP
    if not text.isdecimal() or not 0 < int(text[:9]) <= MOST_TOP:
        raise UsageError(f"--top takes a number from 1 to {MOST_TOP}, found {text[:40]!r}", "--top 20")
    return int(text)


def check_pair(files: Sequence[str], asked: TraceAsked) -> float:
    """Return the speed-up that was hoped for; 1 without one, and where nothing is compared.

    Raises:
        UsageError: where it is none, or there is more than one trace to compare.
    """
    target = _parse_target(asked)
    if asked.against and len(files) != 1:
        raise UsageError(f"--against compares one trace, found {len(files)}", "name one FILE")
    return target


def refuse_empty(given: Mapping[str, Any]) -> None:
    """Refuse a flag that was typed with nothing in it: it is not one that was left out.

    Raises:
        UsageError: where there is one.
    """
    for key, flag in _FLAGS.items():
        if given.get(key) == "":
            raise UsageError(f"{flag} takes {_TAKES.get(key, 'a value')}, found ''", f"leave {flag} out")


def _parse_target(asked: TraceAsked) -> float:
    if not asked.target:
        return 1.0
    try:
        target = float(asked.target.removesuffix("x"))
    except ValueError:
        target = 0.0
    if not asked.against or not 0 < target < 1000:
        raise UsageError(
            f"--target takes a speed-up, beside --against; found {asked.target!r}", "--target 1.5x"
        )
    return target


def _settle_form(options: Options, asked: TraceAsked, *, slices: bool) -> Options:
    """Return the options with the form that was typed: it wins over JSON of the file and the variable.

    Raises:
        UsageError: where one form would leave out what another asks for.
    """
    typed = slices or asked.csv or asked.top or asked.table
    if typed and options.json_from is not SettingSource.FLAG:
        options = replace(options, json=False)
    if asked.csv and options.json:
        raise UsageError("--csv and --json exclude each other", "leave one of them out")
    every_row = "--csv" if asked.csv else "--json" if options.json else ""
    if every_row and asked.top and not slices:
        raise UsageError(f"{every_row} writes every row, and --top some", "leave one of them out")
    if options.json and asked.table and not slices:
        raise UsageError("--json writes every table, and --table one as text", "leave one of them out")
    return options


def run_trace(given: Sequence[str], options: Options, asked: TraceAsked, output: Output) -> int:
    """Analyse the traces that were named and write what was asked for."""
    top = _parse_top(asked.top)
    wanted = AskedSlice(asked.slice_out, asked.steps, asked.top_gaps)
    slices = wanted != AskedSlice("", "", "")
    options = _settle_form(options, asked, slices=slices)
    files = find_files(given)
    if slices:
        if options.json or asked != TraceAsked(
            slice_out=wanted.out, steps=wanted.steps, top_gaps=wanted.gaps
        ):
            raise UsageError(
                "--slice stands alone, without --json, --csv, --top, --table, --against and --target",
                "leave the others out",
            )
        return run_slice(files, wanted, _Progress(), output)
    if are_snapshots(files):
        if asked.against:
            raise UsageError(
                f"--against compares traces, and {files[0]} is a memory snapshot", "leave --against out"
            )
        if asked.table or asked.target:
            flag = "--table" if asked.table else "--target"
            raise UsageError(
                f"{flag} is for traces, and {files[0]} is a memory snapshot", f"leave {flag} out"
            )
        return run_snapshots(files, options, asked.csv, top, output)
    tables = (CHANGES,) if asked.against else TABLES
    if asked.csv and asked.csv not in tables:
        beside = " beside --against" if asked.against else ""
        raise UsageError(f"there is no table {asked.csv!r}{beside}", f"--csv with one of {', '.join(tables)}")
    if asked.table and (asked.table not in TEXT_TABLES or asked.csv or asked.against):
        raise UsageError(
            f"--table takes one of {', '.join(TEXT_TABLES)}, without --csv and --against; "
            f"found {asked.table!r}",
            "--table patterns",
        )
    target = check_pair(files, asked)
    if asked.against:
        after, before = analyze([*files, asked.against], _Progress()).files
        comparison = compare_traces(before, after, target)
        if options.json:
            output.write_json(encode(comparison))
        elif asked.csv:
            output.write_lines(*write_changes_csv(comparison))
        else:
            output.write_lines(*write_comparison(comparison, top))
        return ExitCode.OK

    def skip(path: str, error: TpmonError) -> bool:
        """Leave out what only a directory or a pattern named: other files lie there too."""
        if path in given:
            return False
        complain(f"tpmon: left out: {error.what}")
        return True

    wanted_tables = ON_REQUEST if options.json else (asked.csv, asked.table)
    report = analyze(files, _Progress(), skip, wanted=wanted_tables)
    if options.json:
        output.write_json(encode(report))
    elif asked.csv:
        output.write_lines(*write_csv(report, asked.csv))
        if empty := explain_empty(report, asked.csv):
            complain(f"tpmon: {empty}")
    elif asked.table:
        output.write_lines(*write_tables(report, asked.table, top))
    else:
        output.write_lines(*write_report(report, top))
    return ExitCode.OK
