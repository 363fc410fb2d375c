"""Patterns of a trace: each is seen where its condition holds, not just below it, and says what helps."""

from pathlib import Path

import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.commands.trace import TraceOptions, run_trace
from tpmon.model.results.trace import TraceFile
from tpmon.model.results.trace_tables import PatternRow
from tpmon.report.trace import write_report
from tpmon.trace.advice import _SEEN
from tpmon.trace.analysis import analyze

FP32 = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def analyse(trace: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return trace.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def see(trace: TraceBuilder, tmp_path: Path, name: str, **header: object) -> PatternRow | None:
    return next((row for row in analyse(trace, tmp_path, **header).patterns if row.name == name), None)


def two_steps() -> TraceBuilder:
    return TraceBuilder().step(1, 0, 1000).step(2, 1000, 1000)


def copies(length: int) -> TraceBuilder:
    trace = two_steps()
    for step in (0, 1000):
        trace.kernel(step, 500, launch=step)
        copy = {"category": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "bytes": 1000}
        trace.kernel(step + 400, 100 + length, launch=step + 1, **copy)
    return trace


def launches(length: int) -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000).op("aten::add", 0, 1000)
    for at in range(0, 1000, 50):
        trace.kernel(at, length, launch=at)
    return trace


def operators(count: int) -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 10_000)
    for at in range(count):
        trace.op("aten::add_", at * 20, 12)
    return trace


def optimizer(count: int) -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000).add("user_annotation", "Optimizer.step#AdamW.step", 100, 600)
    for at in range(count):
        trace.kernel(110 + 3 * at, 2, launch=105 + 3 * at)
    return trace


CALLED = "aten::add_ is called 120 times a step, 12.0 us each"
HIDDEN = "1 copies a step that kernels do not hide, most of the time: Memcpy HtoD (Pageable -> Device)"


@pytest.mark.parametrize(
    ("name", "build", "counts", "expected"),
    [
        ("copy-heavy", copies, (120, 80), (HIDDEN, 12, "pin the batches")),
        ("launch-heavy", launches, (4, 30), ("20 kernels a step, half of them below 4.0 us", 92, "CUDA graphs")),
        ("tiny-operators", operators, (120, 90), (CALLED, 14.4, "compile")),
        (
            "unfused-optimizer",
            optimizer,
            (150, 20),
            ("150 kernels in one step of the optimizer", 60, "the fused optim"),
        ),
    ],
)
def test_a_pattern_is_seen_from_its_threshold_on(name, build, counts, expected, tmp_path):
    enough, below = (see(build(count), tmp_path, name) for count in counts)
    said, share, advice = expected
    assert (enough.seen, enough.share_pct, below) == (said, pytest.approx(share), None)
    assert any(advice in text for text in enough.advice)


def test_operators_cost_a_busy_device_nothing_and_a_plain_step_has_no_pattern(tmp_path):
    assert see(operators(120).kernel(0, 9_900, launch=1), tmp_path, "tiny-operators") is None
    half = {**FP32, "Input type": ["c10::Half", "c10::Half"]}
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 20, **half).kernel(10, 980, launch=10)
    assert analyse(trace, tmp_path, deviceProperties=[V100]).patterns == ()
    assert analyse(TraceBuilder(), tmp_path).patterns == ()


def test_without_marks_nothing_is_said_of_a_step(tmp_path):
    trace = TraceBuilder()
    for at in range(200):
        trace.op("vllm::rms_norm", at * 50, 15).kernel(at * 50 + 20, 4, launch=at * 50 + 2)
        trace.op("aten::mm", at * 50 + 25, 20)
    file = analyse(trace, tmp_path)
    assert [row.seen for row in file.patterns] == ["200 kernels, half of them below 4.0 us"]
    assert "--launch-skip 100 --launch-count 1 " in str(file.hot_kernel.command)


def test_waits_in_each_step_name_their_operator_and_one_that_keeps_no_card_idle_is_none(tmp_path):
    trace, busy = two_steps(), two_steps()
    for step in (0, 1000):
        trace.kernel(step, 400, launch=step).kernel(step + 900, 100, launch=step + 890)
        trace.op("aten::item", step + 100, 700).op("aten::_local_scalar_dense", step + 110, 680)
        trace.op("autograd::engine::evaluate_function: MulBackward0", step + 880, 5)
        trace.call("cudaStreamSynchronize", step + 120, 300)
        busy.kernel(step, 995, launch=step).call("cudaStreamSynchronize", step + 100, 890)
    row = see(trace, tmp_path, "sync-per-step")
    assert row.seen == "the host waits for the device 1 times a step, most of the time in aten::item"
    assert row.share_pct == 30, "20 us in the wait, and the 280 us behind it that the host could have run ahead"
    assert row.advice[0].startswith("read the loss every 50 steps")
    del trace.events[-1]  # the second step has none
    assert see(trace, tmp_path, "sync-per-step") is None
    assert see(busy, tmp_path, "sync-per-step") is None


def test_attention_without_a_fused_kernel(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::_scaled_dot_product_attention_math", 0, 100)
    trace.op("aten::bmm", 10, 50).kernel(200, 300, launch=20)
    row = see(trace, tmp_path, "math-attention")
    assert row.share_pct == 30
    assert row.advice == ("force a fused attention kernel, and see why it is refused",)
    trace.events[-2]["name"] = trace.events[-1]["name"]
    trace.events[1]["name"] = "aten::_scaled_dot_product_flash_attention"
    assert see(trace, tmp_path, "math-attention") is None


def test_products_in_fp32_where_the_card_has_tf32(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 100, **FP32)
    trace.kernel(200, 300, launch=20, name="ampere_sgemm_128x64_tn")
    row = see(trace, tmp_path, "fp32-products")
    assert row.share_pct == 30
    assert row.advice[0] == "allow TF32 for matrix products"
    older = see(trace, tmp_path, "fp32-products", deviceProperties=[V100])
    assert older.advice == ("run forward and loss under fp16 autocast with a GradScaler",)
    without = {**V100, "computeMinor": 5, "name": "NVIDIA GeForce GTX 1660"}
    assert see(trace, tmp_path, "fp32-products", deviceProperties=[without]) is None
    trace.events[-1]["name"] = "cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4"
    assert see(trace, tmp_path, "fp32-products") is None


def test_a_compiler_that_runs_in_several_steps(tmp_path):
    trace = two_steps().op("_compile.compile_inner (dynamo_timed)", 0, 200)
    assert see(trace, tmp_path, "recompiles") is None  # the first compilation alone
    trace.op("_compile.compile_inner (dynamo_timed)", 1000, 200).op("Torch-Compiled Region: 0/1", 1200, 100)
    row = see(trace, tmp_path, "recompiles")
    assert row.seen == "the compiler runs in 2 of 2 steps; a function is in its version 2"
    assert row.share_pct == 20
    assert row.advice == ("stop the recompilations: find the guard that fails",)


def recompute(reserved: int | None) -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.op("autograd::engine::evaluate_function: MulBackward0", 100, 500)
    trace.op("aten::linear", 150, 300).op("aten::addmm", 160, 100).kernel(200, 250, launch=170)
    if reserved is not None:
        trace.memory(50, 100, reserved // 2, kind=1, device=0)
    return trace


def test_recomputing_matters_where_memory_is_free(tmp_path):
    whole = A100["totalGlobalMem"]
    assert isinstance(whole, int)
    row = see(recompute(whole // 2), tmp_path, "recompute")
    assert row.share_pct == 25
    assert row.seen == (
        "1 forward operators a step run again in the backward pass, with 50 % of the card's memory never reserved"
    )
    assert row.advice == ("switch activation checkpointing off where memory is free",)
    assert see(recompute(whole * 9 // 10), tmp_path, "recompute") is None
    unknown = see(recompute(None), tmp_path, "recompute")
    assert unknown.advice[0].startswith("if much of the GPU memory is free")


def test_patterns_prove_what_the_advice_of_the_verdict_needs(tmp_path, capfd):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 100, **FP32)
    trace.kernel(20, 970, launch=20, name="ampere_sgemm_128x64_tn")
    report = analyze([trace.write(tmp_path / "t.json", {"deviceProperties": [A100]})])
    assert report.files[0].verdict.advice[0] == "allow TF32 for matrix products"
    said = "pattern  fp32-products, 97.0 % of the window: matmul in fp32 on ordinary cores"
    assert said in "\n".join(write_report(report))
    assert run_trace(TraceOptions((str(tmp_path / "t.json"),), table="shapes")) == 0
    alone = capfd.readouterr().out
    assert "aten::mm  [[64,64],[64,64]]" in alone
    assert said not in alone


def test_shares_are_of_all_devices_and_never_above_the_whole(tmp_path):
    copy = {"category": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "bytes": 8}
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 400, launch=0, **copy).kernel(0, 1000, launch=1, device=1)
    assert see(trace, tmp_path, "copy-heavy", deviceProperties=[A100, {**A100, "id": 1}]).share_pct == 20
    within = {**copy, "name": "Memcpy DtoD (Device -> Device)"}
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 500, launch=0, **within)
    assert see(trace, tmp_path, "copy-heavy").advice == (), "copies within the card want no pinning"
    trace = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 100, **FP32)
    trace.kernel(50, 10_000, launch=20, name="ampere_sgemm_128x64_tn")
    row = see(trace, tmp_path, "fp32-products")
    assert row.share_pct == pytest.approx(100 * 10_000 / 10_050), "the host runs ahead"


def test_every_remedy_of_a_pattern_is_in_the_catalogue():
    from tpmon.judge.advice.choose import CATALOGUE

    assert {name for names, _needs in _SEEN.values() for name in names.split()} <= set(CATALOGUE)
