"""Print whether tpmon says of each hung program who hangs, where and why, and calls no slow one hung.

Fresh: tpmon attaches the moment the program hangs, and must be right within 45 s (a loop that polls,
spins or computes: minutes). ``--old 300``: the program has hung for 300 s before tpmon starts, which
must then be right within 15 s. ``--jobs 6`` runs six side by side, of which ``--cores`` may compute;
with ``--old`` as many as memory has room for hang at once, and six of them start or are looked at.
Run: ``make hangs``; results are kept in a file, so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.hangs.abreast import Abreast, Run, count_cores, count_room
from tests.hangs.results import Result, write_table
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, AliveRow, Row
from tests.verdicts.results import append, read

GROUPS: dict[str, Sequence[Row | AliveRow]] = {"hung": ROWS, "alive": ALIVE_ROWS}
"""What ``--only`` takes besides names of programs."""


def choose(only: str) -> list[Row | AliveRow]:
    """Return the rows that are named, separated by commas; all without any.

    Raises:
        SystemExit: for a name that no row has.
    """
    named: dict[str, Sequence[Row | AliveRow]] = {row.name: (row,) for row in (*ROWS, *ALIVE_ROWS)} | GROUPS
    names = only.split(",") if only else list(GROUPS)
    unknown = [name for name in names if name not in named]
    if unknown:
        sys.exit(f"hangs: no such program: {', '.join(unknown)}; there are {', '.join(named)}")
    return list(dict.fromkeys(row for name in names for row in named[name]))


def plan(rows: Sequence[Row | AliveRow], results: Sequence[Result], options: argparse.Namespace) -> list[Run]:
    """Return the runs that the results do not have yet, longest first, so that none of them is alone last."""
    done = {(one.name, one.seed, one.old_s > 0) for one in results}
    runs: list[Run] = []
    for seed in range(options.seed, options.seed + options.runs):
        for row in rows:
            if isinstance(row, AliveRow) and (options.old > 0 or seed >= options.seed + options.alive_runs):
                continue
            if (row.name, seed, options.old > 0) not in done:
                runs.append((row, seed))
    return sorted(runs, key=lambda run: -run[0].fresh_s if isinstance(run[0], Row) else 0.0)


def tell(path: Path, result: Result) -> None:
    append(path, result)
    age = f"old {result.old_s:.0f} s" if result.old_s else "fresh"
    if result.skipped:
        word = f"skipped: {result.skipped}"
    else:
        when = f"right after {result.after_s:.0f} s" if result.after_s >= 0 else "not called hung"
        word = when if result.right else f"WRONG ({', '.join(result.misses)})"
    print(f"{result.name} seed {result.seed} {age}: {word}: {result.said}: {result.summary}", flush=True)


def main() -> int:
    """Run the matrix and print it; exit 1 when something was not right, or not looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of programs, separated by commas; hung and alive are groups")
    parser.add_argument("--runs", type=int, default=10, help="runs of each program, each with its own seed")
    parser.add_argument(
        "--alive-runs", type=int, default=3, help="runs of each slow program, which take three minutes and a CPU"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--old", type=float, default=0.0, help="seconds that it hangs before tpmon starts")
    parser.add_argument("--jobs", type=int, default=1, help="programs that start or are looked at at once")
    parser.add_argument("--cores", type=int, default=count_cores(), help="programs that compute at once (the CPUs)")
    parser.add_argument("--at-once", type=int, default=count_room(), help="programs that grow old at once (by memory)")
    parser.add_argument("--results", type=Path, default=Path(".venv/hangs.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    options = parser.parse_args()
    if min(options.jobs, options.cores, options.at_once) < 1:
        parser.error("--jobs, --cores and --at-once: 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every program ends and is swept up
    rows = choose(options.only)
    failed = 0
    if not options.table:
        abreast = Abreast(
            options.jobs, options.cores, options.at_once, options.old, lambda one: tell(options.results, one)
        )
        abreast.run(plan(rows, read(options.results, Result), options))
        failed = abreast.failed
    names = {row.name for row in rows}
    results = [one for one in read(options.results, Result) if one.name in names]
    print("\n".join(["", *write_table(results)]))
    return int(failed > 0 or any(one.misses for one in results))


if __name__ == "__main__":
    sys.exit(main())
