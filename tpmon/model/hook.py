"""What the hook in a training process told of its steps: counts, phases, and what the loop is in now.

Exact where the hook is installed, and of the host only: on a GPU a phase can hold waits for the device.
Totals count from the hook's first event on. ``ns`` are of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.hook_settings import NO_DEVICE, NO_SETTINGS, DeviceTimes, TrainSettings
from tpmon.model.known import Applicable, Known
from tpmon.model.process import Identity


class StepRule(str, Enum):
    """Name what ends a step."""

    NONE = "none"
    """Nothing was counted yet."""
    BATCH_AFTER_UPDATE = "batch-after-update"
    """The next batch is asked for after an optimizer's step."""
    UPDATE = "update"
    """An optimizer's step: the loop trains without a DataLoader."""
    BATCH_AFTER_BACKWARD = "batch-after-backward"
    """The next batch after a backward: no torch optimizer is at work."""
    BATCH = "batch"
    """Nothing: batches without backward, counted as evaluation steps."""
    CALL = "call"
    """The program says it."""


class HookState(str, Enum):
    """Say whether the hook counts."""

    RUNNING = "running"
    DISABLED = "disabled"
    """It turned itself off after an error of its own."""
    UNINSTALLED = "uninstalled"


class HookPatch(str, Enum):
    """Name a place of torch that the hook watches."""

    DATA = "data"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SCALER = "scaler"


class LoopPhase(str, Enum):
    """Name a phase of a training step, on the host."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Hold how long the host was in each phase, in ns."""

    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int

    @property
    def total_ns(self) -> int:
        """Return the time of all phases."""
        return self.data_ns + self.forward_ns + self.backward_ns + self.optimizer_ns + self.other_ns


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Hold raw counters, from which another rule can be derived.

    ``updates`` are first optimizer calls after a backward, ``skipped_updates`` those that a
    GradScaler left out, ``elsewhere`` events of other threads, which count nowhere else.
    ``skipped_updates`` are missing where no GradScaler is watched. ``samples`` are batches times the
    DataLoader's batch size.
    """

    steps: int
    eval_steps: int
    batches: int
    backwards: int
    optimizer_calls: int
    updates: int
    skipped_updates: Known[int]
    samples: int
    eval_samples: int
    elsewhere: int


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Hold steps that ended between two records of the hook: one, or those of two milliseconds.

    ``train`` and ``evaluation`` add up to the time between the ends of the steps.
    """

    ended_ns: int
    steps: int
    eval_steps: int
    samples: int
    train: PhaseTimes
    evaluation: PhaseTimes


@dataclass(frozen=True, slots=True)
class NamedTime:
    """Hold what the program measured under a name of its own."""

    name: str
    calls: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class LoopNow:
    """Say what the loop is in by its last event, and since when in seconds."""

    phase: LoopPhase
    since_s: float


@dataclass(frozen=True, slots=True)
class StepReading:
    """Hold one reading of one process's hook. ``spans`` are those since the reading before.

    ``lost_records``: so many were overwritten or left out since then; totals hold them all the same.
    ``counts`` are those of now; ``ended`` holds all steps until the end of the last one, missing before that.
    """

    process: Identity
    rank: Applicable[int]
    world_size: Applicable[int]
    local_rank: Applicable[int]
    hook_version: str
    torch_version: str
    python_version: str
    state: HookState
    error: str
    patches: tuple[HookPatch, ...]
    rule: StepRule
    counts: StepCounts
    ended: Known[StepSpan]
    batch_size: Known[int]
    spans: tuple[StepSpan, ...]
    lost_records: int
    now: Known[LoopNow]
    marks: tuple[NamedTime, ...]
    taken_ns: int
    settings: Known[TrainSettings] = NO_SETTINGS
    device: Known[DeviceTimes] = NO_DEVICE
