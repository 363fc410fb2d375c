"""Keep two torch profilers from overlapping: torch drops one session silently, then crashes on it.

The program's profilers are followed from the first capture on; earlier ones are searched for once among all
objects. They count from their preparation on, which torch itself does not report.
"""

from __future__ import annotations

import gc
import os
import sys
from time import monotonic_ns, sleep
from weakref import WeakSet

from tpmon.hook.bus import wire_capture
from tpmon.hook.capture.recorder import has_recorded
from tpmon.hook.context import is_from_handler, parse_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PROFILER = "torch.autograd.profiler"
_BEGINS = ("_prepare_trace", "_start_trace", "__enter__")
_RANGES = ("emit_nvtx", "emit_itt")
_LONGEST_WAIT_NS = 2_000_000_000
_GRAPH_TREES = "torch._inductor.cudagraph_trees"
_FIRST_HISTORY = (2, 1)
"""Since this torch an allocator's history can be bounded, and limited to stacks of Python."""


class Guard:
    """Follow the program's profilers; ``ours`` is the one that we run."""

    def __init__(self, on_foreign: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        """Follow nothing yet; ``on_foreign`` ends ours before a profiler of the program begins.

        ``on_failure`` takes an error in following: from then on nobody knows whether one records.
        """
        self.ours: Any = None
        self._on_foreign = on_foreign
        self._on_failure = on_failure
        self._foreign: WeakSet[Any] = WeakSet()
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Wrap the beginnings and the end of torch's profiler, once, and look for those under way."""
        if self._replaced:
            return
        module = sys.modules[_PROFILER]
        profile: Any = module.__dict__["profile"]
        for name in (*_BEGINS, "__exit__"):
            if name in profile.__dict__:
                self._wrap(profile, name)
        for emitter in filter(None, map(module.__dict__.get, _RANGES)):
            self._wrap(emitter, "__enter__")
            self._wrap(emitter, "__exit__")
        for one in _list_instances(profile):
            # type(), because __class__ of a proxy is code of the program.
            if issubclass(type(one), profile):
                state = one.__dict__
                if state.get("entered") and state.get("kineto_results") is None:
                    self._foreign.add(one)

    def take_back(self) -> None:
        """Put back what was there, where what is there now is still ours."""
        for place, name, before, ours in reversed(self._replaced):
            if place.__dict__.get(name) is ours:
                setattr(place, name, before)
        self._replaced = []
        self._foreign = WeakSet()

    def await_end(self) -> bool:
        """Wait up to 2 s until ours ends in the thread of its loop; return whether it did.

        Stopped in another thread, a recording leaves torch's state behind, and two at a time end the process.
        """
        until = monotonic_ns() + _LONGEST_WAIT_NS
        while self.ours is not None and monotonic_ns() < until:
            sleep(0.001)
        return self.ours is None

    def sees_other(self) -> bool:
        """Tell whether a profiler of the program is prepared or recording; ours does not count."""
        if len(self._foreign):
            return True
        if self.ours is not None:
            return False  # torch's answer means ours: one of the program's would have ended it
        return is_recording()

    def name_other(self) -> str:
        """Say which other profiler forbids one of ours now, "" when none does."""
        if len(self._foreign):
            return "a torch profiler of the program itself is prepared or recording"
        if is_recording():
            return "the program is recording with torch's profiler, or marks its operators for another one"
        return ""

    def refuse(self, kind: int) -> str:
        """Say why device or profilers forbid a recording of this kind, "" when they do not."""
        torch: Any = sys.modules["torch"]
        cuda = bool(torch.cuda.is_initialized())
        if kind not in wire_capture.PROFILES:
            if not cuda:
                return "this process does not use CUDA"
            if kind == wire_capture.KIND_RANGE and not wire_capture.find_mapped(wire_capture.NSYS_LIBRARIES):
                return "nsys is not in front of this run, and cannot be put there now"
            if kind == wire_capture.KIND_SNAPSHOT and parse_version(str(torch.__version__)) < _FIRST_HISTORY:
                return f"torch {torch.__version__} keeps no bounded history: a snapshot needs torch 2.1"
            return ""
        tool = find_cupti_user() if cuda else ""
        if tool:
            return f"another tool holds the GPU's profiling slot: {tool}"
        graphs = name_graphs(torch) if cuda else ""
        if graphs:
            return graphs
        self.install()
        return self.name_other()

    def _begins(self, one: Any) -> None:
        if one is self.ours:
            return
        try:
            if not getattr(one, "enabled", True):
                return
            self._foreign.add(one)
            if self.ours is not None:
                self._on_foreign()
        except Exception as error:  # the program's profiler must begin in any case
            self._fail(error)

    def _ends(self, one: Any) -> None:
        try:
            self._foreign.discard(one)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if is_from_handler(error):
            raise error
        try:
            self._on_failure(error)
        except Exception as second:
            if is_from_handler(second):
                raise

    def _wrap(self, place: Any, name: str) -> None:
        from functools import wraps  # noqa: PLC0415

        original: Callable[..., Any] = place.__dict__[name]
        begins, ends = self._begins, self._ends

        @wraps(original)
        def begin(one: Any, *args: Any, **kwargs: Any) -> Any:
            begins(one)
            return original(one, *args, **kwargs)

        @wraps(original)
        def __exit__(one: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            try:
                return original(one, *args, **kwargs)
            finally:
                ends(one)

        ours = __exit__ if name == "__exit__" else begin
        self._replaced.append((place, name, original, ours))
        setattr(place, name, ours)


def is_recording() -> bool:
    """Tell whether torch records in this thread for anybody, or marks operators for another tool."""
    enabled = getattr(sys.modules["torch"]._C._autograd, "_profiler_enabled", None)  # noqa: SLF001
    return enabled is not None and bool(enabled())


def name_graphs(torch: Any) -> str:
    """Say that a first profile could hang or crash the program's CUDA graphs, "" where it could not.

    On CUDA 11 a profiler that starts after a graph breaks it (pytorch/pytorch#75504, #135003); graphs made
    after a recording of ours are safe.
    """
    version = str(torch.version.cuda)
    if not (0, 0) < parse_version(version) < (12, 0) or has_recorded():
        return ""
    kind = getattr(torch.cuda, "CUDAGraph", None)
    seen = _GRAPH_TREES in sys.modules or (
        kind is not None and any(issubclass(type(one), kind) for one in _list_instances(kind))
    )
    return (
        f"torch is of CUDA {version}: a profile can hang or crash the program's CUDA graphs" if seen else ""
    )


def _list_instances(kind: type) -> list[Any]:
    """List what refers to a class or its subclasses: instances are among it.

    A list of all objects would change their reference counts, and so copy the pages that a program shares
    with its workers. Before Python 3.9 it must be that: an instance does not refer to its class.
    """
    if sys.version_info < (3, 9):
        return gc.get_objects()
    kinds: set[type] = set()
    left = [kind]
    while left:
        one = left.pop()
        if one not in kinds:
            kinds.add(one)
            left += type.__subclasses__(one)
    return gc.get_referrers(*kinds)


def find_cupti_user(path: str = "/proc/self/maps") -> str:
    """Name another tool's library that holds the GPU's one profiling slot in this process, or ""."""
    names = (*wire_capture.NSYS_LIBRARIES, *wire_capture.CUPTI_LIBRARIES)
    injected = os.environ.get(wire_capture.INJECTED, "")
    return wire_capture.find_mapped(names, path) or os.path.basename(injected.strip())
