"""Print what tpmon says of programs made from public packages, each with a fault put in from outside.

Each program runs once; tpmon attaches after its first steps and its verdict counts. The packages
are those of another interpreter, which needs no tpmon. Run: ``make test-faults``; rules
and thresholds are never tuned to what this prints.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.frameworks.faults import Fault
from tests.frameworks.table import EXPECTED, FRAMEWORKS, ROWS, Row
from tests.programs.causes.running import CannotBeMadeError, Running, diagnose, start_program
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants

HERE = Path(__file__).parent
SECONDS = 240
SETTLE_S = 3.0
LOADER_WORKER = "pt_data_worker"
"""How torch names a loader worker for the kernel."""
VERSIONS = """
import importlib.metadata, json, sys
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
print(json.dumps(found))
"""


def read_versions(python: str, names: Sequence[str]) -> dict[str, str]:
    """Ask the interpreter which versions of the packages it has; those it lacks are not in it."""
    done = subprocess.run([python, "-c", VERSIONS, *names], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


@contextmanager
def run_row(row: Row, python: str, seconds: int = SECONDS) -> Iterator[Running]:
    """Start a program with its fault, wait for its first steps, and end it with all that it started."""
    program = [python, str(HERE / f"{row.framework.program}.py"), "--fault", row.fault.value]
    command = row.fault.wrap(program, sorted(os.sched_getaffinity(0)))
    with start_program(command, 0, seconds=seconds, environment=row.fault.environment) as running:
        running.wait_until_ready()
        time.sleep(SETTLE_S if row.fault is Fault.HEALTHY else 0)
        if row.fault is Fault.STOPPED_WORKER:
            stop_worker(running.pid)
        yield running


def stop_worker(pid: int) -> None:
    """Stop one loader worker of a program.

    Raises:
        RuntimeError: when it has none.
    """
    for one in find_descendants(pid, read_table()):
        if Path(f"/proc/{one}/comm").read_text().strip() == LOADER_WORKER:
            os.kill(one, signal.SIGSTOP)
            return
    raise RuntimeError("the program has no loader worker")


def run_once(row: Row, python: str) -> str:
    """Run a program with its fault and say how that went: ``yes``, or why not."""
    try:
        with run_row(row, python) as running:
            before = running.read_truth()
            verdict = diagnose(running.pid, row.look_s)
            after = running.read_truth()
    except CannotBeMadeError as error:
        return f"not made here: {error}"
    except RuntimeError as error:
        print(error, flush=True)
        return f"no: error: {str(error).splitlines()[0]}"
    document = verdict.document
    steps = (after.steps - before.steps) / max(1e-9, (after.taken_ns - before.taken_ns) / 1e9)
    print(f"{row}: {verdict} ({document.get('confidence')}), {steps:.1f} steps/s", flush=True)
    for name in ("summary", "try", "ceiling", "ruled_out", "unknown"):
        print(f"  {name}: {document.get(name)}", flush=True)
    for name in ("evidence", "against"):
        print(f"  {name}: {json.dumps(document.get(name))}", flush=True)
    return "yes" if row.accepts(verdict.kind, verdict.cause) else f"no: {verdict}"


def write_table(said: Mapping[Row, str]) -> list[str]:
    """Return a line for each fault, with a cell for each program."""
    programs = list(dict.fromkeys(row.framework.program for row in said))
    lines = [f"fault | expected | {' | '.join(programs)}", "---|---" + "|---" * len(programs)]
    for fault in dict.fromkeys(row.fault for row in said):
        cells = {row.framework.program: one for row, one in said.items() if row.fault is fault}
        expected = " or ".join(map(str, EXPECTED[fault]))
        lines.append(f"{fault.value} | {expected} | {' | '.join(cells.get(one, '-') for one in programs)}")
    return lines


def choose(rows: Sequence[Row], only: str) -> list[Row]:
    """Return the rows whose program or fault is among the words of ``only``; all without any."""
    words = set(only.split(",")) if only else set()
    return [row for row in rows if not words or {row.framework.program, row.fault.value} & words]


def main() -> int:
    """Run what the interpreter has packages for and print the table; exit 2 when it has none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="an interpreter that has the packages")
    parser.add_argument("--only", default="", help="programs or faults, separated by commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every program ends and is swept up
    os.environ.pop("OMP_NUM_THREADS", None)
    versions = read_versions(options.python, sorted({"torch", *(name for one in FRAMEWORKS for name in one.packages)}))
    left_out = []
    for framework in FRAMEWORKS:
        lacking = [name for name in ("torch", *framework.packages) if name not in versions]
        if lacking:
            print(f"{framework.program} left out; it needs: pip install {' '.join(lacking)}", flush=True)
            left_out.append(framework)
    rows = [row for row in ROWS if row.framework not in left_out]
    said: dict[Row, str] = {}
    for row in choose(rows, options.only):
        said[row] = run_once(row, options.python)
        print(f"{row}: {said[row]}", flush=True)  # the table is lost where somebody ends this, what was found is not
    print("\n".join(["", ", ".join(f"{name} {version}" for name, version in versions.items()), "", *write_table(said)]))
    hits, misses = (sum(one.startswith(word) for one in said.values()) for word in ("yes", "no:"))
    print(f"\n{hits} hits, {misses} misses")
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
