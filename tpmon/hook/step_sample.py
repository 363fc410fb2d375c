"""Watch one step every few seconds: its settings and sizes, and on CUDA how long the device worked on it.

``Steps`` calls ``at_step`` when it is due, and the rest only during the watched step: other steps pay a
comparison or two.
"""

from __future__ import annotations

import sys
from weakref import ref

from tpmon.hook import device
from tpmon.hook.bus import wire_settings
from tpmon.hook.context import is_ours
from tpmon.hook.settings import Settings, describe_batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EVERY_NS = 5_000_000_000
_EVERY_ON_CUDA_NS = 2_000_000_000
_POLL_NS = 20_000_000
_MOST_EVALS = 64
"""Batches of an evaluation that are described anew within the watched step."""


class Watcher:
    """Read settings and time the device for one hook."""

    def __init__(self, steps: Any) -> None:
        """Watch steps of these Counts; ``optimizer`` is a weak reference to the last one that stepped."""
        self._steps: Any = steps
        self._settings = Settings()
        self._timer: device.DeviceTimer | None = None
        self._no_device = False
        self._began_ns = self._seen = self._evals = 0
        self.inputs: list[str] = []
        self.optimizer: Any = None

    def at_step(self, now: int) -> int:
        """Begin or end to watch a step; return when to be called again (ns), 0 for the end of this step."""
        steps = self._steps
        if steps.watch is None:
            timer = self._timer
            if timer is not None and timer.pending:
                self._ask(timer.poll, now)
                if timer.pending:
                    return now + _POLL_NS
                if now < self._began_ns + _EVERY_ON_CUDA_NS:
                    return self._began_ns + _EVERY_ON_CUDA_NS
            return self._begin(now)
        steps.watch = None
        if self._timer is not None:
            self._ask(self._timer.end, now, steps.steps)
        self._settings.note_wrappers(steps.ddp, steps.fsdp, self.optimizer)
        self._settings.guard = getattr(getattr(steps.mailbox, "capture", None), "guard", None)
        wire_settings.write_settings(steps.page, self._settings.read(now))
        if self._timer is None:
            return self._began_ns + _EVERY_NS
        return now + _POLL_NS if self._timer.pending else self._began_ns + _EVERY_ON_CUDA_NS

    def batch(self, iterator: object, batch: object) -> None:
        """Note a batch of the watched step."""
        if not self._seen & 1:
            self._seen |= 1
            self._settings.see_loader(iterator)
            self.inputs = describe_batch(batch)
        self._turn(device.BATCH)

    def backward_begins(self) -> None:
        """Note where a backward begins."""
        if not self._seen & 2:
            self._seen |= 2
            self._settings.see_backward(self.optimizer)
        self._turn(device.FORWARD)

    def backward_ended(self) -> None:
        """Note where a backward ends."""
        self._turn(device.BACKWARD)

    def updated(self, optimizer: object) -> None:
        """Note the end of an optimizer's step."""
        known = self.optimizer() if self.optimizer is not None else None
        if known is not None and known is not optimizer:
            self._settings.activations.several = True
        if not self._seen & 4:
            self._seen |= 4
            self._settings.see_optimizer(optimizer)
            try:
                self.optimizer = ref(optimizer)
            except TypeError:
                self.optimizer = None  # a type of the program without weak references
        self._turn(device.OPTIMIZER)

    def evaluated(self) -> None:
        """Forget the batches so far: they were an evaluation's, and the watched step follows."""
        self._evals += 1
        if self._evals <= _MOST_EVALS:
            self._seen &= ~1
            self._settings.memory.forget_batch()
        if self._timer is not None:
            self._timer.leave()

    def _begin(self, now: int) -> int:
        self._steps.watch = self
        self._began_ns = now
        self._seen = self._evals = 0
        self._settings.begin()
        try:
            torch: Any = sys.modules.get("torch")
            cuda: Any = getattr(torch, "cuda", None)
            if self._no_device or cuda is None or not cuda.is_initialized():
                return 0
            if not device.holds_work(torch, torch._C._cuda_getDevice()):  # noqa: SLF001
                return 0  # its work is on another device: an event would make a context on this one
            if self._timer is None:
                self._timer = device.DeviceTimer(cuda)
            self._timer.begin(now)
        except Exception as error:
            self._leave_device(error)
        return 0

    def _turn(self, ended: int) -> None:
        self._settings.see_turn(ended)
        if self._timer is not None:
            self._ask(self._timer.note, ended)

    def _ask(self, timer: Callable[..., object], *told: int) -> None:
        """Ask the timer, and write its words to the bus where it returns true."""
        try:
            if timer(*told) and self._timer is not None:
                wire_settings.write_device(self._steps.page, self._timer.words)
        except Exception as error:
            self._leave_device(error)

    def _leave_device(self, error: Exception) -> None:
        """Stop timing the device after an error of our own or of torch; raise the user's again."""
        if not is_ours(error):
            raise error
        self._no_device = True
        self._timer = None
