"""Print what a recording costs: to make, in bytes, to look at, to judge again; beside atop on the same processes.

Run it with ``make bench-record``. The same probes without a recorder are those of ``tpmon diagnose``, in turn with
``tpmon record``; all figures are CPU time, medians of pairs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.budget.bench_cost import NO_LOOKS, PROCESSES, THREADS, TPMON, WAKING, build_cards, start_tree
from tests.budget.measure import Screen, cost_of, environment, run_cpu_seconds, say_neighbours
from tpmon.model.results.recording import Subject
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.record.step import JudgedFrame
from tpmon.record.writer import RecordingBounds, RecordingWriter, copy_recording

SETTLE_S = 15.0
NIGHT_S = 12 * 3600
SMALL = ("-c", "import torch, time\nwhile True: time.sleep(0.2)")


def watch(command: Sequence[str], seconds: float, env: Mapping[str, str]) -> float:
    """Start a command, let it settle, and return its CPU with its children in percent of a core."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(list(command), env=environment(env), **quiet)
    time.sleep(SETTLE_S)
    cost = cost_of(process.pid, lambda: time.sleep(seconds))
    process.terminate()
    process.wait()
    return cost.cpu_pct + cost.children_cpu_pct


def read_size_an_hour(path: Path) -> tuple[int, float]:
    """Return the number of processes, and the bytes that the file grows by an hour."""
    with Recording(str(path)) as recording:
        first = next(recording.recorded())
        frames, count = recording.count_frames(), len(recording.frame(recording.last.n).processes)
        alone = path.with_suffix(".first")
        copy_recording(str(alone), recording.subject, (JudgedFrame(first.read, first.judged, None),))
    grown = path.stat().st_size - alone.stat().st_size
    return count, grown / (frames - 1) * 3600


def make_night(path: Path, night: Path, seconds: int) -> None:
    """Write a recording of a whole night out of the minutes that were recorded, all of its Frames kept."""
    with Recording(str(path)) as recording:
        subject = recording.subject
        steps = [(one.read, one.judged, one.memory) for one in recording.recorded()]
    memory = next(memory for _, _, memory in steps if memory is not None)
    bounds = RecordingBounds(most_bytes=1 << 40, whole_s=1e9, least_free_bytes=0)
    writer = RecordingWriter(str(night), replace_subject(subject), bounds)
    first = steps[0][0]
    for second in range(seconds):
        read, judged, _ = steps[second % len(steps)]
        when = {
            "taken": first.taken + (steps[1][0].taken - first.taken) * second,
            "taken_ns": first.taken_ns + second * 10**9,
        }
        writer.write(JudgedFrame(replace(read, **when), replace(judged, **when), memory if second else None))
    writer.close()


def replace_subject(subject: Subject) -> Subject:
    return replace(subject, start_ticks=subject.start_ticks + 1)


def measure_jumps(night: Path) -> list[float]:
    """Return the CPU ms of jumps to seconds all over a recording, each with its history."""
    found = []
    with Recording(str(night)) as recording:
        for part in range(1, 20):
            wall_ns = recording.first.wall_ns + (recording.last.wall_ns - recording.first.wall_ns) * part // 20
            begun = time.process_time()
            moment = recording.find(wall_ns)
            recording.frame(moment.n)
            recording.pulses(moment.n)
            found.append((time.process_time() - begun) * 1000)
    return found


def measure_rejudging(path: Path) -> tuple[float, int, int]:
    """Return the CPU ms a Frame, how many Frames count, and how many of them differ."""
    begun = time.process_time()
    with Recording(str(path)) as recording:
        judged = [(one.counts, one.is_equal) for one in rejudge(recording)]
    counted = [equal for counts, equal in judged if counts]
    return (time.process_time() - begun) * 1000 / len(judged), len(counted), counted.count(False)


def print_files(path: Path, folder: Path, night_s: int, what: str) -> None:
    count, an_hour = read_size_an_hour(path)
    print(f"{what}: {count} processes, {an_hour / 1e6:.1f} MB an hour")
    per_frame, counted, differ = measure_rejudging(path)
    print(f"{what}: judged again: {per_frame:.1f} ms a Frame, {differ} of {counted} differ")
    if not night_s:
        return
    night = folder / "night.tpmon"
    make_night(path, night, night_s)
    jumps = measure_jumps(night)
    print(
        f"{what}: {night_s / 3600:g} h, {night.stat().st_size / 1e6:.0f} MB: a jump takes "
        f"{statistics.median(jumps):.0f} ms, at most {max(jumps):.0f}"
    )
    firsts = []
    for _ in range(5):
        screen = Screen([*TPMON, "replay", str(night)], 200, 50, {})
        firsts.append(screen.until(b"REPLAY", 20.0).cpu_s)
        screen.close()
    print(f"{what}: first picture of it {statistics.median(firsts):.2f} s CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--night-s", type=int, default=NIGHT_S)
    options = parser.parse_args()
    print(say_neighbours())
    tree, small = start_tree(), subprocess.Popen([sys.executable, *SMALL])
    folder = tempfile.TemporaryDirectory()
    place = Path(folder.name)
    try:
        cards = build_cards(folder.name, tree.pid)
        print(f"tree: {PROCESSES} processes, {THREADS} threads, {WAKING} waking, 8 cards")
        more, path = [], place / "tree.tpmon"
        for pair in range(options.pairs):
            path = place / f"tree-{pair}.tpmon"
            record = [*TPMON, "record", str(tree.pid), *NO_LOOKS, "--out", str(path)]
            alone = [*TPMON, "diagnose", str(tree.pid), *NO_LOOKS, "--for", "1h"]
            with_file, without = (watch(one, options.seconds, cards) for one in (record, alone))
            more.append(with_file - without)
            print(f"record {with_file:.2f} %, the same probes and judge {without:.2f} %: {more[-1]:+.2f} %")
        print(f"record takes {statistics.median(more):+.2f} % of a core more (median of {options.pairs} pairs)")
        print_files(path, place, options.night_s, "tree")
        if shutil.which("atop"):
            log = place / "atop.raw"
            used = watch(["atop", "-w", str(log), "1"], options.seconds, {})
            an_hour = log.stat().st_size / (options.seconds + SETTLE_S) * 3600 / 1e6
            print(f"atop -w FILE 1 (every process of the machine): {used:.2f} %, {an_hour:.1f} MB an hour")
        path = place / "small.tpmon"
        watch([*TPMON, "record", str(small.pid), "--out", str(path), *NO_LOOKS], options.seconds, {})
        print_files(path, place, 0, "small")
        starts: dict[str, list[float]] = {"record": [], "diagnose": []}
        for at in range(7):
            out = ("--out", str(place / f"start-{at}.tpmon"))
            for name, how in (("record", ("--for", "1", *out)), ("diagnose", ("--for", "1"))):
                starts[name].append(run_cpu_seconds([*TPMON, name, str(small.pid), *how, "--no-stacks"]) * 1000)
        record_ms, alone_ms = (statistics.median(one) for one in starts.values())
        print(f"two Frames recorded: {record_ms:.0f} ms CPU in all, diagnose for as long {alone_ms:.0f} ms")
    finally:
        folder.cleanup()
        for child in (tree, small):
            child.terminate()
            child.wait()


if __name__ == "__main__":
    main()
