"""Find the MIG slice of a card that the job computes on, and what is read of it. Pure.

On a card that is cut into slices most readings are of the whole card, with the work of all its tenants.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.features.medians import mean_known
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, MigInstance
from tpmon.model.known import Known, Missing, is_known, known_or

NO_UTILISATION = Missing("MIG slices have no utilisation")
WHOLE_CARD = Missing("it is read of the whole card only, not of a MIG slice")
NO_SLICE = Missing("which MIG slice the job computes on is not known")


@dataclass(frozen=True, slots=True)
class Slice:
    """Hold the activity of the job's slice over a span, and its memory now."""

    sm_active_pct: Known[float]
    memory_used_bytes: Known[int]
    memory_total_bytes: Known[int]


def _own(sample: GpuSample) -> MigInstance | None:
    """Return the one slice that lists processes of the job; an only slice is that of its holder."""
    pids = set(known_or(sample.pids, ()))
    slices = sample.mig_instances
    if len(slices) == 1:
        return slices[0]
    own = [one for one in slices if pids & set(known_or(one.pids, ()))]
    return own[0] if len(own) == 1 else None


def find_slice(samples: Sequence[GpuSample]) -> Slice:
    """Return the job's slice of a card over its readings; Missing figures where none or several are its."""
    own = _own(samples[-1])
    if own is None:
        return Slice(NO_SLICE, NO_SLICE, NO_SLICE)

    def active(sample: GpuSample) -> Known[float]:
        found = (one.sm_active_pct for one in sample.mig_instances if one.uuid == own.uuid)
        return next(found, NO_SLICE)

    return Slice(mean_known(map(active, samples)), own.memory_used_bytes, own.memory_total_bytes)


def is_sliced(sample: GpuSample) -> bool:
    """Tell whether a card is known to be cut into MIG slices."""
    return is_known(sample.mig) and sample.mig
