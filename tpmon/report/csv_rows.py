"""Write rows as CSV that a spreadsheet opens without harm."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from tpmon.model.known import is_known


def write_csv_rows(header: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Write a header and rows; a value that is not known is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_safe, row) for row in rows)
    return out.getvalue().splitlines()


def _safe(value: object) -> object:
    """Keep a name from being a formula where the file is opened in a spreadsheet."""
    if not is_known(value):
        return ""
    if isinstance(value, tuple):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
