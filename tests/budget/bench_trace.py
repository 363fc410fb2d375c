"""Measure what reading and analysing a trace costs: CPU seconds and peak memory of the whole command.

Tiles a training trace of a GPU (or ``--trace FILE``) to 5 MB, 100 MB and, with ``--big``, 1 GB. With
``--beside PYTHON`` also runs torch-tb-profiler and HolisticTraceAnalysis of that Python on the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.traces import A100, HOST

ROOT = Path(__file__).parents[2]
PROMISES = {5: (0.5, None), 100: (2.0, 130), 1000: (20.0, 1000)}
"""Megabytes: CPU seconds of a median run, and MB of resident memory."""
OPS = 90
STEP_US = 12_000.0

TB = """
import sys
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.io.cache import Cache
RunProfileData.parse("w", 1, sys.argv[1], Cache()).process()
"""
HTA = """
import os, shutil, sys, tempfile
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
found.get_temporal_breakdown(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
found.get_idle_time_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_cuda_kernel_launch_stats(visualize=False)
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
        shapes = {
            "Input Dims": [[32, 512, 768], [768, 768], [op % 7]],
            "Input type": ["float", "float", "Int"],
        }
        more = {"External id": link, "Record function id": 0, "Ev Idx": link, **shapes}
        add("cpu_op", f"aten::op{op % 40}", at, 100, **more)
        add("cpu_op", "aten::empty", at + 5, 12.25, **more)
        add("cpu_op", f"aten::op{op % 40}_inner", at + 20, 70, **more)
        add(
            "cuda_runtime",
            "cudaLaunchKernel",
            at + 40,
            8.5,
            cbid=211,
            correlation=link,
            **{"External id": link},
        )
        kernel = {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": link}
        kernel |= {"registers per thread": 64, "shared memory": 1024 * (op % 60), "blocks per SM": 4.27}
        kernel |= {"warps per SM": 17.09, "grid": [564, 1, 1], "block": [128, 1, 1]}
        name = (
            f"void at::native::vectorized_elementwise_kernel<{op % 50}, at::native::AddFunctor<float>>(int)"
        )
        add("kernel", name, at + 55, 90, **kernel, **{"est. achieved occupancy %": 50, "External id": link})
        for phase, place in (("s", {"pid": HOST, "tid": HOST}), ("f", {"pid": 0, "tid": 7})):
            flow = {"ph": phase, "id": link, **place, "ts": round(start + at + 40, 3), "cat": "ac2g"}
            events.append({**flow, "name": "ac2g", "bp": "e"})
    return events


def read_events(path: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the part before the events of a trace, and its events."""
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


def measure(command: list[str], directory: str) -> tuple[float, float]:
    """Run a command and return its CPU seconds and its peak of resident memory in MB."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=directory) as child:
        assert child.stderr is not None
        said = child.stderr.read().decode(errors="replace")
        _pid, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[:4]} ended with {child.returncode}: {said[-500:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def rows(sizes: list[int], runs: int, given: str, beside: str) -> Iterator[str]:
    """Measure all and write the table line by line; of several runs the median counts."""
    yield "| file | tool | CPU s | peak MB | promise |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as directory:
        for size in sizes:
            path = Path(directory) / f"rank0_{size}.pt.trace.json"
            tile(path, size, given)
            tools = {"tpmon trace": [sys.executable, "-m", "tpmon", "trace", str(path)]}
            if beside:
                tools["torch-tb-profiler"] = [beside, "-c", TB, str(path)]
                tools["HolisticTraceAnalysis"] = [beside, "-c", HTA, str(path)]
            for name, command in tools.items():
                ours = name.startswith("tpmon")
                taken = sorted(measure(command, str(ROOT)) for _run in range(runs if ours else 1))
                cpu_s, memory = taken[len(taken) // 2]
                limit_s, limit_mb = PROMISES[size]
                promise = f"{limit_s:g} s" + (f", {limit_mb} MB" if limit_mb else "")
                yield f"| {size} MB | {name} | {cpu_s:.2f} | {memory:.0f} | {promise if ours else ''} |"
            path.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true", help="also 1 GB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trace", default="", help="tile this trace instead")
    parser.add_argument("--beside", default="", help="a Python with torch-tb-profiler and HTA")
    given = parser.parse_args()
    started = time.monotonic()
    for row in rows([5, 100, *([1000] if given.big else [])], given.runs, given.trace, given.beside):
        print(row, flush=True)
    print(f"\n{time.monotonic() - started:.0f} s in all")
