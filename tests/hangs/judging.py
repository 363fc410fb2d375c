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
WRONG_THREAD = "thread"
LOCAL_ACCUSED = "a rank that is here is accused"


def read_rows(document: dict[str, object]) -> list[str]:
    """Return what a Finding shows as evidence, a text each; the first is about the one it accuses."""
    rows = document.get("evidence")
    if not isinstance(rows, list):
        return []
    return [f"{row.get('name', '')}: {row.get('text', '')}" for row in rows if isinstance(row, dict)]


def read_accusation(document: dict[str, object]) -> str:
    """Return the words in which a Finding accuses: its summary and its first evidence."""
    return "\n".join([str(document.get("summary", "")), *read_rows(document)[:1]])


def read_left_out(document: dict[str, object]) -> tuple[str, ...]:
    """Return what a Finding says of hangs that it does not state: why not, or what is not known."""
    told: list[str] = []
    for key in ("unknown", "ruled_out"):
        texts = document.get(key)
        told += [str(text) for text in texts if "hang" in str(text)] if isinstance(texts, list) else []
    return tuple(told)


def names_process(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names a process: by its PID, or as the rank that it is where no PID is said."""
    accused = read_rows(document)[:1]
    if _names_pid(document, culprit.pid):
        return True
    says_pid = any(re.search(r"\(\d+\)", row) for row in accused)
    return culprit.worker < 0 and not says_pid and _names_rank(document, culprit)


def names_waiter(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names the process that a worker works for."""
    return _names_pid(document, culprit.parent) or _names_rank(document, culprit)


def _names_pid(document: dict[str, object], pid: int) -> bool:
    return re.search(rf"\b{pid}\b", read_accusation(document)) is not None


def _names_rank(document: dict[str, object], culprit: Culprit) -> bool:
    return re.search(rf"\brank {culprit.rank}\b", read_accusation(document)) is not None


def names_line(document: dict[str, object], culprit: Culprit) -> bool:
    text = read_accusation(document)
    return any(re.search(rf"\b{re.escape(place)}\b", text) for place in culprit.places)


def names_thread(document: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a Finding names the thread, by its number or its name: "thread log-flusher (4711)"."""
    text = read_accusation(document)
    by_name = rf"\bthread {re.escape(culprit.thread)}(?![\w-])"
    return re.search(rf"\({culprit.tid}\)|{by_name}", text) is not None


def _pick_threads(culprits: Sequence[Culprit]) -> Sequence[Culprit]:
    """Return the culprits by which a thread is told: who accuses the main thread as well has told nothing yet."""
    return [one for one in culprits if one.tid != one.pid] or culprits


def names_odd_one(folded: dict[str, object], culprit: Culprit) -> bool:
    """Tell whether a fold names a process as the odd one out, and the line that it is in."""
    odd = folded.get("odd_one_out")
    if not isinstance(odd, dict) or (odd.get("rank"), odd.get("pid")) != (culprit.rank, culprit.pid):
        return False
    return any(re.search(rf"\b{re.escape(place)}\b", str(odd.get("doing"))) for place in culprit.places)


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
    if Must.THREAD in row.must and not any(names_thread(document, one) for one in _pick_threads(culprits)):
        misses.append(WRONG_THREAD)
    if row.trees > 1 and accuses_local(document):
        misses.append(LOCAL_ACCUSED)
    return tuple(misses)


def accuses_local(document: dict[str, object]) -> bool:
    """Tell whether a Finding says of one rank what it says of a culprit, although the cause is elsewhere."""
    verbs = "is|has|holds|runs|computes|waits"
    return re.search(rf"\brank \d+ ({verbs})\b", str(document.get("summary", ""))) is not None


def list_false_alarms(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return each verdict of a healthy program's seconds that says that it hangs."""
    return tuple(
        f"{verdict} at {verdict.after_s:.0f} s: {verdict.document.get('summary', '')}"
        for verdict in verdicts
        if verdict.kind == Kind.HUNG.value
    )
