"""Traces that lack a part of the run: nothing is said of what was not recorded, and what lacks is named."""

from pathlib import Path

import pytest

from tests.goldens.trace_views import build_cpu_run
from tests.traces import A100, TraceBuilder
from tpmon.model.known import Missing
from tpmon.model.results.trace import TraceFile
from tpmon.model.results.trace_tables import Stretch
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import Findings, analyze
from tpmon.trace.timeline import lay_timelines
from tpmon.trace.verdict import TRY_CPU, TRY_DEVICE, TRY_WHOLE


def analyse(builder: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return builder.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def device_alone(steps: int = 20) -> TraceBuilder:
    """Write what activities=[CUDA] records: calls and kernels, of each millisecond 300 us."""
    trace = TraceBuilder()
    for number in range(steps):
        trace.kernel(number * 1000 + 10, 300, launch=number * 1000)
    return trace


def test_without_operators_idle_time_is_not_called_python(tmp_path):
    file = analyse(device_alone(), tmp_path)
    verdict = file.verdict
    assert (verdict.kind, verdict.advice) == (Kind.NOT_ENOUGH_EVIDENCE, (TRY_CPU,))
    assert "operators and loader, which may say why, were not recorded" in verdict.summary
    split, gaps = file.overview.breakdown_us, file.gaps[0]
    assert (split.kernel, split.runtime) == (6000, 20)
    untold = (split.data_loader, split.cpu, gaps.data, gaps.cpu_op, gaps.other)
    assert all(isinstance(one, Missing) for one in untold)
    assert (gaps.sync_explicit, gaps.sync_implicit, gaps.alloc, gaps.launch) == (0, 0, 0, 20)
    assert isinstance(gaps.largest[0].cause, Missing)


def test_calls_alone_tell_what_they_hold(tmp_path):
    trace = device_alone(5)
    for number in range(5):
        trace.call("cudaStreamSynchronize", number * 1000 + 320, 600)
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.SYNC_BOUND, "explicit")
    assert file.gaps[0].largest[0].cause == "sync_explicit"
    shares = {share.name: share.pct for share in file.verdict.shares}
    assert sum(shares.values()) == pytest.approx(100)
    assert "idle" in shares


def test_the_timeline_of_calls_alone_leaves_the_rest_without_a_cause(tmp_path):
    kept: list[Findings] = []
    report = analyze([device_alone().write(tmp_path / "t.json")], keep=kept.append)
    shares = {share.name: share.pct for share in lay_timelines(kept[0]).look(0, Stretch(0, 1), 50).shares}
    gaps = report.files[0].gaps[0]
    assert shares["launch"] == pytest.approx(100 * gaps.launch / gaps.window)
    assert shares["idle"] == pytest.approx(100 * (gaps.idle - gaps.launch) / gaps.window)
    assert set(shares) == {"busy", "sync_explicit", "sync_implicit", "alloc", "launch", "idle"}


@pytest.mark.parametrize("name", ["forward", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"])
def test_a_shadow_of_the_host_on_the_device_tells_nothing_of_the_host(name, tmp_path):
    trace = TraceBuilder()
    for number in range(20):
        trace.kernel(number * 1000 + 10, 300)
    trace.add("gpu_user_annotation", name, 0, 19000, pid=0, tid=7, args={"device": 0, "stream": 7})
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert isinstance(file.overview.breakdown_us.data_loader, Missing)


def waiting_run() -> TraceBuilder:
    """Write the host of a run on a device that waits for it in ``item``, without the device's work."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::mm", at, 500)
        trace.call("cudaLaunchKernel", at + 100, 5, correlation=number + 1)
        trace.op("aten::item", at + 1000, 8900)
        trace.call("cudaStreamSynchronize", at + 1010, 8800, correlation=100 + number)
    return trace


def test_a_device_whose_work_lacks_is_not_called_a_cpu(tmp_path):
    file = analyse(waiting_run(), tmp_path)
    verdict = file.verdict
    assert (verdict.kind, verdict.try_, verdict.advice) == (Kind.NOT_ENOUGH_EVIDENCE, TRY_DEVICE, (TRY_DEVICE,))
    assert "cudaLaunchKernel" in verdict.summary
    split = file.overview.breakdown_us
    assert all(isinstance(one, Missing) for one in (split.kernel, split.memcpy, split.memset))
    assert (split.runtime, split.cpu) == (8805, 595)
    host = file.host_us
    assert (host.sync, host.compute) == (44_000, 3_000)


def test_a_file_that_breaks_off_before_the_device_work_is_said_to(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(waiting_run().text()[:-200])
    verdict = analyze([str(path)]).files[0].verdict
    assert (verdict.kind, verdict.try_) == (Kind.NOT_ENOUGH_EVIDENCE, TRY_WHOLE)


@pytest.mark.parametrize(
    "name",
    [
        "aten::cudnn_convolution",
        "aten::record_stream",
        "nccl:all_reduce",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_efficient_attention_forward",
        "flash_attn::_flash_attn_forward",
        "triton_poi_fused_add_0",
    ],
)
def test_operators_of_devices_give_a_device_away(name, tmp_path):
    verdict = analyse(build_cpu_run().op(name, 8600, 5), tmp_path).verdict
    assert verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert name in verdict.summary


def test_memory_of_a_device_gives_it_away(tmp_path):
    trace = build_cpu_run()
    trace.memory(100, 4096, 4096, kind=1, device=0)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, "an allocation on cuda" in verdict.summary) == (Kind.NOT_ENOUGH_EVIDENCE, True)


def test_a_cpu_that_trains_beside_a_card_is_one(tmp_path):
    """The card is described, and the profiler itself synchronises it when it ends."""
    trace = build_cpu_run().op("aten::cudnn_is_acceptable", 8600, 5).call("cudaDeviceSynchronize", 30_000, 9)
    trace.op("aten::_scaled_dot_product_flash_attention_for_cpu", 8610, 5)
    trace.memory(100, 4096, 4096)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.DATA_BOUND
    assert isinstance(file.overview.breakdown_us.kernel, Missing)
