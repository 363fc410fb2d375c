"""Read what is around the hook: its process's part in the job, the torch that is there, whose error it is.

Nothing here imports torch; what it finds is already in ``sys.modules``.
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
_TORCH_HANDLER = os.path.join("torch", "utils", "data", "_utils", "signal_handling.py")
"""Where torch's own handler raises, for the program to catch: a worker of its DataLoader died."""

_MOST_SAMPLES = 1 << 30
"""Of one step; sys.maxsize as the size of a batch means all there are."""

_WITHIN = 3
"""Samplers around each other that are looked into for the size of a batch."""

_VARIABLE = 4
"""Of a code's flags: it takes ``*args``."""

GRAPHS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""CUDA graphs that are captured just now, in whatever thread: to ask a device for anything breaks them."""

_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def is_loader_worker() -> bool:
    """Tell whether this process is a DataLoader worker."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def torch_folder() -> str:
    """Return the folder of the torch that is imported, ending in a slash."""
    return os.path.dirname(os.path.abspath(str(sys.modules["torch"].__file__))) + os.sep


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as "2.13.0+cu126"; zeros for what is none."""
    numbers = [int(part) if part.isdigit() else 0 for part in text.partition("+")[0].split(".")[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def read_torch_version() -> str:
    """Return the version of the torch that is imported, "" without one."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


def has_gradients_on() -> bool:
    """Tell whether what this thread computes now may be differentiated; an evaluation turns that off."""
    ask = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return ask is not None and bool(ask())


def count_of(samples: object) -> int:
    """Return how many samples somebody says there were, 0 for what is no number of them."""
    try:
        number = index(samples)  # type: ignore[arg-type]
    except TypeError:
        return 0
    return number if 0 < number < _MOST_SAMPLES else 0


def find_sized(told: dict[str, Any]) -> dict[str, Any]:
    """Return the dictionary of the sampler with a batch size that another stands around, or an empty one.

    Ultralytics and timm repeat a sampler, Accelerate skips batches of one. No code of a user's sampler
    runs, nor is one asked whether it is true, which would be its length.
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
        pass  # a torch without process groups, or one that is being taken down: as the environment says
    return rank, world, _read_number("LOCAL_RANK")


def is_of_python(thread: int) -> bool:
    """Tell whether a thread was started by Python; those of torch's engine were not."""
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return True
    one = threading._active.get(thread)  # noqa: SLF001 looked at, where current_thread() would make one
    return one is not None and not isinstance(one, threading._DummyThread)  # noqa: SLF001


def is_ours(error: BaseException, called: str = _HERE) -> bool:
    """Tell whether an error that came up in the hook is the hook's own, or of the package it ``called``.

    A signal handler of the user may raise while our code runs. Then a frame of its file is in the
    traceback, and the error is the user's to catch. So is what another thread has this one raise
    (PyThreadState_SetAsyncExc, by which wandb ends a run), which has no such frame: a bare Exception, which
    neither we nor Python raise.
    """
    if type(error) is Exception:
        return False
    for trace in _list_traces(error):
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(_TORCH_HANDLER):
            return False
        standard = file.startswith((_STANDARD, "<frozen ")) and "-packages" not in file
        if not standard and not os.path.abspath(file).startswith((_HERE, called)):
            return False
    return True


def is_of_torch(error: BaseException) -> bool:
    """Tell whether an error came up within torch, or where a recorder of ours calls its C functions."""
    traces = _list_traces(error)
    file = os.path.abspath(traces[-1].tb_frame.f_code.co_filename) if traces else ""
    return file.startswith((torch_folder(), os.path.join(_HERE, "capture", "recorder"), f"{_HERE}device."))


def is_from_handler(error: BaseException) -> bool:
    """Tell whether an error that came up where code of the program may run came from a signal handler.

    One of its functions has the interrupted frame as an argument, as a handler has and little else; one that
    does not take it so is known by being in place.
    """
    import signal  # noqa: PLC0415 torch imported it; the hook alone does without

    codes = [_find_code(signal.getsignal(number)) for number in range(1, signal.NSIG)]
    frames = [trace.tb_frame for trace in _list_traces(error)]
    return any(
        not os.path.abspath(one.f_code.co_filename).startswith(_HERE)
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
    """Return the code that a handler runs first; None where it is none of Python's."""
    try:
        for name in ("func", "__func__"):  # a partial, a method
            handler = getattr(handler, name, handler)
        if not callable(handler):
            return None
        called = getattr(type(handler).__call__, "__code__", None)
        return getattr(handler, "__code__", called)
    except Exception:
        return None  # an odd object of the program's


def describe(error: BaseException) -> str:
    """Say what an error is and where it came up."""
    where = [f" ({one.tb_frame.f_code.co_name}, line {one.tb_lineno})" for one in _list_traces(error)]
    return f"{type(error).__name__}: {error}{''.join(where[-1:])}"


def _list_traces(error: BaseException) -> list[TracebackType]:
    """List the places that an error passed, that where it came up last."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _read_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else UNKNOWN_RANK
