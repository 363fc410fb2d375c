"""Matrix products, convolutions and attention: number type, rate against what the card can do, bad sizes.

A kernel belongs to the operator that launched it; the type is that of its inputs, and by the name of the
kernel where the trace has no types, and where it must tell fp32 from TF32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.trace_tables import ProductRow
from tpmon.trace.figures.operators import (
    CONV_BACKWARD,
    Dims,
    Inputs,
    Operators,
    count_bytes,
    count_flops,
    key_convolution,
    measure_product,
    name_dtype,
    name_kind,
    parse_inputs,
)
from tpmon.trace.reading.columns import Groups, Ints, Mask, Reals, distinct, group
from tpmon.trace.reading.read import Trace, find_device
from tpmon.trace.reading.schema import Category, Device, flag, is_product_kernel, uses_tensor_cores
from tpmon.trace.reading.spans import Nest

KINDS = ("", "matmul", "convolution", "attention")
DTYPES = ("", "fp32", "tf32", "fp16", "bf16", "fp8", "fp64", "int8")
_MULTIPLE = {"tf32": 4, "fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}
"""Tensor cores take 16 bytes at once: sizes that are no multiple of so many elements leave some idle."""
HALF = 0.5
NO_SHAPES = Missing("no shapes that tell it (record_shapes=True)")

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
class CountedProduct:
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


@lru_cache(maxsize=2000)
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


def count_work(trace: Trace, ops: Operators) -> CountedProduct:
    """Count what each kernel computes and moves, by the operator that launched it."""
    work = trace.work
    size = len(work.start)
    kinds, dtypes = np.zeros((2, size), np.int8)
    whole, flops, moved = np.full((3, size), math.nan)
    found = CountedProduct(kinds, dtypes, whole, flops, moved, np.full(size, -1, np.int8))
    kernels, launchers = np.flatnonzero(trace.select(Category.KERNEL)), ops.launchers
    if not len(kernels):
        return found
    by_name = flag(trace.names, is_product_kernel, work.name[kernels])
    _count_named(trace, found, kernels[(launchers[kernels] < 0) & by_name[work.name[kernels]]])
    rows = kernels[launchers[kernels] >= 0]
    if not len(rows):
        return found
    groups, calls = read_calls(trace, ops.row[launchers[rows]])
    is_product = by_name[work.name[rows]]
    launched = group(launchers[rows])
    products = launched.sum(is_product)[launched.place]
    alone = launched.count[launched.place] == 1
    flops = np.array([call.flops for call in calls])[groups.place]
    moved = np.array([call.moved for call in calls])[groups.place]
    found.call_flops[rows] = flops
    found.flops[rows] = np.where(alone | (is_product & (products == 1)), flops, math.nan)
    found.moved[rows] = np.where(alone, moved, math.nan)
    _name_types(trace, found, rows, (calls, groups.place), is_product)
    return found


def _count_named(trace: Trace, found: CountedProduct, rows: Ints) -> None:
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


def read_calls(trace: Trace, rows: Ints) -> tuple[Groups, list[Call]]:
    """Read each pair of operator and inputs of some host events once."""
    widest = len(trace.shapes) + 1
    groups = group(trace.host.name[rows].astype(np.int64) * widest + trace.host.shape[rows] + 1)

    def read(key: int) -> tuple[str, Inputs]:
        name, shape = trace.names[key // widest], key % widest - 1
        return name, parse_inputs(trace.shapes[shape] if shape >= 0 else (b"", b""))

    outputs: dict[tuple[Dims, Dims], Dims] = {}
    numbers = groups.keys.tolist()
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
    return groups, calls


def _name_types(
    trace: Trace, found: CountedProduct, rows: Ints, called: tuple[list[Call], Ints], is_product: Mask
) -> None:
    """Tell kind, type and alignment of each pair of call and kernel.

    What an operator launches beside its product (a sum of parts, another layout) has the type of the latter.
    """
    work = trace.work
    calls, call_of = called
    wide = len(trace.names) + 1
    groups = group(call_of.astype(np.int64) * wide + work.name[rows])
    pairs, pair_of = groups.keys, groups.place
    time = groups.sum(work.duration[rows])
    card = find_device(trace, int(work.device[rows].min()))
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


def rate(amount: Reals, length: Ints, unit: int = 1) -> Known[float]:
    """Return the amount in some unit for each nanosecond, where it is known of half of the time."""
    there = np.isfinite(amount)
    spent = int(length[there].sum())
    if not spent or spent < HALF * int(length.sum()):
        return NO_SHAPES
    return float(amount[there].sum()) / spent / unit


def share_of_peak(reached: Known[float], best: float | None) -> Known[float]:
    """Return a rate in percent of the best of the card."""
    if not is_known(reached):
        return reached
    if not best:
        return Missing("the card, or the type on it, is not in the table of peaks")
    pct = 100 * reached / best
    return pct if pct <= 100 else Missing("above the peak of the card: not all of it was computed or moved")


_LARGE_BYTES = 60_000_000_000
"""Of two cards of one name the one with more memory has the faster one."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Hold the best of a card: GB/s of its memory, TFLOP/s by number type."""

    gb_s: float
    tflop_s: Mapping[str, float]


def _types(
    fp32: float, tf32: float = 0.0, half: float = 0.0, fp8: float = 0.0, bf16: bool = True
) -> dict[str, float]:
    """Lay out TFLOP/s; 0 for what a card cannot."""
    found = {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half if bf16 else 0.0, "fp8": fp8}
    return {name: value for name, value in found.items() if value}


_HOPPER = _types(66.9, 494.7, 989.4, 1978.9)
_CDNA3 = _types(163.4, 653.7, 1307.4, 2614.9)
_AMPERE = _types(19.5, 156, 312)
_SHEETS: tuple[tuple[str, Peak], ...] = (
    (r"V100.*PCI", Peak(900, _types(14.0, half=112, bf16=False))),
    (r"V100", Peak(900, _types(15.7, half=125, bf16=False))),
    (r"\bT4\b", Peak(320, _types(8.1, half=65, bf16=False))),
    (r"A[18]00.*80GB PCI", Peak(1935, _AMPERE)),
    (r"\bA[18]00\b", Peak(1555, _AMPERE)),
    (r"\bA30\b", Peak(933, _types(10.3, 82, 165))),
    (r"\bA10\b", Peak(600, _types(31.2, 62.5, 125))),
    (r"\bA40\b", Peak(696, _types(37.4, 74.8, 149.7))),
    (r"RTX A6000", Peak(768, _types(38.7, 77.4, 154.8))),
    (r"RTX 6000 Ada", Peak(960, _types(91.1, 182.1, 364.2, 728.5))),
    (r"\bL4\b", Peak(300, _types(30.3, 60, 121, 242))),
    (r"\bL40S\b", Peak(864, _types(91.6, 183, 362, 733))),
    (r"\bL40\b", Peak(864, _types(90.5, 90.5, 181, 362))),
    (r"H20\b", Peak(4000, _types(44, 74, 148, 296))),
    (r"\bH200", Peak(4800, _HOPPER)),
    (r"GH200", Peak(4000, _HOPPER)),
    (r"H[18]00.*PCI", Peak(2000, _types(51.2, 378, 756, 1513))),
    (r"H100 NVL", Peak(3938, _types(60, 417.5, 835.5, 1671))),
    (r"H[18]00", Peak(3350, _HOPPER)),
    (r"\bB200", Peak(8000, _types(75, 1125, 2250, 4500))),
    (r"RTX 3090(?! Ti)", Peak(936, _types(35.6, 35.6, 71.2))),
    (r"RTX 4090(?! (?:D|Lap))", Peak(1008, _types(82.6, 82.6, 165.2, 330.3))),
    (r"RTX 5090(?! (?:D|Lap))", Peak(1792, _types(104.8, 104.8, 209.5, 419))),
    (r"MI300X", Peak(5300, _CDNA3)),
    (r"MI325X", Peak(6000, _CDNA3)),
    (r"MI250X", Peak(1638, _types(47.9, half=191.5))),
    (r"MI210", Peak(1638, _types(45.3, half=181))),
)
"""The first that the name matches. A card of AMD with two dies is one device for each: half of its sheet."""


def find_peak(card: Device | None) -> Peak | None:
    """Return the peak of a card by its name, None for one that is not in the table.

    A slice of a card (MIG) bears the name of the whole, and has a part of it that depends on its profile.
    """
    if card is None or re.search(r"\bMIG\b", card.name):
        return None
    for pattern, peak in _SHEETS:
        if re.search(pattern, card.name):
            if peak.tflop_s is _AMPERE and peak.gb_s == 1555 and card.memory_bytes > _LARGE_BYTES:
                return Peak(2039, _AMPERE)
            return peak
    return None


MOST_HOST_TFLOP_S = 10.0
"""The largest servers reach a little less in fp32 with all of their cores."""
_NO_TYPES = Missing("the trace has no types of inputs (record_shapes=True)")
_OF_CARDS = Missing("peaks are known of cards alone")
_OF_TENSOR_CORES = Missing("it matters to tensor cores alone")
_NO_TYPE = Missing("neither the inputs nor the name of the kernel tell the type")


def sum_products(trace: Trace, ops: Operators, counted: CountedProduct) -> tuple[ProductRow, ...]:
    """Sum the products by kind and number type, the longest first; of the host without device work."""
    if not len(trace.work.start):
        return _sum_on_host(trace, ops)
    work = trace.work
    total = int(work.duration[trace.select(Category.KERNEL)].sum())
    rows = np.flatnonzero(counted.kind > 0)
    found = []
    for key in distinct(counted.kind[rows].astype(np.int64) * len(DTYPES) + counted.dtype[rows]).tolist():
        kind, dtype = divmod(key, len(DTYPES))
        part = rows[(counted.kind[rows] == kind) & (counted.dtype[rows] == dtype)]
        length = work.duration[part]
        spent = int(length.sum())
        called = ops.launchers[part]
        calls = group(called[called >= 0])
        places = calls.keys
        flops = counted.call_flops[part[called >= 0]][calls.first]
        span = calls.sum(length[called >= 0]).astype(np.int64)
        reached: Known[float] = NO_SHAPES
        if len(places) and int(span[np.isfinite(flops)].sum()) >= HALF * spent:
            reached = rate(flops, span, 1000)
        sides = counted.misaligned[part]
        told = int(length[sides >= 0].sum())
        used = (spent / 1000, 100 * spent / total if total else 0.0)
        peak = share_of_peak(reached, _peak_of(trace, part, DTYPES[dtype]))
        odd = 100 * int(length[sides == 1].sum()) / told if told else NO_SHAPES
        named = (KINDS[kind], DTYPES[dtype] or _NO_TYPE, len(places) + int((called < 0).sum()))
        found.append(ProductRow(*named, *used, reached, peak, odd))
    return tuple(sorted(found, key=lambda row: -row.total_us))


def _peak_of(trace: Trace, rows: Ints, dtype: str) -> float | None:
    """Return the TFLOP/s of the card of these rows, None where they are of several kinds of cards."""
    devices = distinct(trace.work.device[rows]).tolist()
    found = [find_peak(find_device(trace, device)) for device in devices]
    peaks = {peak.tflop_s.get(dtype) if peak else None for peak in found}
    return peaks.pop() if len(peaks) == 1 else None


def _sum_on_host(trace: Trace, ops: Nest) -> tuple[ProductRow, ...]:
    """Sum the innermost products on the host; their type is that of their inputs."""
    if not len(ops.row):
        return ()
    kinds = np.zeros(len(trace.names), np.int8)
    for number in distinct(trace.host.name[ops.row]).tolist():
        kinds[number] = KINDS.index(name_kind(trace.names[number]))
    kind_of = kinds[trace.host.name[ops.row]]
    places = np.flatnonzero((kind_of > 0) & (ops.add_up((kind_of > 0).astype(np.int64)) == 1))
    if not len(places):
        return ()
    total = int(trace.host.duration[ops.row[ops.depth == 0]].sum())
    host = ops.row[places]
    groups, calls = read_calls(trace, host)
    flops = np.array([call.flops for call in calls])[groups.place]
    numbers = [DTYPES.index(call.dtype) if call.dtype in DTYPES else 0 for call in calls]
    dtypes = np.array(numbers)[groups.place]
    length = trace.host.duration[host]
    found = []
    for kind, dtype in sorted(set(zip(kind_of[places].tolist(), dtypes.tolist(), strict=True))):
        here = (kind_of[places] == kind) & (dtypes == dtype)
        spent = int(length[here].sum())
        reached = rate(flops[here], length[here], 1000)
        if is_known(reached) and reached > MOST_HOST_TFLOP_S:
            reached = Missing("faster than a host: the work is of a device that is not in the trace")
        named = (KINDS[kind], DTYPES[dtype] or _NO_TYPES, int(here.sum()))
        used = (spent / 1000, 100 * spent / total if total else 0.0)
        found.append(ProductRow(*named, *used, reached, _OF_CARDS, _OF_TENSOR_CORES))
    return tuple(sorted(found, key=lambda row: -row.total_us))
