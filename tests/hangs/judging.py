"""Attach tpmon to a program that hangs, or that is only slow, and tell whether it names what is true."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Sequence

from tests.hangs.programs import HANGS, Culprit, Trees
from tests.hangs.results import Result
from tests.programs.causes.running import ROOT, TPMON, Running, Verdict, watch
from tests.programs.hangs.table import AliveRow, Must, Row
from tpmon.model.verdict import Kind

OLD_S = 15.0
MORE_S = 20.0
"""How much longer it is watched, to tell late from never."""
STEADY = 4
"""Readings in a row that must be right."""
LATE = "late"
ENDED = "the program ended"
WRONG_FOLD = "fold names another rank or line"
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


def look(row: Row, seed: int, old_s: float, trees: Trees) -> Result:
    """Attach until the verdict is right and stays so, or the time is over; of an old hang 15 s count."""
    limit_s = OLD_S if old_s else row.fresh_s
    right: list[Verdict] = []

    def is_right(verdict: Verdict) -> bool:
        if find_misses(row, trees.read_culprits(), verdict):
            right.clear()
        else:
            right.append(verdict)
        return len(right) >= STEADY

    verdicts, _ = watch(trees.seen.pid, limit_s + MORE_S, is_right)
    culprits = trees.read_culprits()
    misses = list(find_misses(row, culprits, verdicts[-1]))
    after_s = right[0].after_s if right else -1.0
    if not misses and after_s > limit_s:
        misses.append(LATE)
    if trees.hidden is not None:
        misses += find_fold_misses(trees.seen, trees.hidden, culprits)
    earlier = dict.fromkeys(str(one) for one in verdicts if one.accuses and not row.accepts(one.kind, one.cause))
    last = verdicts[-1]
    return Result(
        row.name,
        seed,
        old_s,
        str(last),
        tuple(misses),
        round(after_s, 1),
        tuple(earlier),
        str(last.document.get("summary", "")),
        left_out=read_left_out(last.document) if misses else (),
    )


def watch_alive(row: AliveRow, seed: int, trees: Trees) -> Result:
    """Follow a slow program, of which no reading may say that it hangs."""
    verdicts, _ = watch(trees.seen.pid, row.watch_s)
    accused = tuple(dict.fromkeys(str(one) for one in verdicts if one.accuses))
    alarms = list_false_alarms(verdicts)[:1]
    if not trees.seen.is_running() and row.folder == HANGS:
        alarms += (f"{ENDED}: {trees.seen.log.read_text()[-200:]}",)
    last = verdicts[-1]
    summary = str(last.document.get("summary", ""))
    return Result(row.name, seed, 0.0, str(last), alarms, -1.0, accused, summary)


def find_fold_misses(seen: Running, hidden: Running, culprits: tuple[Culprit, ...]) -> list[str]:
    """Dump both trees, fold them as a user does, and return what is not right in the fold."""
    dumps = [
        subprocess.run([*TPMON, "dump", str(one.pid), "--json"], stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout
        for one in (seen, hidden)
    ]
    done = subprocess.run(
        [*TPMON, "fold", "-", "--json"], input=b"".join(dumps), stdout=subprocess.PIPE, cwd=ROOT, check=True
    )
    folded = json.loads(done.stdout)
    if any(names_odd_one(folded, one) for one in culprits):
        return []
    return [f"{WRONG_FOLD}: {folded['summary']}"]
