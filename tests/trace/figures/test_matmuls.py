"""Matrix products by type, and what kernels reach, on traces with known sizes and microseconds."""

import math
from pathlib import Path

import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.model.known import is_known
from tpmon.model.results.trace import TraceFile
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.figures.kernels import base_name
from tpmon.trace.figures.matmuls import find_peak, name_kernel_dtype
from tpmon.trace.figures.operators import count_bytes, count_flops, name_kind, parse_inputs
from tpmon.trace.reading.schema import Device

FP32 = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
BF16 = {**FP32, "Input type": ["c10::BFloat16", "c10::BFloat16"]}
FLOPS = 2 * 4096**3
BIG = {**A100, "totalGlobalMem": 85_000_000_000}


def analyse(trace: TraceBuilder, tmp_path: Path, *cards: dict[str, object]) -> TraceFile:
    return trace.analyse(tmp_path, deviceProperties=list(cards or (BIG,)))


def product(name: str, inputs: dict[str, object], length: float, op: str = "aten::mm") -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 2000).op(op, 0, 50, **inputs)
    return trace.kernel(100, length, launch=10, name=name)


SGEMM = "ampere_sgemm_128x64_tn"
TENSOR_FP32 = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4"
NAMELESS = "cutlass::Kernel<unnamed_gemm>"

FFMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
    "execute_kernel__5x_cublas"
)


@pytest.mark.parametrize(
    ("kernel", "inputs", "card", "expected"),
    [
        (SGEMM, FP32, BIG, ("fp32", 19.5)),
        (TENSOR_FP32, FP32, BIG, ("tf32", 156)),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128", FP32, BIG, ("tf32", 156)),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", BF16, BIG, ("bf16", 312)),
        ("volta_sgemm_128x32_nt", FP32, V100, ("fp32", 15.7)),
        (NAMELESS, FP32, BIG, (None, 0)),
        (NAMELESS, BF16, BIG, ("bf16", 312)),
    ],
)
def test_a_product_has_the_type_of_inputs_and_kernel_and_its_part_of_the_peak(kernel, inputs, card, expected, tmp_path):
    rows = analyse(product(kernel, inputs, 10_000), tmp_path, card).products
    assert [(row.kind, row.calls, row.total_us, row.share_pct) for row in rows] == [("matmul", 1, 10_000, 100)]
    row = rows[0]
    reached = FLOPS / 10e-3 / 1e12
    assert row.tflop_s == pytest.approx(reached)
    peak = round(100 * reached / row.peak_pct, 1) if is_known(row.peak_pct) else 0
    assert (row.dtype if is_known(row.dtype) else None, peak) == expected


def test_what_is_launched_beside_a_product_counts_with_it_and_fused_kernels_do_not(tmp_path):
    trace = product("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8", BF16, 1000)
    trace.kernel(1100, 100, launch=20, name="void cublasLt::splitKreduce_kernel<32, 16>()")
    trace.kernel(1300, 300, launch=60, name="triton_poi_fused_addmm_convolution_relu_0")
    file = analyse(trace, tmp_path)
    assert [(row.dtype, row.calls, row.total_us) for row in file.products] == [("bf16", 1, 1100)]
    by_name = {row.name: row for row in file.kernels}
    gemm = by_name["ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8"]
    assert gemm.tflop_s == pytest.approx(FLOPS / 1000e-6 / 1e12)  # it alone multiplies
    assert not is_known(gemm.gb_s)  # the bytes are of both


def test_more_than_the_card_can_is_not_shown_as_a_share_and_without_shapes_nothing_is_reached(tmp_path):
    row = analyse(product("ampere_bf16_s16816gemm_bf16_x", BF16, 1), tmp_path).products[0]
    assert is_known(row.tflop_s)
    assert not is_known(row.peak_pct)
    file = analyse(product("ampere_bf16_s16816gemm_bf16_x", {}, 500), tmp_path)
    kernel = file.kernels[0]
    values = (kernel.gb_s, kernel.gb_s_peak_pct, kernel.tflop_s, kernel.tflop_s_peak_pct, kernel.bound_by)
    assert not any(map(is_known, values))
    assert file.products[0].dtype == "bf16"  # by its name
    assert not is_known(file.products[0].misaligned_pct)


def test_an_elementwise_kernel_is_held_by_the_memory(tmp_path):
    """256 MiB read twice and written once in 500 us: 1.61 TB/s of 2.04."""
    shape = {"Input Dims": [[1 << 26], [1 << 26], []], "Input type": ["float", "float", "Scalar"]}
    kernel = analyse(product("vectorized_elementwise_kernel", shape, 500, "aten::add"), tmp_path).kernels[0]
    assert kernel.gb_s == pytest.approx(3 * (1 << 28) / 500e-6 / 1e9)
    assert kernel.gb_s_peak_pct == pytest.approx(100 * 3 * (1 << 28) / 500e-6 / 1e9 / 2039)
    assert kernel.bound_by == "memory"
    assert not is_known(kernel.tflop_s)


def test_sizes_that_are_no_multiple_of_eight_are_misaligned(tmp_path):
    odd = {**BF16, "Input Dims": [[512, 1024], [1024, 30522]]}
    trace = product("ampere_bf16_s16816gemm_bf16_x", odd, 300)
    trace.op("aten::mm", 60, 20, **BF16).kernel(500, 100, launch=61, name="ampere_bf16_s16816gemm_bf16_x")
    file = analyse(trace, tmp_path)
    assert file.products[0].misaligned_pct == 75
    pattern = next(row for row in file.patterns if row.name == "misaligned-products")
    assert "512 x 1024 by 1024 x 30522" in pattern.seen
    assert pattern.advice[0].startswith("pad vocabulary")


def test_the_report_has_products_rates_and_the_command(tmp_path):
    path = product("ampere_bf16_s16816gemm_bf16_x", BF16, 1000).write(tmp_path / "t.json", {"deviceProperties": [BIG]})
    text = "\n".join(write_report(analyze([path])))
    said = ("bf16  matmul", "44.1 %", "ncu --set full --kernel-name ampere_bf16_s16816gemm_bf16_x")
    assert all(words in text for words in said)


def test_convolutions_are_counted_with_the_output_that_their_backward_tells(tmp_path):
    image, weight, output = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 28, 28]
    types = ["float"] * 3
    trace = TraceBuilder().step(1, 0, 2000)
    trace.op("aten::cudnn_convolution", 0, 20, **{"Input Dims": [image, weight], "Input type": types[:2]})
    trace.kernel(100, 100, launch=10, name="sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw")
    backward = {"Input Dims": [output, image, weight], "Input type": types}
    trace.op("aten::convolution_backward", 30, 40, **backward)
    trace.kernel(300, 150, launch=40, name="sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32")
    trace.kernel(500, 150, launch=50, name="sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32")
    rows = analyse(trace, tmp_path).products
    once = 2 * math.prod(output) * 64 * 9
    assert [(row.kind, row.dtype, row.calls) for row in rows] == [("convolution", "tf32", 2)]
    assert rows[0].tflop_s == pytest.approx(3 * once / 400e-6 / 1e12)


def test_without_a_device_the_innermost_products_of_the_host_count(tmp_path):
    shape = {"Input Dims": [[64, 128], [256, 128], [256]], "Input type": ["float"] * 3}
    inner = {"Input Dims": [[256], [64, 128], [128, 256]], "Input type": ["float"] * 3}
    trace = TraceBuilder().step(1, 0, 1000).op("aten::linear", 0, 120, **shape)
    trace.op("aten::addmm", 10, 100, **inner).op("aten::relu", 200, 300)
    rows = analyse(trace, tmp_path).products
    assert [(row.kind, row.dtype, row.calls, row.total_us) for row in rows] == [("matmul", "fp32", 1, 100)]
    assert rows[0].tflop_s == pytest.approx(2 * 64 * 128 * 256 / 100e-6 / 1e12)
    assert rows[0].share_pct == pytest.approx(100 * 100 / 420)
    trace.events[-2]["dur"] = 0.1  # a device that is not in the trace must have computed it
    rows = analyse(trace, tmp_path).products
    assert not is_known(rows[0].tflop_s)


def test_the_hot_kernel_is_no_communication_and_its_command_is_whole(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).step(2, 1000, 1000)
    name = "void at::native::(anonymous namespace)::vec_kernel<4, std::array<char*, 2ul> >(int, float)"
    for start in (10, 1010):
        trace.kernel(start, 300, launch=start - 5, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclArgs<4096ul>)")
        trace.kernel(start + 300, 100, launch=start, name=name)
    hot = analyse(trace, tmp_path).hot_kernel
    assert hot.share_pct == pytest.approx(25)
    assert hot.command == (
        "ncu --set full --kernel-name vec_kernel --launch-skip 3 --launch-count 1 --target-processes all "
        "-o kernel python train.py"
    )
    amd = {**BIG, "name": "AMD Instinct MI300X", "warpSize": 64}
    assert not is_known(analyse(trace, tmp_path, amd).hot_kernel.command)


@pytest.mark.parametrize("call", ["hipLaunchKernel", "urEnqueueKernelLaunch"])
def test_no_command_of_nsight_compute_for_cards_of_others_that_nothing_describes(call, tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).call(call, 1, 1, correlation=1)
    args = {"device": 0, "stream": 0, "correlation": 1}
    trace.add("kernel", "Cijk_Ailk_Bljk_SB_MT64", 10, 900, pid=0, tid=0, args=args)
    assert not is_known(trace.analyse(tmp_path, deviceProperties=[]).hot_kernel.command)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, func> >(at::ReduceOp)", "reduce_kernel"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(Params)", "Kernel2"),
        ("<<>>", ""),
    ],
)
def test_the_base_name_of_a_kernel(name, base):
    assert base_name(name) == base


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "bf16"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "fp16"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_MT64", "fp16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16", "fp32"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn", "fp8"),
        (FFMA, "fp32"),
        (FFMA.replace("_f32f32_f32f32_f32_", "_f32f32_tf32f32_f32_").replace("ffma", "tensor16x8x8"), "tf32"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::half_t>", "fp16"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>", "bf16"),
        ("ampere_h16816gemm_128x128_ldg8_stages_32x5_tn", "fp16"),
        ("attn_fwd", ""),
    ],
)
def test_types_in_the_names_of_kernels(name, dtype):
    assert name_kernel_dtype(name) == dtype


@pytest.mark.parametrize(
    ("op", "dims", "flops"),
    [
        ("aten::addmm", "[[5],[2,3],[3,5]]", 60),
        ("aten::bmm", "[[4,2,3],[4,3,5]]", 240),
        ("aten::linear", "[[7,2,3],[5,3],[5]]", 2 * 14 * 3 * 5),
        ("aten::convolution_backward", "[[1,6,4],[1,5,4],[6,5,3]]", 2 * 2 * 24 * 15),
        *(
            ("aten::mm", odd, math.nan)
            for odd in ("[[2,3],[4,5]]", "[[2,3]]", "not JSON", '{"a":1}', "[[2,-3],[-3,5]]")
        ),
        ("aten::bmm", f"[{[1 << 59] * 40},{[1 << 59] * 40}]", math.nan),
        ("aten::add", "[[2,3],[2,3]]", math.nan),
        ("aten::convolution_backward", "[[1,6,8],[1,6,4],[6,6,2]]", math.nan),
        ("aten::convolution_backward", "[[1,6,4],[1,5,4],[5,6,3]]", math.nan),
        ("aten::convolution_backward", "[[1,6],[1,5,4],[6,5,3]]", math.nan),
    ],
)
def test_operations_of_a_call(op, dims, flops):
    found = count_flops(op, parse_inputs((dims.encode(), b'["float","float","float"]')), {})
    assert found == pytest.approx(flops, nan_ok=True)


@pytest.mark.parametrize(
    ("op", "dims", "types", "moved"),
    [
        ("aten::copy_", "[[10],[10],[]]", '["float","c10::Half","Bool"]', 60),
        ("aten::fill_", "[[10],[]]", '["double","Scalar"]', 80),
        ("aten::mul", "[[4,1],[1,5]]", '["float","float"]', 4 * (4 + 5 + 20)),
        ("aten::add_", "[[8],[8],[]]", '["float","float","Scalar"]', 96),
        ("aten::native_layer_norm", "[[8,4],[],[4],[4],[]]", '["float","ScalarList","float","float","Scalar"]', 256),
        ("aten::mm", "[[2,3],[3,4]]", '["c10::Half","c10::Half"]', 2 * (6 + 12 + 8)),
        ("aten::_foreach_add_", "[[[2],[3]]]", '["TensorList"]', math.nan),
        ("aten::add", "[[8],[8]]", '["",""]', math.nan),
        ("aten::index", "[[8]]", '["float"]', math.nan),
    ],
)
def test_bytes_of_a_call(op, dims, types, moved):
    found = count_bytes(op, parse_inputs((dims.encode(), types.encode())))
    assert found == pytest.approx(moved, nan_ok=True)


def test_kinds_of_products():
    kinds = {"aten::mm": "matmul", "aten::cudnn_convolution": "convolution", "aten::_convert_indices": ""}
    kinds |= {"aten::_flash_attention_forward": "attention", "aten::_scaled_dot_product_attention_math": ""}
    assert {name: name_kind(name) for name in kinds} == kinds


@pytest.mark.parametrize(
    ("name", "memory", "gb_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 85_000_000_000, 2039),
        ("NVIDIA A100-PG509-200", 42_000_000_000, 1555),
        ("NVIDIA A100 80GB PCIe", 85_000_000_000, 1935),
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, 3350),
        ("NVIDIA H100 PCIe", 85_000_000_000, 2000),
        ("NVIDIA H200", 150_000_000_000, 4800),
        ("NVIDIA GH200 480GB", 100_000_000_000, 4000),
        ("NVIDIA L40S", 48_000_000_000, 864),
        ("AMD Instinct MI300X VF", 205_000_000_000, 5300),
        ("NVIDIA A10G", 24_000_000_000, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5_000_000_000, None),
        ("GeForce of tomorrow", 1, None),
    ],
)
def test_peaks_by_name(name, memory, gb_s):
    peak = find_peak(Device(name=name, memory_bytes=memory))
    assert (peak.gb_s if peak else None) == gb_s
    assert find_peak(None) is None
