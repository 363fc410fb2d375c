"""What a step is made of: kinds of work, phases, replays, samples and operations in a second, to the microsecond."""

from pathlib import Path

import numpy as np
import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.trace import TraceFile
from tpmon.model.results.trace_tables import PatternRow, StepWork
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.figures.categories import CATEGORIES, name_category, split_exclusive
from tpmon.trace.figures.operators import count_flops, parse_inputs
from tpmon.trace.reading.spans import NOTHING, unite

H100 = {**A100, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}
AUTOGRAD = 4001
HALF = ["c10::BFloat16", "c10::BFloat16"]


def analyse(trace: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return trace.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def work_of(trace: TraceBuilder, tmp_path: Path, **header: object) -> StepWork:
    return analyse(trace, tmp_path, **header).step_work


def us_of(work: StepWork) -> dict[str, float]:
    return {row.category: row.us for row in work.categories}


def node(trace: TraceBuilder, name: str, start: float, length: float, tid: int = AUTOGRAD, **args: object) -> None:
    trace.add("cpu_op", f"autograd::engine::evaluate_function: {name}", start, length, tid=tid, args=args)


def launch_at(trace: TraceBuilder, at: float, start: float, length: float, tid: int = AUTOGRAD, **more: object) -> None:
    """Add a kernel and its launch, on a thread."""
    trace.kernel(start, length, launch=at, **more)
    trace.events[-2]["tid"] = tid


OPERATORS = {
    "aten::mm": "GEMM",
    "aten::addmm": "GEMM",
    "aten::_scaled_mm": "GEMM",
    "aten::cudnn_convolution": "convolution",
    "aten::convolution_backward": "convolution",
    "aten::miopen_convolution": "convolution",
    "aten::native_layer_norm_backward": "norm",
    "aten::cudnn_batch_norm": "norm",
    "aten::_fused_rms_norm": "norm",
    "aten::native_batch_norm_backward": "norm",
    "aten::linalg_vector_norm": "reduce",
    "aten::_softmax_backward_data": "reduce",
    "aten::max_pool2d_with_indices_backward": "reduce",
    "aten::embedding_dense_backward": "indexing",
    "aten::index_select": "indexing",
    "aten::copy_": "elementwise",
    "aten::gelu_backward": "elementwise",
    "aten::_fused_adamw_": "optimizer",
    "autograd::engine::evaluate_function: MmBackward0": "",
    "## Call CompiledFxGraph abc ##": "",
    "my::op": "",
}
KERNELS = {
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT": "GEMM",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1": "GEMM",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn": "GEMM",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(P)": "GEMM",
    "void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasSplitKParams<float>)": "GEMM",
    "triton_tem_fused_mm_3": "GEMM",
    "triton_tem_fused_flex_attention_0": "attention",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(P)": "attention",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<B>::Params)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3": "attention",
    "attn_fwd": "attention",
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc": "convolution",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(P)": "convolution",
    "void implicit_convolve_sgemm<float, float, 128, 5, 5>(int)": "convolution",
    "triton_poi_fused__unsafe_view_mul_silu_2": "elementwise",
    "triton_poi_fused_convolution_relu_1": "elementwise",
    "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1": "norm",
    "triton_per_fused_add_native_layer_norm_4": "norm",
    "triton_per_fused__softmax_2": "reduce",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)": "elementwise",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>(R)": "reduce",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true, false>(float*)": "reduce",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": "norm",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>(T)": "indexing",
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<P>()": "indexing",
    "void at::native::multi_tensor_apply_kernel<M, at::native::FusedAdamMathFunctor<float, 4>>(M)": "optimizer",
    "void at::native::multi_tensor_apply_kernel<M, at::native::BinaryOpListAlphaFunctor<float>>(M)": "elementwise",
    "void frobnicate<float>(float*)": "",
}


@pytest.mark.parametrize(
    ("where", "name", "category"),
    [("operators", *one) for one in OPERATORS.items()] + [("kernels", *one) for one in KERNELS.items()],
)
def test_a_name_has_a_category(where, name, category):
    assert name_category(name, where) == (CATEGORIES.index(category) if category else -1)


def test_the_operator_decides_before_the_name_and_what_neither_names_is_other(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    trace.op("aten::mm", 0, 20).kernel(100, 50, launch=5, name="void at::native::vectorized_elementwise_kernel<4>")
    trace.op("my::op", 30, 20).kernel(200, 40, launch=35, name="nvjet_tst_64x8").kernel(300, 30, launch=36, name="odd")
    trace.kernel(400, 20, launch=60, name="void softmax_warp_forward<8>")
    trace.kernel(500, 10, launch=62, category="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", bytes=1)
    trace.kernel(520, 5, launch=64, category="gpu_memset", name="Memset (Device)", bytes=1)
    trace.kernel(600, 7, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)")
    work = work_of(trace, tmp_path)
    assert us_of(work) == {"GEMM": 90, "other": 30, "reduce": 20, "copies": 15, "communication": 7}
    assert [(row.largest, row.largest_pct, row.count) for row in work.categories][:2] == [
        ("void at::native::vectorized_elementwise_kernel<4>", pytest.approx(100 * 50 / 90), 2),
        ("odd", 100, 1),
    ]
    assert (work.busy_us, work.step_us, work.unit, work.steps, work.at_once_us) == (162, 1000, "step", 1, 0)


def test_what_runs_at_once_counts_once_and_a_device_is_the_mean_of_all(tmp_path):
    trace = TraceBuilder().step(1, 0, 500).step(2, 500, 500)
    for device in (0, 1):
        for step in (0, 500):
            trace.kernel(step + 10, 100, launch=step + 1, name="nvjet_x", device=device)
            late = {"name": "ncclDevKernel_AllReduce(a)", "device": device}
            trace.kernel(step + 60, 100, launch=step + 2, **late)
    work = work_of(trace, tmp_path, deviceProperties=[A100, {**A100, "id": 1}])
    assert us_of(work) == {"GEMM": 100, "communication": 50}
    assert [row.overlapping_us for row in work.categories] == [100, 100]
    assert (work.busy_us, work.steps, work.at_once_us) == (150, 2, 200)


def test_exclusive_time_is_that_of_a_slow_count():
    rng = np.random.default_rng(7)
    for _round in range(30):
        start = np.sort(rng.integers(0, 400, 40))
        end = start + rng.integers(0, 30, 40)
        codes = rng.integers(0, 4, 40).astype(np.int8)
        cuts = unite(np.array([50, 200]), np.array([20, 35])) if _round % 2 else NOTHING
        own, full = split_exclusive(start, end, codes, 4, cuts)
        slow = np.full(500, 9)
        runs = np.zeros((4, 500), np.bool_)
        for one, stop, code in zip(start, end, codes, strict=True):
            slow[one:stop] = np.minimum(slow[one:stop], code)
            runs[code, one:stop] = True
        free = np.ones(500, np.bool_)
        for one, stop in zip(cuts.start, cuts.end, strict=True):
            free[one:stop] = False
        assert own.tolist() == [int(((slow == code) & free).sum()) for code in range(4)]
        assert full.tolist() == [int((runs[code] & free).sum()) for code in range(4)]


def test_attention_is_all_that_its_operator_launches_and_the_backward_of_it(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    trace.op("aten::scaled_dot_product_attention", 0, 100).op("aten::_scaled_dot_product_attention_math", 5, 90)
    trace.op("aten::bmm", 10, 20, **{"Sequence number": 7}).kernel(200, 30, launch=12, name="nvjet_a")
    trace.op("aten::_softmax", 40, 20, **{"Sequence number": 8}).kernel(230, 10, launch=42, name="softmax_warp")
    trace.op("aten::mm", 120, 20, **{"Sequence number": 9}).kernel(240, 20, launch=122, name="nvjet_b")
    for at, (name, number, length) in enumerate((("MmBackward0", 9, 40), ("BmmBackward0", 7, 60))):
        node(trace, name, 300 + 100 * at, 50, **{"Sequence number": number})
        launch_at(trace, 310 + 100 * at, 500 + 100 * at, length, name="nvjet_c")
    assert us_of(work_of(trace, tmp_path)) == {"attention": 100, "GEMM": 60}


def training_step(graphed: bool = False) -> TraceBuilder:
    trace = TraceBuilder()
    for step in (0, 1000):
        trace.step(1 + step // 1000, step, 1000).loader(step, 100)
        trace.add("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", step + 100, 50)
        trace.kernel(step + 140, 10, launch=step + 110, name="void FillFunctor")
        launch = {"tid": 4000} if not graphed else {}
        trace.op("aten::linear", step + 150, 100, **{"Input Dims": [[32, 128, 64], [64, 64], [64]], "Input type": HALF})
        launch_at(trace, step + 160, step + 200, 150, name="nvjet_f", **launch)
        node(trace, "MmBackward0", step + 300, 100)
        node(trace, "AccumulateGrad", step + 420, 80)
        launch_at(trace, step + 310, step + 350, 300, name="nvjet_g")
        trace.op("aten::sum", step + 510, 20).kernel(step + 660, 20, launch=step + 512, name="reduce_kernel")
        trace.add("user_annotation", "Optimizer.step#AdamW.step", step + 600, 200)
        trace.kernel(step + 700, 100, launch=step + 620, name="void multi_tensor_apply_kernel<AdamFunctor>")
    return trace


def test_phases_of_a_step_sum_to_the_host_and_to_the_device(tmp_path):
    work = work_of(training_step(), tmp_path)
    assert {row.phase: (row.host_us, row.device_us) for row in work.phases} == {
        "forward": (150, 150),
        "backward": (200, 300),
        "optimizer": (200, 100),
        "zero_grad": (50, 10),
        "data": (100, 0),
        "other": (300, 20),
    }
    assert sum(row.device_us for row in work.phases) == work.busy_us == 580
    assert sum(row.device_pct for row in work.phases) == pytest.approx(100)


def test_phases_that_a_trace_does_not_tell_apart_are_not_guessed(tmp_path):
    trace = training_step()
    trace.events = [one for one in trace.events if "autograd" not in one["name"]]
    rows = {row.phase: row.device_us for row in work_of(trace, tmp_path).phases}
    assert rows == {"forward and backward": 470, "optimizer": 100, "zero_grad": 10, "data": 0}
    alone = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 50).kernel(10, 50, launch=5)
    assert "neither a backward pass" in work_of(alone, tmp_path).phases.reason
    device = TraceBuilder().kernel(0, 100, launch=0)
    assert "operators were not recorded" in work_of(device, tmp_path).phases.reason
    host = training_step()
    host.events = [one for one in host.events if one["cat"] not in ("kernel", "cuda_runtime")]
    rows = {row.phase: (row.host_us, row.device_us) for row in work_of(host, tmp_path).phases}
    assert rows["backward"] == (200, NOT_APPLICABLE)


def replayed() -> TraceBuilder:
    trace = TraceBuilder()
    for step in (0, 1000):
        trace.step(1 + step // 1000, step, 1000).op("aten::copy_", step, 10)
        trace.call("cudaGraphLaunch", step + 20, 5, correlation=7 + step)
        for at in range(4):
            trace.kernel(step + 100 + 100 * at, 90, name="nvjet_x", correlation=7 + step)
        trace.add("user_annotation", "Optimizer.step#SGD.step", step + 600, 100)
        trace.kernel(step + 700, 40, launch=step + 610, name="void multi_tensor_apply_kernel<SgdFunctor>")
    return trace.kernel(-50, 30, name="void early")


def test_replays_are_counted_and_rows_hold_what_no_operator_launched(tmp_path):
    file = analyse(replayed(), tmp_path)
    work = file.step_work
    assert (work.replays.count, work.replays.mean_us) == (2, 360)
    assert work.replays.share_pct == pytest.approx(90)
    assert {row.phase: row.device_us for row in work.phases if row.device_us} == {
        "CUDA graphs, not told apart": 360,
        "optimizer": 40,
    }
    rows = {row.name: (row.calls, row.device_self_us) for row in file.operators}
    assert rows == {
        "(graph replay: cudaGraphLaunch)": (2, 720),
        "(outside of operators)": (2, 80),
        "(launched before the capture)": (1, 30),
        "aten::copy_": (2, 0),
    }
    assert sum(row.device_self_us for row in file.operators) - work.at_once_us == file.overview.gpus[0].busy_us
    assert work_of(training_step(), tmp_path).replays is NOT_APPLICABLE


def test_samples_and_tokens_are_those_of_the_first_layer(tmp_path):
    rates = work_of(training_step(), tmp_path).rates
    assert (rates.samples, rates.samples_per_s) == (32, pytest.approx(32 / 0.001))
    assert (rates.tokens, rates.tokens_per_s) == (32 * 128, pytest.approx(32 * 128 / 0.001))


IDS = [[1000, 64], [8, 512], [], [], []]


@pytest.mark.parametrize(
    ("first", "dims", "samples", "tokens"),
    [
        ("aten::embedding", IDS, 8, 8 * 512),
        ("aten::conv2d", [[16, 3, 224, 224], [64, 3, 7, 7]], 16, "no batch x length"),
        ("aten::linear", [[32, 784], [10, 784], [10]], 32, "no batch x length"),
        ("aten::embedding", [[1000, 64], [4096]], "no batch x length", "no batch x length"),
        ("aten::conv2d", [[3, 224, 224], [64, 3, 7, 7]], "no batch x length", "no batch x length"),
        ("aten::embedding", None, "record_shapes=True", "record_shapes=True"),
        ("aten::mm", [[8, 8], [8, 8]], "no embedding", "no embedding"),
    ],
)
def test_the_batch_is_known_only_where_it_is_unambiguous(first, dims, samples, tokens, tmp_path):
    args = {} if dims is None else {"Input Dims": dims, "Input type": ["float"] * len(dims)}
    trace = TraceBuilder()
    for step in (0, 1000):
        trace.step(1 + step // 1000, step, 1000).op(first, step + 10, 50, **args).kernel(
            step + 20, 500, launch=step + 15
        )
    rates = work_of(trace, tmp_path).rates
    for said, expected in ((rates.samples, samples), (rates.tokens, tokens)):
        assert expected in said.reason if isinstance(said, Missing) else said == expected


def test_each_backward_pass_has_a_batch_and_one_layer_that_runs_twice_for_one_tells_none(tmp_path):
    trace, twice = TraceBuilder(), TraceBuilder()
    for one, backwards in ((trace, (200, 600)), (twice, (600,))):
        one.step(1, 0, 1000)
        for at in (100, 500):
            one.op("aten::embedding", at, 50, **{"Input Dims": IDS, "Input type": ["float"]})
            one.kernel(at + 50, 50, launch=at + 1)
        for at in backwards:
            node(one, "MmBackward0", at, 100)
    assert work_of(trace, tmp_path).rates.samples == 16
    assert "several times" in work_of(twice, tmp_path).rates.samples.reason


def products(side: int = 4096, kinds: list[str] | None = None, name: str = "nvjet_x") -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000)
    dims = {"Input Dims": [[side, side], [side, side]], "Input type": kinds or HALF}
    return trace.op("aten::mm", 0, 20, **dims).kernel(100, 800, launch=5, name=name)


def test_operations_of_a_step_are_set_against_the_peak_of_the_card(tmp_path):
    rates = work_of(products(), tmp_path).rates
    assert rates.tflop_s == pytest.approx(2 * 4096**3 / 1e-3 / 1e12)
    assert (rates.dtype, rates.peak_tflop_s, rates.counted_pct) == ("bf16", 312, 100)
    assert rates.mfu_pct == pytest.approx(100 * rates.tflop_s / 312)
    unknown = work_of(products(), tmp_path, deviceProperties=[{**A100, "name": "Frobnicator 9"}]).rates
    assert (unknown.tflop_s, unknown.mfu_pct.reason) == (rates.tflop_s, unknown.peak_tflop_s.reason)
    assert "table of peaks" in unknown.mfu_pct.reason
    without = products()
    without.events[1]["args"] = {}
    rates = work_of(without, tmp_path).rates
    assert "record_shapes=True" in rates.tflop_s.reason
    assert rates.counted_pct == 0
    plain = TraceBuilder().step(1, 0, 100).op("aten::add", 0, 10).kernel(20, 50, launch=2, name="elementwise_kernel")
    assert "no matrix product" in work_of(plain, tmp_path).rates.tflop_s.reason


def test_fused_attention_counts_two_products_forward_and_five_backward():
    size = b"[2, 128, 4, 64]"
    forward = parse_inputs((b"[" + b", ".join([size] * 3) + b"]", b"[]"))
    backward = parse_inputs((b"[" + b", ".join([size] * 4) + b"]", b"[]"))
    one = 2 * 2 * 4 * 128 * 128 * 64
    assert count_flops("aten::_flash_attention_forward", forward, {}) == 2 * one
    assert count_flops("aten::_flash_attention_backward", backward, {}) == 5 * one
    heads = 2 * 2 * 128 * 4 * 4 * 64
    assert count_flops("aten::_scaled_dot_product_cudnn_attention", forward, {}) == 2 * heads
    packed = parse_inputs((b"[[128, 4, 64], [128, 4, 64], [128, 4, 64]]", b"[]"))
    assert np.isnan(count_flops("aten::_flash_attention_forward", packed, {}))


def see(trace: TraceBuilder, tmp_path: Path, name: str, **header: object) -> PatternRow | None:
    return next((row for row in analyse(trace, tmp_path, **header).patterns if row.name == name), None)


def test_kernels_with_fewer_blocks_than_the_card_has_sms(tmp_path):
    def build(blocks: float, length: int) -> TraceBuilder:
        trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 20)
        node(trace, "MmBackward0", 50, 10)
        trace.kernel(100, length, launch=5, name="nvjet_x", **{"blocks per SM": blocks, "grid": [27, 1, 1]})
        return trace.kernel(900, 90, launch=7, name="ncclDevKernel_AllReduce(a)", **{"blocks per SM": 0.1})

    row = see(build(0.25, 300), tmp_path, "few-blocks")
    assert row.share_pct == 30
    assert "(108), half of that time below 0.25 blocks per SM; most: nvjet_x" in row.seen
    assert any("larger micro-batch" in text for text in row.advice)
    assert see(build(1.0, 300), tmp_path, "few-blocks") is None
    assert see(build(0.25, 150), tmp_path, "few-blocks") is None


def test_elementwise_work_that_nothing_fuses(tmp_path):
    def build(length: int, name: str = "aten::add") -> TraceBuilder:
        trace = TraceBuilder().step(1, 0, 1000).op(name, 0, 20).op("aten::_softmax", 30, 10)
        trace.kernel(100, length, launch=5, name="void vectorized_elementwise_kernel<4>")
        return trace.kernel(500, 50, launch=32, name="softmax").kernel(600, 300, launch=50, name="nvjet_x")

    row = see(build(250), tmp_path, "elementwise-heavy")
    assert (row.share_pct, row.advice) == (30, ("compile the model",))
    assert "(elementwise 25 %, reduce 5 % of the window)" in row.seen
    assert see(build(100), tmp_path, "elementwise-heavy") is None
    assert see(build(250, "CompiledFunction"), tmp_path, "elementwise-heavy") is None


def test_tf32_products_where_bf16_would_do(tmp_path):
    trace = products(kinds=["float", "float"], name="cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4")
    row = see(trace, tmp_path, "tf32-products")
    assert (row.share_pct, row.advice) == (80, ("run forward and loss under bf16 autocast",))
    assert see(trace, tmp_path, "tf32-products", deviceProperties=[V100]) is None
    assert see(products(), tmp_path, "tf32-products") is None


def test_products_of_16_bit_on_ordinary_cores_name_their_sizes(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    dims = {"Input Dims": [[1, 4096], [4096, 11008]], "Input type": HALF}
    trace.op("aten::mm", 0, 20, **dims).kernel(100, 300, launch=5, name="void gemv2T_kernel_val<int>(P)")
    row = see(trace, tmp_path, "half-off-tensor-cores")
    assert (row.share_pct, "aten::mm (1 x 4096 by 4096 x 11008)" in row.seen) == (30, True)
    old = {**V100, "name": "Tesla P100", "computeMajor": 6}
    assert see(trace, tmp_path, "half-off-tensor-cores", deviceProperties=[old]) is None
    assert see(products(), tmp_path, "half-off-tensor-cores") is None


def test_attention_by_hand_counts_its_backward_too(tmp_path):
    def build(between: str) -> TraceBuilder:
        trace = TraceBuilder().step(1, 0, 1000)
        for at, (name, kernel) in enumerate((("bmm", "nvjet"), (between, "e"), ("_softmax", "s"), ("bmm", "nvjet"))):
            trace.op(f"aten::{name}", 20 * at, 10, **{"Sequence number": at})
            trace.kernel(200 + 20 * at, 20, launch=20 * at + 1, name=kernel)
        node(trace, "BmmBackward0", 300, 50, **{"Sequence number": 3})
        launch_at(trace, 310, 500, 70, name="nvjet")
        return trace

    row = see(build("div"), tmp_path, "hand-attention")
    assert (row.share_pct, row.seen) == (15, "attention as bmm, softmax and bmm, 1 times a step")
    assert row.advice[0].startswith("force a fused attention kernel")
    assert see(build("mm"), tmp_path, "hand-attention") is None


def test_a_busy_card_is_told_what_it_computes_and_how_near_its_peak(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    dims = {"Input Dims": [[2048, 2048], [2048, 2048]], "Input type": HALF}
    trace.op("aten::mm", 0, 20, **dims).kernel(30, 770, launch=5, name="nvjet_x")
    trace.kernel(800, 190, launch=25, name="softmax_warp_forward")
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.COMPUTE_BOUND
    assert verdict.summary.endswith("GEMM 80 % of the busy time at 7 % of peak in bf16, reduce 20 %")
    assert verdict.try_.startswith("begin with what computes longest: GEMM 80 % of the busy time at 7 % of peak")


def test_tensor_cores_are_not_known_of_a_card_without_them(tmp_path):
    old = {**V100, "name": "Tesla P100", "computeMajor": 6}
    card = analyse(products(), tmp_path, deviceProperties=[old]).overview.gpus[0]
    assert not is_known(card.tensor_core_pct)


def closures(count: int) -> TraceBuilder:
    """Steps of an optimizer that computes the loss so often itself, and 20 kernels of its own each time."""
    trace = TraceBuilder()
    for step in (0, 10_000):
        trace.step(step // 10_000, step, 10_000).add("user_annotation", "Optimizer.step#LBFGS.step", step + 10, 9900)
        for number in range(count):
            at = step + 20 + 1600 * number
            trace.add("user_annotation", "Optimizer.zero_grad#LBFGS.zero_grad", at, 10)
            trace.op("aten::addmm", at + 20, 180).kernel(at + 30, 300, launch=at + 25, name="ampere_sgemm")
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.add("cpu_op", node, at + 400, 400, tid=5).op("aten::mm", at + 410, 380)
            trace.events[-1]["tid"] = 5
            trace.kernel(at + 420, 350, launch=at + 415, name="ampere_sgemm")
            trace.events[-2]["tid"] = 5
            for place in range(20):
                begin = at + 900 + 30 * place
                trace.op("aten::mul", begin, 20).kernel(begin + 12, 10, launch=begin + 5, name="elementwise")
    return trace


def test_a_loss_that_the_optimizer_computes_again_is_forward_and_backward_and_none_of_its_work(tmp_path):
    file = analyze([closures(6).write(tmp_path / "t.json")]).files[0]
    rows = {row.phase: (row.host_us, row.device_us) for row in file.step_work.phases}
    assert rows["forward"][1] == pytest.approx(6 * 300)
    assert rows["backward"] == pytest.approx((6 * 400, 6 * 350))
    assert rows["optimizer"][1] == pytest.approx(6 * 200)
    assert rows["forward"][0] == pytest.approx(6 * 390 + 10, abs=15)
    assert {row.category: row.us for row in file.step_work.categories} == pytest.approx(
        {"GEMM": 3900, "optimizer": 1200}
    )
    few = analyze([closures(5).write(tmp_path / "few.json")]).files[0]
    assert "unfused-optimizer" in {row.name for row in few.patterns}
    fewer = analyze([closures(4).write(tmp_path / "fewer.json")]).files[0]
    assert "unfused-optimizer" not in {row.name for row in fewer.patterns}, "80 kernels of its own"


@pytest.mark.parametrize("beside", [True, False])
def test_what_other_streams_hide_is_said_where_it_is_no_part_of_the_busy_time(beside, tmp_path):
    trace = TraceBuilder()
    for number in range(3):
        at = number * 1000
        trace.step(number, at, 1000).kernel(at + 10, 980, launch=at, name="sm80_xmma_gemm_bf16")
        start, length = (at + 100, 300) if beside else (at + 991, 8)
        trace.kernel(start, length, launch=at + 2, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=20)
    text = "\n".join(write_report(analyze([trace.write(tmp_path / "t.json")])))
    assert ("hidden ms" in text) is beside
