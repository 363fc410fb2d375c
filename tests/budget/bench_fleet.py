"""Measure what the head of a fleet costs: ``make bench-fleet``, or ``python -m tests.budget.bench_fleet 64 1024``.

Agents are played from a recording, a second of a node each second, widened to eight ranks and cards. Through one
pipe, as srun hands them on, or a pipe each, as ssh does; and over 64 real slurmds on this machine, as root. No
agent itself runs: 64 of these would share the CPUs with the head, which no cluster does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import cycle
from pathlib import Path

from tests.budget.measure import TICKS, say_neighbours
from tests.dumps import make_rank
from tests.fleet import bed, player
from tests.fleet.nodes import look_at
from tests.stacks import IN_LOCK
from tests.waiting import wait_until
from tpmon.fleet.agent import make_hello, make_summary
from tpmon.fleet.head import FleetHead
from tpmon.fleet.launch import AgentLaunch, Place, Way, plan_launches
from tpmon.fleet.line import Joiner, split_message
from tpmon.fleet.loop import Fleet
from tpmon.fleet.messages import decode_message, encode_message
from tpmon.fleet.report import FleetPlain
from tpmon.judge.dumps.collectives import fold_collectives
from tpmon.judge.folds.groups import fold_dumps
from tpmon.judge.nodes import name_host
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime
from tpmon.model.known import is_known
from tpmon.model.results.fleet import FleetReport, NodeDump, NodeState, NodeSummary
from tpmon.record.recording import Recording

RECORDING = bed.ROOT / "tests" / "recordings" / "alive-slow_worker.busy.0.tpmon"
SETTLE, MEASURED = 8, 12
"""Reports that are left out, and that are measured."""
RANKS = 8
SLURMDS, FIRST_PORT = 64, 17_000
MESSAGES = 100_000
LONG_EVERY = 10
"""One message of so many fills several lines."""
SAID_S = 180.0
STOOD = WatchedTime(longest_s=15.0, still_ns=1, taken_ns=40_000_000_000)


def read_seconds() -> tuple[bytes, list[bytes]]:
    """Return the first verdict of a recording, and what an agent would have told in each second of it."""
    with Recording(str(RECORDING)) as recording:
        frames = list(recording.frames(recording.first.n, recording.last.n))
    verdict = next(frame.verdict for frame in frames if is_known(frame.verdict))
    return encode_message(verdict), [encode_message(widen(make_summary(one, NO_WATCH, {}))) for one in frames]


def widen(told: NodeSummary) -> NodeSummary:
    """Give a node eight ranks and cards."""
    ranks = tuple(
        replace(told.ranks[0], rank=rank, pid=4000 + rank, own_ms=123.4567, step_ms=456.789, wait_ratio=0.1234)
        for rank in range(RANKS)
    )
    return replace(told, ranks=ranks, gpu_pct=tuple(90.0 + card for card in range(RANKS)), step_rate_hz=1.2345)


def write_lines(node: str, number: int, *messages: bytes) -> bytes:
    return b"".join(b"".join(split_message(node, number + at, one)) for at, one in enumerate(messages))


def play(nodes: Sequence[str]) -> None:
    """Speak for all nodes until the head is gone."""
    verdict, seconds = read_seconds()
    told, due_s = [encode_message(make_hello()), verdict], time.monotonic()
    for number, second in enumerate(cycle(seconds)):
        for node in nodes:
            os.write(1, write_lines(node, 3 * number, *told, second))
        told, due_s = [], due_s + 1.0
        time.sleep(max(0.0, due_s - time.monotonic()))


def read_srun_s(pid: int) -> float:
    """Return the CPU of the sruns below a process, in seconds."""
    spent_s = 0.0
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        name, _, rest = Path(f"/proc/{child}/stat").read_text().partition(") ")
        if name.endswith("(srun"):
            user, system = map(int, rest.split()[11:13])
            spent_s += (user + system) / TICKS + read_srun_s(child)
    return spent_s


def measure(what: str, launches: Sequence[AgentLaunch]) -> str:
    """Watch so many nodes for some seconds, and say what that costs, as a row of a table."""
    plain, marks = FleetPlain(), list[tuple[float, float, float]]()
    begun_s, first_s, torn = time.monotonic(), 0.0, 0

    def take(report: FleetReport) -> bool:
        nonlocal torn
        plain.read(report)
        torn = sum(one.torn for one in report.nodes)
        marks.append((time.monotonic(), time.process_time(), read_srun_s(os.getpid())))
        return len(marks) > SETTLE + MEASURED

    fleet = Fleet(launches)
    first_s = await_all(fleet.head, begun_s)
    fleet.run(take)
    (from_s, before_s, before), (to_s, after_s, after) = marks[SETTLE], marks[-1]
    cost = 1000 * (after_s - before_s) / (to_s - from_s)
    theirs = f"{1000 * (after - before) / (to_s - from_s):.1f}" if after else "-"
    nodes = sum(len(one.nodes) for one in launches)
    return f"{what:<22}{nodes:>6,}{first_s:>12.1f}{cost:>11.1f}{theirs:>11}{torn:>6}"


def await_all(head: FleetHead, begun_s: float) -> float:
    """Return after how many seconds every node has told of its job."""
    while any(one.state is not NodeState.LIVE for one in head.rows()):
        head.poll(0.02)
        if time.monotonic() - begun_s > SAID_S:
            raise SystemExit([(one.node, one.state, one.reason) for one in head.rows() if one.state != "live"][:3])
    return time.monotonic() - begun_s


def measure_stacks(nodes: int) -> str:
    """Read and fold what so many nodes of eight ranks answer when one rank waits for a lock."""
    names, stream = [f"n{node}" for node in range(nodes)], b""
    lines = []
    for node, name in enumerate(names):
        ranks = [
            make_rank(rank, pid=4000 + rank, **({} if rank else {"frames": IN_LOCK}))
            for rank in range(RANKS * node, RANKS * (node + 1))
        ]
        answer = encode_message(NodeDump(1, look_at(*ranks, world=RANKS * nodes)))
        lines.append(write_lines(name, 1, answer))
    stream, begun_s = b"".join(lines), time.process_time()
    dumps = [(one.node, decode_message(one.message)) for one in Joiner(names).add(stream)]
    read_s, begun_s = time.process_time() - begun_s, time.process_time()
    looks = tuple(name_host(one.dump, node) for node, one in dumps if isinstance(one, NodeDump) and is_known(one.dump))
    fold_collectives(fold_dumps(looks, STOOD), looks)
    spent_s = time.process_time() - begun_s
    size_mb = len(stream) / 1e6
    return (
        f"stacks of {RANKS * nodes:,} ranks: {size_mb:.1f} MB, {read_s:.1f} s of CPU to read, {spent_s:.1f} s to judge"
    )


def play_here(names: Sequence[str]) -> AgentLaunch:
    return AgentLaunch((sys.executable, "-m", "tests.budget.bench_fleet", "--play", *names), tuple(names))


def play_files(folder: Path, seconds: float, times: int) -> tuple[str, ...]:
    return (sys.executable, "-IS", player.__file__, str(folder), f"{seconds:g}", str(times))


def write_files(folder: Path, names: Sequence[str], long_every: int = 0) -> None:
    """Write what the player of each node says, some of it over several lines where that is wanted."""
    verdict, seconds = read_seconds()
    for node in names:
        parts = [write_lines(node, 1, encode_message(make_hello()), verdict)]
        for number, second in enumerate(seconds, 3):
            is_long = long_every and number % long_every == 0
            parts.append(write_lines(node, number, b"x " + os.urandom(4000) if is_long else second))
        (folder / node).write_bytes(b"\n".join(parts))


@contextmanager
def run_many(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Run 64 slurmds here and a job on all of them; yield its number and their names."""
    names, ports = tuple(f"n{one}" for one in range(1, SLURMDS + 1)), f"{FIRST_PORT + 1}-{FIRST_PORT + SLURMDS}"
    where = f"NodeHostname={os.uname().nodename} NodeAddr={bed.OWN_ADDRESS} Port=[{ports}] CPUs=2"
    nodes = f"NodeName=n[1-{SLURMDS}] {where}\nPartitionName=all Nodes=n[1-{SLURMDS}] Default=YES State=UP\n"
    with bed.enter_own_network():
        machine = bed.Host(os.uname().nodename)
        try:
            env = bed.start_slurmctld(machine, folder, nodes)
            for name in names:
                bed.start_slurmd(machine, name, folder, env)
            bed.await_idle(SLURMDS, env)
            os.environ.update(env)
            step = [*bed.WITH_US, "srun", "-N", str(SLURMDS), "-n", str(SLURMDS), "sleep", "1000"]
            job = subprocess.Popen(step, stdin=subprocess.DEVNULL, cwd="/")
            ask = ("squeue", "--noheader", "--states=running", "--format=%i")
            assert wait_until(lambda: bool(bed.run(*ask).strip()), 60.0, 0.2)
            time.sleep(3.0)  # its own step has started on all
            yield bed.run(*ask).strip(), names
            job.kill()
            job.wait()
        finally:
            machine.end()


def count_torn(job: str, names: Sequence[str], folder: Path) -> str:
    """Send many messages through srun as fast as it takes them, and say how many came whole."""
    write_files(folder, names, LONG_EVERY)
    each = -(-MESSAGES // len(names))
    sent = len(names) * (each + 2)
    (one,) = plan_launches(Place(Way.SLURM, job=job), names, play_files(folder, 0.0, each))
    joiner, whole, begun_s = Joiner(names), 0, time.monotonic()
    with subprocess.Popen(one.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as srun:
        while whole + joiner.torn < sent and time.monotonic() - begun_s < SAID_S:
            whole += len(joiner.add(os.read(srun.stdout.fileno(), 1 << 18)))
        took_s = time.monotonic() - begun_s
        srun.communicate()
    return f"{sent:,} messages through srun in {took_s:.0f} s: {whole:,} came whole, {joiner.torn} torn"


def main(counts: Sequence[int]) -> None:
    """Print the table."""
    print(f"# `make bench-fleet`, {datetime.now().astimezone():%Y-%m-%d}\n")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {say_neighbours()}.\n")
    print(f"```text\n{'played agents':<22} nodes  all live, s  head, ms/s  srun, ms/s  torn")
    for count in counts:
        names = [f"n{node}" for node in range(count)]
        print(measure("one pipe", [play_here(names)]), flush=True)
    names = [f"n{node}" for node in range(min(256, max(counts)))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, names)
        argv = play_files(folder, 1.0, 0)
        launches = [AgentLaunch(("env", f"SLURMD_NODENAME={one}", *argv), (one,)) for one in names]
        print(measure("a pipe each", launches), flush=True)
    print(measure_stacks(max(counts)), flush=True)
    if why := bed.find_obstacle("ip", "slurmd", "slurmctld", "munged", "srun"):
        print(f"no Slurm was tried: {why}\n```")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with run_many(folder) as (job, names):
            (folder / "said").mkdir()
            write_files(folder / "said", names)
            launches = plan_launches(Place(Way.SLURM, job=job), names, play_files(folder / "said", 1.0, 0))
            print(measure("real srun and slurmds", launches), flush=True)
            print(f"{count_torn(job, names, folder / 'said')}\n```")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2:])
    else:
        main([int(given) for given in sys.argv[1:]] or [64, 1024, 1250])
