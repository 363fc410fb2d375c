"""Tell whether tpmon named what is true: kind, cause, process and line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tests.hangs.programs import Culprit
from tests.programs.causes.running import Verdict
from tests.programs.hangs.table import Must, Row
from tpmon.model.verdict import Kind

WRONG_KIND = "kind or cause"
WRONG_PROCESS = "process"
WRONG_LINE = "line"
LOCAL_ACCUSED = "a rank that is here is accused"


def read_text(document: dict[str, object]) -> str:
    """Return everything that a Finding says in words."""
    rows = document.get("evidence")
    rows = rows if isinstance(rows, list) else []
    words = [document.get("summary", "")]
    words += [f"{row.get('name', '')}: {row.get('text', '')}" for row in rows if isinstance(row, dict)]
    return "\n".join(map(str, words))


def names_process(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names a process: by its PID, or as the rank that it is."""
    return _names_pid(document, culprit.pid) or (culprit.worker < 0 and _names_rank(document, culprit))


def names_waiter(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names the process that a worker works for."""
    return _names_pid(document, culprit.parent) or _names_rank(document, culprit)


def _names_pid(document: dict[str, object], pid: int) -> bool:
    return re.search(rf"\b{pid}\b", read_text(document)) is not None


def _names_rank(document: dict[str, object], culprit: Culprit) -> bool:
    return re.search(rf"\brank {culprit.rank}\b", read_text(document)) is not None


def names_line(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names the line."""
    text = read_text(document)
    return any(re.search(rf"\b{re.escape(place)}\b", text) for place in culprit.places)


def find_misses(row: Row, culprits: Sequence[Culprit], verdict: Verdict) -> tuple[str, ...]:
    """Return what is not right in a verdict; of several culprits any counts."""
    if not row.accepts(verdict.kind, verdict.cause):
        return (WRONG_KIND,)
    misses: list[str] = []
    document = verdict.document
    if Must.PROCESS in row.must and not any(names_process(document, one) for one in culprits):
        misses.append(WRONG_PROCESS)
    if Must.WAITER in row.must and not any(names_waiter(document, one) for one in culprits):
        misses.append(WRONG_PROCESS)
    if Must.LINE in row.must and not any(names_line(document, one) for one in culprits):
        misses.append(WRONG_LINE)
    if row.trees > 1 and accuses_local(document):
        misses.append(LOCAL_ACCUSED)
    return tuple(misses)


def accuses_local(document: dict[str, object]) -> bool:
    """Tell whether a Finding names a process although the cause is elsewhere."""
    return "pid" in document or "rank" in document


def list_false_alarms(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return each verdict of a healthy program's seconds that says that it hangs."""
    return tuple(
        f"{verdict} at {verdict.after_s:.0f} s: {verdict.document.get('summary', '')}"
        for verdict in verdicts
        if verdict.kind == Kind.HUNG.value
    )
