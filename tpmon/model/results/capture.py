"""A capture: what is asked, what it costs, and what came of it.

Times in ms, sizes in bytes; steps are counted from 0 at the hook's first event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known

CAPTURE_SCHEMA = "tpmon.capture/1"


class CaptureState(str, Enum):
    """Name the states of a capture, in the order they are passed through, then how it can end."""

    REGISTERED = "registered"
    ARMED = "armed"
    WARMING = "warming"
    RECORDING = "recording"
    WRITING = "writing"
    VERIFIED = "verified"
    DONE = "done"
    PARTIAL = "partial"
    REFUSED = "refused"
    BUSY = "busy"
    MISSED = "missed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    YIELDED = "yielded"
    GONE = "gone"


class CaptureKind(str, Enum):
    """Name what is captured."""

    TRACE = "trace"
    SNAPSHOT = "allocator snapshot"
    NSYS_RANGE = "nsys range"


@dataclass(frozen=True, slots=True)
class CaptureAsked:
    """Hold what is asked for; ``at`` is the step to begin with, ``seconds`` bounds the window in time.

    ``by_seconds``: they alone were asked for, and ``steps`` is only the most. They are not ``named_seconds``
    where nobody asked for them: then there may be more, for steps that are slow.
    """

    kind: CaptureKind
    steps: int
    seconds: float
    stacks: bool
    shapes: bool
    memory: bool
    at: Applicable[int]
    folder: str
    timed: bool = False
    by_seconds: bool = False
    named_seconds: bool = True
    anew: bool = False
    """tpmon named the folder: it is made for this capture, and none that is there is taken."""


@dataclass(frozen=True, slots=True)
class CaptureChoice:
    """Hold what is chosen: ``every`` is the same steps of all ranks on this machine, not of one."""

    kind: CaptureKind = CaptureKind.TRACE
    steps: int = 5
    every: bool = False


@dataclass(frozen=True, slots=True)
class CaptureOffers:
    """Hold what can be chosen on one run: ``who`` is the one rank that is meant, ``ranks`` how many are here.

    ``refused`` are kinds that cannot be, each with its reason; ``every`` says why not all ranks, else "".
    """

    who: str
    ranks: int
    refused: tuple[tuple[CaptureKind, str], ...] = ()
    every: str = ""

    def kinds(self) -> tuple[CaptureKind, ...]:
        """List the kinds that can be."""
        refused = dict(self.refused)
        return tuple(kind for kind in CaptureKind if kind not in refused)


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Ask for the plan of a capture around one process, without a PID around the lowest rank here."""

    pid: Applicable[int]


class CaptureStage(str, Enum):
    """Name how far a capture is that a screen asked for; five of them wait for an answer."""

    ASKED = "asked"
    """What can be told without touching the run is being read."""
    HOOKLESS = "hookless"
    """Waits for a yes: the run has no hook, and what it costs to put one in is said."""
    HOOKING = "hooking"
    """Waits for a yes to the same once more: then it is written into the process."""
    PLANNED = "planned"
    """Waits for a yes: nothing was asked of the run yet."""
    SIZING = "sizing"
    PRICED = "priced"
    """Waits for a yes again: one step was profiled, and its price is known."""
    DEAR = "dear"
    """Waits for a yes once more: the loop would pause for longer than ``DEAR_MS``."""
    RECORDING = "recording"
    ENDED = "ended"


DEAR_MS = 2_000.0
CAPTURE_WAITS = (
    CaptureStage.HOOKLESS,
    CaptureStage.HOOKING,
    CaptureStage.PLANNED,
    CaptureStage.PRICED,
    CaptureStage.DEAR,
)
CAPTURE_ACTS = (CaptureStage.SIZING, CaptureStage.RECORDING)
"""While the run does something for it, which a cancel takes back."""


UNKNOWN = "not known yet: "
"""So begins what a plan cannot tell before one step was profiled."""


@dataclass(frozen=True, slots=True)
class CaptureAnswer:
    """Answer a question of a capture, named by its stage and what is chosen: go on, or no more of it."""

    stage: CaptureStage
    goes: bool
    choice: CaptureChoice = CaptureChoice()


@dataclass(frozen=True, slots=True)
class CaptureUpdate:
    """Hand to a screen how far a capture is; ``plan`` and ``price`` are those of ``choice``.

    ``offers`` come first. ``report`` is what ``tpmon capture`` prints at its end, ``trace`` the file that it
    wrote and that a screen can show, "" for none.
    """

    stage: CaptureStage
    line: str
    plan: tuple[str, ...] = ()
    price: tuple[str, ...] = ()
    report: tuple[str, ...] = ()
    trace: str = ""
    choice: CaptureChoice = CaptureChoice()
    offers: Applicable[CaptureOffers] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class CapturePrice:
    """Hold what a window costs each rank, told from one step that was profiled."""

    steps: int
    events: int
    pause_ms: float
    bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Hold the median of so many steps, in ms."""

    ms: float
    steps: int


@dataclass(frozen=True, slots=True)
class RankCapture:
    """Hold what became of a capture on one rank; ``step_*_ms`` are median steps around the window.

    They are of ``steps_before``, ``steps`` and ``steps_after`` steps.
    """

    pid: int
    rank: Applicable[int]
    state: CaptureState
    reason: str
    first_step: Known[int]
    steps: int
    paused_ms: Known[float]
    step_before_ms: Known[float]
    step_during_ms: Known[float]
    step_after_ms: Known[float]
    steps_before: int = 0
    steps_after: int = 0


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """Hold one file that was written; ``host_path`` differs where the training has mounts of its own."""

    path: str
    host_path: str
    rank: Applicable[int]
    first_step: Known[int]
    steps: Known[int]
    events: Known[int]
    kernels: Known[int]
    bytes: int
    kind: CaptureKind


@dataclass(frozen=True, slots=True)
class GpuClocks:
    """Hold the clocks of a card as NVML told them at the end of the window, in MHz."""

    index: int
    name: str
    sm_mhz: Known[float]
    sm_max_mhz: Known[float]
    memory_mhz: Known[float]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Hold under which conditions a window was recorded, as they were written into the file.

    ``inputs`` are type and shape of each tensor of a batch shortly before, as "float32[8, 512]"; ``mode`` is
    what the steps did. ``clocks`` alone are tpmon's own reading.
    """

    model: Known[str]
    parameters: Known[int]
    dtype: Known[str]
    device: Known[str]
    training: Known[bool]
    mode: Known[str]
    inputs: Known[tuple[str, ...]]
    batch_size: Known[int]
    world_size: Known[int]
    gpu: Known[str]
    clocks: Known[tuple[GpuClocks, ...]]
    torch: Known[str]
    python: Known[str]
    threads: Known[int]
    autocast: Known[bool]
    autocast_dtype: Known[str]
    matmul_precision: Known[str]


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Hold what ``tpmon capture --json`` prints."""

    schema: str
    state: CaptureState
    backend: str
    folder: str
    files: tuple[CapturedFile, ...]
    ranks: tuple[RankCapture, ...]
    conditions: Known[Conditions]
    price: Known[CapturePrice]
    paused_ms: Known[float]
    notes: tuple[str, ...]


STEP_CHOICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""The steps that keys go through; the last is the most that ``tpmon capture`` takes."""

READS = "reads what is known of its price"

Change = Callable[[CaptureChoice, CaptureOffers], CaptureChoice]
"""Turns a choice into the next one of its kind; the same where there is no other."""


def next_kind(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Choose the kind that comes after this one, of those that can be."""
    order = tuple(CaptureKind)
    at = order.index(choice.kind)
    kinds = offers.kinds()
    after = [kind for kind in (*order[at + 1 :], *order[:at]) if kind in kinds]
    return replace(choice, kind=after[0]) if after else choice


def more_steps(choice: CaptureChoice, _offers: CaptureOffers) -> CaptureChoice:
    """Choose the next larger number of steps."""
    return replace(choice, steps=min((n for n in STEP_CHOICES if n > choice.steps), default=choice.steps))


def fewer_steps(choice: CaptureChoice, _offers: CaptureOffers) -> CaptureChoice:
    """Choose the next smaller number of steps."""
    return replace(choice, steps=max((n for n in STEP_CHOICES if n < choice.steps), default=choice.steps))


def other_ranks(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Choose all ranks in place of one, or one again."""
    return replace(choice, every=not choice.every and not offers.every)


def plan_anew(update: CaptureUpdate, choice: CaptureChoice) -> CaptureUpdate:
    """Return a talk in which another thing is chosen: what was said before was of something else."""
    return replace(update, stage=CaptureStage.ASKED, line=READS, plan=(), price=(), choice=choice)


def can_be(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Return the choice, with the first kind that can be where its own cannot, and one rank likewise."""
    kinds = offers.kinds()
    kind = choice.kind if choice.kind in kinds or not kinds else kinds[0]
    return replace(choice, kind=kind, every=choice.every and not offers.every)


def refuse(
    choice: CaptureChoice, instead_of: CaptureChoice, why: str, offers: CaptureOffers
) -> CaptureOffers | None:
    """Take from the offers what a choice has beyond one that can be, its kind first; None for nothing."""
    if choice.kind is not instead_of.kind:
        return replace(offers, refused=tuple({**dict(offers.refused), choice.kind: why}.items()))
    return replace(offers, every=why) if choice.every and not instead_of.every else None
