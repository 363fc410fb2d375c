"""What names of kernels and calls stand for."""

import pytest

from tpmon.trace.reading.schema import CallClass, class_of_call, is_comm_kernel, uses_tensor_cores


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("multimem_one_shot_all_reduce_kernel", True),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)", True),
        ("multimem_all_gather_kernel", True),
        ("allreduce_fusion_kernel_oneshot_lamport", True),
        ("gemm_one_shot_all_reduce_kernel", False),
        ("gemm_oneshot_allreduce_kernel", False),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)", True),
        ("mscclKernel_Sum_half_Simple_false", True),
        ("void quickreduce::allreduce_prototype_twoshot<__half>", True),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16>", True),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel", True),
        ("void aiter::reduce_scatter_cross_device_store<>", True),
        ("void lamport_style_kernel", True),
        ("reduce_kernel", False),
    ],
)
def test_kernels_of_symmetric_memory_communicate(name, communicates):
    assert is_comm_kernel(name) is communicates


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zeModuleCreate", CallClass.IMPLICIT),
        ("zeMemAllocDevice", CallClass.ALLOCATOR),
        ("urUSMDeviceAlloc", CallClass.ALLOCATOR),
        ("urUSMFree", CallClass.ALLOCATOR),
        ("urEventWait", CallClass.EXPLICIT),
        ("urEnqueueEventsWait", CallClass.LAUNCH),
        ("zeEventHostSynchronize", CallClass.EXPLICIT),
        ("urEnqueueKernelLaunch", CallClass.LAUNCH),
        ("cudaStreamSynchronize", CallClass.EXPLICIT),
        ("hipFree", CallClass.ALLOCATOR),
        ("hipModuleLaunchKernel", CallClass.LAUNCH),
        ("hipModuleLaunchCooperativeKernel", CallClass.LAUNCH),
        ("hipModuleLoadData", CallClass.IMPLICIT),
    ],
)
def test_calls_of_level_zero_and_unified_runtime_are_told_apart(name, expected):
    assert class_of_call(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8>", "yes"),
        ("void marlin::gptq_marlin_repack_kernel<256, 4, false>", "no"),
        ("fused_moe_kernel", "unknown"),
        ("void vllm::moe::moe_align_block_size_kernel<int>", "no"),
        ("_fwd_kernel", "unknown"),
        ("void mha_fwd_kernel<128>(Params)", "unknown"),
        ("chunk_gated_delta_rule_h_blockdim64", "unknown"),
        ("triton_poi_fused_add_0", "no"),
        ("multimem_one_shot_all_reduce_kernel", "no"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "no"),
    ],
)
def test_a_name_that_does_not_tell_tensor_cores_is_unknown(name, expected):
    assert uses_tensor_cores(name) == expected
