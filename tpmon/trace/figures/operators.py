"""Operators: host and device time, and what each computes and moves by its inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

import msgspec
import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, known_or
from tpmon.model.results.trace import OperatorRow
from tpmon.model.results.trace_tables import OperatorGroupRow
from tpmon.trace.reading.columns import NAME_CHARS, Ints, Small, distinct, group
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import (
    SEARCHED_CHARS,
    UNREADABLE,
    Category,
    begins,
    flag,
    is_node_of_backward,
    is_step,
)
from tpmon.trace.reading.spans import Nest, nest

OUTSIDE, BEFORE = "(outside of operators)", "(launched before the capture)"
is_graph_launch = begins(r"(?:cuda|hip|cu)GraphLaunch")
MOST_GROUPS = 5000
"""Rows of operators by shape or by line."""


@dataclass(frozen=True, slots=True)
class Operators(Nest):
    """Hold the operators of the host, nested, with their times in nanoseconds; device time is by launches.

    ``launchers`` are the places of those that launched each row of device work, -1 for none: the innermost
    one on the thread of the call that contains the start of the call.
    """

    launchers: Ints
    own: Ints
    self_ns: Ints
    device_total: Ints
    device_self: Ints


def nest_operators(trace: Trace) -> Operators:
    """Nest the operators of the host and time them; marks of steps are none."""
    marks = trace.named(trace.host, is_step)
    ops = nest(trace.host, np.flatnonzero((trace.host.category == Category.OP) & ~marks))
    launchers = np.full(len(trace.work.call), -1, dtype=np.int64)
    matched = np.flatnonzero(trace.work.call >= 0)
    calls = trace.work.call[matched]
    launchers[matched] = ops.find(trace.calls.track[calls], trace.calls.start[calls])
    own = trace.host.duration[ops.row]
    device_self = np.zeros(len(own), dtype=np.int64)
    known = launchers >= 0
    np.add.at(device_self, launchers[known], trace.work.duration[known])
    nested = (ops.row, ops.start, ops.end, ops.parent, ops.depth, ops.child_ns, ops.first)
    times = (own, np.maximum(own - ops.child_ns, 0), ops.add_up(device_self), device_self)
    return Operators(*nested, launchers, *times)


def match_nodes(trace: Trace, ops: Operators) -> tuple[Ints, Ints]:
    """Return the outermost nodes of the backward pass, and the operator of the forward pass that made each.

    Both have the same sequence number; nodes whose maker is not in the trace are left out.
    """
    sequence = trace.host.sequence[ops.row]
    root = ops.find_roots()
    is_node = trace.named(trace.host, is_node_of_backward)[ops.row]
    ahead = np.flatnonzero(~is_node[root] & (sequence >= 0))
    nodes = np.flatnonzero(is_node & (root == np.arange(len(root))) & (sequence >= 0))
    if not len(ahead) or not len(nodes):
        return nodes[:0], nodes[:0]
    # Operators that make no node carry the number of the next one: the last to start is the one that made it.
    order = ahead[np.lexsort((ops.start[ahead], sequence[ahead]))]
    at = np.searchsorted(sequence[order], sequence[nodes], side="right") - 1
    good = (at >= 0) & (sequence[order[np.maximum(at, 0)]] == sequence[nodes])
    return nodes[good], order[at[good]]


def sum_operators(trace: Trace, ops: Operators, most: int | None = None) -> tuple[OperatorRow, ...]:
    """Sum the operators by name, the largest self time first: on the device where there is one.

    Device work that no operator launched has rows of its own, so that self times on the device sum to the
    durations of all device work.
    """
    rows = [
        OperatorRow(clean_name(trace.names[number], NAME_CHARS), *figures)
        for number, figures in _sum_by(trace, ops, trace.host.name[ops.row], most)
    ]
    if len(ops.row):
        rows = sorted([*rows, *_sum_rest(trace, ops)], key=lambda row: -known_or(row.device_self_us, 0.0))
    return tuple(rows[:most])


def _sum_rest(trace: Trace, ops: Operators) -> Iterator[OperatorRow]:
    """Sum the device work that no operator launched: by graphs, outside of operators, before the trace."""
    work, calls = trace.work, trace.calls
    rest = np.flatnonzero(ops.launchers < 0)
    call = work.call[rest]
    graph = flag(trace.names, is_graph_launch, calls.name)[calls.name]
    replayed = (call >= 0) & graph[call] if len(graph) else call >= 0
    launches = {int(number): trace.names[number] for number in distinct(calls.name[call[replayed]])}
    named = f"(graph replay: {clean_name(', '.join(launches.values()), 80)})"
    kinds = ((named, replayed), (OUTSIDE, (call >= 0) & ~replayed), (BEFORE, call < 0))
    for name, of_kind in kinds:
        rows = rest[of_kind]
        if len(rows):
            spent = float(work.duration[rows].sum()) / 1000
            made = distinct(work.call[rows])
            host = float(calls.duration[made].sum()) / 1000 if name != BEFORE else 0.0
            yield OperatorRow(name, len(made) if name != BEFORE else len(rows), host, host, spent, spent)


Figures = tuple[int, float, float, Applicable[float], Applicable[float]]
"""Calls, host total and self, device total and self, in microseconds."""


def _sum_by(
    trace: Trace, ops: Operators, keys: Ints | Small, most: int | None
) -> Iterator[tuple[int, Figures]]:
    """Give each key with its sums, the largest self time first."""
    has_device = len(trace.work.start) > 0
    groups = group(keys)
    columns = (ops.own, ops.self_ns, ops.device_total, ops.device_self)
    sums = [groups.sum(values) / 1000 for values in columns]
    for at in np.lexsort((-sums[1], -sums[3 if has_device else 1]))[:most].tolist():
        total, own, device_total, device_self = (float(column[at]) for column in sums)
        device = (device_total, device_self) if has_device else (NOT_APPLICABLE, NOT_APPLICABLE)
        yield int(groups.keys[at]), (int(groups.count[at]), total, own, *device)


def group_by_shape(trace: Trace, ops: Operators) -> tuple[OperatorGroupRow, ...]:
    """Sum the operators by name and input shapes; empty where the trace has no shapes."""
    if not len(ops.row) or not trace.shapes:
        return ()
    return tabulate_groups(
        trace, ops, trace.host.shape[ops.row], lambda shape: " ".join(write_shape(trace, shape)).strip(), 300
    )


def tabulate_groups(
    trace: Trace, ops: Operators, groups: Ints | Small, write: Callable[[int], str], limit: int = 400
) -> tuple[OperatorGroupRow, ...]:
    """Sum the operators by name and a number of each, which ``write`` turns into words."""
    wide = int(groups.max()) + 2
    keys = trace.host.name[ops.row].astype(np.int64) * wide + groups + 1
    found = []
    for key, figures in _sum_by(trace, ops, keys, MOST_GROUPS):
        name, group = key // wide, key % wide - 1
        said: Known[str] = clean_name(write(group), limit) if group >= 0 else Missing("not recorded for it")
        found.append(OperatorGroupRow(clean_name(trace.names[name], NAME_CHARS), said, *figures))
    return tuple(found)


def write_shape(trace: Trace, number: int) -> tuple[str, str]:
    """Write the sizes of inputs without spaces, and their types in one line."""
    dims, types = (part.decode("utf-8", "replace") for part in trace.shapes[number])
    return "".join(dims.split()), " ".join(types.split()).replace("[ ", "[").replace(" ]", "]")


_TYPES = {
    name: (size, kind)
    for size, kind, names in (
        (8, "fp64", ("double", "float64")),
        (4, "fp32", ("float", "float32")),
        (2, "fp16", ("half", "float16")),
        (2, "bf16", ("bfloat16",)),
        (1, "int8", ("char", "signed char", "unsigned char", "byte")),
        (8, "", ("long", "long int")),
        (4, "", ("int",)),
        (2, "", ("short",)),
        (1, "", ("bool",)),
    )
    for name in names
}
_UNKNOWN_TYPE = (0, "")


def read_type(name: str) -> tuple[int, str]:
    """Return the bytes of one element and the number type; 0 and "" for what is not known."""
    short = name.lower().removeprefix("c10::")
    return (1, "fp8") if short.startswith("float8") else _TYPES.get(short, _UNKNOWN_TYPE)


Dims = tuple[int, ...]

_FACTORS = {
    "aten::mm": (0, 1),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
"""Which arguments of an operator are the two matrices."""
_LINEAR = ("aten::linear", "aten::mkldnn_linear", "aten::_mkl_linear", "mkldnn::_linear_pointwise")
_CONV = re.compile(r"^aten::\w*(?:convolution|conv\d|conv_)")
CONV_BACKWARD = "aten::convolution_backward"
_ATTENTION = re.compile(
    r"flash_attn|flash_attention|efficient_attention|scaled_dot_product|cudnn_attention|xformers",
    re.IGNORECASE,
)
MOST_INPUTS = 256
MOST_SIZES = 64
"""What torch takes: arguments with some to spare, sizes of one tensor. Hostile files have a million."""
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_WIDEST = 1 << 60
"""More elements than this have no tensor around them."""

_ELEMENTWISE = re.compile(
    r"^aten::(?:add|sub|rsub|mul|div|relu|gelu|silu|sigmoid|tanh|exp|log|sqrt|rsqrt|neg|abs|clamp|clamp_min"
    r"|clamp_max|pow|square|reciprocal|addcmul|addcdiv|lerp|maximum|minimum|where|threshold|leaky_relu|hardtanh"
    r"|threshold_backward|gelu_backward|silu_backward|sigmoid_backward|tanh_backward|masked_fill"
    r"|_softmax|_log_softmax|_softmax_backward_data|_log_softmax_backward_data)_?$"
)
_NORMS = ("aten::native_layer_norm", "aten::native_group_norm", "aten::_fused_rms_norm")
_WRITES = ("aten::fill_", "aten::zero_")
_READS = ("aten::sum", "aten::mean", "aten::max", "aten::min", "aten::amax", "aten::norm", "aten::argmax")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Hold the inputs of a call: sizes, number type and bytes of an element of each.

    What is no tensor has no sizes and 0 bytes. ``whole`` is false where a list of tensors is among them,
    whose types a trace does not tell.
    """

    dims: tuple[Dims, ...]
    dtypes: tuple[str, ...]
    element_bytes: tuple[int, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Product:
    """Hold the sizes of one matrix product, ``batch`` times m x k by k x n."""

    batch: int
    m: int
    n: int
    k: int


def parse_inputs(shape: tuple[bytes, bytes]) -> Inputs:
    """Parse the raw "Input Dims" and "Input type" of a call; empty where they are not what they should be."""
    dims: object = None
    types: object = None
    try:
        if len(_RAWS.decode(shape[0] or b"[]")) <= MOST_INPUTS:  # before anything is built of it
            dims, types = (msgspec.json.decode(one or b"[]") for one in shape)
    except UNREADABLE:
        pass
    if not isinstance(dims, list) or not isinstance(types, list):
        return Inputs((), (), (), whole=False)
    sizes = tuple(map(_parse_size, dims))
    told = [read_type(one) if isinstance(one, str) else _UNKNOWN_TYPE for one in types[: len(sizes)]]
    told += [_UNKNOWN_TYPE] * (len(sizes) - len(told))
    plain, widths = tuple(size or () for size in sizes), tuple(width for width, _dtype in told)
    return Inputs(plain, tuple(dtype for _width, dtype in told), widths, whole=None not in sizes)


def _parse_size(given: object) -> Dims | None:
    """Return the sizes of one tensor, None for a list of tensors and for more sizes than a tensor has."""
    if not isinstance(given, list):
        return ()
    if len(given) > MOST_SIZES or not all(isinstance(one, int) for one in given):
        return None
    return tuple(given) if min(given, default=0) >= 0 and math.prod(given) < _WIDEST else ()


def name_kind(operator: str) -> str:
    """Tell which product an operator is: matmul, convolution, attention, or "" for none."""
    if operator in _FACTORS or operator in _LINEAR:
        return "matmul"
    if _CONV.match(operator):
        return "convolution"
    if operator.endswith("_math"):
        return ""
    return "attention" if _ATTENTION.search(operator, 0, SEARCHED_CHARS) else ""


def name_dtype(operator: str, inputs: Inputs) -> str:
    """Return the number type of the matrices, "" where it is not known or they differ.

    Of what is no plain matrix product all tensors count, of which every one must have the same type.
    """
    matrices = _FACTORS.get(operator, (0, 1) if operator in _LINEAR else None)
    places = range(len(inputs.dims)) if matrices is None else matrices
    found = {inputs.dtypes[at] for at in places if at < len(inputs.dims) and inputs.dims[at]}
    return found.pop() if len(found) == 1 else ""


def measure_product(operator: str, inputs: Inputs) -> Product | None:
    """Return the sizes of a matrix product; None where they are not known or do not fit."""
    dims = inputs.dims
    if operator in _LINEAR:
        if len(dims) < 2 or not dims[0] or len(dims[1]) != 2 or dims[0][-1] != dims[1][1]:
            return None
        return Product(1, math.prod(dims[0][:-1]), dims[1][0], dims[1][1])
    places = _FACTORS.get(operator)
    if places is None or len(dims) <= places[1]:
        return None
    left, right = dims[places[0]], dims[places[1]]
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    return Product(math.prod(left[:-2]), left[-2], right[-1], left[-1])


def key_convolution(operator: str, inputs: Inputs) -> tuple[tuple[Dims, Dims], Dims] | None:
    """Return input, weight and output sizes of a backward convolution: its forward does not tell the last."""
    dims = inputs.dims
    if operator != CONV_BACKWARD or len(dims) < 3 or len({len(one) for one in dims[:3]}) != 1:
        return None
    output, image, weight = dims[:3]
    grows = any(out > size + side for out, size, side in zip(output[2:], image[2:], weight[2:], strict=True))
    if not 3 <= len(output) <= 5 or output[1] != weight[0] or grows:
        return None  # a transposed one, of which the sizes mean something else
    return (image, weight), output


def count_flops(operator: str, inputs: Inputs, outputs: Mapping[tuple[Dims, Dims], Dims]) -> float:
    """Return the additions and multiplications of one call, NaN where shapes do not tell.

    ``outputs`` are the output sizes of convolutions by sizes of input and weight.
    """
    product = measure_product(operator, inputs)
    if product is not None:
        return 2.0 * product.batch * product.m * product.n * product.k
    backward = key_convolution(operator, inputs)
    if backward is not None:
        (_image, weight), output = backward
        return 2 * _count_convolution(weight, output)  # the gradients of input and weight
    attention = _count_attention(operator, inputs.dims)
    if attention is not None:
        return attention
    dims = inputs.dims
    if len(dims) > 1 and _CONV.match(operator) and (dims[0], dims[1]) in outputs:
        return _count_convolution(dims[1], outputs[dims[0], dims[1]])
    return math.nan


_HEADS_SECOND = re.compile(r"^aten::_scaled_dot_product_(?:fused|flash|efficient|cudnn)_attention")
"""Operators whose inputs are batch x heads x length x width; kernels of the others have the length second."""


def _count_attention(operator: str, dims: tuple[Dims, ...]) -> float | None:
    """Count fused attention as torch.utils.flop_counter does: 2 products forward, 5 backward, no mask.

    None for what is none, or has its sequences packed into one.
    """
    backward = operator.endswith("_backward")
    first = 1 if backward else 0  # the gradient of the output stands before the inputs
    if name_kind(operator) != "attention" or len(dims) < first + 3:
        return None
    query, key, value = dims[first : first + 3]
    if not len(query) == len(key) == len(value) == 4:
        return None
    heads, length = (1, 2) if _HEADS_SECOND.match(operator) else (2, 1)
    scores = query[0] * query[heads] * query[length] * key[length]
    products = (3 * query[3] + 2 * value[3]) if backward else query[3] + value[3]
    return 2.0 * scores * products


def _count_convolution(weight: Dims, output: Dims) -> float:
    """Count one pass: each output element is a sum over a filter. ``weight`` is out, in / groups, sizes."""
    return 2.0 * math.prod(output) * math.prod(weight[1:])


def count_bytes(operator: str, inputs: Inputs) -> float:
    """Return the bytes that one call must read and write, each once; NaN where shapes do not tell."""
    if not inputs.whole or not inputs.dims:
        return math.nan
    each = [math.prod(size) * width for size, width in zip(inputs.dims, inputs.element_bytes, strict=True)]
    if not inputs.element_bytes[0]:
        return math.nan
    product = measure_product(operator, inputs)
    if product is not None and name_dtype(operator, inputs):
        width = inputs.element_bytes[_FACTORS.get(operator, (0, 1))[0]]
        sides = product.m * product.k + product.k * product.n + product.m * product.n
        return float(product.batch * sides * width)
    if operator == "aten::copy_":
        return float(sum(each[:2])) if len(each) > 1 and inputs.element_bytes[1] else math.nan
    if operator in _WRITES or operator in _READS:
        return float(each[0])
    if operator in _NORMS:
        return 2.0 * each[0]
    if _ELEMENTWISE.match(operator):
        width = inputs.element_bytes[0] if operator.endswith("_") else max(inputs.element_bytes)
        aligned = zip_longest(*map(reversed, inputs.dims), fillvalue=1)  # of a broadcast the widest counts
        return float(sum(each) + width * math.prod(map(max, aligned)))
    return math.nan
