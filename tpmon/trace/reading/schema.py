"""The shape of a trace as torch.profiler writes it: typed events, and what each category stands for.

Knows no files. Keys that are not named here are skipped by the decoder without being built.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Union

import msgspec

Id = Union[int, str, float, None]


class Args(msgspec.Struct, gc=False, omit_defaults=True):
    """Hold the arguments of an event that some table needs; ``Raw`` is read when it is new."""

    correlation: int = 0
    device: int = -1
    stream: int = -1
    bytes: float = 0.0
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    registers: msgspec.Raw = msgspec.field(name="registers per thread", default=msgspec.Raw())
    shared: msgspec.Raw = msgspec.field(name="shared memory", default=msgspec.Raw())
    blocks_per_sm: msgspec.Raw = msgspec.field(name="blocks per SM", default=msgspec.Raw())
    occupancy: msgspec.Raw = msgspec.field(name="est. achieved occupancy %", default=msgspec.Raw())
    limits: msgspec.Raw = msgspec.field(name="occupancy", default=msgspec.Raw())
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    sequence_number: int = msgspec.field(name="Sequence number", default=-1)
    memory_bytes: int = msgspec.field(name="Bytes", default=0)
    address: int = msgspec.field(name="Addr", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device_id: int = msgspec.field(name="Device Id", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)
    collective: str = msgspec.field(name="Collective name", default="")
    dtype: str = ""
    elements_in: msgspec.Raw = msgspec.field(name="In msg nelems", default=msgspec.Raw())
    elements_out: msgspec.Raw = msgspec.field(name="Out msg nelems", default=msgspec.Raw())
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=msgspec.Raw())
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=msgspec.Raw())
    sequence: msgspec.Raw = msgspec.field(name="Seq", default=msgspec.Raw())
    rank: msgspec.Raw = msgspec.field(name="Rank", default=msgspec.Raw())


class TraceEvent(msgspec.Struct, gc=False):
    """Hold one event; ``ts`` and ``dur`` are microseconds, NaN where they are not there."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Id = 0
    tid: Id = 0
    ts: float = math.nan
    dur: float = math.nan
    args: Union[Args, None] = None


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
    nccl_version: str = ""


BY_STEPS, BY_GAPS = "steps", "gaps"


class SliceEvent(msgspec.Struct, gc=False):
    """Hold what a slice was taken from, and what of it was kept: by steps or by gaps, in which times."""

    of: str = ""
    by: str = ""
    kept: str = ""
    windows_ns: list[tuple[int, int]] = msgspec.field(default_factory=list)


class TraceHeader(msgspec.Struct, gc=False):
    """Hold what stands beside the events, before or after them."""

    schema_version: Union[int, None] = msgspec.field(name="schemaVersion", default=None)
    devices: Union[list[Device], None] = msgspec.field(name="deviceProperties", default=None)
    distributed: Union[Distributed, None] = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Union[int, None] = msgspec.field(name="baseTimeNanoseconds", default=None)
    host: Union[str, None] = msgspec.field(name="host_name", default=None)
    trace_name: Union[str, None] = msgspec.field(name="traceName", default=None)
    cuda_runtime: Id = msgspec.field(name="cuda_runtime_version", default=None)
    cuda_driver: Id = msgspec.field(name="cuda_driver_version", default=None)
    hip_runtime: Id = msgspec.field(name="hip_runtime_version", default=None)
    hip_driver: Id = msgspec.field(name="hip_driver_version", default=None)
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


_NAMED = {
    "cpu_op": (RowKind.HOST, Category.OP),
    "operator": (RowKind.HOST, Category.OP),
    "user_annotation": (RowKind.HOST, Category.ANNOTATION),
    "gpu_user_annotation": (RowKind.HOST, Category.GPU_ANNOTATION),
    "overhead": (RowKind.HOST, Category.OVERHEAD),
    "runtime": (RowKind.CALL, Category.RUNTIME),
    "driver": (RowKind.CALL, Category.DRIVER),
    "kernel": (RowKind.WORK, Category.KERNEL),
    "concurrent_kernel": (RowKind.WORK, Category.KERNEL),
    "mtia_ccp_events": (RowKind.WORK, Category.KERNEL),
    "hpu_op": (RowKind.WORK, Category.KERNEL),
    "memcpy": (RowKind.WORK, Category.MEMCPY),
    "gpu_memcpy": (RowKind.WORK, Category.MEMCPY),
    "memset": (RowKind.WORK, Category.MEMSET),
    "gpu_memset": (RowKind.WORK, Category.MEMSET),
    "python_function": (RowKind.PYTHON, Category.PYTHON),
    "trace": (RowKind.SKIPPED, Category.TRACE),
}


def classify(category: str) -> tuple[RowKind, Category]:
    """Tell the table and the meaning of a category; one that is not known is kept as a host event."""
    lower = category.lower()
    if lower in _NAMED:
        return _NAMED[lower]
    if lower.endswith("_runtime"):  # cuda, hip, xpu, mtia, privateuse1
        return RowKind.CALL, Category.RUNTIME
    if lower.endswith("_driver"):
        return RowKind.CALL, Category.DRIVER
    return RowKind.HOST, Category.OTHER


def guess_category(event: TraceEvent) -> str:
    """Guess the category of an event that has none, as sliced traces have them."""
    name, args = event.name, event.args
    if name.startswith("Memcpy "):
        return "gpu_memcpy"
    if name.startswith("Memset "):
        return "gpu_memset"
    if name.startswith("ProfilerStep#"):
        on_card = args is not None and args.stream >= 0
        return "gpu_user_annotation" if on_card else "user_annotation"
    if args is not None and (args.grid or args.stream >= 0) and args.correlation:
        return "kernel"
    if args is not None and args.correlation:
        return "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
    return "cpu_op"
