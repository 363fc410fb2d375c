"""Write one table of analysed traces as CSV: a header, and a row for each line of each file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from tpmon.model.known import is_known
from tpmon.model.trace import TraceFile, TraceReport

TABLES = ("steps", "breakdown", "gpus", "gaps", "operators", "kernels", "copies", "memory")
_LEFT_OUT = ("largest",)


def write_csv(report: TraceReport, table: str) -> list[str]:
    """Write ``table`` of every file; a value that is not known is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names: list[str] = []
    for file in report.files:
        for row in _rows(file, table):
            if not names:
                names = [field.name for field in fields(row) if field.name not in _LEFT_OUT]
                writer.writerow(["path", "rank", *names])
            values = (getattr(row, name) for name in names)
            rank = file.rank if is_known(file.rank) else ""
            writer.writerow([_safe(file.path), rank, *(_safe(value) for value in values)])
    if not names:
        writer.writerow(["path", "rank"])
    return out.getvalue().splitlines()


def _rows(file: TraceFile, table: str) -> Iterable[Any]:
    overview = file.overview
    return {
        "steps": overview.step_table,
        "breakdown": (overview.breakdown_us,),
        "gpus": overview.gpus,
        "gaps": file.gaps,
        "operators": file.operators,
        "kernels": file.kernels,
        "copies": file.copies,
        "memory": file.memory.peaks,
    }[table]


def _safe(value: object) -> object:
    """Keep a name from being a formula where the file is opened in a spreadsheet."""
    if not is_known(value):
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
