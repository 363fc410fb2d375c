"""Whether a trace without device work is of a program that used a device: what of it gives that away.

Descriptions of cards are no proof: they stand in the traces of a machine, not of a program.
"""

from __future__ import annotations

import re

from tpmon.trace.figures.memory import name_kind
from tpmon.trace.reading.columns import Small
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

_GIVES_WORK = re.compile(r"^(?:cuda|hip|cu|xpu|ze|ur)\w*(?:Launch|Memcpy|Memset|Enqueue|AppendMemory)")
"""A profiler itself calls cudaDeviceSynchronize when it ends: that alone proves nothing."""
_OF_DEVICES = re.compile(
    r"^(?:nccl|xccl):\w|^aten::(?:_*(?:cudnn|miopen|mps)_(?!is_acceptable)|record_stream$)"
    r"|^aten::_(?:scaled_dot_product_)?(?:flash|efficient|cudnn)_attention(?!\w*for_cpu)"
    r"|^flash_attn(?:_\w+)?::|^triton_(?:poi|red|per|tem|mm)_"
)
"""Collectives and operators that only devices have; the CPU asks ``cudnn_is_acceptable``, too."""


def find_proof(trace: Trace) -> str:
    """Name what proves that the program gave work to a device; "" where nothing does."""
    named = [_first(trace, trace.calls.name, _GIVES_WORK)]
    kinds = (trace.host.category == Category.OP) | (trace.host.category == Category.ANNOTATION)
    named.append(_first(trace, trace.host.name[kinds], _OF_DEVICES))
    for name in filter(None, named):
        return clean_name(name, 80)
    memory = trace.memory
    taken = memory.device_type[(memory.device_type > 0) & (memory.changed_bytes > 0)]
    return f"an allocation on {name_kind(int(taken[0]))}" if len(taken) else ""


def _first(trace: Trace, numbers: Small, wanted: re.Pattern[str]) -> str:
    for number in dict.fromkeys(numbers.tolist()):
        name: str = trace.names[number]
        if wanted.search(name):
            return name
    return ""
