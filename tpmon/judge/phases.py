"""Say which part of a training step a stack belongs to, and how much of the time each part takes.

Frames of torch, Lightning, Accelerate, Hugging Face Trainer and plain loops. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tpmon.judge.advice_needs import Need
from tpmon.model.known import Applicable


class Phase(str, Enum):
    """Name a part of a step, or what the main thread does instead of steps."""

    DATA_WAIT = "data wait"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SYNC = "sync"
    COMMS = "comms"
    CHECKPOINT = "checkpoint"
    VALIDATION = "validation"
    LOGGING = "logging"
    IMPORT = "import"
    LOAD = "load"
    COMPILE = "compile"
    INPUT = "input"
    """The main thread reads from a terminal: a prompt or a debugger."""
    OTHER = "other"


class DataPart(str, Enum):
    """Say what the main thread does within its data wait."""

    QUEUE = "queue"
    """It waits for a batch of its workers or of the pin thread."""
    FETCH = "fetch"
    """It runs the dataset itself: no workers."""
    COLLATE = "collate"
    """It puts a batch together itself."""
    START = "start"
    """It starts or joins workers."""
    COPY = "copy"
    """It unpacks or copies the batch: the drain of the loader."""


@dataclass(frozen=True, slots=True)
class Share:
    """Hold a share of samples (0-1) with its Wilson 95 % interval."""

    ratio: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class RankPhases:
    """Hold how one rank's main thread spent the span of its slices.

    ``shares`` holds every Phase that was seen; ``parts`` the DataParts, as shares of all samples.
    ``where`` is the most frequent place of the newest slice in words ("forward model.py:88").
    """

    pid: int
    rank: Applicable[int]
    samples: int
    span_s: float
    newest_age_s: float
    shares: Mapping[Phase, Share]
    parts: Mapping[DataPart, Share]
    where: str
    sights: frozenset[Need]
    """The *_IN_STACK needs whose frames were in at least 5 % of the samples."""

    def ratio(self, *phases: Phase) -> float:
        """Return the share of samples in any of ``phases``, 0-1."""
        return sum(self.shares[phase].ratio for phase in phases if phase in self.shares)
