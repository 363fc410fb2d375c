"""Recordings: whole Frames of one job in one file, read back, and judged again."""

from __future__ import annotations

from importlib.util import find_spec

from tpmon.errors import UsageError


def require_sqlite() -> None:
    """Raise UsageError where Python was built without what recordings are kept in."""
    if find_spec("_sqlite3") is None:
        raise UsageError(
            "this Python was built without SQLite, which recordings are kept in",
            "another Python for tpmon, or libsqlite3-dev and this one built anew",
        )
