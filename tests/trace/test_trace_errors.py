"""Faults that torch-tb-profiler and HTA are known for: each with the trace that shows it, and ours beside it.

docs/metrics.md names every one of them by the key that its test has here.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.model.known import Missing, is_known
from tpmon.model.results.snapshot import SnapshotReport
from tpmon.model.results.trace import OperatorRow, TraceComparison, TraceFile, TraceReport
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import analyze
from tpmon.trace.reading.schema import uses_tensor_cores

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
MM = {"Input Dims": [[8, 8], [8, 8]]}
BARE_KERNEL = {"device": 0, "stream": 7}


def gives(
    trace: TraceBuilder, read: Callable[[TraceFile], object], expected: object, **header: object
) -> Callable[[Path], None]:
    """Make a check of what is read of a trace."""

    def check(tmp_path: Path) -> None:
        assert read(trace.analyse(tmp_path, **header)) == expected

    return check


def find_op(file: TraceFile, name: str) -> OperatorRow:
    return next(row for row in file.operators if row.name == name)


def a_step() -> TraceBuilder:
    return TraceBuilder().step(0, 0, 1000)


def marked_on_the_device() -> TraceBuilder:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 1000, 990).kernel(number * 1000 + 50, 900, launch=number * 1000 + 5)
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", number * 1000 + 50, 900, pid=0, tid=7)
    return trace


def check_tensor_names(_tmp_path: Path) -> None:
    names = ("nvjet_hsh_128x128", "cutlass_kernel_gemm_x", "void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)")
    assert [uses_tensor_cores(name) for name in names] == ["yes", "unknown", "no"]


def check_advice(tmp_path: Path) -> None:
    for types, advised in ((["float"] * 2, True), (["c10::BFloat16"] * 2, False)):
        trace = a_step().kernel(0, 990, launch=1, name="volta_sgemm_128x32_nt")
        advice = trace.op("aten::mm", 0, 10, **MM, **{"Input type": types}).analyse(tmp_path, deviceProperties=[A100])
        assert any("bf16" in text or "TF32" in text for text in advice.verdict.advice) is advised


def named_collectives() -> TraceBuilder:
    names = (
        "ncclDevKernel_AllReduce_Sum_f32",
        "ncclKernel_AllGather",
        "rcclGenericKernel",
        "cross_device_reduce_2stage",
    )
    trace = a_step()
    for at, name in enumerate(names):
        trace.kernel(at * 100, 50, launch=at, name=name)
    return trace


def check_counts(tmp_path: Path) -> None:
    paths = []
    for rank, calls in ((0, 4), (1, 3)):
        trace = TraceBuilder().step(0, 0, 9000)
        for at in range(calls):
            said = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": at}
            trace.kernel(at * 1000, 500 - 400 * rank, launch=at, name="ncclDevKernel_AllReduce", **said)
        about = {"rank": rank, "world_size": 2, "backend": "nccl"}
        paths.append(trace.write(tmp_path / f"{rank}.json", {"distributedInfo": about}))
    table = analyze(paths).ranks
    assert (table.matched, table.collectives, table.straggler) == (3, 4, 1)


def without_categories() -> TraceBuilder:
    trace = a_step().op("aten::mm", 0, 100).kernel(200, 300, launch=10, grid=[1, 1, 1])
    for event in trace.events:
        del event["cat"]
    return trace


def graph_of_a_hundred() -> TraceBuilder:
    trace = a_step().op("graph", 0, 20).call("cudaGraphLaunch", 5, 10, correlation=9)
    for at in range(100):
        trace.add("kernel", "k", 100 + at, 1, args={**BARE_KERNEL, "correlation": 9})
    return trace


def check_ranks(tmp_path: Path) -> None:
    paths = [TraceBuilder().step(0, 0, 10).op("aten::mm", 0, 5).write(tmp_path / f"{name}.json") for name in "ab"]
    assert [Path(file.path).name for file in analyze(paths).files] == ["a.json", "b.json"]


def check_quotes(tmp_path: Path) -> None:
    text = TraceBuilder().step(0, 0, 100).op("aten::mm", 0, 50).text({"deviceProperties": [V100]})
    (tmp_path / "t.json").write_text(text.replace("aten::mm", 'torch/_dynamo/x.py(1): f"<lambda>"'))
    with pytest.raises(json.JSONDecodeError):
        json.loads((tmp_path / "t.json").read_text())
    assert analyze([str(tmp_path / "t.json")]).files[0].operators[0].host_total_us == 50


FAULTS = {
    "runtime-category": gives(
        a_step().op("aten::mm", 0, 100).kernel(200, 300, launch=10),
        lambda file: find_op(file, "aten::mm").device_self_us,
        300,
    ),
    "driver-launches": gives(
        a_step()
        .op("triton_mm", 0, 100)
        .add("cuda_driver", "cuLaunchKernelEx", 10, 5, args={"correlation": 7})
        .add("kernel", "triton_k", 200, 300, args={**BARE_KERNEL, "correlation": 7}),
        lambda file: find_op(file, "triton_mm").device_self_us,
        300,
    ),
    "external-id": gives(  # by its correlation, not by its operator
        a_step()
        .op("aten::empty", 0, 5, **{"External id": 101})
        .op("aten::mm", 10, 100, **{"External id": 3})
        .kernel(200, 300, launch=20, **{"External id": 101}),
        lambda file: [find_op(file, name).device_self_us for name in ("aten::mm", "aten::empty")],
        [300, 0],
    ),
    "user-annotation": gives(
        a_step().loader(0, 400).kernel(500, 400, launch=450),
        lambda file: (file.overview.breakdown_us.data_loader, file.verdict.kind),
        (400, Kind.DATA_BOUND),
    ),
    "device-marks": gives(marked_on_the_device(), lambda file: file.overview.steps, 3),
    "step-waits-for-device": gives(
        a_step().kernel(500, 900, launch=490),
        lambda file: (file.overview.host_step_ms, file.overview.step_ms),
        (1.0, 1.4),
    ),
    "occupancy-48-kib": gives(  # two blocks of 66,560 bytes fit
        a_step().kernel(
            *(0, 900, 0, "ampere_sgemm"),
            grid=[1080, 1, 1],
            block=[128, 1, 1],
            **{"registers per thread": 128, "shared memory": 65_536, "est. achieved occupancy %": 0},
        ),
        lambda file: [(row.occupancy_reported_pct, row.occupancy_pct, row.limited_by) for row in file.kernels],
        [(0, 100 * 2 * 128 / 2048, "shared memory")],
        deviceProperties=[A100],
    ),
    "tensor-names": check_tensor_names,
    "advice-on-bf16": check_advice,
    "collective-names": gives(
        a_step()
        .kernel(0, 100, launch=0, name="gemm")
        .kernel(100, 800, launch=1, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        lambda file: (file.overview.breakdown_us.kernel, file.overview.breakdown_us.communication),
        (100, 800),
    ),
    "nccl-kernel-names": gives(
        named_collectives(), lambda file: (file.communication.events, file.communication.comm_us), (4, 200)
    ),
    "counts-differ": check_counts,
    "missing-counts-as-zero": gives(
        a_step()
        .kernel(0, 100, launch=0, grid=[1, 1, 1], **{"blocks per SM": 4.0})
        .kernel(100, 100, launch=1)
        .kernel(200, 100, launch=2, name="bare"),
        lambda file: {row.name: row.blocks_per_sm if is_known(row.blocks_per_sm) else None for row in file.kernels},
        {"k": 4.0, "bare": None},
    ),
    "cpu-peak-of-memory": gives(
        # The host holds more than the card has.
        a_step().kernel(0, 900, launch=0).memory(10, 40 << 30, 40 << 30),
        lambda file: (
            [(row.kind, row.allocated_bytes) for row in file.memory.peaks],
            file.verdict.kind,
            any("memory" in text and "GPU" in text for text in file.verdict.advice),
        ),
        ([("cpu", 40 << 30)], Kind.COMPUTE_BOUND, False),
    ),
    "hip-memory": gives(
        a_step().kernel(0, 900, launch=0).memory(10, 1 << 20, 1 << 20, kind=6, device=0),
        lambda file: [(peak.kind, peak.device, peak.allocated_bytes) for peak in file.memory.peaks],
        [("hip", 0, 1 << 20)],
    ),
    "device-alone": gives(
        TraceBuilder().kernel(100, 50).kernel(200, 50),
        lambda file: (file.overview.window_us, file.overview.gpus[0].utilization_pct),
        (150, pytest.approx(100 * 100 / 150)),
    ),
    "no-category": gives(without_categories(), lambda file: find_op(file, "aten::mm").device_self_us, 300),
    "child-ends-late": gives(
        a_step().op("outer", 0, 100).op("inner", 50, 51),
        lambda file: (find_op(file, "inner").host_total_us, find_op(file, "outer").host_self_us),
        (51, pytest.approx(50, abs=1)),
    ),
    "idle-without-cause": gives(
        a_step().kernel(0, 100, launch=0).call("hipFree", 100, 880).kernel(990, 10, launch=989),
        lambda file: (file.gaps[0].alloc, file.verdict.kind, file.verdict.cause),
        (880, Kind.SYNC_BOUND, "allocator"),
    ),
    "cpu-only": gives(a_step().op("aten::mm", 0, 900), lambda file: file.host_us.compute, 900, deviceProperties=[]),
    "whole-microseconds": gives(
        TraceBuilder(1000.0).step(0, 0, 100).kernel(10.75, 0.5, launch=1),
        lambda file: [(row.total_us, row.min_us) for row in file.kernels],
        [(0.5, 0.5)],
    ),
    "window-of-kernels": gives(
        a_step().loader(0, 800).kernel(850, 100, launch=840),
        lambda file: (file.overview.gpus[0].utilization_pct, file.gaps[0].idle),
        (10, 900),
    ),
    "statistics-of-sums": gives(
        a_step().kernel(0, 10, launch=0).kernel(100, 20, launch=1).kernel(200, 30, launch=2),
        lambda file: [(row.count, row.total_us, row.mean_us, row.min_us, row.max_us) for row in file.kernels],
        [(3, 60, 20, 10, 30)],
    ),
    "one-kernel-per-launch": gives(
        graph_of_a_hundred(),
        lambda file: (find_op(file, "graph").device_self_us, file.launched_before, file.kernels[0].operator),
        (100, 0, "graph"),
    ),
    "rank-is-not-zero": gives(
        TraceBuilder().step(0, 0, 10).op("aten::mm", 0, 5), lambda file: is_known(file.rank), expected=False
    ),
    "one-number-for-two": check_ranks,
    "unescaped-quotes": check_quotes,
}


@pytest.mark.parametrize("key", FAULTS)
def test_what_others_get_wrong(key, tmp_path):
    FAULTS[key](tmp_path)


def test_the_page_names_every_fault_and_no_other():
    table = PAGE.split("### What other tools get wrong")[1].split("\n## ")[0]
    assert re.findall(r"(?m)^`([a-z0-9-]+)` \|", table) == list(FAULTS)


# the pages of traces and snapshots name every key of their JSON, and none that is not there

PAGES = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("trace.md", "memory-snapshot.md")]
SECTIONS = {name: text for page in PAGES for name, text in re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^### |\Z)", page)}


def find_kinds(hint: object) -> dict[str, type]:
    """Return the dataclasses that a type is made of, but for ``Missing``."""
    own = {hint.__name__: hint} if dataclasses.is_dataclass(hint) and hint is not Missing else {}
    parts = (*get_args(hint), *(get_type_hints(hint).values() if own else ()))
    return own | {name: kind for part in parts for name, kind in find_kinds(part).items()}


KINDS = find_kinds(TraceReport) | find_kinds(TraceComparison) | find_kinds(SnapshotReport)


def test_every_kind_has_a_section_that_names_its_keys_in_their_order():
    """A line may begin with several keys that have one meaning: ``* `kind`, `cause`: of its verdict``."""
    lines = {name: re.findall(r"(?m)^\* ((?:`\w+`(?:, )?)+): ", text) for name, text in SECTIONS.items()}
    told = {name: re.findall(r"`(\w+)`", " ".join(keys)) for name, keys in lines.items()}
    assert told == {name: [one.name.rstrip("_") for one in dataclasses.fields(kind)] for name, kind in KINDS.items()}
