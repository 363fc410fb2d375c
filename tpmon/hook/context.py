"""Read the hook's surroundings: the part of its process in the job, torch's version, whose error it is.

Nothing here imports torch: it is taken from ``sys.modules``.
"""

from __future__ import annotations

import os
import sys
from operator import index
from weakref import WeakKeyDictionary

from tpmon.hook.bus.wire import UNKNOWN_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_HERE_AS_COMPILED = (_HERE, os.path.dirname(__file__) + os.sep)
_TORCH_HANDLER = os.path.join("torch", "utils", "data", "_utils", "signal_handling.py")
"""Here torch's signal handler raises when a worker of its DataLoader died; the program may catch that."""

_MOST_SAMPLES = 1 << 30
"""Of one step; sys.maxsize as the size of a batch means all there are."""

_WITHIN = 3
"""Nested samplers that are searched for the size of a batch."""

_VARIABLE = 4
"""CO_VARARGS of a code's flags: it takes ``*args``."""

GRAPHS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""CUDA graphs that are being captured, in any thread: asking a device for anything breaks them."""


def is_loader_worker() -> bool:
    """Tell whether this process is a DataLoader worker."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def torch_folder() -> str:
    """Return the folder of the torch that is imported, ending in a slash."""
    return os.path.dirname(os.path.abspath(str(sys.modules["torch"].__file__))) + os.sep


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as "2.13.0+cu126"; zeros where there are none."""
    numbers = [int(part) if part.isdigit() else 0 for part in text.partition("+")[0].split(".")[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def read_torch_version() -> str:
    """Return the version of the torch that is imported, "" without one."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


def read_put_in() -> tuple[int, str]:
    """Return when and by which tpmon, which notes it, the hook was put into this running process; 0 else."""
    told: tuple[int, str] | None = getattr(sys.modules.get("tpmon"), "put_in", None)
    return told or (0, "")


def has_gradients_on() -> bool:
    """Tell whether gradients are enabled in this thread; an evaluation turns them off."""
    ask = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return ask is not None and bool(ask())


def count_of(samples: object) -> int:
    """Return a number of samples that the program gave, 0 where it is no plausible one."""
    try:
        number = index(samples)  # type: ignore[arg-type]
    except TypeError:
        return 0
    return number if 0 < number < _MOST_SAMPLES else 0


def find_sized(told: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of the nested sampler that has a batch size, or an empty dictionary.

    Ultralytics and timm repeat a sampler, Accelerate skips batches of one. No code of a user's sampler
    runs: even testing its truth would call its ``__len__``.
    """
    for _ in range(_WITHIN):
        inner = told.get("batch_sampler")
        if inner is None:
            inner = told.get("sampler")
        told = getattr(inner, "__dict__", {})
        if not told or "batch_size" in told:
            return told
    return {}


def read_ranks() -> tuple[int, int, int]:
    """Return rank, world size and local rank, by the process group or the environment; -1 for unknown."""
    rank, world = _read_number("RANK"), _read_number("WORLD_SIZE")
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    except (AttributeError, RuntimeError, ValueError):
        pass  # no process groups, or they are being torn down: the environment decides
    return rank, world, _read_number("LOCAL_RANK")


def count_collectives() -> int:
    """Return how many collectives the default process group began, which all ranks count alike; 0 without."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        return int(world.default_pg._get_sequence_number_for_group())  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return 0  # no process group, or a back end that does not count


def is_of_python(thread: int) -> bool:
    """Tell whether a thread was started by Python, unlike those of torch's engine."""
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return True
    one = threading._active.get(thread)  # noqa: SLF001 current_thread() would make one
    return one is not None and not isinstance(one, threading._DummyThread)  # noqa: SLF001


def is_ours(error: BaseException) -> bool:
    """Tell whether an error raised in the hook is the hook's own, or of what it called.

    A signal handler of the user may raise while our code runs: that error is the user's to catch. So is
    what another thread has this one raise (PyThreadState_SetAsyncExc, by which wandb ends a run): a bare
    Exception, which neither we nor Python raise. A function of the program that it put in place of
    ``os.open`` refuses us, and not its loop.
    """
    if type(error) is Exception:
        return False
    files = [trace.tb_frame.f_code.co_filename for trace in _list_traces(error)]
    return not any(file.endswith(_TORCH_HANDLER) for file in files) and not is_from_handler(error)


def is_of_torch(error: BaseException) -> bool:
    """Tell whether an error was raised within torch, or where a recorder of ours calls its C functions."""
    traces = _list_traces(error)
    file = os.path.abspath(traces[-1].tb_frame.f_code.co_filename) if traces else ""
    return file.startswith((torch_folder(), os.path.join(_HERE, "capture", "recorder"), f"{_HERE}device."))


def is_from_handler(error: BaseException) -> bool:
    """Tell whether an error raised where code of the program may run came from a signal handler.

    Hardly any other function has a frame among its arguments; handlers without one are those in place.
    """
    import signal  # noqa: PLC0415 torch imported it; the hook alone does without

    codes = [_find_code(signal.getsignal(number)) for number in range(1, signal.NSIG)]
    frames = [trace.tb_frame for trace in _list_traces(error)]
    return any(
        not one.f_code.co_filename.startswith(_HERE_AS_COMPILED)
        and (one.f_code in codes or _takes_frame(one))
        for one in frames
    )


def _takes_frame(frame: FrameType) -> bool:
    code = frame.f_code
    number = code.co_argcount + bool(code.co_flags & _VARIABLE)
    found = [frame.f_locals.get(name) for name in code.co_varnames[:number]]
    if code.co_flags & _VARIABLE and found and type(found[-1]) is tuple:
        found.extend(found[-1])
    return any(type(one) is type(frame) for one in found)


def _find_code(handler: object) -> object:
    """Return the code that a handler runs first; None where that is not Python."""
    try:
        for name in ("func", "__func__"):  # a partial, a method
            handler = getattr(handler, name, handler)
        if not callable(handler):
            return None
        called = getattr(type(handler).__call__, "__code__", None)
        return getattr(handler, "__code__", called)
    except Exception:
        return None  # an object of the program raised


def describe(error: BaseException) -> str:
    """Name an error and where it was raised."""
    where = [f" ({one.tb_frame.f_code.co_name}, line {one.tb_lineno})" for one in _list_traces(error)]
    return f"{type(error).__name__}: {error}{''.join(where[-1:])}"


def _list_traces(error: BaseException) -> list[TracebackType]:
    """List the places that an error passed, that where it was raised last."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _read_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else UNKNOWN_RANK
