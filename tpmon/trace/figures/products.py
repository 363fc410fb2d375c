"""Matrix products, convolutions and attention: their number type, what they reach, and sizes that fit badly.

A kernel belongs to the operator that launched it; the type is that of its inputs, and by the name of the
kernel where the trace has no types, and where it must tell fp32 from TF32.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.trace.figures.inputs import (
    CONV_BACKWARD,
    Dims,
    Inputs,
    count_bytes,
    count_flops,
    key_convolution,
    measure_product,
    name_dtype,
    name_kind,
    parse_inputs,
)
from tpmon.trace.figures.nesting import Nest
from tpmon.trace.reading.classes import flag, is_product_kernel, uses_tensor_cores
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, find_device
from tpmon.trace.reading.schema import Category, Device

Reals = npt.NDArray[np.float64]

KINDS = ("", "matmul", "convolution", "attention")
DTYPES = ("", "fp32", "tf32", "fp16", "bf16", "fp8", "fp64", "int8")
_MULTIPLE = {"tf32": 4, "fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}
"""Tensor cores take 16 bytes at once: sizes that are no multiple of so many elements leave some idle."""
HALF = 0.5
NO_SHAPES = Missing("no shapes that tell it (record_shapes=True)")
_NO_PEAK = Missing("the card, or the type on it, is not in the table of peaks")
_ABOVE = Missing("above the peak of the card: not all of it was computed or moved")

_BY_KERNEL = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|float8|nvjet_(?:sm\d+_)?[qro]|Cijk_[A-Za-z]+_[A-Za-z]+_[FB]8")),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?t|Cijk_[A-Za-z]+_[A-Za-z]+_BB?", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|xf32|(?<!fp16)(?<!f16)_s1688(?!\d)")),
    (
        "fp16",
        re.compile(
            r"fp16|_f16|f16f16|__half|c10::Half|(?<![a-z])half_t|hgemm|h884|h1688|h16816|nvjet_(?:sm\d+_)?h|Cijk_[A-Za-z]+_[A-Za-z]+_HH?"
        ),
    ),
    ("fp64", re.compile(r"dgemm|dmma|<double|Cijk_[A-Za-z]+_[A-Za-z]+_D")),
    ("int8", re.compile(r"imma|i8816|i16832|i8i8|Cijk_[A-Za-z]+_[A-Za-z]+_I8")),
    (
        "fp32",
        re.compile(
            r"_ffma_|f32f32_f32f32_f32_|sgemm|scudnn|_engine<float|winograd\w*_f32|Cijk_[A-Za-z]+_[A-Za-z]+_SS?B?_"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Hold of each row of device work what it computes and moves; NaN, 0 and -1 where that is not known.

    ``kind`` and ``dtype`` are places in ``KINDS`` and ``DTYPES``. ``call_flops`` are of the whole call of
    the operator, ``flops`` and ``moved`` of the kernel alone. ``misaligned`` is 1, 0 or -1.
    """

    kind: npt.NDArray[np.int8]
    dtype: npt.NDArray[np.int8]
    call_flops: Reals
    flops: Reals
    moved: Reals
    misaligned: npt.NDArray[np.int8]


def name_kernel_dtype(kernel: str) -> str:
    """Return the number type that the name of a kernel tells, else ""."""
    for dtype, pattern in _BY_KERNEL:
        if pattern.search(kernel):
            return dtype
    return ""


def choose_dtype(kernel: str, by_inputs: str, card: Device | None) -> str:
    """Return the number type in which a kernel multiplies: fp32 inputs may be rounded to TF32 by it."""
    if by_inputs != "fp32":
        return by_inputs or name_kernel_dtype(kernel)
    if card is None or not card.major:
        return "tf32" if name_kernel_dtype(kernel) == "tf32" else ""
    nvidia = card.warp_size == 32
    if nvidia and card.major < 8:
        return "fp32"
    if name_kernel_dtype(kernel) == "tf32":
        return "tf32"
    if not nvidia:
        return "fp32"
    said = uses_tensor_cores(kernel)
    return {"yes": "tf32", "no": "fp32"}.get(said, "")


@dataclass(frozen=True, slots=True)
class Call:
    """Hold what all calls of one operator with the same inputs have in common."""

    kind: str
    dtype: str
    flops: float
    moved: float
    sizes: tuple[int, ...]


def count_work(trace: Trace, ops: Nest, launchers: Ints) -> Counted:
    """Count what each kernel computes and moves, by the operator that launched it."""
    work = trace.work
    size = len(work.start)
    found = Counted(
        np.zeros(size, np.int8),
        np.zeros(size, np.int8),
        np.full(size, math.nan),
        np.full(size, math.nan),
        np.full(size, math.nan),
        np.full(size, -1, np.int8),
    )
    kernels = np.flatnonzero(work.category == Category.KERNEL)
    if not len(kernels):
        return found
    by_name = flag(trace.names, is_product_kernel, work.name[kernels])
    _count_named(trace, found, kernels[(launchers[kernels] < 0) & by_name[work.name[kernels]]])
    rows = kernels[launchers[kernels] >= 0]
    if not len(rows):
        return found
    host = ops.row[launchers[rows]]
    widest = len(trace.shapes) + 1
    keys, call_of = np.unique(
        trace.host.name[host].astype(np.int64) * widest + trace.host.shape[host] + 1, return_inverse=True
    )
    calls = read_calls(trace, keys, widest)
    is_product = by_name[work.name[rows]]
    places, place_of, count = np.unique(launchers[rows], return_inverse=True, return_counts=True)
    products = np.bincount(place_of, weights=is_product, minlength=len(places))[place_of]
    alone = count[place_of] == 1
    flops = np.array([call.flops for call in calls])[call_of]
    moved = np.array([call.moved for call in calls])[call_of]
    found.call_flops[rows] = flops
    found.flops[rows] = np.where(alone | (is_product & (products == 1)), flops, math.nan)
    found.moved[rows] = np.where(alone, moved, math.nan)
    _name_types(trace, found, rows, (calls, call_of), is_product)
    return found


def _count_named(trace: Trace, found: Counted, rows: Ints) -> None:
    """Tell kind and type of products without an operator, by their names alone."""
    for number in distinct(trace.work.name[rows]).tolist():
        here = rows[trace.work.name[rows] == number]
        kernel = trace.names[number]
        found.kind[here] = KINDS.index(_kind_of_kernel(kernel))
        found.dtype[here] = DTYPES.index(name_kernel_dtype(kernel))


def _kind_of_kernel(kernel: str) -> str:
    if re.search(r"fmha|flash|attn|attention", kernel, re.IGNORECASE):
        return "attention"
    return "convolution" if re.search(r"fprop|dgrad|wgrad|conv", kernel, re.IGNORECASE) else "matmul"


def read_calls(trace: Trace, keys: Ints, widest: int) -> list[Call]:
    """Read each pair of operator and inputs once."""

    def read(key: int) -> tuple[str, Inputs]:
        name, shape = trace.names[key // widest], key % widest - 1
        return name, parse_inputs(trace.shapes[shape] if shape >= 0 else (b"", b""))

    outputs: dict[tuple[Dims, Dims], Dims] = {}
    numbers = keys.tolist()
    for key in numbers:
        if trace.names[key // widest] == CONV_BACKWARD:
            backward = key_convolution(*read(key))
            if backward is not None:
                outputs[backward[0]] = backward[1]
    calls = []
    for key in numbers:  # what is parsed takes ten times its text: it is not held
        name, inputs = read(key)
        product = measure_product(name, inputs)
        calls.append(
            Call(
                name_kind(name),
                name_dtype(name, inputs),
                count_flops(name, inputs, outputs),
                count_bytes(name, inputs),
                (product.n, product.k) if product else (),
            )
        )
    return calls


def _name_types(
    trace: Trace,
    found: Counted,
    rows: Ints,
    called: tuple[list[Call], Ints],
    is_product: npt.NDArray[np.bool_],
) -> None:
    """Tell kind, type and alignment of each pair of call and kernel.

    What an operator launches beside its product (a sum of parts, another layout) has the type of the latter.
    """
    work = trace.work
    calls, call_of = called
    wide = len(trace.names) + 1
    pairs, pair_of = np.unique(call_of.astype(np.int64) * wide + work.name[rows], return_inverse=True)
    time = np.bincount(pair_of, weights=work.duration[rows])
    cards = [find_device(trace, device) for device in distinct(work.device[rows]).tolist()]
    card = cards[0]
    kinds, dtypes = [], []
    main: dict[int, tuple[float, str]] = {}
    product_pair = np.zeros(len(pairs), np.bool_)
    product_pair[pair_of] = is_product
    for pair, product, spent in zip(pairs.tolist(), product_pair.tolist(), time.tolist(), strict=True):
        call, kernel = calls[pair // wide], trace.names[pair % wide]
        kind = call.kind or (_kind_of_kernel(kernel) if product else "")
        dtype = choose_dtype(kernel, call.dtype, card) if product and kind else ""
        kinds.append(kind)
        dtypes.append(dtype)
        if product and dtype and spent > main.get(pair // wide, (0.0, ""))[0]:
            main[pair // wide] = (spent, dtype)
    misaligned = []
    for at, pair in enumerate(pairs.tolist()):
        call = calls[pair // wide]
        if kinds[at] and not dtypes[at] and not product_pair[at]:
            said = main.get(pair // wide, (0.0, ""))[1]
            dtypes[at] = said or choose_dtype(trace.names[pair % wide], call.dtype, card)
        multiple = _MULTIPLE.get(dtypes[at], 0)
        odd = any(one % multiple for one in call.sizes) if multiple and call.sizes else None
        misaligned.append(-1 if odd is None else int(odd))
    found.kind[rows] = np.array([KINDS.index(kind) for kind in kinds], np.int8)[pair_of]
    found.dtype[rows] = np.array([DTYPES.index(dtype) for dtype in dtypes], np.int8)[pair_of]
    found.misaligned[rows] = np.array(misaligned, np.int8)[pair_of]


def rate(amount: Reals, length: Ints) -> Known[float]:
    """Return the amount for each nanosecond, where it is known of half of the time."""
    there = np.isfinite(amount)
    spent = int(length[there].sum())
    if not spent or spent < HALF * int(length.sum()):
        return NO_SHAPES
    return float(amount[there].sum()) / spent


def share_of_peak(reached: Known[float], best: float | None) -> Known[float]:
    """Return a rate in percent of the best of the card."""
    if not is_known(reached):
        return reached
    if not best:
        return _NO_PEAK
    pct = 100 * reached / best
    return pct if pct <= 100 else _ABOVE
