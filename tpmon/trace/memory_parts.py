"""What the stacks of a memory snapshot tell: lines of the program, what the bytes are, what makes room."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.snapshot import CategoryBytes, MemoryVerdict, OutOfMemory, Pieces, StackBytes
from tpmon.model.units import count_of, format_bytes
from tpmon.trace.own_lines import LineOwner, find_owner

MOST_FRAMES_SHOWN = 40
_INNERMOST = 8
"""Frames that are shown of a longer stack whatever they are: the others are those of Python."""
_CACHED = 1 << 16
_PLACE = re.compile(r"^(?P<file>.*):\d+ (?P<function>.*)$")
_PYTHON = re.compile(r"\.pyw?$|^<|^/(?:[^/]+/)*(?!python)[^/.]+$")
"""Files of Python, cells of notebooks, and programs without an ending."""


@lru_cache(_CACHED)
def is_of_program(frame: str) -> bool:
    """Tell whether a frame is a Python line of no package."""
    found = _PLACE.match(frame)
    if found is None:
        return False
    if _PYTHON.search(found["file"].replace("\\", "/")) is None:
        return False
    return find_owner(found["file"], found["function"], cut=False) is LineOwner.PROGRAM


def own_line(frames: Sequence[str]) -> Known[str]:
    """Return the innermost Python line that is of no package."""
    if not frames:
        return Missing("no stack was recorded")
    line = next(filter(is_of_program, frames), None)
    return line if line is not None else Missing("no line outside of packages in the stack")


def show_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the frames of a stack that are shown; of a long one those of Python."""
    if len(frames) <= MOST_FRAMES_SHOWN:
        return tuple(frames)
    inner = tuple(frames[:_INNERMOST])
    return (*inner, *(one for one in frames[_INNERMOST:] if ".py:" in one))[:MOST_FRAMES_SHOWN]


PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
ACTIVATIONS, OTHER, UNTOLD = "activations", "other", "untold"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, OTHER, UNTOLD)
"""What bytes are; untold without a stack."""
_BUILDS = r"__init__|reset_parameters|_apply|convert|to|to_empty|cuda|half|bfloat16|_?load_\w+|_load\w*"
_PATTERNS = {
    OPTIMIZER: (
        r"(?:^|/)torch/optim/(?!lr_scheduler|swa_utils)|/bitsandbytes/optim/|/apex/optimizers/|/torch_optimizer/",
        r"/transformers/optimization\.py|/deepspeed/ops/\w*(?:adam|lamb|lion)|/muon\.py",
    ),
    GRADIENTS: (
        r"AccumulateGrad|accumulate_grad|autograd::(?:Engine|python::PythonEngine)|/autograd/engine\.cpp",
        r"c10d::Reducer|/reducer\.cpp|_ddp_init_helper$|_post_backward|foreach_reduce$|_reduce_grad",
        r"(?:^|/)torch/(?:_tensor\.py|autograd/(?:__init__|graph)\.py)| backward$",
    ),
    PARAMETERS: (
        r"(?:^|/)torch/nn/(?:parameter|init)\.py|(?:^|/)torch/serialization\.py|/safetensors/",
        rf"(?:^|/)torch/nn/modules/\w+\.py:\d+ (?:{_BUILDS})$|/_?fsdp/_flat_param\.py|/_fsdp_param\.py",
        r"/transformers/modeling_utils\.py:\d+ (?:_?load\w*|from_pretrained|_init\w*)| load_state_dict$",
    ),
    ACTIVATIONS: (
        r"(?:^|/)torch/nn/(?:functional|modules/\w+)\.py|(?:^|/)torch/utils/checkpoint\.py| forward$",
    ),
}
_WORKSPACES = r"CUDABlasHandle|CublasHandlePool|getNewWorkspace|[cC]udnn\w*Workspace"
_RULES = tuple(
    (category, re.compile("|".join(patterns)))
    for category, patterns in ((OTHER, (_WORKSPACES,)), *_PATTERNS.items())
)
"""The first rule that fits a frame says what it allocated."""
_LAST_RULE = re.compile(r" __init__$")
"""Where nothing else tells: what an object of the program makes for itself is held with it."""


@lru_cache(_CACHED)
def _sort_frame(frame: str) -> str:
    plain = frame.replace("\\", "/")
    return next((category for category, rule in _RULES if rule.search(plain)), "")


def sort_stack(frames: Sequence[str]) -> str:
    """Tell what was allocated by a stack: what the innermost frame that tells anything says."""
    if not frames:
        return UNTOLD
    told = next(filter(None, map(_sort_frame, frames)), "")
    return told or (PARAMETERS if any(_LAST_RULE.search(frame) for frame in frames) else OTHER)


LEAST_KEPT = 5
"""Blocks of one stack that stay, each from a pass of its own, before a device is said to fill up."""
_PASSES = 0.75
GROWS_PCT = 10.0
"""What of the allocated memory such blocks take, at least, before they are what fills it."""


def find_growth(
    kept: Mapping[int, Sequence[int]], passes: Sequence[int], categories: Mapping[int, str]
) -> Collection[int]:
    """Return the stacks of which one more block stays with each pass of the training.

    ``kept`` are the places in the history of the blocks of each stack that are still there, ``passes`` how
    many allocations of backward passes and optimizers were before each place.
    """
    found = []
    for stack, places in kept.items():
        if len(places) < LEAST_KEPT or categories[stack] in (PARAMETERS, GRADIENTS, OPTIMIZER):
            continue
        apart = sum(passes[after] > passes[before] for before, after in pairwise(places))
        if apart >= _PASSES * (len(places) - 1):
            found.append(stack)
    return found


STUCK_PCT = 20.0
"""From this part of the reserved memory on, what is free and stuck is worth a setting."""
_EXPANDABLE = "start it with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_RECORD = "torch.cuda.memory._record_memory_history(max_entries=100_000) before the first allocation"
REMEDIES = {
    PARAMETERS: "shard them over the ranks (fully_shard), or hold them in bf16",
    GRADIENTS: "optimizer.zero_grad(set_to_none=True) before the forward pass, or shard them (fully_shard)",
    OPTIMIZER: "shard it over the ranks (fully_shard, ZeroRedundancyOptimizer)",
    ACTIVATIONS: "torch.utils.checkpoint around blocks of the model, or half the batch, accumulated twice",
    OTHER: "del what the line holds before the forward pass, or make it later",
}
"""What makes room, by what takes most of it."""


def judge_memory(
    pieces: Pieces,
    categories: Sequence[CategoryBytes],
    alive: Sequence[StackBytes],
    growing: Sequence[StackBytes],
    failed: tuple[OutOfMemory, Known[int]] | None,
    *,
    expandable: bool,
) -> MemoryVerdict:
    """Say what holds the memory of a device, and the one thing to try.

    ``alive`` is by stack what was there at the peak where that is known, else at the end. ``failed`` is the
    last request that failed, and what was free of the reserved memory then.
    """
    if 100 * sum(row.bytes for row in growing) < GROWS_PCT * pieces.allocated_bytes:
        growing = ()
    begin = ""
    if failed is not None:
        request, free = failed
        begin = f"{format_bytes(request.asked_bytes)} were asked for in vain; "
        if is_known(free) and free >= request.asked_bytes and not expandable and not growing:
            said = f"{begin}{format_bytes(free)} of what is reserved were free, in pieces that are too small"
            return MemoryVerdict("fragmented", said, _EXPANDABLE)
    if growing:
        bytes_, blocks = sum(row.bytes for row in growing), sum(row.blocks for row in growing)
        what = f"{format_bytes(bytes_)} in {count_of(blocks, 'block')} stay, more with each pass"
        said = f"{begin}{what}{_at(growing)}"
        return MemoryVerdict(
            "grows", said, "keep numbers and no tensors there: loss.item(), output.detach().cpu()"
        )
    at_peak = {row.name: row.peak_bytes for row in categories if is_known(row.peak_bytes)}
    stuck_pct = 100 * pieces.stuck_bytes / max(pieces.reserved_bytes, 1)
    # One large block, and what the peak was made of, is reused: between two steps it is merely free.
    lost = min(pieces.stuck_bytes, pieces.free_bytes - pieces.largest_free_bytes)
    lost = min(lost, pieces.reserved_bytes - sum(at_peak.values())) if at_peak else lost
    if failed is None and 100 * lost >= STUCK_PCT * max(pieces.reserved_bytes, 1) and not expandable:
        stuck = format_bytes(pieces.stuck_bytes)
        said = f"{stuck} are free beside blocks in use, {stuck_pct:.0f} % of what is reserved"
        return MemoryVerdict("fragmented", said, _EXPANDABLE)
    cause = "full" if failed is not None else "held"
    bytes_of = at_peak or {row.name: row.live_bytes for row in categories}
    told = {name: count for name, count in bytes_of.items() if name != UNTOLD}
    most, whole = max(told, key=lambda name: told[name], default=UNTOLD), sum(bytes_of.values())
    if not whole:
        return MemoryVerdict("empty", "nothing is allocated", Missing("there is nothing to free"))
    if not told.get(most) or told[most] < bytes_of.get(UNTOLD, 0):
        return MemoryVerdict(cause, f"{begin}most of what is alive has no stack", _RECORD)
    when = "the peak" if at_peak else "what is alive"
    said = f"{begin}{most} are {100 * told[most] / whole:.0f} % of {when}, {format_bytes(told[most])}"
    of_most = [row for row in alive if sort_stack(row.frames) == most]
    return MemoryVerdict(cause, f"{said}{_at(of_most)}", REMEDIES[most])


def _at(rows: Sequence[StackBytes]) -> str:
    line = next((row.line for row in rows if is_known(row.line)), None)
    return f", the most from {line}" if line else ""
