"""What a Frame holds of the hooks in the training processes: each rank's hook, and how its steps go.

Told by the hook of each rank (docs/hook.md) and therefore exact, of the host's time. The keys are
those of docs/json.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.hook import HookPatch, HookState, LoopPhase, NamedTime, StepCounts, StepRule
from tpmon.model.hook_settings import NO_DEVICE, NO_SETTINGS, DeviceTimes, TrainSettings
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or


@dataclass(frozen=True, slots=True)
class StepPace:
    """Hold how the training steps of one rank go; that of a job is its first hooked rank's.

    Rates and shares are of the last ``span_s`` seconds: about ten, or three steps where they take longer.
    """

    pid: int
    rank: Applicable[int]
    ranks: int
    """How many ranks ``samples_hz`` adds up: one for a rank, those with a hook for a job."""
    rule: StepRule
    count: int
    """Training steps since the hook's first event."""
    eval_count: int
    span_s: float
    rate_hz: float
    """Training steps a second; it falls while none ends."""
    eval_hz: float
    samples_hz: Known[float]
    timed: int
    """How many steps the next figures are of: the last minute's, 512 at most; of steps below 2 ms, groups."""
    p50_ms: Known[float]
    p95_ms: Known[float]
    p99_ms: Known[float]
    longest_ms: Known[float]
    slowest_ms: Known[float]
    """The longest step that ended since the last Frame; where none did, the last one, or the one that goes on
    when that takes longer already."""
    step_age_s: float
    """How long ago the last step, of training or evaluation, ended."""
    data_pct: Known[float]
    forward_pct: Known[float]
    backward_pct: Known[float]
    optimizer_pct: Known[float]
    other_pct: Known[float]
    """Shares of the host's time of training steps; they add up to 100."""
    own_ms: Known[float]
    """Data and forward of a step: what a rank does before it may wait for the others in its backward."""
    eval_pct: float
    """Share of the span that evaluation took."""


@dataclass(frozen=True, slots=True)
class HookSample:
    """Hold what one rank's hook says of itself and of its loop right now."""

    pid: int
    rank: Applicable[int]
    state: HookState
    error: str
    """Why it turned itself off, "" while it runs."""
    hook_version: str
    rule: StepRule
    patches: tuple[HookPatch, ...]
    counts: StepCounts
    batch_size: Known[int]
    phase: Known[LoopPhase]
    phase_s: Known[float]
    """What the loop is in by its last event, and how long ago that event was."""
    marks: tuple[NamedTime, ...]
    lost_records: int
    """Records since the last Frame whose detail was not read; totals hold them."""
    pace: Known[StepPace]
    settings: Known[TrainSettings] = NO_SETTINGS
    device: Known[DeviceTimes] = NO_DEVICE
    """The CUDA device's time of steps that were measured."""


def list_shares(pace: StepPace) -> tuple[tuple[LoopPhase, Known[float]], ...]:
    """Return the phases of a step with their shares in percent, in the order of a step."""
    return (
        (LoopPhase.DATA, pace.data_pct),
        (LoopPhase.FORWARD, pace.forward_pct),
        (LoopPhase.BACKWARD, pace.backward_pct),
        (LoopPhase.OPTIMIZER, pace.optimizer_pct),
        (LoopPhase.OTHER, pace.other_pct),
    )


def join_paces(hooks: Known[Sequence[HookSample]]) -> Known[StepPace]:
    """Return the pace of the job: its first rank's, with the samples of all ranks that have a hook."""
    if not is_known(hooks):
        return hooks
    paces = [one.pace for one in hooks if is_known(one.pace)]
    if not paces:
        reasons = [one.pace.reason for one in hooks if isinstance(one.pace, Missing)]
        return Missing(reasons[0] if reasons else "no rank has a hook")
    first = min(paces, key=lambda one: (known_or(one.rank, 1 << 30), one.pid))
    rates = [one.samples_hz for one in paces if is_known(one.samples_hz)]
    total: Known[float] = sum(rates) if len(rates) == len(paces) else first.samples_hz
    if len(rates) < len(paces) and is_known(total):
        total = Missing("not every rank tells its samples")
    return replace(first, samples_hz=total, ranks=len(paces))
