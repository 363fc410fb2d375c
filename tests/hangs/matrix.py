"""Print whether tpmon says of each hung program who hangs, where and why, and calls no slow one hung.

Fresh: tpmon attaches the moment the program hangs, and must be right within 45 s. ``--old 300``:
the program has hung for 300 s before tpmon starts, which must then be right within 15 s; many
programs hang at once and are looked at one after the other. Run: ``make hangs``; results are kept
in a file, so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.hangs.looking import look, watch_alive
from tests.hangs.programs import Trees, start_trees
from tests.hangs.results import Result, read, write_table
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, AliveRow, Row
from tests.verdicts.results import append

MORE_S = 900.0
"""How long a program lives beyond the time that it hangs: starting, and waiting for its turn."""
BURNING_AT_ONCE = 2

Run = tuple[Row | AliveRow, int]


def choose(only: str) -> list[Row | AliveRow]:
    """Return the rows that are named, separated by commas; all without any.

    Raises:
        SystemExit: for a name that no row has.
    """
    rows: dict[str, Row | AliveRow] = {row.name: row for row in (*ROWS, *ALIVE_ROWS)}
    unknown = [name for name in only.split(",") if name not in rows] if only else []
    if unknown:
        sys.exit(f"hangs: no such program: {', '.join(unknown)}; there are {', '.join(rows)}")
    return [rows[name] for name in only.split(",")] if only else list(rows.values())


def batches(runs: Sequence[Run], size: int) -> Iterator[list[Run]]:
    """Divide runs into those that hang at once; programs that burn a CPU are together, two at a time."""
    for burns, most in ((False, size), (True, min(size, BURNING_AT_ONCE))):
        mine = [run for run in runs if isinstance(run[0], Row) and run[0].burns is burns]
        for start in range(0, len(mine), most):
            yield mine[start : start + most]


def tell(path: Path, result: Result) -> None:
    """Keep a result and print it."""
    append(path, result)
    age = f"old {result.old_s:.0f} s" if result.old_s else "fresh"
    if result.skipped:
        word = f"skipped: {result.skipped}"
    else:
        when = f"right after {result.after_s:.0f} s" if result.after_s >= 0 else "not called hung"
        word = when if result.right else f"WRONG ({', '.join(result.misses)})"
    print(f"{result.name} seed {result.seed} {age}: {word}: {result.said}: {result.summary}", flush=True)


def skip(row: Row | AliveRow, seed: int, old_s: float, reason: str) -> Result:
    """Return the result of a program that cannot be made here."""
    return Result(row.name, seed, old_s, "", (), -1.0, (), "", skipped=reason)


def run_fresh(row: Row | AliveRow, seed: int) -> Result:
    """Start a program, attach when it hangs, or when it is at its slow place, and judge what is said."""
    try:
        with start_trees(row, seed, MORE_S) as trees:
            trees.wait_until_ready()
            return look(row, seed, 0.0, trees) if isinstance(row, Row) else watch_alive(row, seed, trees)
    except CannotBeMadeError as error:
        return skip(row, seed, 0.0, str(error))


def run_old(runs: Sequence[Run], old_s: float, path: Path) -> None:
    """Let programs hang for ``old_s`` beside each other, then look at one after the other."""
    with ExitStack() as stack:
        hanging: list[tuple[Row, int, Trees, float, ExitStack]] = []
        for row, seed in runs:
            mine = stack.enter_context(ExitStack())
            try:
                trees = mine.enter_context(start_trees(row, seed, MORE_S + old_s + 60 * len(runs)))
                trees.wait_until_ready()
            except CannotBeMadeError as error:
                tell(path, skip(row, seed, old_s, str(error)))
                continue
            hanging.append((row, seed, trees, time.monotonic(), mine))
        for row, seed, trees, since, mine in hanging:
            time.sleep(max(0.0, since + old_s - time.monotonic()))
            tell(path, look(row, seed, time.monotonic() - since, trees))
            mine.close()


def run_all(rows: Sequence[Row | AliveRow], options: argparse.Namespace) -> None:
    """Run what is not in the results file yet, and tell each result."""
    done = {(one.name, one.seed, one.old_s > 0) for one in read(options.results)}
    seeds = range(options.seed, options.seed + options.runs)
    wanted = [(row, seed) for seed in seeds for row in rows if (row.name, seed, options.old > 0) not in done]
    if options.old > 0:
        for runs in batches(wanted, options.at_once):
            run_old(runs, options.old, options.results)
        return
    for row, seed in wanted:
        tell(options.results, run_fresh(row, seed))


def main() -> int:
    """Run the matrix and print it; exit 1 when something was not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--runs", type=int, default=10, help="runs of each program, each with its own seed")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--old", type=float, default=0.0, help="seconds that it hangs before tpmon starts")
    parser.add_argument("--at-once", type=int, default=8, help="programs that hang beside each other (--old)")
    parser.add_argument("--results", type=Path, default=Path(".venv/hangs.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every program ends and is swept up
    rows = choose(options.only)
    if not options.table:
        run_all(rows, options)
    names = {row.name for row in rows}
    results = [one for one in read(options.results) if one.name in names]
    print("\n".join(["", *write_table(results)]))
    return int(any(one.misses for one in results))


if __name__ == "__main__":
    sys.exit(main())
