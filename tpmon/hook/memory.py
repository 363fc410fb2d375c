"""Follow the CUDA allocator through a watched step, and estimate its activations.

The peak statistics belong to the program and are never reset: where the peak is higher at a turn than at
the turn before, the part of the step between them reached it. The allocator counts on the host and takes
one lock to answer, so nothing waits for the device.

Activations are what is allocated where the backward begins, less parameters, optimizer state and gradients
that are held already. Where far more is allocated after an update (frozen parameters, buckets of DDP, a
second model), that is subtracted. The estimate includes the batch and the results of the forward.
"""

from __future__ import annotations

import sys

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.device import BACKWARD, BATCH, FORWARD, OPTIMIZER, find_device
from tpmon.hook.tensors import count_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.tensors import Sizes

_TURNS = 64
"""Beyond so many turns of a step (an accumulation of many parts, an evaluation) only the update is read."""

_PHASES = {FORWARD: wire.PHASE_FORWARD, BACKWARD: wire.PHASE_BACKWARD, OPTIMIZER: wire.PHASE_OPTIMIZER}
_FIRSTS = {BATCH: wire.SET_ALLOCATED_AFTER_BATCH, FORWARD: wire.SET_ALLOCATED_AT_BACKWARD}
_LASTS = {BACKWARD: wire.SET_ALLOCATED_AFTER_BACKWARD, OPTIMIZER: wire.SET_ALLOCATED_AFTER_UPDATE}


class Memory:
    """Note turns of the watched step in the settings' ``words``; ``device`` is -1 without CUDA."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self.device = -1
        self._peak = self._held = self._turns = 0
        self._risen = (wire.UNKNOWN, wire.UNKNOWN)
        self._seen: set[int] = set()

    def begin(self) -> None:
        """Begin to follow a step."""
        self.device = -1  # in case torch raises
        self._turns = 0
        self._seen.clear()
        torch: Any = sys.modules["torch"]
        if torch.cuda.is_initialized():
            self.device = find_device(torch)
        if self.device >= 0:
            told = _read_bytes(self.device)
            self._peak, self._held = told["peak"], told["current"]

    def forget_batch(self) -> None:
        """Take the next batch for the first one: those so far were of an evaluation."""
        self._seen.discard(BATCH)

    def note(self, ended: int) -> None:
        """Note a turn: this part of the step ended."""
        if self.device < 0:
            return
        if self._turns >= _TURNS and (ended != OPTIMIZER or ended in self._seen):
            self._peak = -1  # which part raises it before the next turn that is read cannot be known
            return
        self._turns += 1
        told = _read_bytes(self.device)
        words, peak = self._words, told["peak"]
        if ended in _LASTS:
            words[_LASTS[ended]] = told["current"]
        elif ended in _FIRSTS and ended not in self._seen:
            words[_FIRSTS[ended]] = told["current"]
        self._seen.add(ended)
        # Lower than before: the program reset it; it rose again where it exceeds what is held at both ends.
        risen = peak > self._peak >= 0 or self._peak > peak > min(told["current"], self._held)
        self._peak, self._held = peak, told["current"]
        if risen:
            phase = _PHASES.get(ended, wire.PHASE_OTHER)
            self._risen = (phase, peak)
            words[wire.SET_PEAK_IN_FORWARD + phase - wire.PHASE_FORWARD] = peak

    def tell_phase(self) -> None:
        """Write which part reached the present peak; unknown where a step did that was not watched."""
        phase, peak = self._risen
        same = peak == self._words[wire.SET_PEAK_ALLOCATED]
        self._words[wire.SET_PEAK_PHASE] = phase if same else wire.UNKNOWN


def _read_bytes(device: int) -> dict[str, int]:
    stats: Any = sys.modules["torch"]._C._cuda_memoryStats(device)  # noqa: SLF001
    told: dict[str, int] = stats["allocated_bytes"]["all"]
    return told


_MOST_ELSE = 4
"""Up to a quarter of the estimate may be allocated beside what the optimizer works on."""


class Activations:
    """Estimate activations from the settings' ``words``; ``several``: there is more than one optimizer."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._own = self._gradients_at = self._gradients_after = wire.UNKNOWN
        self.several = False

    def see_backward(self, reference: Any, device: int) -> None:
        """Count the gradients of the optimizer that stepped last where a backward begins."""
        self._gradients_at = wire.UNKNOWN
        optimizer = reference() if reference is not None else None
        if optimizer is not None and device >= 0:
            found = count_gradients(optimizer, device)
            self._gradients_at = wire.UNKNOWN if found is None else found

    def see_update(self, sizes: Sizes | None, device: int) -> None:
        """Note what the optimizer that stepped now works on, and where."""
        self._own = wire.UNKNOWN
        if sizes is None or device < 0:
            return
        parameters, self._gradients_after, state = sizes.there
        elsewhere = not parameters or parameters != sizes.all[0]
        self._own = wire.ELSEWHERE if elsewhere else parameters + state

    def estimate(self) -> int:
        """Return the estimate in bytes; UNKNOWN or ELSEWHERE where there is none."""
        allocated = self._words[wire.SET_ALLOCATED_AT_BACKWARD]
        if self._own == wire.ELSEWHERE:
            return wire.ELSEWHERE
        if self.several or min(allocated, self._own, self._gradients_at) < 0:
            return wire.UNKNOWN
        held = allocated - self._gradients_at
        resting = self._words[wire.SET_ALLOCATED_AFTER_UPDATE] - self._gradients_after
        found = held - self._own
        if resting - self._own > found // _MOST_ELSE:
            found = held - resting
        return max(found, 0)
