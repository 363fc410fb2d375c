"""Say under which conditions a trace was recorded: read what the hook wrote, add what it cannot know.

They stand beside the events of a trace under ``tpmon``. The hook writes them from within; of what kineto
recorded tpmon writes them from the hook's bus, which tells less.
"""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

from tpmon.model.codec import to_plain
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.capture import Conditions, GpuClocks
from tpmon.model.text.redaction import admit_text

_CONDITIONS = b'"tpmon":'
_EDGE = 1 << 16
_NOT_THERE = Missing("the trace does not say it")
_MOST_INPUTS = 16

NOT_READ = Missing("the clocks of the GPU were not read")


@dataclass(frozen=True, slots=True)
class ConditionBlock:
    """Hold the conditions as they stand in a file, and between which bytes; a ``quoted`` one is a string."""

    start: int
    end: int
    told: dict[str, Any]
    quoted: bool


def read_block(file: BinaryIO) -> Known[ConditionBlock]:
    """Find what the hook wrote into an open trace of its surroundings: at the beginning, or at the end."""
    try:
        head = file.read(_EDGE)
        size = os.fstat(file.fileno()).st_size
        at = file.seek(max(size - _EDGE, 0))
        tail = file.read(_EDGE)
    except OSError as error:
        return Missing(error.strerror or str(error))
    return find_block(head) or find_block(tail, at) or _NOT_THERE


def find_block(edge: bytes, offset: int = 0) -> ConditionBlock | None:
    """Find the conditions in a part of a trace that begins at ``offset``."""
    at = edge.find(_CONDITIONS)
    if at < 0:
        return None
    begin = at + len(_CONDITIONS)
    # One character for a byte, so that what is found stands where it is said to.
    text = edge[begin:].decode("latin-1")
    begin += len(text) - len(text := text.lstrip(" \t\r\n"))
    try:
        told, length = json.JSONDecoder().raw_decode(text)
        told = json.loads(text[:length].encode("latin-1"))
        quoted = isinstance(told, str)
        told = json.loads(told) if quoted else told
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    return ConditionBlock(offset + begin, offset + begin + length, told, quoted)


def write_clocks(block: ConditionBlock, clocks: Known[tuple[GpuClocks, ...]]) -> bytes:
    """Write the conditions of a file once more, with the clocks of the GPUs."""
    told = json.dumps({**block.told, "clocks": to_plain(clocks)})
    return (json.dumps(told) if block.quoted else told).encode()


def to_conditions(told: dict[str, Any]) -> Conditions:
    """Believe of what was told what has the type that it is to have; clocks are tpmon's own reading."""
    return Conditions(
        model=_text(told.get("model")),
        parameters=_int(told.get("parameters")),
        dtype=_text(told.get("dtype")),
        device=_text(told.get("device")),
        training=_bool(told.get("training")),
        mode=_text(told.get("mode")),
        inputs=_texts(told.get("inputs")),
        batch_size=_int(told.get("batch_size")),
        world_size=_int(told.get("world_size")),
        gpu=_text(told.get("gpu")),
        clocks=NOT_READ,
        torch=_text(told.get("torch")),
        python=_text(told.get("python")),
        threads=_int(told.get("threads")),
        autocast=_bool(told.get("autocast")),
        autocast_dtype=_text(told.get("autocast_dtype")),
        matmul_precision=_text(told.get("matmul_precision")),
    )


def _why(value: object) -> Missing:
    if isinstance(value, dict) and isinstance(value.get("missing"), str):
        return Missing(admit_text(value["missing"], 120))
    return _NOT_THERE


def _text(value: object) -> Known[str]:
    return admit_text(value, 120) if isinstance(value, str) else _why(value)


def _texts(value: object) -> Known[tuple[str, ...]]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return _why(value)
    return tuple(admit_text(one, 120) for one in value[:_MOST_INPUTS])


def _int(value: object) -> Known[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else _why(value)


def _bool(value: object) -> Known[bool]:
    return value if isinstance(value, bool) else _why(value)
