"""Build small traces as torch.profiler writes them, with known microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tpmon.model.results.trace import TraceFile
from tpmon.trace.analysis import analyze

HOST = 4000
V100 = {
    "id": 0,
    "name": "Tesla V100-SXM2-32GB",
    "totalGlobalMem": 34079899648,
    "computeMajor": 7,
    "computeMinor": 0,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 98304,
    "warpSize": 32,
    "numSms": 80,
}
A100 = {**V100, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "sharedMemPerMultiprocessor": 167936, "numSms": 108}
BASE_US = 4356516282533.0


class TraceBuilder:
    """Collect events; times are microseconds from the start of the trace."""

    def __init__(self, base_us: float = BASE_US) -> None:
        self.events: list[dict[str, Any]] = []
        self.base_us = base_us
        self._correlation = 100

    def add(self, category: str, name: str, start: float, length: float, **more: Any) -> TraceBuilder:
        args = more.pop("args", {})
        event = {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": HOST, **more}
        self.events.append({**event, "ts": self.base_us + start, "dur": length, "args": args})
        return self

    def update(self, number: int, optimizer: str, length: float) -> float:
        """Write a step of 10 ms with one kernel of 1.9 ms, then the optimizer; return when the step begins."""
        at = number * 10_000.0
        self.step(number, at, 10_000).op("aten::linear", at + 10, 80).kernel(at + 100, 1900, launch=at + 50)
        self.add("user_annotation", f"Optimizer.step#{optimizer}.step", at + 2000, length)
        return at

    def step(self, number: int, start: float, length: float) -> TraceBuilder:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, length)

    def op(self, name: str, start: float, length: float, **args: Any) -> TraceBuilder:
        return self.add("cpu_op", name, start, length, args=args)

    def call(self, name: str, start: float, length: float, **args: Any) -> TraceBuilder:
        return self.add("cuda_runtime", name, start, length, args=args)

    def loader(self, start: float, length: float, single: bool = True) -> TraceBuilder:
        kind = "Single" if single else "Multi"
        name = f"enumerate(DataLoader)#_{kind}ProcessDataLoaderIter.__next__"
        return self.add("user_annotation", name if single else name.replace("Process", "Processing"), start, length)

    def kernel(
        self, start: float, length: float, launch: float | None = None, name: str = "k", **more: Any
    ) -> TraceBuilder:
        """Add a kernel and, where ``launch`` says when, a launch of 1 us."""
        self._correlation += 1
        if launch is not None:
            self.call("cudaLaunchKernel", launch, 1.0, correlation=self._correlation)
        category = more.pop("category", "kernel")
        device = more.pop("device", 0)
        args = {"device": device, "stream": 7, "correlation": self._correlation, **more}
        return self.add(category, name, start, length, pid=device, tid=7, args=args)

    def memory(
        self, at: float, changed: int, allocated: int, *, kind: int = 0, device: int = -1, address: int = 1
    ) -> TraceBuilder:
        args = {
            "Device Type": kind,
            "Device Id": device,
            "Bytes": changed,
            "Addr": address,
            "Total Allocated": allocated,
            "Total Reserved": allocated * 2,
        }
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST}
        self.events.append({**event, "tid": HOST, "ts": self.base_us + at, "args": args})
        return self

    def text(self, header: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> str:
        """Write the trace, ``header`` before and ``after`` behind the events, in the layout of torch."""
        before = {"schemaVersion": 1, "deviceProperties": [V100], **(header or {})}
        head = json.dumps(before, indent=2)[:-2]
        events = ",\n".join(json.dumps(event, indent=2) for event in self.events)
        tail = json.dumps(after, indent=2)[1:-1] if after else ""
        return f'{head},\n"traceEvents": [\n{events}\n]{"," + tail if tail else ""}\n}}\n'

    def analyse(self, folder: Path, *wanted: str, **header: Any) -> TraceFile:
        """Analyse the trace with these keys before its events; ``wanted`` are tables to ask for."""
        return analyze([self.write(folder / "t.json", header)], wanted=wanted).files[0]

    def write(self, path: Path, header: dict[str, Any] | None = None, **after: Any) -> str:
        data = self.text(header, after).encode()
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        return str(path)
