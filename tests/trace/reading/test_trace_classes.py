"""What names of kernels and calls stand for."""

import pytest

from tpmon.trace.reading.schema import CallClass, class_of_call, is_comm_kernel, uses_tensor_cores

COMMUNICATE = (
    "multimem_one_shot_all_reduce_kernel",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
    "multimem_all_gather_kernel",
    "allreduce_fusion_kernel_oneshot_lamport",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)",
    "mscclKernel_Sum_half_Simple_false",
    "void quickreduce::allreduce_prototype_twoshot<__half>",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16>",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel",
    "void aiter::reduce_scatter_cross_device_store<>",
    "void lamport_style_kernel",
)
CALLS = {
    CallClass.EXPLICIT: ("urEventWait", "zeEventHostSynchronize", "cudaStreamSynchronize"),
    CallClass.IMPLICIT: ("zeModuleCreate", "hipModuleLoadData"),
    CallClass.ALLOCATOR: ("zeMemAllocDevice", "urUSMDeviceAlloc", "urUSMFree", "hipFree"),
    CallClass.LAUNCH: (
        *("urEnqueueEventsWait", "urEnqueueKernelLaunch", "hipModuleLaunchKernel"),
        "hipModuleLaunchCooperativeKernel",
    ),
}
TENSOR_CORES = {
    "yes": (
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8>",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_tensor16x8x8",
        *("flash_fwd_kernel", "bmm_Bfloat16_E4m3", "Cijk_Ailk_Bljk_MI16x16x16"),
    ),
    "no": (
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<x>>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
        "cutlass_80_simt_sgemm_128x64_8x5_tn_align1",
        "void marlin::gptq_marlin_repack_kernel<256, 4, false>",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "triton_poi_fused_add_0",
        "multimem_one_shot_all_reduce_kernel",
        "void at::native::vectorized_elementwise_kernel<4>(int)",
    ),
    "unknown": (
        *("fused_moe_kernel", "_fwd_kernel", "void mha_fwd_kernel<128>(Params)"),
        "chunk_gated_delta_rule_h_blockdim64",
    ),
}


def test_kernels_of_symmetric_memory_communicate():
    others = ("gemm_one_shot_all_reduce_kernel", "gemm_oneshot_allreduce_kernel", "reduce_kernel")
    assert tuple(name for name in (*COMMUNICATE, *others) if is_comm_kernel(name)) == COMMUNICATE


@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_level_zero_and_unified_runtime_are_told_apart(kind):
    assert {name: class_of_call(name) for name in CALLS[kind]} == dict.fromkeys(CALLS[kind], kind)


@pytest.mark.parametrize("answer", TENSOR_CORES)
def test_a_name_that_does_not_tell_tensor_cores_is_unknown(answer):
    names = TENSOR_CORES[answer]
    assert {name: uses_tensor_cores(name) for name in names} == dict.fromkeys(names, answer)
