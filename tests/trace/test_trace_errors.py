"""Faults that torch-tb-profiler and HTA are known for: each with the trace that shows it, and ours beside it.

docs/metrics.md names every one of them by the key that its test has here.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.model.known import is_known
from tpmon.model.results.trace import OperatorRow, TraceFile
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import analyze
from tpmon.trace.reading.schema import uses_tensor_cores

FAULTS: dict[str, Callable[[Path], None]] = {}
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def fault(key: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def keep(check: Callable[[Path], None]) -> Callable[[Path], None]:
        FAULTS[key] = check
        return check

    return keep


def analyse(trace: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return analyze([trace.write(tmp_path / "t.json", header)]).files[0]


def find_op(file: TraceFile, name: str) -> OperatorRow:
    return next(row for row in file.operators if row.name == name)


@fault("runtime-category")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("aten::mm", 0, 100).kernel(200, 300, launch=10)
    assert find_op(analyse(trace, tmp_path), "aten::mm").device_self_us == 300


@fault("driver-launches")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("triton_mm", 0, 100)
    trace.add("cuda_driver", "cuLaunchKernelEx", 10, 5, args={"correlation": 7})
    trace.add("kernel", "triton_k", 200, 300, args={"device": 0, "stream": 7, "correlation": 7})
    assert find_op(analyse(trace, tmp_path), "triton_mm").device_self_us == 300


@fault("external-id")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("aten::empty", 0, 5, **{"External id": 101})
    trace.op("aten::mm", 10, 100, **{"External id": 3})
    trace.kernel(200, 300, launch=20, **{"External id": 101})  # its correlation, not its operator
    file = analyse(trace, tmp_path)
    assert (find_op(file, "aten::mm").device_self_us, find_op(file, "aten::empty").device_self_us) == (300, 0)


@fault("user-annotation")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).loader(0, 400).kernel(500, 400, launch=450)
    file = analyse(trace, tmp_path)
    assert file.overview.breakdown_us.data_loader == 400
    assert file.verdict.kind is Kind.DATA_BOUND


@fault("device-marks")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 1000, 990).kernel(number * 1000 + 50, 900, launch=number * 1000 + 5)
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", number * 1000 + 50, 900, pid=0, tid=7)
    assert analyse(trace, tmp_path).overview.steps == 3


@fault("step-waits-for-device")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(500, 900, launch=490)
    overview = analyse(trace, tmp_path).overview
    assert (overview.host_step_ms, overview.step_ms) == (1.0, 1.4)


@fault("occupancy-48-kib")
def _(tmp_path: Path) -> None:
    said = {"registers per thread": 128, "shared memory": 65_536, "grid": [1080, 1, 1], "block": [128, 1, 1]}
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel(0, 900, launch=0, name="ampere_sgemm", **said, **{"est. achieved occupancy %": 0})
    row = analyse(trace, tmp_path, deviceProperties=[A100]).kernels[0]
    assert row.occupancy_reported_pct == 0
    assert row.occupancy_pct == pytest.approx(100 * 2 * 128 / 2048)  # two blocks of 66,560 bytes fit
    assert row.limited_by == "shared memory"


@fault("tensor-names")
def _(_tmp_path: Path) -> None:
    names = ("nvjet_hsh_128x128", "flash_fwd_kernel", "bmm_Bfloat16_E4m3", "Cijk_Ailk_Bljk_MI16x16x16")
    assert [uses_tensor_cores(name) for name in names] == ["yes"] * 4
    assert uses_tensor_cores("cutlass_kernel_gemm_x") == "unknown"
    plain = (
        "vectorized_elementwise_kernel",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)",
        "void cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<x>>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
        "cutlass_80_simt_sgemm_128x64_8x5_tn_align1",
    )
    assert [uses_tensor_cores(name) for name in plain] == ["no"] * 6
    assert uses_tensor_cores("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_tensor16x8x8") == "yes"


@fault("advice-on-bf16")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(0, 990, launch=1, name="sgemm_128x32")
    trace.op("aten::mm", 0, 10, **{"Input Dims": [[8, 8], [8, 8]], "Input type": ["c10::BFloat16"] * 2})
    assert not any("bf16" in text for text in analyse(trace, tmp_path).verdict.advice)


@fault("collective-names")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(0, 100, launch=0, name="gemm")
    trace.kernel(100, 800, launch=1, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    breakdown = analyse(trace, tmp_path).overview.breakdown_us
    assert (breakdown.kernel, breakdown.communication) == (100, 800)


@fault("nccl-kernel-names")
def _(tmp_path: Path) -> None:
    names = (
        "ncclDevKernel_AllReduce_Sum_f32",
        "ncclKernel_AllGather",
        "rcclGenericKernel",
        "cross_device_reduce_2stage",
    )
    trace = TraceBuilder().step(0, 0, 1000)
    for at, name in enumerate(names):
        trace.kernel(at * 100, 50, launch=at, name=name)
    communication = analyse(trace, tmp_path).communication
    assert (communication.events, communication.comm_us) == (4, 200)


@fault("counts-differ")
def _(tmp_path: Path) -> None:
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


@fault("missing-counts-as-zero")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel(0, 100, launch=0, grid=[1, 1, 1], **{"blocks per SM": 4.0}).kernel(100, 100, launch=1)
    trace.kernel(200, 100, launch=2, name="bare")
    rows = {row.name: row for row in analyse(trace, tmp_path).kernels}
    assert rows["k"].blocks_per_sm == 4.0
    assert not is_known(rows["bare"].blocks_per_sm)


@fault("cpu-peak-of-memory")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(0, 900, launch=0)
    trace.memory(10, 40 << 30, 40 << 30)  # the host holds more than the card has
    file = analyse(trace, tmp_path)
    assert [(row.kind, row.allocated_bytes) for row in file.memory.peaks] == [("cpu", 40 << 30)]
    assert file.verdict.kind is Kind.COMPUTE_BOUND
    assert not any("memory" in text and "GPU" in text for text in file.verdict.advice)


@fault("hip-memory")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(0, 900, launch=0)
    trace.memory(10, 1 << 20, 1 << 20, kind=6, device=0)
    peak = analyse(trace, tmp_path).memory.peaks[0]
    assert (peak.kind, peak.device, peak.allocated_bytes) == ("hip", 0, 1 << 20)


@fault("device-alone")
def _(tmp_path: Path) -> None:
    file = analyse(TraceBuilder().kernel(100, 50).kernel(200, 50), tmp_path)
    assert file.overview.window_us == 150
    assert file.overview.gpus[0].utilization_pct == pytest.approx(100 * 100 / 150)


@fault("no-category")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("aten::mm", 0, 100).kernel(200, 300, launch=10)
    for event in trace.events:
        del event["cat"]
    assert find_op(analyse(trace, tmp_path), "aten::mm").device_self_us == 300


@fault("child-ends-late")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("outer", 0, 100).op("inner", 50, 51)
    file = analyse(trace, tmp_path)
    assert find_op(file, "inner").host_total_us == 51
    assert find_op(file, "outer").host_self_us == pytest.approx(50, abs=1)


@fault("idle-without-cause")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).kernel(0, 100, launch=0).call("hipFree", 100, 880)
    trace.kernel(990, 10, launch=989)
    file = analyse(trace, tmp_path)
    assert file.gaps[0].alloc == 880
    assert (file.verdict.kind, file.verdict.cause) == (Kind.SYNC_BOUND, "allocator")


@fault("cpu-only")
def _(tmp_path: Path) -> None:
    file = analyse(TraceBuilder().step(0, 0, 1000).op("aten::mm", 0, 900), tmp_path, deviceProperties=[])
    assert file.host_us.compute == 900


@fault("whole-microseconds")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder(1000.0).step(0, 0, 100).kernel(10.75, 0.5, launch=1)
    row = analyse(trace, tmp_path).kernels[0]
    assert (row.total_us, row.min_us) == (0.5, 0.5)


@fault("window-of-kernels")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).loader(0, 800).kernel(850, 100, launch=840)
    file = analyse(trace, tmp_path)
    assert file.overview.gpus[0].utilization_pct == 10
    assert file.gaps[0].idle == 900


@fault("statistics-of-sums")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    for at in range(3):
        trace.kernel(at * 100, 10 * (at + 1), launch=at)
    row = analyse(trace, tmp_path).kernels[0]
    assert (row.count, row.total_us, row.mean_us, row.min_us, row.max_us) == (3, 60, 20, 10, 30)


@fault("one-kernel-per-launch")
def _(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).op("graph", 0, 20).call("cudaGraphLaunch", 5, 10, correlation=9)
    for at in range(100):
        trace.add("kernel", "k", 100 + at, 1, args={"device": 0, "stream": 7, "correlation": 9})
    assert find_op(analyse(trace, tmp_path), "graph").device_self_us == 100


@fault("rank-is-not-zero")
def _(tmp_path: Path) -> None:
    assert not is_known(analyse(TraceBuilder().step(0, 0, 10).op("aten::mm", 0, 5), tmp_path).rank)


@fault("one-number-for-two")
def _(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        TraceBuilder().step(0, 0, 10).op("aten::mm", 0, 5).write(tmp_path / name)
    report = analyze([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert [Path(file.path).name for file in report.files] == ["a.json", "b.json"]


@fault("unescaped-quotes")
def _(tmp_path: Path) -> None:
    text = TraceBuilder().step(0, 0, 100).op("aten::mm", 0, 50).text({"deviceProperties": [V100]})
    (tmp_path / "t.json").write_text(text.replace("aten::mm", 'torch/_dynamo/x.py(1): f"<lambda>"'))
    with pytest.raises(json.JSONDecodeError):
        json.loads((tmp_path / "t.json").read_text())
    assert analyze([str(tmp_path / "t.json")]).files[0].operators[0].host_total_us == 50


@pytest.mark.parametrize("key", FAULTS)
def test_what_others_get_wrong(key, tmp_path):
    FAULTS[key](tmp_path)


def test_the_page_names_every_fault_and_no_other():
    table = PAGE.split("### What other tools get wrong")[1].split("\n## ")[0]
    assert re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", table) == list(FAULTS)
