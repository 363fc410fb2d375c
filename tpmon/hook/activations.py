"""Estimate what a forward keeps for its backward: what is allocated then, without what lies there anyway.

That is parameters and optimizer state, and gradients where some are held already. Where far more lies there
after an update (frozen parameters, buckets of DDP, a second model), it is what lies there then. What is left
holds the batch and the results of the forward too.
"""

from __future__ import annotations

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.tensors import count_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.tensors import Sizes

_MOST_ELSE = 4
"""Up to one part in so many of the estimate may lie there beside what the optimizer works on."""


class Activations:
    """Count what is held at turns of a step; the settings' ``words`` have what is allocated there."""

    __slots__ = ("_gradients_after", "_gradients_at", "_own", "_words", "several")

    def __init__(self, words: list[int]) -> None:
        """Know nothing yet; ``several``: more than one optimizer works, and only one is looked at."""
        self._words = words
        self._own = self._gradients_at = self._gradients_after = wire.UNKNOWN
        self.several = False

    def see_backward(self, reference: Any, device: int) -> None:
        """Count the gradients that are held where a backward begins; of the optimizer that stepped last."""
        self._gradients_at = wire.UNKNOWN
        optimizer = reference() if reference is not None else None
        if optimizer is not None and device >= 0:
            found = count_gradients(optimizer, device)
            self._gradients_at = wire.UNKNOWN if found is None else found

    def see_update(self, sizes: Sizes | None, device: int) -> None:
        """Note what the optimizer that stepped now works on."""
        self._own = wire.UNKNOWN
        if sizes is None or device < 0:
            return
        if not sizes.parameters or sizes.parameters_there != sizes.parameters:
            self._own = wire.ELSEWHERE
            return
        self._own = sizes.parameters_there + sizes.state_there
        self._gradients_after = sizes.gradients_there

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
