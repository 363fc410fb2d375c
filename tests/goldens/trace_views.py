"""The traces of the golden pictures: written by hand with known microseconds, read and analysed for real.

Three runs: a GPU that waits for its loader, in two ranks; and one on the CPU alone.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.timeline import Stretch
from tpmon.model.trace import TraceFile, TraceReport
from tpmon.trace.analysis import Findings, analyze
from tpmon.trace.timeline import Timelines, lay_timelines
from tpmon.ui.paint_timeline import count_cells
from tpmon.ui.paint_trace import paint_trace
from tpmon.ui.trace_keys import trace_keys_shown
from tpmon.ui.trace_sheets import is_other
from tpmon.ui.trace_view import Tab, TraceOverlay, TraceView
from tpmon.ui.view import Line, Size

FOLDER = Path(__file__).parent / "trace_pictures"
SIZES = (Size(200, 50), Size(120, 40), Size(80, 24), Size(40, 50), Size(20, 5))
STEPS = 5
STEP_US = 10_000.0
_LAUNCH = {"grid": [640, 1, 1], "block": [256, 1, 1], "registers per thread": 64, "shared memory": 0}


def build_gpu_run(rank: int, ranks: int) -> TraceBuilder:
    """Write steps of 10 ms: 3 ms of loader, a copy, kernels, a collective where there are ranks, a sync."""
    trace = TraceBuilder()
    for number in range(STEPS):
        at = number * STEP_US
        trace.step(number + 7, at, STEP_US)
        trace.add("python_function", "train.py(88): train", at + 5, STEP_US - 10)
        trace.loader(at + 10, 3000)
        trace.add("python_function", "dataset.py(41): __getitem__", at + 20, 2980)
        trace.op("aten::copy_", at + 3050, 200)
        trace.kernel(
            at + 3150,
            400,
            at + 3060,
            "Memcpy HtoD (Pageable -> Device)",
            category="gpu_memcpy",
            bytes=4 << 20,
        )
        for layer in range(4):
            begin = at + 3600 + layer * 900
            trace.op("aten::linear", begin, 300)
            trace.op("aten::addmm", begin + 20, 250)
            trace.kernel(
                begin + 120, 600, begin + 60, "volta_sgemm_128x64_nn", **_LAUNCH, **{"blocks per SM": 0.8}
            )
            trace.op("aten::relu", begin + 310, 100)
            trace.kernel(begin + 740, 40, begin + 330, "vectorized_elementwise_kernel", **_LAUNCH)
        if ranks > 1:
            late = 900 if rank == 0 else 100
            trace.kernel(at + 7300, late, at + 7250, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        trace.call("cudaDeviceSynchronize", at + 8300, 600)
        trace.op("aten::item", at + 8950, 300)
        trace.memory(at + 3600, 64 << 20, 512 << 20, kind=1, device=0)
        trace.memory(at + 9500, -(64 << 20), 448 << 20, kind=1, device=0)
    return trace


def build_cpu_run() -> TraceBuilder:
    """Write steps of 10 ms on the CPU alone: 4 ms of loader, then operators."""
    trace = TraceBuilder()
    for number in range(3):
        at = number * STEP_US
        trace.step(number, at, STEP_US)
        trace.loader(at + 10, 4000, single=False)
        trace.op("aten::addmm", at + 4100, 4500)
        trace.op("aten::relu", at + 8700, 700)
    return trace


@dataclass(frozen=True)
class Run:
    """Hold the analysis of a run, and what its timelines are drawn from."""

    report: TraceReport
    findings: tuple[Findings, ...]
    timelines: tuple[Timelines, ...]

    def view(self, width: int, **changes: Any) -> TraceView:
        """Return a view of it with the timeline that goes with it."""
        blank = TraceView(self.report, NOT_DRAWN, ascii_only=False)
        view = replace(blank, **changes)
        looked = self.timelines[view.file].look(view.lane, view.stretch, count_cells(width))
        return replace(view, timeline=looked)


NOT_DRAWN: Any = NOT_APPLICABLE


def forget_others(file: TraceFile) -> TraceFile:
    """Leave out what has no table of its own: the pictures do not change with all that is analysed."""
    empty: dict[str, Any] = {}
    for entry in dataclasses.fields(file):
        value = getattr(file, entry.name)
        if is_other("", entry.name, value):
            empty[entry.name] = () if isinstance(value, tuple) else NOT_APPLICABLE
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = {
                one.name: () if isinstance(getattr(value, one.name), tuple) else NOT_APPLICABLE
                for one in dataclasses.fields(value)
                if is_other(entry.name, one.name, getattr(value, one.name))
            }
            if inner:
                empty[entry.name] = dataclasses.replace(value, **inner)
    return dataclasses.replace(file, path=Path(file.path).name, **empty)


@cache
def make_run(name: str) -> Run:
    """Write, read and analyse a run: "one" rank, "ranks", or "cpu"."""
    ranks = 2 if name == "ranks" else 1
    builders = [build_cpu_run()] if name == "cpu" else [build_gpu_run(rank, ranks) for rank in range(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for rank, builder in enumerate(builders):
            header: dict[str, Any] = {"host_name": "node-07"}
            if name == "cpu":
                header["deviceProperties"] = []
            if ranks > 1:
                header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
            paths.append(builder.write(Path(folder) / f"rank{rank}.pt.trace.json", header))
        kept: list[Findings] = []
        report = analyze(paths, keep=kept.append)
    files = tuple(forget_others(file) for file in report.files)
    table = report.ranks
    if name == "ranks":
        rows = tuple(replace(row, path=Path(row.path).name) for row in table.ranks)  # type: ignore[union-attr]
        table = replace(table, ranks=rows)  # type: ignore[type-var]
    timelines = tuple(
        lay_timelines(one.trace, one.steps, one.activity, one.causes, one.figures) for one in kept
    )
    return Run(replace(report, files=files, ranks=table), tuple(kept), timelines)


@dataclass(frozen=True, slots=True)
class TracePicture:
    """Name one picture: a run, a size, and what the keys have changed in the view."""

    name: str
    run: str
    size: Size
    changes: dict[str, Any] = field(default_factory=dict)


def list_trace_pictures() -> Iterator[TracePicture]:
    """Return all pictures of traces."""
    for size in SIZES:
        at = f"{size.width}x{size.height}"
        yield TracePicture(f"overview.{at}", "one", size)
        yield TracePicture(f"gaps.{at}", "one", size, {"tab": Tab.GAPS, "cursors": (0, 8, 0, 0, 0, 0)})
        yield TracePicture(f"ranks.{at}", "ranks", size, {"tab": Tab.RANKS})
    common = Size(80, 24)
    for tab in (Tab.OPS, Tab.KERNELS, Tab.MEMORY):
        yield TracePicture(f"{tab.name.lower()}.80x24", "one", common, {"tab": tab})
    yield TracePicture("cpu.80x24", "cpu", common, {"tab": Tab.GAPS})
    yield TracePicture("cpu-kernels.80x24", "cpu", common, {"tab": Tab.KERNELS})
    yield TracePicture("step.80x24", "one", common, {"tab": Tab.GAPS, "stretch": Stretch(2, 1)})
    kernels = {"tab": Tab.KERNELS, "overlay": TraceOverlay.DETAILS}
    yield TracePicture("details.80x24", "one", common, kernels)
    yield TracePicture("help.80x24", "one", common, {"tab": Tab.OPS, "overlay": TraceOverlay.HELP})
    typed = {"tab": Tab.OPS, "overlay": TraceOverlay.FILTER, "filter_text": "add"}
    yield TracePicture("filter.80x24", "one", common, typed)
    yield TracePicture("overview.80x24.ascii", "one", common, {"ascii_only": True})


def picture_path(picture: TracePicture) -> Path:
    """Return the file of a picture."""
    return FOLDER / f"{picture.name}.txt"


def paint_picture(picture: TracePicture) -> list[Line]:
    """Paint a picture with the keys that work in its view."""
    view = make_run(picture.run).view(picture.size.width, **picture.changes)
    return paint_trace(view, picture.size, trace_keys_shown(view))
