"""What the comparison of two traces found: the types behind ``tpmon trace --against`` and its JSON."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known


@dataclass(frozen=True, slots=True)
class Change:
    """Hold one line of a comparison in microseconds of the mean step: ``before`` and ``after``."""

    part: str
    name: str
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Hold what got faster or slower from the trace ``before`` to the trace ``after``.

    ``differences`` name the conditions that are not equal, ``unchecked`` those that a trace does not
    tell. ``ratio`` is the old over the new mean step, with its 95 % interval. ``helped`` says whether
    the target was met; it is missing where conditions differ or steps are too few.
    """

    schema: str
    before: str
    after: str
    before_ms: float
    after_ms: float
    ratio: float
    ratio_low: Known[float]
    ratio_high: Known[float]
    target: float
    helped: Known[bool]
    summary: str
    differences: tuple[str, ...]
    unchecked: tuple[str, ...]
    changes: tuple[Change, ...]
