"""Read settings of torch, loader, optimizer, DDP and FSDP, and the types and shapes of a batch.

They come from torch's C functions and from attributes, because torch's own properties print warnings.
Nothing is imported. What a version of torch does not have stays unknown.
"""

from __future__ import annotations

import itertools
import sys

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.context import is_from_handler
from tpmon.hook.device import OTHER, find_device
from tpmon.hook.memory import Activations, Memory
from tpmon.hook.tensors import bypass_functions, choose_wrapper, count_sizes, list_parameters, refer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


_SIZES_EVERY = 12
"""Readings between two sums of sizes, which change seldom: the second reading, then once a minute."""

_DYNAMO = slice(wire.SET_DYNAMO_FRAMES, wire.SET_DYNAMO_LIMIT_HITS + 1)
_DDP = slice(wire.SET_DDP_BUCKET_CAP, wire.SET_DDP_STATIC_GRAPH + 1)
_FSDP = slice(wire.SET_FSDP_VERSION, wire.SET_FSDP_LIMIT + 1)
_LOADER = slice(wire.SET_WORKERS, wire.SET_BATCH_SIZE + 1)
_SIZES = slice(wire.SET_PARAMETERS, wire.SET_OPTIMIZER_STATE + 1)

_MOST_MODULES = 10_000
_MOST = 1 << 62
"""Larger numbers are unknown: a word of the bus has 64 bits."""

_FSDP_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_STATES = "torch.distributed._composable_state"
_BACKWARD = {"BACKWARD_PRE": wire.FSDP_BACKWARD_PRE, "BACKWARD_POST": wire.FSDP_BACKWARD_POST}

# Functions of torch._C without arguments.
_NUMBERS = (
    (wire.SET_CUDNN_BENCHMARK, "_get_cudnn_benchmark"),
    (wire.SET_CUDNN_DETERMINISTIC, "_get_cudnn_deterministic"),
    (wire.SET_DETERMINISTIC, "_get_deterministic_algorithms"),
    (wire.SET_ANOMALY, "is_anomaly_enabled"),
    (wire.SET_THREADS, "get_num_threads"),
    (wire.SET_INTEROP_THREADS, "get_num_interop_threads"),
)
_SDPA = (
    (wire.SDPA_FLASH, "_get_flash_sdp_enabled"),
    (wire.SDPA_MEM_EFFICIENT, "_get_mem_efficient_sdp_enabled"),
    (wire.SDPA_MATH, "_get_math_sdp_enabled"),
    (wire.SDPA_CUDNN, "_get_cudnn_sdp_enabled"),
)
_MEMORY = (
    (wire.SET_ALLOCATED, ("allocated_bytes", "all", "current")),
    (wire.SET_RESERVED, ("reserved_bytes", "all", "current")),
    (wire.SET_INACTIVE_SPLIT, ("inactive_split_bytes", "all", "current")),
    (wire.SET_PEAK_ALLOCATED, ("allocated_bytes", "all", "peak")),
    (wire.SET_PEAK_RESERVED, ("reserved_bytes", "all", "peak")),
    (wire.SET_ALLOC_RETRIES, ("num_alloc_retries",)),
    (wire.SET_OOMS, ("num_ooms",)),
)
_LIMIT_WORDS = ("recompile limit", "recompile_limit", "cache_size_limit", "cache size limit")


class Settings:
    """Hold the settings that were read last, as ``words`` of the bus.

    ``ddp`` and ``fsdp`` are weak references to the wrappers that are trained. ``guard`` tells the program's
    profilers from ours, once a capture was asked for.
    """

    def __init__(self) -> None:
        self.words = [wire.UNKNOWN] * wire.SETTINGS_WORDS
        self.words[wire.SET_NUMBER] = self.words[wire.SET_NUMBER_AGAIN] = 0
        self.ddp: Any = None
        self.fsdp: Any = None
        self.guard: Any = None
        self.memory = Memory(self.words)
        self.activations = Activations(self.words)
        self._readings = 0

    def begin(self) -> None:
        """Begin a watched step."""
        self._attempt(self.memory.begin)

    def see_turn(self, ended: int) -> None:
        """Note what is allocated where this part of the step ended (``device.BATCH`` ...)."""
        self._attempt(lambda: self.memory.note(ended))

    def note_wrappers(self, ddp: list[Any], fsdp: list[Any], optimizer: Any) -> None:
        """Choose once a minute, of all DDP and FSDP wrappers made, those that this optimizer works on."""
        if self._readings % _SIZES_EVERY <= 1:
            self._attempt(lambda: self._choose(ddp, fsdp, optimizer))

    def see_loader(self, iterator: object) -> None:
        """Note the arguments of this iterator's DataLoader."""
        self._attempt(lambda: self._read_loader(iterator.__dict__))

    def see_backward(self, optimizer: Any = None) -> None:
        """Note autocast and gradients where a backward begins; ``optimizer`` is a weak reference."""
        self._attempt(self._read_autocast)
        if self._readings % _SIZES_EVERY == 1:
            self._attempt(lambda: self.activations.see_backward(optimizer, self.memory.device))

    def see_optimizer(self, optimizer: object) -> None:
        """Note the sizes of the tensors that this optimizer works on."""
        if self._readings % _SIZES_EVERY == 1:
            self._attempt(lambda: self._read_sizes(optimizer))

    def read(self, now: int) -> list[int]:
        """Read the rest; return all as words of the bus."""
        self.see_turn(OTHER)
        for part in (self._read_switches, self._read_precision, self._read_autocast):
            self._attempt(part)
        for part in (self._read_dynamo, self._read_memory, self._read_ddp, self._read_fsdp, self._read_group):
            self._attempt(part)
        self._readings += 1
        words = [one if one.__class__ is int and abs(one) < _MOST else wire.UNKNOWN for one in self.words]
        words[wire.SET_NUMBER] = words[wire.SET_NUMBER_AGAIN] = self._readings
        words[wire.SET_TIME_NS] = now
        self.words[wire.SET_AUTOCAST] = wire.UNKNOWN  # found out anew by the next reading
        return words

    def _attempt(self, read: Callable[[], None]) -> None:
        """Read one part; it stays unknown where this torch or this program has it otherwise."""
        try:
            if "torch" in sys.modules:
                read()
        except Exception as error:
            if is_from_handler(error):
                raise  # a signal handler of the user may raise; the program's modules and types may not

    def _write(self, group: slice, told: Sequence[int]) -> None:
        """Write the words of a group; ValueError where they are not all, which would move those behind."""
        if len(told) != group.stop - group.start:
            raise ValueError(f"{len(told)} words for {group}")
        self.words[group] = told

    def _choose(self, ddp: list[Any], fsdp: list[Any], optimizer: Any) -> None:
        several = len(ddp) > 1 or len(fsdp) > 1
        wanted: frozenset[int] = list_parameters(optimizer) if several else frozenset()
        self.ddp, self.fsdp = (refer(choose_wrapper(made, wanted)) for made in (ddp, fsdp))

    def _read_loader(self, of: dict[str, Any]) -> None:
        factor = of.get("_prefetch_factor")
        told = getattr(of.get("_index_sampler"), "__dict__", {})
        size = told.get("batch_size")
        if told.get("split_batches") and isinstance(size, int):  # Accelerate's: the size over all ranks
            size //= told["num_processes"]
        told = [
            int(of["_num_workers"]),
            int(bool(of["_pin_memory"])),
            factor if isinstance(factor, int) else wire.UNKNOWN,
            int(bool(of.get("_persistent_workers", False))),
            size if isinstance(size, int) else wire.UNKNOWN,
        ]
        self._write(_LOADER, told)

    def _read_switches(self) -> None:
        compiled: Any = sys.modules["torch"]._C  # noqa: SLF001
        for word, name in _NUMBERS:
            read = getattr(compiled, name, None)
            self.words[word] = int(read()) if read is not None else wire.UNKNOWN
        if hasattr(compiled, "_get_flash_sdp_enabled"):
            self.words[wire.SET_SDPA] = sum(
                bit for bit, name in _SDPA if hasattr(compiled, name) and getattr(compiled, name)()
            )
        guard = self.guard
        records = compiled._autograd._profiler_enabled() if guard is None else guard.sees_other()  # noqa: SLF001
        self.words[wire.SET_PROFILER] = int(records)

    def _read_precision(self) -> None:
        compiled: Any = sys.modules["torch"]._C  # noqa: SLF001
        read = getattr(compiled, "_get_fp32_precision_getter", None)
        if read is not None:  # where it is there, the older functions warn
            matmul, convolution = read("cuda", "matmul") == "tf32", read("cuda", "conv") == "tf32"
        else:
            matmul, convolution = compiled._get_cublas_allow_tf32(), compiled._get_cudnn_allow_tf32()  # noqa: SLF001
        self.words[wire.SET_MATMUL_TF32], self.words[wire.SET_CUDNN_TF32] = int(matmul), int(convolution)

    def _read_autocast(self) -> None:
        if self.words[wire.SET_AUTOCAST] > 0:
            return  # it was on where the backward began
        torch: Any = sys.modules["torch"]
        self.words[wire.SET_AUTOCAST] = 0
        self.words[wire.SET_AUTOCAST_DTYPE] = wire.UNKNOWN
        if hasattr(torch, "get_autocast_dtype"):
            device = next((one for one in ("cuda", "cpu") if torch.is_autocast_enabled(one)), "")
            dtype = torch.get_autocast_dtype(device) if device else None
        else:
            dtype = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
        if dtype is None:
            return
        known = {getattr(torch, name): word for word, name in wire.DTYPES.items()}
        self.words[wire.SET_AUTOCAST] = 1
        self.words[wire.SET_AUTOCAST_DTYPE] = known.get(dtype, wire.DTYPE_OTHER)

    def _read_dynamo(self) -> None:
        utils = sys.modules.get("torch._dynamo.utils")
        counters: Any = getattr(utils, "counters", None) or {}
        frames: dict[str, int] = counters.get("frames", {})
        graphs = counters.get("stats", {}).get("unique_graphs", 0)
        if not frames and not graphs:  # of fullgraph=True no frames are counted
            if hasattr(sys.modules["torch"], "compile"):  # nothing is compiled, and could be
                self._write(_DYNAMO, [0] * 5)
            return
        breaks: dict[str, int] = counters.get("graph_break", {})
        # torch keeps what became of the last 64 compilations.
        failed = [str(getattr(one, "fail_reason", "")) for one in getattr(utils, "_compilation_metrics", ())]
        hits = sum(any(one in why for one in _LIMIT_WORDS) for why in failed)
        hits = max(hits, self.words[wire.SET_DYNAMO_LIMIT_HITS])
        self._write(
            _DYNAMO, [frames.get("total", 0), frames.get("ok", 0), graphs, sum(breaks.values()), hits]
        )

    def _read_memory(self) -> None:
        stats = _read_allocator()
        self.words[wire.SET_CUDA] = int(stats is not None)
        for word, path in _MEMORY:
            found: Any = stats
            for name in path:
                found = found[name] if found is not None else None
            self.words[word] = int(found) if found is not None else wire.UNKNOWN
        self.memory.tell_phase()
        self.words[wire.SET_ACTIVATIONS] = self.activations.estimate()

    def _read_sizes(self, optimizer: object) -> None:
        sizes = count_sizes(optimizer, self.memory.device)
        self.activations.see_update(sizes, self.memory.device)
        self._write(_SIZES, [wire.UNKNOWN] * 3 if sizes is None else sizes.all)

    def _read_ddp(self) -> None:
        module = self.ddp() if self.ddp is not None else None
        if module is None:
            self._write(_DDP, [wire.UNKNOWN] * 4)
            return
        told = module._get_ddp_logging_data()  # noqa: SLF001
        buckets = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
        count = buckets.count(",") + 1 if buckets else wire.UNKNOWN
        flags = module.find_unused_parameters, getattr(module, "static_graph", False)
        self._write(_DDP, [int(told["bucket_cap_bytes"]), count, *(int(bool(one)) for one in flags)])

    def _read_group(self) -> None:
        group = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        if group is not None and group.default_pg is not None and self.words[wire.SET_TIMEOUT_S] < 0:
            backend = group.default_pg._get_backend(sys.modules["torch"].device("cuda"))  # noqa: SLF001
            self.words[wire.SET_TIMEOUT_S] = int(backend.options._timeout.total_seconds())  # noqa: SLF001

    def _read_fsdp(self) -> None:
        if self._readings % _SIZES_EVERY > 1:
            return  # it walks through modules, and changes seldom
        root = self.fsdp() if self.fsdp is not None else None
        self._write(_FSDP, [wire.UNKNOWN] * 5)
        if told := _describe_wrapper(root) if root is not None else _describe_sharded():
            self._write(_FSDP, told)


def _describe_wrapper(root: Any) -> tuple[int, ...]:
    """Return version, units, prefetches and limit of a FullyShardedDataParallel."""
    kind = type(root)
    units = sum(type(one) is kind for one in itertools.islice(root.modules(), _MOST_MODULES))
    order = getattr(root.backward_prefetch, "name", "")
    backward = _BACKWARD.get(order, wire.FSDP_NO_PREFETCH)
    return 1, units, int(bool(root.forward_prefetch)), backward, int(bool(root.limit_all_gathers))


def _describe_sharded() -> tuple[int, ...]:
    """Return the same of what fully_shard was applied to, without a limit; nothing where it was not."""
    kind: Any = getattr(sys.modules.get(_FSDP_STATE), "FSDPState", None)
    states: Any = getattr(sys.modules.get(_STATES), "_module_state_mapping", None)
    if kind is None or not states:
        return ()
    found = {}
    for reference in itertools.islice(list(states.values()), _MOST_MODULES):
        state = reference()
        if issubclass(type(state), kind):
            found[id(state)] = state
    forward = sum(bool(one._states_to_forward_prefetch) for one in found.values())  # noqa: SLF001
    backward = sum(bool(one._states_to_backward_prefetch) for one in found.values())  # noqa: SLF001
    return (2, len(found), forward, backward, wire.UNKNOWN) if found else ()


def _read_allocator() -> Any:
    """Return what the caching allocator says of the device in use; None where CUDA is not in use."""
    torch: Any = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return None
    device = find_device(torch)
    return torch._C._cuda_memoryStats(device) if device >= 0 else None  # noqa: SLF001


_MOST_TENSORS = 16
_MOST_PARTS = 64
"""Parts of a batch that are described: a batch may be a list of thousands of samples."""

_DEEPEST = 3


def describe_batch(batch: object) -> list[str]:
    """Return "name float32[8, 512]" of the first 16 tensors in a batch; names where it has keys.

    Only plain tensors, lists, tuples and dictionaries are entered: another type may run code of the user.
    """
    found: list[str] = []
    try:
        if "torch" in sys.modules:
            with bypass_functions():
                _collect(batch, "", _DEEPEST, found)
    except Exception as error:
        if is_from_handler(error):
            raise  # a signal handler of the user raised in here
    return found[:_MOST_TENSORS]


def _collect(part: Any, name: str, deeper: int, found: list[str]) -> None:
    torch: Any = sys.modules["torch"]
    kind = type(part)
    if kind is torch.Tensor:
        text = f"{str(part.dtype).partition('.')[2]}{list(part.shape)}"
        found.append(f"{name} {text}" if name else text)
    elif deeper and issubclass(kind, (list, tuple)):
        plain = list if issubclass(kind, list) else tuple
        for one in plain.__getitem__(part, slice(_MOST_PARTS)):
            _collect(one, name, deeper - 1, found)
    elif deeper:
        inner = part if issubclass(kind, dict) else _read_data(part)
        if issubclass(type(inner), dict):
            for at, (key, one) in enumerate(dict.items(inner)):
                if at >= _MOST_PARTS:
                    break
                _collect(one, key[:40] if type(key) is str else "", deeper - 1, found)


def _read_data(part: Any) -> Any:
    """Return the dictionary that batches of transformers keep in an attribute."""
    try:
        return object.__getattribute__(part, "__dict__").get("data")
    except AttributeError:
        return None
