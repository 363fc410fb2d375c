"""Name what a file is that is no trace of torch.profiler: a table of what else is JSON, or is packed."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

_GIVE = "give a file that torch.profiler's export_chrome_trace or tpmon wrote, plain or .gz"
_RECORD = "record the program with torch.profiler, on ROCm too: tpmon capture PID --steps 5"
_SEARCHED = 64 << 10
_MOST_KEYS = 6
_KEY_CHARS = 40


class Foreign(NamedTuple):
    """Hold by what a kind of file is known in its first bytes, what it is, and what to do."""

    known_by: str
    what: str
    try_this: str = _GIVE


KINDS = (
    Foreign(r"SQLite format 3\x00", "a database, as Nsight Systems and rocprofv3 write them", _RECORD),
    Foreign(r"NVIDIA Nsight|\x00{4}NSYS|QDSTRM", "a report of Nsight Systems", _RECORD),
    Foreign(r"PK\x03\x04", "a ZIP archive", "unpack it: unzip FILE"),
    Foreign(r"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it: zstd -d FILE"),
    Foreign(r"BZh", "packed with bzip2", "unpack it: bunzip2 FILE"),
    Foreign(r"\xfd7zXZ", "packed with xz", "unpack it: unxz FILE"),
    Foreign(r"\x0a[\s\S]{0,60}?[\x00-\x08\x0e-\x1f]", "binary, perhaps of Perfetto (pftrace)", _RECORD),
    Foreign(
        r'\s*\{\s*"(?:rocprofiler-sdk-tool|kernel_dispatches)"\s*:',
        "JSON of rocprofv3, which has no operators",
        _RECORD,
    ),
    Foreign(r'\s*\{\s*"schema"\s*:\s*"tpmon\.', "JSON that tpmon itself wrote", "give the trace it is about"),
    Foreign(r'[\s\S]*"\$schema"\s*:\s*"https?://www\.speedscope\.app', "a profile of speedscope", _RECORD),
    Foreign(r'[\s\S]*"schema"\s*:\s*"[\w.-]*chakra', "an execution trace (Chakra), without times", _RECORD),
    Foreign(r'[\s\S]*"nodes"\s*:\s*\[\s*\{\s*"id"\s*:\s*\d+,\s*"callFrame"', "a CPU profile of V8", _RECORD),
    Foreign(r'[\s\S]*"resource_?[sS]pans"\s*:', "spans of OpenTelemetry", _RECORD),
    Foreign(r'[\s\S]*"root_frame"\s*:', "a profile of pyinstrument", _RECORD),
    Foreign(r'[\s\S]*"preprocessedProfileVersion"\s*:', "a profile of Firefox or samply", _RECORD),
    Foreign(r'[\s\S]*"nbformat"\s*:', "a notebook"),
    Foreign(r'[\s\S]*"weight_map"\s*:', "the index of a checkpoint"),
    Foreign(r'[\s\S]*"log_history"\s*:', "the state of a Trainer"),
    Foreign(r'[\s\S]*"(?:model_type|architectures)"\s*:', "the configuration of a model"),
    Foreign(r'[\s\S]*"MetaData_Capture|[\s\S]*"CudaEvent"\s*:', "JSON of Nsight Systems", _RECORD),
)
"""The first row that fits names the file."""


def name_foreign(text: bytes | bytearray) -> tuple[str, str]:
    """Say what the file that begins so is, and what to try; JSON that no row knows by its keys."""
    begin = bytes(text[:_SEARCHED])
    for row in KINDS:
        if re.match(row.known_by.encode("latin-1"), begin):
            return row.what, row.try_this
    first = begin.lstrip()[:1]
    if first == b"{":
        return _name_object(bytes(text)), _GIVE
    return ("a JSON list of something else" if first == b"[" else "no JSON"), _GIVE


def _name_object(text: bytes) -> str:
    try:
        keys = list(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "JSON of something else, or not whole"
    named = ", ".join(key[:_KEY_CHARS] for key in keys[:_MOST_KEYS]) + (", ..." if keys[_MOST_KEYS:] else "")
    return f"JSON of something else (its keys: {named})" if keys else "an empty JSON object"
