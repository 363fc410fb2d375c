"""Say what a rank's stacks prove for the catalogue of remedies. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpmon.judge.answers.needs import Need

MIN_RATIO = 0.05
"""Below one sample in twenty a remedy would gain less than the noise of a measurement."""

_FACTS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK, Need.RECOMPUTE_IN_STACK))
"""One sample proves it: a model is wrapped or it is not, however rarely the frames are met."""


def find_sights(proofs: Mapping[Need, int], samples: int) -> frozenset[Need]:
    """Return the needs whose frames were met often enough; ``proofs`` counts samples for each need."""
    return frozenset(
        need
        for need, count in proofs.items()
        if count > 0 and (need in _FACTS or count >= MIN_RATIO * samples)
    )
