"""Print whether tpmon fleet says of each hung job on three hosts which rank hangs, where, and accuses no other job.

The hosts are namespaces of this machine, their launchers a real Slurm and a real sshd. The fleet watches from the
start of a job. A hung one must be named by kind, cause, host, rank and line within 45 s of its last step, a slow rank
within 90 s; for ten minutes nothing may be said against a job that is only slow. Needs root.
Run: ``make fleet-hangs``; results are kept in a file, so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.fleet import bed
from tests.fleet.matrix.rows import ALIVE, HOSTS, HUNG, SLOW, STRAGGLER, Spread
from tests.hangs.judging import LATE, WRONG_LINE, find_misses
from tests.hangs.programs import PROGRAMS, TRUTH_NAME, Culprit, read_truth
from tests.programs.causes.running import SCRATCH, TPMON, Verdict, read_verdict
from tests.programs.hangs.table import AliveRow, Row
from tests.verdicts.results import append, read
from tpmon.fleet.launch import Way
from tpmon.model.verdict import Kind

GROUPS: dict[str, Sequence[Spread]] = {"hung": HUNG, "slow": SLOW, "alive": ALIVE}
NEEDED = ("ip", "slurmd", "slurmctld", "munged", "srun", "sshd", "ssh", "ssh-keygen")
LIFE_S = 1500.0
START_S = 300.0
"""How long several jobs may take to start on two busy CPUs."""
MORE_S = 20.0
"""How much longer a hung job is watched, to tell late from never."""
WRONG_HOST = "host"
WRONG_RANK = "rank"
NEVER = "never named"
ACCUSED = "accused"
TORCHRUN = (
    f"{sys.executable} -m torch.distributed.run --nnodes {HOSTS} --node-rank $RANK --master-addr $MASTER_ADDR "
    "--master-port $MASTER_PORT --nproc-per-node"
)


@dataclass(frozen=True)
class Bed:
    """Hold the hosts, how Slurm and ssh are called, and which threes of hosts are free."""

    hosts: bed.Hosts
    slurm: Mapping[str, str]
    ssh: Mapping[str, str]
    free: queue.Queue[tuple[str, ...]]


@contextmanager
def make_bed(lanes: int, folder: Path) -> Iterator[Bed]:
    """Make so many threes of hosts, with one Slurm over all of them and an sshd on each."""
    names = [f"n{number}" for number in range(1, HOSTS * lanes + 1)]
    with bed.make_hosts(*names, network=True) as hosts, bed.run_slurm(hosts, folder) as slurm:
        bed.write_ssh(hosts, folder)
        free: queue.Queue[tuple[str, ...]] = queue.Queue()
        for first in range(0, len(names), HOSTS):
            free.put(tuple(names[first : first + HOSTS]))
        yield Bed(hosts, slurm, {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}, free)


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Hold one run: what was said, in the end or all the time, of whom, and what of it was not right.

    ``after_s`` counts from the last step, of a slow rank from the first reading; -1 where it was not right. ``nodes``
    is what each told where it was not.
    """

    name: str
    said: tuple[str, ...]
    rank: int
    node: str
    misses: tuple[str, ...]
    after_s: float
    summary: str
    nodes: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.misses


@dataclass(frozen=True)
class Seen:
    """Hold what one report said: the verdict, and where it points."""

    taken_s: float
    verdict: Verdict
    node: str
    live: int
    nodes: tuple[str, ...]

    @property
    def rank(self) -> object:
        return self.verdict.document.get("rank")


def parse_report(line: str) -> Seen:
    report: dict[str, Any] = json.loads(line)
    node = report.get("node", "")
    return Seen(
        datetime.fromisoformat(report["taken"]).timestamp(),
        read_verdict(report["verdict"], 0.0),
        node if isinstance(node, str) else "",
        sum(one["state"] == "live" for one in report["nodes"]),
        tuple(map(describe_node, report["nodes"])),
    )


def describe_node(node: dict[str, Any]) -> str:
    """Say what a node tells: its state, for how long its ranks stand, its own verdict."""
    told, finding = node.get("summary", {}), read_verdict(node.get("verdict"), 0.0)
    words = f"{node.get('node')} {node['state']}, {node.get('reason', '')}, still {told.get('still_s', -1):.0f} s"
    return f"{words}, {finding}: {finding.document.get('summary', '')}"


@contextmanager
def watch_fleet(words: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Iterator[Seen]]:
    """Give what ``tpmon fleet --json`` says each second while the block runs."""
    command = [*TPMON, "fleet", *words, "--agent", shlex.join(TPMON), "--json"]
    with log.open("wb") as errors:
        head = subprocess.Popen(command, env=env, cwd=bed.ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert head.stdout is not None
    timer = threading.Timer(LIFE_S, head.kill)
    timer.start()
    try:
        yield map(parse_report, head.stdout)
    finally:
        timer.cancel()
        head.terminate()
        head.wait()
        head.stdout.close()


class Job:
    """Hold a job that runs on three hosts, and what it says of itself."""

    def __init__(self, spread: Spread, names: Sequence[str], folder: Path) -> None:
        self._spread = spread
        self._names = names
        self.truth = folder / TRUTH_NAME
        self.log = folder / "ranks.log"

    def read_culprits(self) -> tuple[Culprit, ...]:
        return read_truth(self.truth)

    def read_last_step(self) -> float:
        """Return when the culprit did its last step, in seconds of the clock; 0 before."""
        return self.truth.stat().st_mtime if self.truth.exists() else 0.0

    def find_host(self, rank: int) -> str:
        return self._names[rank // self._spread.per_host]


@contextmanager
def start_job(spread: Spread, names: Sequence[str], of: Bed, folder: Path) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """Start a job; yield it and the words that tell ``tpmon fleet`` where it is."""
    row, job = spread.row, Job(spread, names, folder)
    start = f"{TORCHRUN} {spread.per_host}" if spread.per_host > 1 else sys.executable
    options = ("--seed", str(spread.seed), "--seconds", f"{LIFE_S:g}", "--steps-file", f"{folder}/steps")
    words = (str(PROGRAMS / row.script), *row.options, *options)
    nice = "nice -n 5 " if isinstance(row, AliveRow) else ""  # it trains for ten minutes beside the others
    command = f"env TMPDIR={folder} OMP_NUM_THREADS=1 {nice}{start} {shlex.join(words)}"
    mine = {name: of.hosts[name] for name in names}
    with ExitStack() as stack:
        if spread.way is Way.SLURM:
            number = stack.enter_context(bed.run_job(of.slurm, mine, command, job.log))
            yield job, ("--slurm", number)
        else:
            stack.enter_context(bed.start_ranks(mine, command, job.log))
            yield job, ("--hosts", ",".join(names))


def run_one(spread: Spread, of: Bed) -> FleetResult:
    """Run one job on the next free hosts and return what the fleet said of it."""
    names = of.free.get()
    env = of.slurm if spread.way is Way.SLURM else of.ssh
    try:
        with tempfile.TemporaryDirectory(prefix="tpmon-fleet-", dir=SCRATCH) as name:
            folder = Path(name)
            with (
                start_job(spread, names, of, folder) as (job, place),
                watch_fleet(place, env, folder / "head.log") as seen,
            ):
                if isinstance(spread.row, AliveRow):
                    return watch_alive(spread, spread.row, seen, job)
                if spread.row.label == STRAGGLER:
                    return look_for_late(spread, spread.row, seen, job)
                return look_at_hang(spread, spread.row, seen, job, of)
    finally:
        of.free.put(names)


def look_at_hang(spread: Spread, row: Row, seen: Iterator[Seen], job: Job, of: Bed) -> FleetResult:
    """Watch until it is called hung, or should have been long ago; stacks may add the line to the first verdict."""
    begun_s, hung_s, one, misses = time.time(), 0.0, None, [NEVER]
    for one in seen:
        culprits = job.read_culprits()
        if not culprits:
            if one.taken_s - begun_s > START_S:
                break
            continue
        if spread.is_cut and not hung_s:
            cut_off(of.hosts[job.find_host(culprits[0].rank)])
        hung_s = hung_s or job.read_last_step()
        if one.verdict.kind == Kind.HUNG.value:
            true = {(job.find_host(it.rank), it.rank) for it in culprits}
            misses = [*find_misses(row, culprits, one.verdict), *find_place_misses(one, true)]
        if misses not in ([NEVER], [WRONG_LINE]) or one.taken_s - hung_s > row.fresh_s + MORE_S:
            break
    if one is None or not hung_s:
        raise RuntimeError(f"no hang was made: {job.log.read_text()[-2000:]}")
    after_s = one.taken_s - hung_s
    misses += [LATE] if after_s > row.fresh_s and not misses else []
    return write_result(spread, one, tuple(misses), round(after_s, 1) if not misses else -1.0)


def find_place_misses(one: Seen, true: set[tuple[str, int]]) -> list[str]:
    """Return what is wrong of host and rank."""
    misses = [] if one.node in {host for host, _ in true} else [WRONG_HOST]
    return misses if one.rank in {rank for _, rank in true} else [*misses, WRONG_RANK]


def look_for_late(spread: Spread, row: Row, seen: Iterator[Seen], job: Job) -> FleetResult:
    """Watch until a rank is called slow, or hung, or should have been long ago."""
    rank = random.Random(spread.seed).randrange(HOSTS)  # as the program draws it
    all_s, one = 0.0, None
    for one in seen:
        all_s = all_s or (one.taken_s if one.live == HOSTS else 0.0)
        is_said = STRAGGLER.fits(one.verdict.kind, one.verdict.cause) or one.verdict.kind == Kind.HUNG.value
        if is_said or (all_s and one.taken_s - all_s > row.fresh_s + MORE_S):
            break
    if one is None or not all_s:
        raise RuntimeError(f"the fleet ended: {job.log.read_text()[-2000:]}")
    misses = [*find_misses(row, (), one.verdict), *find_place_misses(one, {(job.find_host(rank), rank)})]
    after_s = one.taken_s - all_s
    misses += [LATE] if after_s > row.fresh_s else []
    return write_result(spread, one, tuple(misses), round(after_s, 1) if not misses else -1.0)


def watch_alive(spread: Spread, row: AliveRow, seen: Iterator[Seen], job: Job) -> FleetResult:
    """Follow a job that is healthy or slow, of which no reading may say that it hangs, or that a rank is slow."""
    all_s, alarms, said = 0.0, dict[str, None](), dict[str, None]()
    for one in seen:
        all_s = all_s or (one.taken_s if one.live == HOSTS else 0.0)
        said[str(one.verdict)] = None
        is_hung = one.verdict.kind == Kind.HUNG.value
        if is_hung or STRAGGLER.fits(one.verdict.kind, one.verdict.cause):
            alarms[f"{ACCUSED}: {one.verdict}: {one.verdict.document.get('summary')}"] = None
        if all_s and one.taken_s - all_s > row.watch_s:
            return write_result(spread, one, tuple(alarms), round(one.taken_s - all_s, 1), tuple(said))
    raise RuntimeError(f"the fleet ended: {job.log.read_text()[-2000:]}")


def write_result(
    spread: Spread, one: Seen, misses: tuple[str, ...], after_s: float, said: tuple[str, ...] = ()
) -> FleetResult:
    rank = one.rank if isinstance(one.rank, int) else -1
    summary = str(one.verdict.document.get("summary", ""))
    nodes = one.nodes if misses else ()
    return FleetResult(spread.name, said or (str(one.verdict),), rank, one.node, misses, after_s, summary, nodes)


def cut_off(host: bed.Host) -> None:
    """Take a host off the network, then end all that trains there, as when its power fails."""
    bed.run("ip", "link", "set", host.link, "down")
    host.end()


def tell(path: Path, result: FleetResult) -> None:
    append(path, result)
    word = "right" if result.right else f"WRONG ({', '.join(result.misses)})"
    said = f"{', '.join(result.said)} rank {result.rank} on {result.node}"
    print(f"{result.name}: {word} after {result.after_s:.0f} s: {said}: {result.summary}")
    print("".join(f"  {node}\n" for node in result.nodes), end="", flush=True)


def write_table(results: Sequence[FleetResult]) -> list[str]:
    """Return a line for each run."""
    by_name = {one.name: one for one in results}
    lines = ["program|seed|by|rank|s|said", "-|-|-|-|-|-"]
    for spread in (*HUNG, *SLOW, *ALIVE):
        if one := by_name.get(spread.name):
            rank = "" if isinstance(spread.row, AliveRow) else str(one.rank)
            said = ", ".join((*one.said, *(f"WRONG: {miss}" for miss in one.misses)))
            lines.append(f"{spread.row.name}|{spread.seed}|{spread.way.value}|{rank}|{one.after_s:.0f}|{said}")
    return lines


def choose(only: str) -> list[Spread]:
    """Return the runs that are named; all without any. SystemExit for a name that there is not."""
    every = [*ALIVE, *SLOW, *HUNG]  # the longest first
    named: dict[str, Sequence[Spread]] = {**GROUPS}
    for one in every:
        named[one.name] = (one,)
        named[one.row.name] = (*named.get(one.row.name, ()), one)
    names = only.split(",") if only else list(GROUPS)
    if unknown := [name for name in names if name not in named]:
        sys.exit(f"fleet: no such program: {', '.join(unknown)}; there are {', '.join(named)}")
    chosen = {one for name in names for one in named[name]}
    return [one for one in every if one in chosen]


def run_all(runs: Sequence[Spread], lanes: int, take: Callable[[FleetResult], None]) -> int:
    """Run some at once, and return how many could not be looked at."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tpmon-bed-", dir=SCRATCH) as name, make_bed(lanes, Path(name)) as of:
        pool = ThreadPoolExecutor(lanes)
        futures = {pool.submit(run_one, one, of): one for one in runs}
        try:
            for future in as_completed(futures):
                try:
                    take(future.result())
                except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"{futures[future].name}: not looked at: {error}", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def main() -> int:
    """Run the matrix and print it; exit 1 when something was not right, or not looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="names of programs, with or without their seed, or hung, slow, alive"
    )
    parser.add_argument("--lanes", type=int, default=3, help="jobs at once, each on three hosts of its own")
    parser.add_argument("--results", type=Path, default=Path(".venv/fleet-hangs.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    options = parser.parse_args()
    if options.lanes < 1:
        parser.error("--lanes: 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every host ends
    runs, failed = choose(options.only), 0
    if not options.table:
        if why := bed.find_obstacle(*NEEDED):
            sys.exit(f"fleet: NO FLEET WAS TRIED: {why}")
        done = {one.name for one in read(options.results, FleetResult)}
        failed = run_all(
            [one for one in runs if one.name not in done], options.lanes, lambda one: tell(options.results, one)
        )
    names = {one.name for one in runs}
    results = [one for one in read(options.results, FleetResult) if one.name in names]
    print("\n".join(["", *write_table(results)]))
    return int(failed > 0 or any(one.misses for one in results))


if __name__ == "__main__":
    sys.exit(main())
