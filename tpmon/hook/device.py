"""Time one step on the CUDA device with events that are made beforehand: nothing waits, nothing is moved.

An event is recorded at each turn of the step (boundary, batch, backward, its end, update), always on the
stream on which backwards begin: a batch may be fetched on another one. Later boundaries ask whether the last
event is done; only then are the times read. Nothing is recorded or asked while a CUDA graph is captured.
No event is ever freed: that calls the driver, which ends a forked child, and a process whose device failed.
Tried on the CPU only: no card was at hand.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.bus.pages import keep_for_ever
from tpmon.hook.context import GRAPHS, is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_EVENTS = 64
"""A step with more turns than this (an accumulation of many parts) is not measured."""

_GIVE_UP_NS = 60_000_000_000

BATCH, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(5)  # what ends at an event
_WORDS = {FORWARD: wire.DEV_FORWARD_NS, BACKWARD: wire.DEV_BACKWARD_NS, OPTIMIZER: wire.DEV_OPTIMIZER_NS}


def holds_work(torch: Any, device: int) -> bool:
    """Tell whether the caching allocator holds memory of a device that has a context.

    Without one it is not asked: cudaMallocAsync would make a context there, of half a GiB.
    """
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # noqa: SLF001
    if has_context is not None and not has_context(device):
        return False
    return bool(torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"])  # noqa: SLF001


def find_device(torch: Any) -> int:
    """Return a device that the program works on, by preference the current one; -1 where none is known.

    After a mere ``.to("cuda:3")`` the current device is still 0. Recording or waiting on a device without a
    context makes one there, of half a GiB.
    """
    return next(_list_working(torch), -1)


def _list_working(torch: Any) -> Iterator[int]:
    """Yield the devices that the program works on, the current one first.

    By C functions alone: torch.cuda.device_count() may ask NVML, which may never return.
    """
    here = int(torch._C._cuda_getDevice())  # noqa: SLF001
    if holds_work(torch, here):
        yield here
    others = (one for one in range(torch._C._cuda_getDeviceCount()) if one != here)  # noqa: SLF001
    yield from (one for one in others if holds_work(torch, one))


@contextmanager
def on_device(torch: Any) -> Iterator[None]:
    """Make the first device that the program works on the current one, once the others are done.

    Without such a device the current one stays, and where the program's own allocator keeps no statistics.
    """
    devices: list[int] = []
    try:
        devices.extend(_list_working(torch) if torch.cuda.is_initialized() else ())
    except Exception as error:
        if not is_ours(error):
            raise
    for one in devices[1:]:
        torch.cuda.synchronize(one)
    with torch.cuda.device(devices[0]) if devices else nullcontext():
        yield


class DeviceTimer:
    """Measure steps one by one; ``cuda`` is torch.cuda, initialized, ``words`` are the totals (DEV_*)."""

    def __init__(self, cuda: Any) -> None:
        keep_for_ever(self)
        self._cuda = cuda
        self._events = [cuda.Event(enable_timing=True) for _ in range(_EVENTS)]
        self._stream: Any = None
        self._turns: list[int] = []
        self._measuring = self.pending = False
        self._began_ns = self._ended_ns = self._step = 0
        self.words = [0] * wire.DEVICE_WORDS

    def begin(self, now: int) -> None:
        """Begin to measure at the boundary of a step, unless events of an earlier one are pending."""
        if self.pending:
            return
        self._turns = []
        self._measuring = True
        self._began_ns = now
        if self._stream is None:
            self._stream = self._cuda.current_stream()
        self.note(OTHER)

    def note(self, ended: int) -> None:
        """Record an event where this part of the step ends."""
        if not self._measuring:
            return
        if len(self._turns) == _EVENTS:
            self.words[wire.DEV_TOO_LONG] += 1
        if len(self._turns) == _EVENTS or GRAPHS or self._cuda.is_current_stream_capturing():
            self._drop()
            return
        if ended == FORWARD and (stream := self._cuda.current_stream()) != self._stream:
            # Measure the next steps on this stream; events work on one device only.
            if stream.device == self._stream.device:
                self._stream = stream
            self._drop()
            return
        self._events[len(self._turns)].record(self._stream)
        self._turns.append(ended)

    def leave(self) -> None:
        """Stop measuring this step: it contains something else."""
        self._measuring = False

    def end(self, now: int, step: int) -> bool:
        """End the measured step, the ``step``-th; tell whether any was too long so far."""
        self.note(OTHER)
        if self._measuring:
            self._measuring = False
            self.pending = True
            self._ended_ns = now
            self.words[wire.DEV_EVERY] = step - self._step
            self._step = step
        return bool(self.words[wire.DEV_TOO_LONG])

    def poll(self, now: int) -> bool:
        """Tell whether the device has finished the pending step; ``words`` include it then."""
        if not self.pending or GRAPHS or self._cuda.is_current_stream_capturing():
            return False
        if not self._events[len(self._turns) - 1].query():
            if now - self._ended_ns > _GIVE_UP_NS:
                self._drop()
            return False
        self.pending = False
        words = self.words
        for number, ended in enumerate(self._turns[1:], 1):
            spent_ns = int(self._events[number - 1].elapsed_time(self._events[number]) * 1e6)
            words[wire.DEV_STEP_NS] += spent_ns
            if ended in _WORDS:
                words[_WORDS[ended]] += spent_ns
        words[wire.DEV_STEPS] += 1
        words[wire.DEV_HOST_NS] += self._ended_ns - self._began_ns
        words[wire.DEV_TIME_NS] = now
        self._number()
        return True

    def _drop(self) -> None:
        self._measuring = self.pending = False
        self.words[wire.DEV_DROPPED] += 1
        self._number()

    def _number(self) -> None:
        self.words[wire.DEV_NUMBER] += 1
        self.words[wire.DEV_NUMBER_AGAIN] = self.words[wire.DEV_NUMBER]
