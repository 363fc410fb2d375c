"""Under which conditions a trace was made, as far as it tells: what two of them must share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpmon.model.known import Known, Missing
from tpmon.model.results.trace import Condition, TraceConditions
from tpmon.model.text.redaction import hide
from tpmon.trace.reading.classes import flag, is_optimizer, runs_compiled
from tpmon.trace.reading.columns import distinct
from tpmon.trace.reading.read import Trace, clean_name, find_device, read_distributed
from tpmon.trace.reading.schema import Category

PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::linear",
    "aten::convolution",
    "aten::scaled_dot_product_attention",
)
MOST_INPUTS = 200
_MOST_TOLD = 1 << 20
"""Bytes of what a capture wrote down; more is no capture of ours."""
BATCH, SHAPES, PARAMETERS = "batch size", "inputs of a batch", "parameters"
TOLD = {
    "batch_size": BATCH,
    "inputs": SHAPES,
    "model": "model",
    "parameters": PARAMETERS,
    "dtype": "type of the parameters",
    "autocast": "autocast",
    "autocast_dtype": "autocast to",
}
"""What is compared of that. Settings that a fix may well change (TF32, threads, torch.compile) are not."""


def read_conditions(trace: Trace, strays: Sequence[int] = ()) -> TraceConditions:
    """Read world size, cards but for ``strays``, whether it trains, and shapes and types of the products."""
    size = read_distributed(trace).world_size
    return TraceConditions(
        world_size=size if size > 0 else Missing("the trace does not say it"),
        devices=_read_devices(trace, strays),
        mode=_read_mode(trace),
        inputs=_read_inputs(trace),
        told=_read_told(trace),
        compiled=_read_compiled(trace),
    )


def _read_devices(trace: Trace, strays: Sequence[int]) -> Known[tuple[str, ...]]:
    """Return the names of the devices that worked: none without work, unknown without a description."""
    devices = [device for device in distinct(trace.work.device).tolist() if device not in strays]
    cards = [find_device(trace, device) for device in devices]
    names = [clean_name(card.name, 80) for card in cards if card is not None and card.name]
    return tuple(names) if len(names) == len(cards) else Missing("the trace does not describe its cards")


def _read_compiled(trace: Trace) -> Known[bool]:
    if not bool((trace.host.category == Category.OP).any()):
        return Missing("the trace holds no operators")
    return runs_compiled(trace.names)


def read_told(trace: Trace) -> dict[str, Any]:
    """Return what a capture of tpmon wrote into the trace of its conditions; empty in any other trace."""
    raw = bytes(trace.header.conditions)
    if len(raw) > _MOST_TOLD:
        return {}
    try:
        told: Any = json.loads(raw or b"null")
        told = json.loads(told) if isinstance(told, str) else told
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _read_told(trace: Trace) -> tuple[Condition, ...]:
    told = read_told(trace)
    plain = {name: told[name] for name in TOLD if isinstance(told.get(name), (str, int, bool, list))}
    return tuple(
        Condition(words, clean_name(hide(str(plain[name])), 200))
        for name, words in TOLD.items()
        if name in plain
    )


def _read_mode(trace: Trace) -> Known[str]:
    if not bool((trace.host.category == Category.OP).any()):
        return Missing("the trace holds no operators")
    return "training" if does_train(trace) else "no training"


def does_train(trace: Trace) -> bool:
    """Tell whether a trace has a backward pass or a step of an optimizer."""
    backward = flag(trace.names, lambda name: is_optimizer(name) or name.startswith("autograd::engine::"))
    return bool(backward[trace.host.name].any())


def _read_inputs(trace: Trace) -> Known[tuple[str, ...]]:
    wanted = flag(trace.names, lambda name: name in PRODUCTS)
    rows = np.flatnonzero(wanted[trace.host.name] & (trace.host.shape >= 0))
    if not len(rows):
        return Missing("shapes were not recorded (record_shapes=True)")
    pairs = set(zip(trace.host.name[rows].tolist(), trace.host.shape[rows].tolist(), strict=True))
    texts = []
    for name, shape in pairs:
        dims, types = (part.decode("utf-8", "replace") for part in trace.shapes[shape])
        sizes = "".join(dims.split()).replace(",", ", ")
        kinds = " ".join(types.split()).replace("[ ", "[").replace(" ]", "]")
        texts.append(clean_name(f"{trace.names[name]} {sizes} {kinds}", 300))
    return tuple(sorted(texts)[:MOST_INPUTS])
