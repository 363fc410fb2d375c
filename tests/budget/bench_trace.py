"""Measure what reading and analysing a trace costs: CPU seconds and peak memory of the whole command.

Tiles a training trace of a GPU (or ``--trace FILE``) to 5 MB, 100 MB and, with ``--big``, 1 GB; with
``--stacks`` torch records a real trace with Python stacks. With ``--beside PYTHON`` also runs
torch-tb-profiler and HolisticTraceAnalysis of that Python on the same files, each with its default tables;
one that takes more CPU time or memory than it may is stopped, and the table says so. With ``--turns N``
tpmon and ``orjson.loads`` of that Python take turns N times, and so do one job and ``--jobs``: the ratios of
pairs hold on a machine that others use.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.frameworks.matrix import read_versions
from tests.traces import A100, HOST

ROOT = Path(__file__).parents[2]
PROMISES = {5: (0.5, None), 100: (2.0, 130), 1000: (20.0, 1000)}
"""Megabytes: CPU seconds of a median run, and MB of resident memory."""
OPS = 90
STEP_US = 12_000.0

LIMIT_S = 900
LIMIT_MB = 18_000

TB = """
import sys
from torch_tb_profiler.io.cache import Cache
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
read = RunProfileData.parse("worker0", 1, sys.argv[1], Cache())
read.process()
RunGenerator("worker0", 1, read).generate_run_profile()
"""
HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
found.get_temporal_breakdown(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
found.get_idle_time_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_cuda_kernel_launch_stats(visualize=False)
"""
ORJSON = "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())"
BESIDE = ("torch-tb-profiler", "HolisticTraceAnalysis", "pandas", "numpy")
RECORD = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def scale(value, by): return value * by
def prepare(rows): return [scale(row, 0.5) for row in rows]
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True,
             schedule=schedule(wait=0, warmup=1, active=4, repeat=1)) as prof:
    for _step in range(5):
        rows = prepare(list(range(110_000)))
        loss = model(torch.rand(32, 64)).sum() + rows[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
prof.export_chrome_trace(sys.argv[1])
"""


def make_step(number: int) -> list[dict[str, Any]]:
    """Make one training step: nested operators, launches, kernels with all arguments, flows, allocations."""
    start = 4356516282533.0 + number * STEP_US
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, at: float, length: float, **args: Any) -> None:
        device = category in ("kernel", "gpu_memcpy")
        place = {"pid": 0, "tid": 7} if device else {"pid": HOST, "tid": HOST}
        time_us = {"ts": round(start + at, 3), "dur": round(length, 3)}
        events.append({"ph": "X", "cat": category, "name": name, **place, **time_us, "args": args})

    add("user_annotation", f"ProfilerStep#{number}", 0, STEP_US - 1, **{"External id": number})
    add("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 5, 80)
    for op in range(OPS):
        at = 100 + op * 120.5
        link = number * OPS + op + 1
        shapes = {"Input Dims": [[32, 512, 768], [768, 768], [op % 7]], "Input type": ["float", "float", "Int"]}
        more = {"External id": link, "Record function id": 0, "Ev Idx": link, **shapes}
        add("cpu_op", f"aten::op{op % 40}", at, 100, **more)
        add("cpu_op", "aten::empty", at + 5, 12.25, **more)
        add("cpu_op", f"aten::op{op % 40}_inner", at + 20, 70, **more)
        add("cuda_runtime", "cudaLaunchKernel", at + 40, 8.5, cbid=211, correlation=link, **{"External id": link})
        kernel = {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": link}
        kernel |= {"registers per thread": 64, "shared memory": 1024 * (op % 60), "blocks per SM": 4.27}
        kernel |= {"warps per SM": 17.09, "grid": [564, 1, 1], "block": [128, 1, 1]}
        name = f"void at::native::vectorized_elementwise_kernel<{op % 50}, at::native::AddFunctor<float>>(int)"
        add("kernel", name, at + 55, 90, **kernel, **{"est. achieved occupancy %": 50, "External id": link})
        for phase, place in (("s", {"pid": HOST, "tid": HOST}), ("f", {"pid": 0, "tid": 7})):
            flow = {"ph": phase, "id": link, **place, "ts": round(start + at + 40, 3), "cat": "ac2g"}
            events.append({**flow, "name": "ac2g", "bp": "e"})
    return events


def read_events(path: str) -> tuple[str, list[dict[str, Any]]]:
    data = Path(path).read_bytes()
    whole = json.loads(gzip.decompress(data) if path.endswith(".gz") else data, strict=False)
    events = whole.pop("traceEvents")
    return json.dumps(whole)[1:-1], events


def tile(path: Path, megabytes: int, given: str) -> None:
    """Write a trace of so many megabytes, step after step or the given one again and again."""
    head, events = read_events(given) if given else (json.dumps({"deviceProperties": [A100]})[1:-1], [])
    span = max((e["ts"] + e.get("dur", 0) for e in events if e.get("ph") == "X"), default=0.0)
    span -= min((e["ts"] for e in events if e.get("ph") == "X"), default=0.0)
    with path.open("w") as file:
        file.write("{" + head + ',\n"traceEvents": [\n')
        number = 0
        while file.tell() < megabytes * 1_000_000:
            step = list(_shift(events, number, span + 100)) if given else make_step(number)
            file.write(",\n" if number else "")
            file.write(",\n".join(json.dumps(event, indent=1) for event in step))
            number += 1
        file.write('\n], "traceName": "tiled"}\n')


def _shift(events: list[dict[str, Any]], number: int, span: float) -> Iterator[dict[str, Any]]:
    for event in events:
        moved = {**event, "ts": event["ts"] + number * span}
        args = event.get("args")
        if isinstance(args, dict) and isinstance(args.get("correlation"), int):
            moved["args"] = {**args, "correlation": args["correlation"] + number * 10_000_000}
        yield moved


class Stopped(Exception):  # noqa: N818  # said in the table
    """Say why a program has no figures."""


class Taken(NamedTuple):
    """Hold what a run took; the memory is that of its largest process."""

    cpu_s: float
    memory_mb: float
    wall_s: float


def measure(command: list[str], directory: str, limit_s: int = LIMIT_S, limit_mb: int = LIMIT_MB) -> Taken:
    """Run a command, with compiled modules as an installed one has them, and return what it took.

    Raises:
        Stopped: where it fails, or takes more CPU time or memory than it may.
    """
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.monotonic()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, cwd=directory, env=given, start_new_session=True
        ) as child,
    ):
        resource.prlimit(child.pid, resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        resource.prlimit(child.pid, resource.RLIMIT_AS, (limit_mb << 20, limit_mb << 20))
        _pid, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # helpers of one that was stopped wait for ever
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise Stopped(f"stopped at {limit_s} s of CPU")
    if child.returncode and "MemoryError" in said:
        raise Stopped(f"stopped at {limit_mb} MB")
    if child.returncode:
        raise Stopped(f"failed: {said.splitlines()[-1][:100] if said else child.returncode}")
    return Taken(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, wall_s)


def compare(path: Path, label: str, promise: tuple[float, int | None], runs: int, beside: str) -> Iterator[str]:
    """Measure every tool on one file, a row each; of several runs of tpmon the median counts."""
    tools = {"tpmon trace": [sys.executable, "-m", "tpmon", "trace", str(path)]}
    if beside:
        tools["torch-tb-profiler"] = [beside, "-c", TB, str(path)]
        tools["HolisticTraceAnalysis"] = [beside, "-c", HTA, str(path)]
    own: tuple[float, float] | None = None
    for name, command in tools.items():
        try:
            taken = sorted(measure(command, str(ROOT)) for _run in range(1 if own else runs))
        except Stopped as error:
            yield f"| {label} | {name} | {error} | | |"
            continue
        cpu_s, memory, _wall_s = taken[len(taken) // 2]
        if own is None:
            own = (cpu_s, memory)
            limit_s, limit_mb = promise
            kept = cpu_s <= limit_s and (limit_mb is None or memory <= limit_mb)
            said = f"{limit_s:g} s{f', {limit_mb} MB' if limit_mb else ''}: {'kept' if kept else 'NOT KEPT'}"
        else:
            said = f"{cpu_s / own[0]:.1f} x the CPU, {memory / own[1]:.1f} x the memory"
        yield f"| {label} | {name} | {cpu_s:.2f} | {memory:.0f} | {said} |"


def take_turns(path: Path, label: str, turns: int, beside: str, jobs: int) -> Iterator[str]:
    """Let tpmon and others take turns on one file: medians, and those of the ratios of pairs."""
    own = [sys.executable, "-m", "tpmon", "trace", str(path), "--jobs"]
    others = {f"tpmon trace --jobs {jobs}": [*own, str(jobs)]} if jobs > 1 else {}
    if beside:
        others["orjson.loads"] = [beside, "-c", ORJSON, str(path)]
    measure([*own, "1"], str(ROOT))
    for name, command in others.items():
        pairs = [(measure([*own, "1"], str(ROOT)), measure(command, str(ROOT))) for _turn in range(turns)]
        for said, at in (("tpmon trace", 0), (name, 1)):
            cpu_s, memory_mb, wall_s = map(median, zip(*(pair[at] for pair in pairs), strict=True))
            yield f"| {label} | {said} | {cpu_s:.2f} | {memory_mb:.0f} | wall {wall_s:.2f} s |"
        cpu = sorted(one.cpu_s / other.cpu_s for one, other in pairs)
        wall = sorted(other.wall_s / one.wall_s for one, other in pairs)
        yield (
            f"| {label} | of {turns} pairs | {median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f}) of its CPU | | "
            f"{name} takes {median(wall):.2f} ({wall[0]:.2f} to {wall[-1]:.2f}) of the wall |"
        )


def rows(sizes: list[int], runs: int, given: str, beside: str, *, turns: int = 0, jobs: int = 1) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        for size in sizes:
            path = Path(directory) / f"rank0_{size}.pt.trace.json"
            tile(path, size, given)
            if turns:
                yield from take_turns(path, f"{size} MB", turns, beside, jobs)
            else:
                yield from compare(path, f"{size} MB", PROMISES[size], runs, beside)
            path.unlink()


def rows_with_stacks(runs: int, beside: str) -> Iterator[str]:
    """Measure a trace that torch records here, with the Python functions of a busy loop in it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank0_stacks.pt.trace.json"
        subprocess.run([sys.executable, "-c", RECORD, str(path)], check=True, capture_output=True)
        megabytes = path.stat().st_size / 1e6
        promise = (PROMISES[100][0] * megabytes / 100, 130)
        yield from compare(path, f"{megabytes:.0f} MB, real, with stacks", promise, runs, beside)


def describe(beside: str) -> Iterator[str]:
    asked = ["git", "describe", "--always", "--dirty=, with changes"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    yield f"commit {commit or 'unknown'}; {os.cpu_count()} CPUs, load {load}; Python {sys.version.split()[0]}"
    if beside:
        said = ", ".join(f"{name} {version}" for name, version in read_versions(beside, BESIDE).items())
        yield f"beside: {said}; stopped at {LIMIT_S} s of CPU or {LIMIT_MB} MB"
    yield ""
    yield "| file | tool | CPU s | peak MB | |"
    yield "|---|---|---|---|---|"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true", help="also 1 GB")
    parser.add_argument("--only", type=int, choices=sorted(PROMISES), help="of these sizes this one alone, MB")
    parser.add_argument("--stacks", action="store_true", help="also a real trace with stacks (needs torch)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trace", default="", help="tile this trace instead")
    parser.add_argument("--beside", default="", help="a Python with torch-tb-profiler and HTA")
    parser.add_argument("--turns", type=int, default=0, help="in pairs with orjson.loads and --jobs instead")
    parser.add_argument("--jobs", type=int, default=1, help="with --turns: also one job beside so many")
    given = parser.parse_args()
    started = time.monotonic()
    sizes = [given.only] if given.only else [5, 100, *([1000] if given.big else [])]
    for row in describe(given.beside):
        print(row, flush=True)
    for row in rows(sizes, given.runs, given.trace, given.beside, turns=given.turns, jobs=given.jobs):
        print(row, flush=True)
    for row in rows_with_stacks(given.runs, given.beside) if given.stacks else ():
        print(row, flush=True)
    print(f"\n{time.monotonic() - started:.0f} s in all, load {os.getloadavg()[0]:.1f} at the end")
