"""The traces of the golden pictures: written by hand with known microseconds, read and analysed for real.

Runs: a GPU that waits for its loader, alone, in two ranks, and against a run before it; and one on the CPU
alone. Snapshots: of a training whose allocator has failed a request, of two cards, and of one without a history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.jobs import Plan, Work
from tests.jobs import run as run_job
from tests.snapshots import MB, SnapshotBuilder, stack, training
from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.trace import TraceReport
from tpmon.model.results.trace_tables import OperatorGroupRow, Stretch, Timeline
from tpmon.trace.analysis import Findings, analyze, group_operators
from tpmon.trace.compare import compare_traces
from tpmon.trace.snapshot import analyze_snapshots
from tpmon.trace.timeline import Timelines, lay_timelines
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.keys import trace_keys_shown
from tpmon.ui.traces.layout import paint_trace, room_for_time
from tpmon.ui.traces.snapshots import SnapshotSubject
from tpmon.ui.traces.state import SnapshotTab, Tab, TraceView, begin_view
from tpmon.ui.traces.subject import TraceSubject
from tpmon.view.layout import Line, Size
from tpmon.view.trace import Grouping

FOLDER = Path(__file__).parent / "trace_pictures"
SIZES = (Size(200, 50), Size(120, 40), Size(80, 24), Size(40, 50), Size(20, 5))
STEPS = 5
STEP_US = 10_000.0
_LAUNCH = {"grid": [640, 1, 1], "block": [256, 1, 1], "registers per thread": 64, "shared memory": 0}


def build_gpu_run(rank: int, ranks: int, more_us: float = 0.0) -> TraceBuilder:
    """Write steps of 10 ms: 3 ms of loader, a copy, kernels, a collective where there are ranks, a sync.

    ``more_us`` makes each step so much longer, with another kernel in it, and no two alike.
    """
    trace = TraceBuilder()
    step_us = STEP_US + (more_us + 200 if more_us else 0)
    for number in range(STEPS):
        at = number * step_us
        if more_us:
            trace.op("aten::contiguous", at + 9300, 0.5 * more_us)
            trace.kernel(at + 9350, 0.7 * more_us, at + 9320, "at::native::copy_kernel", **_LAUNCH)
        trace.step(number + 7, at, STEP_US + (more_us + 40 * number if more_us else 0))
        trace.add("python_function", "train.py(88): train", at + 5, STEP_US - 10)
        trace.loader(at + 10, 3000)
        trace.add("python_function", "dataset.py(41): __getitem__", at + 20, 2980)
        trace.op("aten::copy_", at + 3050, 200)
        trace.kernel(
            at + 3150, 400, at + 3060, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", bytes=4 << 20
        )
        for layer in range(4):
            begin = at + 3600 + layer * 900
            trace.op("aten::linear", begin, 300)
            trace.op("aten::addmm", begin + 20, 250)
            trace.kernel(begin + 120, 600, begin + 60, "volta_sgemm_128x64_nn", **_LAUNCH, **{"blocks per SM": 0.8})
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


def build_marked_run() -> TraceBuilder:
    """Write steps of 10 ms with a range of the program, modules of it, and shapes."""
    trace = TraceBuilder()
    for number in range(3):
        at = number * STEP_US
        trace.step(number, at, STEP_US)
        trace.add("user_annotation", "## forward ##", at + 100, 4000)
        trace.add("python_function", "nn.Module: Net_0", at + 110, 3900)
        trace.add("python_function", "nn.Module: Linear_0", at + 120, 2000)
        sizes = {"Input Dims": [[64], [256, 512], [512, 64]], "Input type": ["float", "float", "float"]}
        trace.op("aten::addmm", at + 200, 800, **sizes, **{"Sequence number": 2 * number})
        trace.kernel(at + 400, 1500, at + 300, "volta_sgemm_128x64_nn", **_LAUNCH)
        backward = "autograd::engine::evaluate_function: AddmmBackward0"
        trace.op(backward, at + 5000, 2000, **{"Sequence number": 2 * number})
        trace.kernel(at + 5100, 2500, at + 5050, "volta_sgemm_64x64_nt", **_LAUNCH)
    return trace


JOB = Plan(8, lambda rank, _step: Work(loader_us=20_000 if rank == 7 else 500))
"""Eight ranks, of which the last loads for 20 ms in each step."""


@dataclass(frozen=True)
class Run:
    """Hold the analysis of a run, and what its timelines are drawn from: none for a snapshot."""

    subject: TraceSubject | SnapshotSubject
    findings: tuple[Findings, ...] = ()
    timelines: tuple[Timelines, ...] = ()

    @property
    def report(self) -> TraceReport:
        assert isinstance(self.subject, TraceSubject)
        return self.subject.report

    def look(self, file: int, lane: int, stretch: Stretch, cells: int) -> Applicable[Timeline]:
        return self.timelines[file].look(lane, stretch, cells) if self.timelines else NOT_APPLICABLE

    def group(self, file: int, grouping: Grouping) -> Applicable[tuple[OperatorGroupRow, ...]]:
        return group_operators(self.findings[file], grouping.value) if self.findings else NOT_APPLICABLE

    def view(self, width: int, **changes: Any) -> TraceView:
        blank = replace(begin_view(self.subject, ascii_only=False), tab=self.subject.tabs[0])
        view = replace(blank, **changes)
        looked = self.look(view.file, view.lane, view.stretch, room_for_time(width))
        groups = NOT_APPLICABLE if view.grouping is Grouping.NAMES else self.group(view.file, view.grouping)
        return replace(view, timeline=looked, groups=groups)


@cache
def make_run(name: str) -> Run:
    """Write, read and analyse a run: "one" rank, "ranks", a "job", "cpu", a "pair", a "refused" one, a snapshot."""
    if name in SNAPSHOTS:
        return _make_snapshot(SNAPSHOTS[name])
    if name in ("pair", "refused"):
        return _make_pair(refused=name == "refused")
    ranks = {"ranks": 2, "job": JOB.ranks}.get(name, 1)
    alone = {"cpu": build_cpu_run, "marked": build_marked_run}
    builders = [alone[name]()] if name in alone else [build_gpu_run(rank, ranks) for rank in range(ranks)]
    if name == "job":
        builders = run_job(JOB)
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
    files = tuple(replace(file, path=Path(file.path).name) for file in report.files)
    table = report.ranks
    if ranks > 1:
        rows = tuple(replace(row, path=Path(row.path).name) for row in table.ranks)  # type: ignore[union-attr]
        table = replace(table, ranks=rows)  # type: ignore[type-var]
    timelines = tuple(lay_timelines(one) for one in kept)
    return Run(TraceSubject(replace(report, files=files, ranks=table)), tuple(kept), timelines)


def _make_pair(*, refused: bool) -> Run:
    """Compare a run to one with longer steps before it, or to one in two ranks, which is refused."""
    after = make_run("one")
    builder = build_gpu_run(0, 2) if refused else build_gpu_run(0, 1, 2000.0)
    header: dict[str, Any] = {"host_name": "node-07"}
    with tempfile.TemporaryDirectory() as folder:
        if refused:
            header["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 2}
            header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        path = builder.write(Path(folder) / "before.pt.trace.json", header)
        (before,) = analyze([path]).files
    comparison = compare_traces(replace(before, path="before.pt.trace.json"), after.report.files[0], 1.15)
    return Run(TraceSubject(after.report, comparison), after.findings, after.timelines)


def _bare() -> SnapshotBuilder:
    """Make a snapshot without a history and without stacks."""
    return SnapshotBuilder().segment((6 * MB, 6 * MB, "active_allocated", []), (14 * MB, 0, "inactive", []))


def _two_cards() -> SnapshotBuilder:
    """Make the history of one card, and blocks without one on the next."""
    made = training()
    other = SnapshotBuilder(1).segment((6 * MB, 6 * MB, "active_allocated", stack("build", "main")))
    made.segments += other.segments
    return made


SNAPSHOTS = {"snapshot": training, "cards": _two_cards, "bare": _bare, "held-nothing": SnapshotBuilder}


def _make_snapshot(build: Callable[[], SnapshotBuilder]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        report = analyze_snapshots([build().write(Path(folder) / "snapshot.pickle")])
    files = tuple(replace(file, path=Path(file.path).name) for file in report.files)
    return Run(SnapshotSubject(replace(report, files=files)))


@dataclass(frozen=True, slots=True)
class TracePicture:
    """Name one picture: a run, a size, and what the keys have changed in the view."""

    name: str
    run: str
    size: Size
    changes: dict[str, Any] = field(default_factory=dict)


def list_pictures() -> Iterator[TracePicture]:
    """Return all pictures of traces."""
    for size in SIZES:
        at = f"{size.width}x{size.height}"
        yield TracePicture(f"overview.{at}", "one", size)
        yield TracePicture(f"gaps.{at}", "one", size, {"tab": Tab.GAPS, "cursors": (0, 9, 0, 0, 0, 0)})
        yield TracePicture(f"ranks.{at}", "ranks", size, {"tab": Tab.RANKS})
        yield TracePicture(f"against.{at}", "pair", size, {"tab": Tab.AGAINST})
        yield TracePicture(f"snapshot.{at}", "snapshot", size)
        yield TracePicture(f"peak.{at}", "snapshot", size, {"tab": SnapshotTab.PEAK, "cursors": (0, 0, 1, 0)})
    common = Size(80, 24)
    for tab in (Tab.OPS, Tab.KERNELS, Tab.MEMORY):
        yield TracePicture(f"{tab.name.lower()}.80x24", "one", common, {"tab": tab})
    for size in (Size(120, 40), common):
        yield TracePicture(f"job.{size.width}x{size.height}", "job", size, {"tab": Tab.RANKS})
    yield TracePicture("memory.120x40", "one", Size(120, 40), {"tab": Tab.MEMORY})
    yield TracePicture("memory.80x24.ascii", "one", common, {"tab": Tab.MEMORY, "ascii_only": True})
    by_line = {"tab": Tab.OPS, "grouping": Grouping.LINES}
    yield TracePicture("ops-lines.80x24", "one", common, by_line)
    yield TracePicture("ops-below.120x40", "marked", Size(120, 40), {"tab": Tab.OPS, "cursors": (0, 0, 3) + (0,) * 4})
    yield TracePicture("cpu.80x24", "cpu", common, {"tab": Tab.GAPS})
    yield TracePicture("cpu-kernels.80x24", "cpu", common, {"tab": Tab.KERNELS})
    yield TracePicture("step.80x24", "one", common, {"tab": Tab.GAPS, "stretch": Stretch(2, 1)})
    kernels = {"tab": Tab.KERNELS, "overlay": Overlay.DETAILS}
    yield TracePicture("details.80x24", "one", common, kernels)
    yield TracePicture("help.80x24", "one", common, {"tab": Tab.OPS, "overlay": Overlay.HELP})
    typed = {"tab": Tab.OPS, "overlay": Overlay.FILTER, "filter_text": "add"}
    yield TracePicture("filter.80x24", "one", common, typed)
    yield TracePicture("overview.80x24.ascii", "one", common, {"ascii_only": True})
    yield TracePicture("against-refused.80x24", "refused", common, {"tab": Tab.AGAINST})
    yield TracePicture("against-refused.20x5", "refused", Size(20, 5), {"tab": Tab.AGAINST})
    kernels = {"tab": Tab.AGAINST, "cursors": (0, 0, 0, 0, 0, 0, 99)}
    yield TracePicture("against-kernels.80x24", "pair", common, kernels)
    yield TracePicture("against-ops.80x24", "pair", common, {"tab": Tab.OPS})
    yield TracePicture("live.80x24", "snapshot", common, {"tab": SnapshotTab.LIVE})
    yield TracePicture("oom.80x24", "snapshot", common, {"tab": SnapshotTab.OOM})
    for size in (common, Size(120, 40), Size(40, 50)):
        opened = {"tab": SnapshotTab.PEAK, "cursors": (0, 0, 1, 0), "overlay": Overlay.STACK, "scroll": 3}
        yield TracePicture(f"stack.{size.width}x{size.height}", "snapshot", size, opened)
    yield TracePicture("snapshot-cards.80x24", "cards", common, {"tab": SnapshotTab.LIVE})
    yield TracePicture("snapshot-bare.80x24", "bare", common, {"tab": SnapshotTab.OOM})
    yield TracePicture("snapshot-help.80x24", "snapshot", common, {"overlay": Overlay.HELP})
    yield TracePicture("snapshot.80x24.ascii", "snapshot", common, {"ascii_only": True})


def picture_path(picture: TracePicture) -> Path:
    return FOLDER / f"{picture.name}.txt"


def paint_picture(picture: TracePicture) -> list[Line]:
    """Paint a picture with the keys that work in its view."""
    view = make_run(picture.run).view(picture.size.width, **picture.changes)
    return paint_trace(view, picture.size, trace_keys_shown(view))
