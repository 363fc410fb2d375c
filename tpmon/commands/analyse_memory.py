"""The part of ``trace`` that is for memory snapshots: tell them from traces, write what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.config import Options
from tpmon.errors import ExitCode, UsageError
from tpmon.model.codec import encode
from tpmon.report.write import Output
from tpmon.trace.reading.sources import is_snapshot


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
