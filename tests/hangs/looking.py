"""Attach tpmon to a program that hangs, or that is only slow, and judge what it says."""

from __future__ import annotations

import json
import subprocess

from tests.hangs.judging import find_misses, list_false_alarms, names_odd_one, read_left_out
from tests.hangs.programs import HANGS, Culprit, Trees
from tests.hangs.results import Result
from tests.programs.causes.running import ROOT, TPMON, Running, Verdict, watch
from tests.programs.hangs.table import AliveRow, Row

OLD_S = 15.0
MORE_S = 20.0
"""How much longer it is watched, to tell late from never."""
STEADY = 4
"""Readings in a row that must be right."""
LATE = "late"
ENDED = "the program ended"
WRONG_FOLD = "fold names another rank or line"


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
