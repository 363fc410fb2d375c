"""Lay out two more blocks of the telemetry page (``wire``): settings, and device times by CUDA events.

    offset  size     what
    2048    512      64 settings, i64: SET_*, written every few seconds at the end of a step
    2560    128      device times, 16 u64: DEV_*, after each step that was measured

Each block is one write; its first and its last word are how often it was written. Where a hook does not
write them they are zeros. Valid Python 3.8.
"""

from __future__ import annotations

import struct

from tpmon.hook.bus.wire import read_twice

SETTINGS_OFFSET = 2048
SETTINGS_WORDS = 64
_SETTINGS = struct.Struct("<64q")
DEVICE_OFFSET = 2560
DEVICE_WORDS = 16
_DEVICE = struct.Struct("<16Q")

# Switches are 0 or 1, sizes are bytes.
SET_NUMBER = 0
SET_TIME_NS = 1
SET_MATMUL_TF32 = 2
SET_CUDNN_TF32 = 3
SET_CUDNN_BENCHMARK = 4
SET_CUDNN_DETERMINISTIC = 5
SET_DETERMINISTIC = 6
SET_ANOMALY = 7
SET_AUTOCAST = 8
SET_AUTOCAST_DTYPE = 9
SET_SDPA = 10
SET_THREADS = 11
SET_INTEROP_THREADS = 12
SET_PROFILER = 13
SET_DYNAMO_FRAMES = 14
SET_DYNAMO_FRAMES_OK = 15
SET_DYNAMO_GRAPHS = 16
SET_DYNAMO_BREAKS = 17
SET_DYNAMO_LIMIT_HITS = 18
SET_CUDA = 19
SET_ALLOCATED = 20
SET_RESERVED = 21
SET_INACTIVE_SPLIT = 22
SET_PEAK_ALLOCATED = 23
SET_PEAK_RESERVED = 24
SET_ALLOC_RETRIES = 25
SET_OOMS = 26
SET_ALLOCATED_AT_BACKWARD = 27
SET_PARAMETERS = 28
SET_GRADIENTS = 29
SET_OPTIMIZER_STATE = 30
SET_DDP_BUCKET_CAP = 31
SET_DDP_BUCKETS = 32
SET_DDP_FIND_UNUSED = 33
SET_DDP_STATIC_GRAPH = 34
SET_WORKERS = 35
SET_PIN_MEMORY = 36
SET_PREFETCH_FACTOR = 37
SET_PERSISTENT_WORKERS = 38
SET_BATCH_SIZE = 39
# FSDP 1 (wrapper class): FORWARD is a switch, BACKWARD one of FSDP_*. FSDP 2 (fully_shard): how many units
# were given units to prefetch; 0 for what torch does by itself.
SET_FSDP_VERSION = 40
SET_FSDP_UNITS = 41
SET_FSDP_FORWARD = 42
SET_FSDP_BACKWARD = 43
SET_FSDP_LIMIT = 44
# Bytes allocated at turns of the watched step; SET_ALLOCATED_AT_BACKWARD comes second in time.
SET_ALLOCATED_AFTER_BATCH = 45
SET_ALLOCATED_AFTER_BACKWARD = 46
SET_ALLOCATED_AFTER_UPDATE = 47
# The peak after it last rose in this part of a watched step, and PHASE_* of the present peak.
SET_PEAK_IN_FORWARD = 48
SET_PEAK_IN_BACKWARD = 49
SET_PEAK_IN_OPTIMIZER = 50
SET_PEAK_IN_OTHER = 51
SET_PEAK_PHASE = 52
# An estimate of bytes, or ELSEWHERE.
SET_ACTIVATIONS = 53
# Of the default process group: how long its ranks wait for each other.
SET_TIMEOUT_S = 54
SET_NUMBER_AGAIN = 63

UNKNOWN = -1

ELSEWHERE = -2
"""Of activations: the parameters, or a part of them, are not on the device that is read."""

SDPA_FLASH = 1
SDPA_MEM_EFFICIENT = 2
SDPA_MATH = 4
SDPA_CUDNN = 8

FSDP_NO_PREFETCH = 0
FSDP_BACKWARD_PRE = 1
FSDP_BACKWARD_POST = 2

# In the order of SET_PEAK_IN_*, from 1: an unwritten page holds 0.
PHASE_FORWARD = 1
PHASE_BACKWARD = 2
PHASE_OPTIMIZER = 3
PHASE_OTHER = 4

DTYPE_OTHER = 0
DTYPE_FLOAT32 = 1
DTYPE_FLOAT16 = 2
DTYPE_BFLOAT16 = 3
DTYPES = {DTYPE_FLOAT32: "float32", DTYPE_FLOAT16: "float16", DTYPE_BFLOAT16: "bfloat16"}

# Device times by CUDA events: totals of the steps that were measured, one in DEV_EVERY lately.
DEV_NUMBER = 0
DEV_TIME_NS = 1
DEV_STEPS = 2
DEV_STEP_NS = 3
DEV_FORWARD_NS = 4
DEV_BACKWARD_NS = 5
DEV_OPTIMIZER_NS = 6
DEV_HOST_NS = 7
DEV_EVERY = 8
DEV_DROPPED = 9
DEV_TOO_LONG = 10  # of those dropped, with more turns than there are events
DEV_NUMBER_AGAIN = 15


def write_settings(page: memoryview, words: list[int]) -> None:
    """Write all settings, SET_*; the caller sets both counts."""
    _SETTINGS.pack_into(page, SETTINGS_OFFSET, *words)


def parse_settings(page: memoryview) -> tuple[int, ...]:
    """Return the settings, SET_*; an empty tuple before the first and while they are being written."""
    return _whole(_SETTINGS.unpack(read_twice(page, SETTINGS_OFFSET, _SETTINGS.size)))


def write_device(page: memoryview, words: list[int]) -> None:
    """Write the device times, DEV_*; the caller sets both counts."""
    _DEVICE.pack_into(page, DEVICE_OFFSET, *words)


def parse_device(page: memoryview) -> tuple[int, ...]:
    """Return the device times, DEV_*; an empty tuple before the first and while they are being written."""
    return _whole(_DEVICE.unpack(read_twice(page, DEVICE_OFFSET, _DEVICE.size)))


def _whole(words: tuple[int, ...]) -> tuple[int, ...]:
    return words if words[0] == words[-1] > 0 else ()
