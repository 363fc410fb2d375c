"""Put the hook into running trainings and take it out, many times, and hold their losses against a run without.

``python -m tests.inject.late_matrix --times 100 --python PATH ...``. Prints a table: a row a Python and loop.
Fails where a loss differs in one bit, a process died, or anything was left.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tpmon.inject.late_hook import LateHook
from tpmon.inject.refusal import RefusedError
from tpmon.model.process import Identity
from tpmon.model.results.late import LateState
from tpmon.probe.base.procread import list_pids, read_stat

LOOPS = ("plain", "workers", "compiled", "asyncio", "threads", "ddp")
PROGRAM = Path(__file__).with_name("late_loops.py")
READY_S = 300.0
END_S = 300.0
MOST_REFUSED = 100
QUIET_S = 3.0
"""So long before, in the first time in, and after, nothing is changed: for a pace."""

Report = dict[str, Any]


@dataclass
class Row:
    """Hold what came of one loop on one Python."""

    python: str
    loop: str
    pairs: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    differ: int = 0
    install_ms: list[float] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def is_good(self) -> bool:
        return not self.differ and not self.left and self.pairs > 0

    def write(self, found: Report, alone: Report) -> str:
        waits = sorted(self.install_ms)
        middle, longest = (waits[len(waits) // 2], waits[-1]) if waits else (0.0, 0.0)
        refused = ", ".join(f"{word} {many}" for word, many in self.refused.items()) or "-"
        every = set(range(len(found["cpu_ms"])))
        asked = every.intersection(found["asked"])
        paces = [measure_pace(one, found["turned"]) for one in (found["wall_ms"], alone["wall_ms"])]
        cells = [
            *(self.python, self.loop, self.pairs, refused, len(found["losses"]), self.differ),
            *(f"{middle:.1f} / {longest:.0f}", find_longest(found, asked), find_longest(found, every - asked)),
            find_longest(alone, every),
            *(" / ".join(f"{1e3 / one:.0f}" for one in pace) for pace in paces),
            f"{median(found['cpu_ms']):.2f} / {median(alone['cpu_ms']):.2f}",
            f"{found['full_collections']} / {alone['full_collections']}",
            f"{found['compiled']} / {alone['compiled']}",
            ", ".join(self.left) or "-",
        ]
        return f"| {' | '.join(map(str, cells))} |"


def measure_pace(wall_ms: Sequence[float], turned: Sequence[int]) -> list[float]:
    """Return the median step before the hook came, while it was held in, and after it was out for good.

    Of a run without the same steps are taken: what differs there is noise.
    """
    after, waited_ms = len(wall_ms), 0.0
    while turned and after > turned[-1] + 1 and waited_ms < QUIET_S * 1e3:
        after -= 1
        waited_ms += wall_ms[after]
    if len(turned) < 2:
        return []
    return [median(one) for one in (wall_ms[: turned[0]], wall_ms[turned[0] + 1 : turned[1]], wall_ms[after:])]


def find_longest(found: Report, steps: Collection[int]) -> str:
    """Write the CPU ms of the longest of these steps, as it was and less the collections of garbage in it."""
    whole = max((found["cpu_ms"][one] for one in steps), default=0.0)
    less = max((found["cpu_ms"][one] - found["collecting_ms"][one] for one in steps), default=0.0)
    return f"{whole:.1f} / {less:.1f}"


COLUMNS = (
    *("Python", "loop", "in and out", "refused", "steps", "losses that differ"),
    *("asked until answered, ms: median / longest", "longest step with a script, CPU ms: whole / less its collections"),
    *("longest other step", "longest step of the run without"),
    "steps/s of the median step: before / in / after",
    "the same steps of the run without",
    *("median step, CPU ms: with / without", "full collections", "frames given to Dynamo again", "left behind"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def start(python: str, loop: str, steps: int = 0) -> subprocess.Popen[str]:
    command = [python, "-W", "ignore", str(PROGRAM), loop, *([str(steps)] if steps else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(job: subprocess.Popen[str]) -> Report:
    out, said = job.communicate(timeout=END_S)
    assert job.returncode == 0, f"the training ended with {job.returncode}: {said[-2000:]}"
    found: Report = json.loads(out.splitlines()[-1])
    return found | {"wrote": said}


def find_ranks(job: subprocess.Popen[str]) -> list[Identity]:
    """Return the process and, of DDP, the second rank."""
    found = [Identity(job.pid, read_stat(job.pid).start_ticks)]
    for pid in list_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if read_stat(pid).parent == job.pid and b"spawn_main" in command:
                found.append(Identity(pid, read_stat(pid).start_ticks))
        except (OSError, ValueError):
            continue
    return found


def list_left(process: Identity) -> list[str]:
    """List pages and files that are still there."""
    folder = f"/proc/{process.pid}/fd"
    pages = []
    for name in os.listdir(folder):
        try:
            if "memfd:tpmon" in os.readlink(f"{folder}/{name}"):
                pages.append("page")
        except OSError:
            continue
    return pages + [os.path.basename(one) for one in glob.glob(f"/tmp/.tpmon-{os.getpid()}-*")]


def ask(row: Row, process: Identity, verb: str) -> bool:
    """Put the hook in or take it out; what is refused is tried again, but not for ever."""
    most = MOST_REFUSED + sum(row.refused.values())
    while sum(row.refused.values()) < most:
        try:
            if verb == "remove":
                assert LateHook(process).remove().state is LateState.REMOVED
            else:
                row.install_ms.append(LateHook(process).install().waited_ms)
        except RefusedError as error:
            row.refused[error.reason.value] += 1
        else:
            return True
    return False


def hold(row: Row, ranks: Sequence[Identity]) -> None:
    """Leave the ranks alone, then with the hook in all of them; the first, which measures, has it last."""
    time.sleep(QUIET_S)
    if all(ask(row, one, "install") for one in reversed(ranks)):
        time.sleep(QUIET_S)
        row.pairs += sum(ask(row, one, "remove") for one in ranks)


def change(row: Row, process: Identity, times: int) -> None:
    """Put the hook in and take it out until that was done so often in all."""
    threads = len(os.listdir(f"/proc/{process.pid}/task"))
    while row.pairs < times and ask(row, process, "install"):
        time.sleep(0.005)
        if not ask(row, process, "remove"):
            break
        row.pairs += 1
    LateHook(process).check()  # its queue is whole again
    row.left += list_left(process)
    more = len(os.listdir(f"/proc/{process.pid}/task")) - threads
    row.left += [f"{more} threads"] if more > 0 else []


def measure(python: str, loop: str, times: int) -> tuple[Row, str]:
    asked = [python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
    row = Row(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip(), loop)
    job = start(python, loop)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n", job.stderr.read() if job.stderr else ""
        ranks = find_ranks(job)
        hold(row, ranks)
        for number, process in enumerate(ranks, 1):
            change(row, process, times * number // len(ranks))
        time.sleep(QUIET_S)
        found = finish(job)
    finally:
        if job.poll() is None:
            job.kill()
    alone = finish(start(python, loop, len(found["losses"])))
    row.differ = sum(one != other for one, other in zip(found["losses"], alone["losses"], strict=True))
    row.left += [f"patch {one}" for one in found["patched"]]
    if found["wrote"] and not alone["wrote"]:
        row.left.append(f"wrote {found['wrote'][-300:]!r}")
    return row, row.write(found, alone)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="how often the hook goes in and out, a loop")
    parser.add_argument("--python", action="append", help="a Python with torch (default: this one)")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="one loop (default: all)")
    asked = parser.parse_args()
    good = True
    print(HEAD, flush=True)
    for python in asked.python or [sys.executable]:
        for loop in asked.loop or LOOPS:
            row, line = measure(python, loop, asked.times)
            good = good and row.is_good()
            print(line, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
