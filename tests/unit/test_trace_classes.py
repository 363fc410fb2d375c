"""What names of kernels and calls stand for."""

from __future__ import annotations

import pytest

from tpmon.trace.classes import CallClass, class_of_call, is_comm_kernel


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("multimem_one_shot_all_reduce_kernel", True),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
            True,
        ),
        ("multimem_all_gather_kernel", True),
        ("allreduce_fusion_kernel_oneshot_lamport", True),
        ("gemm_one_shot_all_reduce_kernel", False),
        ("reduce_kernel", False),
    ],
)
def test_kernels_of_symmetric_memory_communicate(name: str, communicates: bool) -> None:
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
    ],
)
def test_calls_of_level_zero_and_unified_runtime_are_told_apart(name: str, expected: CallClass) -> None:
    assert class_of_call(name) is expected
