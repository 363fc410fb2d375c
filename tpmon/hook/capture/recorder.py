"""Record steps with torch's profiler, the allocator's history, or a range for nsys, into one file.

A recording begins and ends in one thread. Stopping and writing hold the GIL: that is the pause of a capture.
torch reports no error when the disk is full, so the file is checked.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tpmon.hook.bus.wire_capture import OPTION_MEMORY, OPTION_SHAPES, OPTION_STACKS, TRACE_ENDING, is_whole
from tpmon.hook.context import parse_version, torch_folder
from tpmon.hook.device import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PART = ".part"
TEMPORARY = ".tmp"
"""What torch appends to the name of a trace while it writes."""

_PROFILER = "torch.autograd.profiler"
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_LEVEL_SYMBOL = "_ZN9libkineto6Logger14severityLevel_E"
_LEAST_LEVEL, _OURS, _SILENT = -1, 98, 99
"""Levels of libkineto's messages are 0 to 5; above all of them nothing is printed."""

_MARK = "ProfilerStep"
"""What tools count as a step. A profiler of the program's own that waits for its turn marks its own so."""

_OUR_MARK, _THEIR_MARK, _CUT_MARK = "ProfiledStep", "ProgramsStep", "StepCutShort"
"""Of the same length, to be written over each other. A step that was cut short did not end."""


class NotWrittenError(OSError):
    """Report that a file is missing, or not whole, after it was written."""


class Recorder:
    """Record one window: ``prepare``, ``start``, ``mark`` at each step, ``stop``, ``save``, ``drop``.

    Shapes, stacks and memory are off unless ``options`` (OPTION_*) ask for them.
    """

    ending = TRACE_ENDING

    def __init__(self, options: int) -> None:
        self.options = options
        self._profile: Any = None
        self._range: Any = None

    @property
    def profile(self) -> object:
        """Return torch's object, by which the guard knows ours."""
        return self._profile

    def prepare(self) -> None:
        """Make the profiler; nothing is recorded yet."""
        profiler: Any = sys.modules[_PROFILER]
        self._profile = profiler.profile(**self._choose(profiler.profile))

    def start(self, metadata: dict[str, str]) -> None:
        """Begin to record in this thread; ``metadata`` are names and JSON for the file."""
        with _Quiet():
            self._profile.__enter__()
        add: Any = getattr(sys.modules["torch.autograd"], "_add_metadata_json", None)
        if add is not None:
            for name, value in metadata.items():
                add(name, value)

    def mark(self, step: int) -> None:
        """End the step before, and begin the one of this number."""
        self._end_step()
        profiler: Any = sys.modules[_PROFILER]
        begun = profiler.record_function(f"{_OUR_MARK}#{step}")
        begun.__enter__()
        self._range = begun

    def stop(self) -> None:
        """End the recording; on a GPU this waits for the device."""
        try:
            self._end_step()
        finally:
            profile = self._profile
            if profile is not None and profile.entered and profile.kineto_results is None:
                with _Quiet(), on_device(sys.modules["torch"]):
                    profile.__exit__(None, None, None)

    def abandon(self) -> None:
        """End the recording where torch's profile failed to: it would go on and fill the memory."""
        autograd: Any = sys.modules["torch.autograd"]
        with suppress(Exception):  # it is off already
            autograd._disable_profiler()  # noqa: SLF001

    def save(self, path: str) -> None:
        """Write what was recorded; NotWrittenError where the file is not whole."""
        self._profile.kineto_results.save(path)
        check_whole(path)
        rename(path, f'"{_MARK}#', f'"{_THEIR_MARK}#')
        rename(path, f'"{_OUR_MARK}#', f'"{_MARK}#')

    def drop(self) -> None:
        """Free the memory at once, not only at the next garbage collection."""
        profile, self._profile, self._range = self._profile, None, None
        if profile is not None:
            profile.kineto_results = None
            profile._function_events = None  # noqa: SLF001
        del profile
        _trim()

    def _end_step(self) -> None:
        step, self._range = self._range, None
        if step is not None:
            step.__exit__(None, None, None)

    def _choose(self, kind: Any) -> dict[str, Any]:
        torch: Any = sys.modules["torch"]
        names = kind.__init__.__code__.co_varnames
        chosen: dict[str, Any] = {
            "record_shapes": bool(self.options & OPTION_SHAPES),
            "profile_memory": bool(self.options & OPTION_MEMORY),
            "with_stack": bool(self.options & OPTION_STACKS),
            "use_kineto": True,
        }
        if torch.cuda.is_initialized():
            # Before torch 2.4 use_device is for third-party back ends.
            newer = "use_device" in names and parse_version(str(torch.__version__)) >= (2, 4)
            chosen.update({"use_device": "cuda"} if newer else {"use_cuda": True})
        config: Any = getattr(torch._C._profiler, "_ExperimentalConfig", None)  # noqa: SLF001
        if config is not None and not self.options & OPTION_STACKS:
            with suppress(TypeError):  # an older torch: the same file, half as much work again to stop
                chosen["experimental_config"] = config(trace_only=True)
        return chosen


class _Quiet:
    """Keep libkineto from writing to the program's standard error while we begin or end a recording.

    It reads its level from the environment when it first begins. The environment is set only then: another
    thread of the program may be reading it in C, without a lock. Later the level itself is changed and put
    back, so that the program's own profiler prints as before.
    """

    def __enter__(self) -> None:
        self._ours = _LOG_LEVEL not in os.environ and not _BEGUN
        if self._ours:
            os.environ[_LOG_LEVEL] = str(_SILENT)
        self._level = _find_level()
        if self._level is not None:
            self._before = self._level.value
            self._level.value = _OURS

    def __exit__(self, *error: object) -> None:
        # Another value: libkineto began just now, and read it from the environment.
        if self._level is not None and self._level.value == _OURS:
            self._level.value = self._before
        if self._ours:
            os.environ.pop(_LOG_LEVEL, None)
        _BEGUN[:] = [True]


_BEGUN: list[bool] = []


def has_recorded() -> bool:
    """Tell whether a recording of ours began in this process, and with it torch's profiler."""
    return bool(_BEGUN)


def _find_level() -> Any:
    """Return libkineto's level as a C integer, None where this torch keeps it elsewhere."""
    try:
        import ctypes  # noqa: PLC0415

        # RTLD_NOLOAD: it is loaded already.
        library = ctypes.CDLL(f"{torch_folder()}lib/libtorch_cpu.so", os.RTLD_NOLOAD | os.RTLD_LAZY)
        level = ctypes.c_int.in_dll(library, _LEVEL_SYMBOL)
    except (ImportError, OSError, ValueError, AttributeError):
        return None
    return level if _LEAST_LEVEL <= level.value <= _SILENT else None


def check_whole(path: str) -> None:
    """Raise NotWrittenError where a trace does not end with its last brace."""
    try:
        with open(path, "rb") as file:
            whole = is_whole(file.fileno())
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NotWrittenError(f"torch wrote no file ({reason}): disk full, or the folder is gone") from error
    if not whole:
        raise NotWrittenError("the file is cut off: disk full, or a limit on file sizes")


def rename_cut(path: str, step: int) -> None:
    """Rename the mark of a step that did not end, which would count as a whole one; may raise OSError."""
    rename(path, f'"{_MARK}#{step}"', f'"{_CUT_MARK}#{step}"')


def rename(path: str, name: str, other: str) -> None:
    """Write a name over another of its length in a file; OSError where that fails."""
    import mmap  # noqa: PLC0415 only who captures needs it

    mark, instead = name.encode(), other.encode()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        at = mapped.find(mark)
        while at >= 0:
            os.pwrite(file.fileno(), instead, at)
            at = mapped.find(mark, at + len(mark))


def _trim() -> None:
    """Hand freed memory back to the kernel, where the C library can."""
    try:
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        pass  # musl has no malloc_trim, and hands it back by itself


_PICKLE_END = b"."


class Unprofiled:
    """Record without torch's profiler: there is nothing for the guard, and by default nothing to do."""

    ending = ""
    profile: object = None

    def __init__(self) -> None:
        self._running = False

    def prepare(self) -> None:
        """Get ready; nothing is recorded yet."""

    def mark(self, step: int) -> None:
        """Begin a step."""

    def stop(self) -> None:
        """End the recording."""

    def abandon(self) -> None:
        """End the recording after an error."""

    def save(self, path: str) -> None:
        """Write what was recorded."""


class MemoryRecorder(Unprofiled):
    """Keep the newest ``entries`` of the allocator's history, and write them for pytorch.org/memory_viz."""

    ending = ".pickle"

    def __init__(self, entries: int) -> None:
        super().__init__()
        self._entries = entries
        self._ours = True

    def prepare(self) -> None:
        """Leave a history alone that the program keeps itself."""
        self._ours = not _keeps_history(unknown=False)

    def start(self, metadata: dict[str, str]) -> None:  # noqa: ARG002
        """Begin to keep the history."""
        self._running = True
        if self._ours:
            memory: Any = sys.modules["torch.cuda.memory"]
            # torch's default has stacks of C++ too: several times the memory and the time.
            memory._record_memory_history(max_entries=self._entries, stacks="python")  # noqa: SLF001

    # Nothing ends it before ``save``: stopping the history discards it.

    def abandon(self) -> None:
        """Stop keeping the history."""
        with suppress(Exception):  # what failed before
            self.drop()

    def save(self, path: str) -> None:
        """Write the history and what is allocated now; OSError where the file is not whole."""
        memory: Any = sys.modules["torch.cuda.memory"]
        memory._dump_snapshot(path)  # noqa: SLF001
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != _PICKLE_END:
                raise OSError("the snapshot is cut off: disk full, or a limit on file sizes")

    def drop(self) -> None:
        """Stop keeping the history, if we began it."""
        running, self._running = self._running, False
        if running and self._ours and _keeps_history(unknown=True):  # torch may have refused to begin
            memory: Any = sys.modules["torch.cuda.memory"]
            memory._record_memory_history(enabled=None)  # noqa: SLF001


def _keeps_history(*, unknown: bool) -> bool:
    """Ask torch whether the allocator keeps its history; ``unknown`` where it does not say."""
    ask: Any = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
    return unknown if ask is None else bool(ask())


class Range(Unprofiled):
    """Open cudaProfilerStart/Stop around some steps, each an NVTX range, for the nsys in front of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Any = None

    def start(self, metadata: dict[str, str]) -> None:  # noqa: ARG002
        """Tell nsys to collect."""
        torch: Any = sys.modules["torch"]
        with on_device(torch):
            torch.cuda.synchronize()
            refused = int(torch.cuda.cudart().cudaProfilerStart() or 0)
        if refused:
            raise RuntimeError(f"cudaProfilerStart was refused: CUDA error {refused}")
        self._running = True

    def mark(self, step: int) -> None:
        """End the range of the step before, and begin one."""
        self._end_step()
        torch: Any = sys.modules["torch"]
        # Not pushed: a pop of the program would close ours.
        self._open = torch.cuda.nvtx.range_start(f"step {step}")

    def stop(self) -> None:
        """Tell nsys to stop, once the device is done."""
        self._end_step()
        running, self._running = self._running, False
        if running:
            torch: Any = sys.modules["torch"]
            with on_device(torch):
                torch.cuda.synchronize()
                torch.cuda.cudart().cudaProfilerStop()

    # There is nothing to save: nsys writes the file, and closes open ranges with the program.

    def drop(self) -> None:
        """Stop, whatever happened before."""
        self.stop()

    def _end_step(self) -> None:
        handle, self._open = self._open, None
        if handle is not None:
            torch: Any = sys.modules["torch"]
            torch.cuda.nvtx.range_end(handle)
