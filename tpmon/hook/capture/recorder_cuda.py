"""Record what needs a GPU: the allocator's history, and a range for nsys. Refused without a device."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tpmon.hook.device import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PICKLE_END = b"."


class MemoryRecorder:
    """Keep the allocator's history over some steps, and write it for pytorch.org/memory_viz."""

    ending = ".pickle"

    __slots__ = ("_entries", "_ours", "_running")

    def __init__(self, entries: int) -> None:
        """Keep at most so many of the newest allocations."""
        self._entries = entries
        self._ours = True
        self._running = False

    @property
    def profile(self) -> object:
        """Return nothing that the guard could meet."""
        return None

    def prepare(self) -> None:
        """See whether the program keeps a history itself: then it is left as it is."""
        self._ours = not _keeps_history(unknown=False)

    def start(self, metadata: dict[str, str]) -> None:  # noqa: ARG002
        """Begin to keep the history."""
        self._running = True
        if self._ours:
            memory: Any = sys.modules["torch.cuda.memory"]
            # Stacks of C++ as well, which is torch's default, take several times the memory and the time.
            memory._record_memory_history(max_entries=self._entries, stacks="python")  # noqa: SLF001

    def mark(self, step: int) -> None:
        """Pass a step: the history has times of its own."""

    def stop(self) -> None:
        """Keep on until ``save``: to stop the history forgets it."""

    def abandon(self) -> None:
        """Stop keeping the history."""
        with suppress(Exception):  # what failed before
            self.drop()

    def save(self, path: str) -> None:
        """Write the history and what is allocated now.

        Raises:
            OSError: when the file is not whole.
        """
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


class Range:
    """Open cudaProfilerStart/Stop around some steps, each an NVTX range, for the nsys in front of the run."""

    ending = ""

    __slots__ = ("_open", "_running")

    def __init__(self) -> None:
        """Open nothing yet."""
        self._open: Any = None
        self._running = False

    @property
    def profile(self) -> object:
        """Return nothing that the guard could meet."""
        return None

    def prepare(self) -> None:
        """Load nothing: cudart is there when CUDA is initialised."""

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
        # Not pushed: the program may be within ranges of its own, and would close ours by a pop.
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

    def abandon(self) -> None:
        """Leave what is open to nsys, which ends it with the program."""

    def save(self, path: str) -> None:
        """Write nothing: nsys does."""

    def drop(self) -> None:
        """Stop, whatever happened before."""
        self.stop()

    def _end_step(self) -> None:
        handle, self._open = self._open, None
        if handle is not None:
            torch: Any = sys.modules["torch"]
            torch.cuda.nvtx.range_end(handle)
