"""The shape of a trace as torch.profiler writes it, and what the names in it stand for.

Keys that are not named here are skipped by the decoder without being built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache, reduce
from operator import or_
from typing import Any, ClassVar, Union

import msgspec
import numpy as np
import numpy.typing as npt

from tpmon.trace.reading.columns import Small, distinct

Id = Union[int, str, float, None]
Switch = Union[bool, int, str, None]


class Args(msgspec.Struct, gc=False, omit_defaults=True):
    """Hold the arguments of a whole event that some table needs; ``Raw`` is read when it is new.

    Each field here costs every event its time, whether it has it or not.
    """

    correlation: int = 0
    device: Union[int, str] = -1
    stream: Union[int, str] = -1
    bytes: Union[float, str] = 0.0
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    registers: Id = msgspec.field(name="registers per thread", default=None)
    shared: Id = msgspec.field(name="shared memory", default=None)
    blocks_per_sm: Id = msgspec.field(name="blocks per SM", default=None)
    occupancy: Id = msgspec.field(name="est. achieved occupancy %", default=None)
    limits: msgspec.Raw = msgspec.field(name="occupancy", default=msgspec.Raw())
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    sequence_number: int = msgspec.field(name="Sequence number", default=-1)
    collective: str = msgspec.field(name="Collective name", default="")
    dtype: str = ""
    elements_in: msgspec.Raw = msgspec.field(name="In msg nelems", default=msgspec.Raw())
    elements_out: msgspec.Raw = msgspec.field(name="Out msg nelems", default=msgspec.Raw())
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=msgspec.Raw())
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=msgspec.Raw())
    sequence: msgspec.Raw = msgspec.field(name="Seq", default=msgspec.Raw())
    rank: msgspec.Raw = msgspec.field(name="Rank", default=msgspec.Raw())


class AnyArgs(Args, gc=False, omit_defaults=True):
    """Hold the arguments of an event of any phase, with those of allocations."""

    memory_bytes: int = msgspec.field(name="Bytes", default=0)
    address: int = msgspec.field(name="Addr", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device_id: int = msgspec.field(name="Device Id", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)


class Timed(msgspec.Struct, gc=False):
    """Hold an event; ``ts`` and ``dur`` are microseconds, NaN where they are not there."""

    cat: str = ""
    name: str = ""
    pid: Id = 0
    tid: Id = 0
    ts: float = math.nan
    dur: float = math.nan
    args: Union[Args, None] = None


class TraceEvent(Timed, gc=False):
    """Hold an event of any phase."""

    ph: str = ""
    args: Union[AnyArgs, None] = None


class WholeEvent(Timed, gc=False, tag_field="ph", tag="X"):
    """Hold an event of phase X."""

    ph: ClassVar[str] = "X"


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """Hold an event of phase i, as allocations are."""

    ph: ClassVar[str] = "i"
    cat: ClassVar[int] = ord("i")
    name: str = ""
    pid: Id = 0
    tid: Id = 0
    ts: float = math.nan
    args: Union[AnyArgs, None] = None


class Passed(msgspec.Struct, gc=False, tag_field="ph", tag=""):
    """Hold nothing of an event but its phase, which the classes that derive from it have.

    It stands as a number where others have their category, which no trace can write.
    """

    ph: ClassVar[str] = ""
    cat: ClassVar[int] = 0


_PASSED = tuple(
    msgspec.defstruct(
        f"Passed{ord(phase)}",
        [],
        bases=(Passed,),
        namespace={"ph": phase, "cat": ord(phase)},
        tag=phase,
        gc=False,
    )
    for phase in "sftMCBEnbeSTpFRcvVPNODI()"
)
FAST_EVENT: Any = reduce(or_, (WholeEvent, Instant, *_PASSED))
"""What stands for ``TraceEvent`` where the tables alone are wanted: of arrows nothing is built."""


class Device(msgspec.Struct, gc=False):
    """Hold a card as the trace describes it; 0 where it does not say."""

    id: int = -1
    name: str = ""
    memory_bytes: int = msgspec.field(name="totalGlobalMem", default=0)
    major: int = msgspec.field(name="computeMajor", default=0)
    minor: int = msgspec.field(name="computeMinor", default=0)
    threads_per_sm: int = msgspec.field(name="maxThreadsPerMultiprocessor", default=0)
    registers_per_sm: int = msgspec.field(name="regsPerMultiprocessor", default=0)
    shared_per_sm: int = msgspec.field(name="sharedMemPerMultiprocessor", default=0)
    warp_size: int = msgspec.field(name="warpSize", default=32)
    sms: int = msgspec.field(name="numSms", default=0)


class Distributed(msgspec.Struct, gc=False):
    """Hold what the trace says of its job; -1 and "" where it does not."""

    backend: str = ""
    rank: int = -1
    world_size: int = -1


BY_STEPS, BY_GAPS = "steps", "gaps"


class SliceEvent(msgspec.Struct, gc=False):
    """Hold what a slice was taken from, and what of it was kept: by steps or by gaps, in which times."""

    of: str = ""
    by: str = ""
    kept: str = ""
    windows_ns: list[tuple[int, int]] = msgspec.field(default_factory=list)


UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoders raise at text that they cannot read."""


class TraceHeader(msgspec.Struct, gc=False):
    """Hold what stands beside the events, before or after them."""

    devices: Union[list[Device], None] = msgspec.field(name="deviceProperties", default=None)
    distributed: Union[Distributed, None] = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Union[int, None] = msgspec.field(name="baseTimeNanoseconds", default=None)
    host: Union[str, None] = msgspec.field(name="host_name", default=None)
    trace_name: Union[str, None] = msgspec.field(name="traceName", default=None)
    cuda_runtime: Id = msgspec.field(name="cuda_runtime_version", default=None)
    cuda_driver: Id = msgspec.field(name="cuda_driver_version", default=None)
    hip_runtime: Id = msgspec.field(name="hip_runtime_version", default=None)
    hip_driver: Id = msgspec.field(name="hip_driver_version", default=None)
    with_stack: Switch = None
    profile_memory: Switch = None
    record_shapes: Switch = None
    conditions: msgspec.Raw = msgspec.field(name="tpmon", default=msgspec.Raw())
    slice: Union[SliceEvent, None] = msgspec.field(name="tpmon_slice", default=None)


class RowKind(IntEnum):
    """Name the table that an event goes to."""

    HOST = 0
    CALL = 1
    WORK = 2
    PYTHON = 3
    SKIPPED = 4


class Category(IntEnum):
    """Name what the tables tell apart, whatever the generation of the trace calls it."""

    OP = 0
    ANNOTATION = 1
    GPU_ANNOTATION = 2
    OVERHEAD = 3
    OTHER = 4
    RUNTIME = 5
    DRIVER = 6
    KERNEL = 7
    MEMCPY = 8
    MEMSET = 9
    PYTHON = 10
    TRACE = 11


ROWS = (
    (RowKind.HOST, Category.OP, "cpu_op operator"),
    (RowKind.HOST, Category.ANNOTATION, "user_annotation"),
    (RowKind.HOST, Category.GPU_ANNOTATION, "gpu_user_annotation"),
    (RowKind.HOST, Category.OVERHEAD, "overhead"),
    (RowKind.CALL, Category.RUNTIME, "runtime"),
    (RowKind.CALL, Category.DRIVER, "driver"),
    (RowKind.WORK, Category.KERNEL, "kernel concurrent_kernel mtia_ccp_events hpu_op"),
    (RowKind.WORK, Category.MEMCPY, "memcpy gpu_memcpy"),
    (RowKind.WORK, Category.MEMSET, "memset gpu_memset"),
    (RowKind.PYTHON, Category.PYTHON, "python_function"),
    (RowKind.SKIPPED, Category.TRACE, "trace"),
)
_NAMED = {name: (kind, meaning) for kind, meaning, names in ROWS for name in names.split()}


MOST_KINDS = 1000
"""Categories, or phases, that are told apart; torch knows two dozen."""
KIND_CHARS = 100


class Classes(dict[str, tuple[int, int]]):
    """Give table and meaning of each category, as numbers; one that is not known is kept as a host event."""

    def __missing__(self, category: str) -> tuple[int, int]:
        lower = category.lower()
        kind, meaning = _NAMED.get(lower, (RowKind.HOST, Category.OTHER))
        if lower.endswith("_runtime"):  # cuda, hip, xpu, mtia, privateuse1
            kind, meaning = RowKind.CALL, Category.RUNTIME
        elif lower.endswith("_driver"):
            kind, meaning = RowKind.CALL, Category.DRIVER
        found = (int(kind), int(meaning))
        if len(self) < MOST_KINDS and len(category) <= KIND_CHARS:
            self[category] = found
        return found


def guess_category(event: TraceEvent) -> str:
    """Guess the category of an event that has none, as sliced traces have them."""
    name, args = event.name, event.args
    if name.startswith("Memcpy "):
        return "gpu_memcpy"
    if name.startswith("Memset "):
        return "gpu_memset"
    if name.startswith("ProfilerStep#"):
        on_card = args is not None and args.stream != -1
        return "gpu_user_annotation" if on_card else "user_annotation"
    if args is not None and (args.grid or args.stream != -1) and args.correlation:
        return "kernel"
    if args is not None and args.correlation:
        return "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
    return "cpu_op"


STEP = "ProfilerStep#"
SEARCHED_CHARS = 1000
"""How far into a name its kind is looked for: what a kernel is stands before its types and sizes."""


def begins(pattern: str, flags: int = 0) -> Callable[[str], bool]:
    """Make a test of how a name begins."""
    match = re.compile(pattern, flags).match
    return lambda name: match(name) is not None


is_step = begins(STEP)
"""A host event that marks a step of torch.profiler."""
is_first_step = begins(rf"{STEP}0$")
"""The step with which a profiler without a schedule begins: nothing has warmed up."""
is_loader = begins(r"enumerate\(Data(?:Loader|Pipe)\)#")
"""The wait for the next batch."""
is_node_of_backward = begins("autograd::engine::evaluate_function: ")
"""A node of the backward pass at work."""
is_optimizer = begins(r"Optimizer\.step#")
is_zero_grad = begins(r"Optimizer\.zero_grad#")
is_compiling = begins(r"(?s).*\(dynamo_timed\)\Z")
"""torch.compile at work, as dynamo_timed names it."""
is_comm_host = begins(r"(?:nccl|gloo|mpi|ucc|xccl):\w|c10d::|record_param_comms$", re.IGNORECASE)
"""Communication of the CPU, or the call that starts it on a device."""
is_host_backend = begins(r"(?:gloo|mpi|ucc):\w", re.IGNORECASE)
"""Communication that the host itself does, also of tensors on a device."""
is_transfer = begins(
    r"(?:(?:nccl|gloo|mpi|ucc|xccl):)?(?:i?send|i?recv(?:AnySource)?|pointToPoint|coalesced)(?![A-Za-z_])",
    re.IGNORECASE,
)
"""A transfer from one rank to another, not a collective of all of them."""
SINGLE_LOADER, MULTI_LOADER = "SingleProcessDataLoaderIter", "MultiProcessingDataLoaderIter"
"""Loaders without and with workers; before these names torch has an underscore, torchdata ``_Stateful``."""
_COMM_KERNEL = re.compile(
    r"nccl|rccl|oneccl|multimem_\w*(?:reduce|gather)|(?<!gemm_)(?:one|two)_?shot_?all_?reduce|allreduce_fusion"
    r"|allreduce_prototype|quickreduce|cross_device_(?:reduce|store)|lamport|userbuffers_|msccl|symm_mem|deep_ep"
    r"|::ep::|nvshmem",
    re.IGNORECASE,
)
_TENSOR = re.compile(
    r"h884|s884|i884|h1688|s1688|i8816|i16832|hmma|imma|dmma|16816|16832|s161616|xmma_(?:gemm|fprop|dgrad|wgrad)"
    r"|nvjet_|tensorop|wgmma|tcgen05|bmm_\w*E[245]m[123]|fmha|flash_(?:fwd|bwd)|flash::|_MI\d+x\d+"
    r"|cutlass::device_kernel.*(?:gemm|flash)|sm(?:80|90|100|120)_\w*gemm|(?:_bfloat16_|_f16|bf16)\w*gemm"
    r"|gemm\w*(?:_bfloat16_|_f16|bf16)|marlin(?:_24)?<",
    re.IGNORECASE | re.DOTALL,
)
_ORDINARY = re.compile(r"_ffma_|_simt_|(?<!t)f32f32_f32f32_f32_")
"""Kernels of families with tensor cores on ordinary ones: fp32 of cuBLAS without TF32, from 8.0 on."""
_MATMUL = re.compile(
    r"gemm|conv(?!ert)|wgrad|dgrad|fprop|Cijk_|attention|attn|_mm_|matmul|cutlass|moe_kernel", re.IGNORECASE
)
_FUSED = re.compile(r"^triton_(?:poi|red|per|for)_")
"""What the compiler fused is named after the operators in it, products among them, and is none itself."""
_UNTOLD = re.compile(r"_(?:fwd|bwd)_kernel|^(?!\w*elementwise)[a-z_][a-z0-9_]*$")
"""What may multiply: forward and backward of something, and a function of Triton, which has a bare name."""
_BESIDE = re.compile(r"splitK_?reduce|ReduceSplitK|reduce_wgrad|_helper", re.IGNORECASE)
"""What sums up the parts of a product."""
_PLAIN = re.compile(
    r"volta_s|sgemm|scudnn|gemv|Gemv|_engine<float|winograd\w*<float|winograd_nonfused::\w+<float"
)
"""Products on the ordinary cores: fp32 of cuBLAS, cuDNN's engines of before TF32, matrix by vector."""
_NO_PRODUCT = re.compile(r"fbgemm_gpu::|embedding|bounds_check|im2col|compute\w*Offsets", re.IGNORECASE)
"""What only has the name of a product in its own, or prepares one."""
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "triton_", "## Call CompiledFxGraph")


class CallClass(IntEnum):
    """Name what a call of the runtime does to the host."""

    LAUNCH = 0
    EXPLICIT = 1
    IMPLICIT = 2
    ALLOCATOR = 3
    COPY = 4


_EXPLICIT = re.compile(
    r"^(?:cuda|hip|cu|xpu|ze)\w*(?:Synchronize|StreamWaitIdle)|^hip\w*Sync(?:hronize)?$"
    r"|^ur(?:EventWait$|QueueFinish)"
)
_NOT_BLOCKING = re.compile(
    r"MallocAsync|FreeAsync|MallocFromPool|EventRecord|EventQuery|StreamQuery|WaitEvent"
)
_ALLOCATOR = re.compile(
    r"^(?:cuda|hip|cu)(?:Malloc|Free|Mem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address\w+)"
    r"|HostAlloc|HostRegister|HostUnregister|FreeHost|HostMalloc|HostFree|ExtMalloc\w*)"
    r"|^zeMem(?:Alloc|Free)|^urUSM(?:Device|Host|Shared)Alloc|^urUSMFree"
)
_IMPLICIT = re.compile(
    r"^(?:cuda|hip|cu)(?:StreamCreate|StreamDestroy|Module(?!Launch)|Library|DeviceReset|CtxCreate|EventDestroy|HostGetDevice"
    r"|FuncSetAttribute|Init|SetDeviceFlags)|^ze(?:Module|Kernel)(?:Create|Destroy)|^urProgram(?:Build|Compile|Link)"
)
_COPY = re.compile(r"^(?:cuda|hip|cu)(?:Memcpy|Memset)")
_ASYNC = re.compile(r"Async")
_MOST_ASKED = 2000
"""Kernels whose answers are kept: several tables ask for each, and a search of a name takes some 30 us."""


def runs_compiled(names: Sequence[str]) -> bool:
    """Tell whether code of torch.compile runs, by all names of a trace."""
    return any(name.startswith(_COMPILED) for name in names)


@lru_cache(_MOST_ASKED)
def is_comm_kernel(name: str) -> bool:
    """Tell whether a kernel communicates."""
    return _COMM_KERNEL.search(name, 0, SEARCHED_CHARS) is not None


@lru_cache(_MOST_ASKED)
def uses_tensor_cores(name: str) -> str:
    """Tell whether a kernel uses tensor cores: yes, no, or unknown where its name may be of a product."""
    if _FUSED.match(name):
        return "no"
    name = name[:SEARCHED_CHARS]
    if _ORDINARY.search(name):
        return "no"
    if _TENSOR.search(name):
        return "yes"
    if _PLAIN.search(name) or _NO_PRODUCT.search(name) or _BESIDE.search(name):
        return "no"
    if _MATMUL.search(name) or (_UNTOLD.search(name) and not is_comm_kernel(name)):
        return "unknown"
    return "no"


@lru_cache(_MOST_ASKED)
def is_product_kernel(name: str) -> bool:
    """Tell whether a kernel multiplies matrices, convolves or attends."""
    name = name[:SEARCHED_CHARS]
    if _FUSED.match(name) or _BESIDE.search(name) or _NO_PRODUCT.search(name):
        return False
    return bool(_TENSOR.search(name) or _MATMUL.search(name) or _PLAIN.search(name))


def class_of_call(name: str) -> CallClass:
    """Tell what a call of the runtime or driver does to the host."""
    if _EXPLICIT.search(name):
        return CallClass.EXPLICIT
    if _NOT_BLOCKING.search(name):
        return CallClass.LAUNCH
    if _ALLOCATOR.match(name):
        return CallClass.ALLOCATOR
    if _IMPLICIT.match(name):
        return CallClass.IMPLICIT
    if _COPY.match(name):
        return CallClass.COPY if _ASYNC.search(name) else CallClass.IMPLICIT
    return CallClass.LAUNCH


def flag(
    names: Sequence[str], test: Callable[[str], bool], used: Small | None = None
) -> npt.NDArray[np.bool_]:
    """Apply ``test`` to every name, or to those with the numbers ``used``, for tests that take long."""
    if used is None:
        return np.fromiter(map(test, names), dtype=np.bool_, count=len(names))
    found = np.zeros(len(names), dtype=np.bool_)
    for number in distinct(used).tolist():
        found[number] = test(names[number])
    return found
