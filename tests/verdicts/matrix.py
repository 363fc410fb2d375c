"""Print whether tpmon says of each program what is true of it: idle, and beside a burning core.

Each program runs with parameters drawn at random, tpmon attaches when it shows its cause, and what
it says at the end of its time counts; a healthy one must not be accused at any second of a minute.
``--remedies`` applies what tpmon advises and compares the gain with the ceiling that it stated.
Run: ``make verdicts``; results are kept in a file, so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from pathlib import Path

from tests.budget.measure import say_neighbours
from tests.programs.causes.running import CannotBeMadeError, Verdict, burner, diagnose, run_program, watch
from tests.programs.causes.table import ROWS, Row, find_row
from tests.verdicts.results import Gain, Result, append, read, write_gains, write_table
from tpmon.judge.advice.choose import CATALOGUE

HEALTHY_S = 60.0
SETTLE_S = 3.0
RATE_S = 20.0

TENANTS = "other-tenants"
"""The note, or the cause, that a healthy run beside a burning core must carry."""
NUMBER_X = re.compile(r"(\d+(?:\.\d+)?)\s*x")


def find_onset(row: Row, verdicts: list[Verdict]) -> float:
    """Return from which second on every verdict was right; -1 when the last was not."""
    onset = -1.0
    for verdict in verdicts:
        if not row.accepts(verdict.kind, verdict.cause):
            onset = -1.0
        elif onset < 0:
            onset = verdict.after_s
    return onset


def run_once(row: Row, seed: int, busy: bool) -> Result:
    try:
        with run_program(row, seed) as running, burner(busy):
            time.sleep(SETTLE_S if row.is_healthy else 0)
            verdicts, notes = watch(running.pid, HEALTHY_S if row.is_healthy else row.watch_s, flags=row.flags)
    except CannotBeMadeError as error:
        return Result(row.name, seed, busy, "", "", False, -1.0, (), (), str(error))
    last = verdicts[-1]
    accused = tuple(str(verdict) for verdict in verdicts if verdict.accuses)
    right = row.accepts(last.kind, last.cause) and not (row.is_healthy and accused)
    if row.is_healthy and (last.kind == "not-enough-evidence" or (busy and TENANTS not in (last.cause, *notes))):
        right = False
    if row.says not in str(last.document.get("summary", "")):
        right = False
    return Result(
        row.name,
        seed,
        busy,
        last.kind,
        last.cause,
        right,
        round(find_onset(row, verdicts), 1) if right else -1.0,
        accused,
        tuple(sorted(notes)),
        summary=str(last.document.get("summary", "")),
        document="" if right else json.dumps(last.document),
    )


def run_remedy(row: Row, seed: int) -> Gain:
    """Measure a program as it is, ask tpmon for the ceiling, and measure it with the remedy."""
    with run_program(row, seed) as running:
        before = running.measure_rate(RATE_S)
        verdict = diagnose(running.pid, row.watch_s)
    stated = verdict.document.get("ceiling", "")
    ceiling = stated if isinstance(stated, str) else "not known"
    number = NUMBER_X.search(ceiling)
    with run_program(row, seed, "--fix") as running:
        time.sleep(SETTLE_S)
        after = running.measure_rate(RATE_S)
    advised = find_advice(row.advice, verdict.document)
    return Gain(row.name, seed, before, after, ceiling, float(number[1]) if number else 0.0, advised)


def find_advice(remedy: str, document: dict[str, object]) -> str:
    """Say whether a remedy of the catalogue is the one to "try", is said beside it ("also"), or not at all ("no")."""
    title = re.compile(re.sub(r"\\\{\w+\\\}", ".*", re.escape(CATALOGUE[remedy].title)))
    also = document.get("also_try", ())
    if title.search(str(document.get("try", ""))):
        return "try"
    return "also" if any(title.search(str(one)) for one in also) else "no"


def run_all(rows: list[Row], options: argparse.Namespace) -> int:
    """Run what is not in the results file yet, tell each result, and return how many did not start."""
    missed = 0
    results, gains = read(options.results, Result), read(options.results, Gain)
    done = {(one.name, one.seed, one.busy) for one in results}
    gained = {(one.name, one.seed) for one in gains}
    for seed in range(options.seed, options.seed + options.runs):
        for row in rows:
            if options.remedies:
                if row.remedy and (row.name, seed) not in gained:
                    gain = run_remedy(row, seed)
                    append(options.results, gain)
                    print(f"{row.name} seed {seed}: {gain.ratio:.2f}x, stated: {gain.ceiling}", flush=True)
                continue
            for busy in {"idle": (False,), "busy": (True,), "both": (False, True)}[options.machine]:
                if (row.name, seed, busy) in done:
                    continue
                where = "busy" if busy else "idle"
                try:
                    result = run_once(row, seed, busy)
                except RuntimeError as error:  # the others are measured all the same; it is tried again next time
                    print(f"{row.name} seed {seed} {where}: NOT MEASURED: {error}", flush=True)
                    missed += 1
                    continue
                append(options.results, result)
                word = "right" if result.right else f"skipped: {result.skipped}" if result.skipped else "WRONG"
                extra = f", accused: {sorted(set(result.accused))}" if row.is_healthy and result.accused else ""
                print(f"{row.name} seed {seed} {where}: {word}: {result.said}{extra}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--runs", type=int, default=5, help="runs of each program, each with its own seed")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--machine", choices=("idle", "busy", "both"), default="both")
    parser.add_argument("--remedies", action="store_true", help="apply the remedies instead")
    parser.add_argument("--results", type=Path, default=Path(".venv/verdicts.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every program ends and is swept up
    rows = [find_row(name) for name in options.only.split(",")] if options.only else list(ROWS)
    missed = 0
    if not options.table:
        print(say_neighbours(), flush=True)
        missed = run_all(rows, options)
    gains = read(options.results, Gain)
    results = [one for one in read(options.results, Result) if one.name in {row.name for row in rows}]
    if results:
        print("\n".join(["", *write_table(results)]))
    if gains:
        print("\n".join(["", *write_gains(gains)]))
    return int(missed > 0 or any(not one.right for one in results if not one.skipped))


if __name__ == "__main__":
    sys.exit(main())
