"""Name the parts of a training step, and say which part gives way to which when one runs inside another.

Pure. The table of the frames is ``frames.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tpmon.judge.answers.needs import Need
from tpmon.model.frozen import dataclass


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
    """It reads or builds the model, its weights or the data set."""
    COMPILE = "compile"
    INPUT = "input"
    """The main thread reads from a terminal: a prompt or a debugger."""
    OTHER = "other"


TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
ELSEWHERE = (
    Phase.DATA_WAIT,
    Phase.COMMS,
    Phase.CHECKPOINT,
    Phase.VALIDATION,
    Phase.LOGGING,
    Phase.IMPORT,
    Phase.LOAD,
    Phase.COMPILE,
    Phase.INPUT,
)
"""What is neither the model, nor a wait for the GPU, nor the user's own code."""
OUTSIDE = (Phase.OTHER, Phase.LOGGING)
"""Python outside of the parts of a step."""


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
    READ = "read"
    """It reads data outside of any data set: a start, or, beside steps, a loop that loads for itself."""
    SAMPLER = "sampler"
    """It chooses the next indices: samplers run in the main thread, with and without workers."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Say what a frame tells about everything below it.

    A ``weak`` mark is a hint, such as the name of a user's function: it counts only where nothing
    was known yet. ``named``: the function (or the library) is worth naming to a person.
    """

    phase: Phase | None
    """None where the frame proves only ``need``."""
    part: DataPart | None = None
    need: Need | None = None
    weak: bool = False
    named: bool = False


def _set(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


_P = Phase

GIVES_WAY: Mapping[Phase, frozenset[Phase]] = {
    # Nothing is known yet, or a module is executed: whatever comes tells more.
    _P.OTHER: frozenset(Phase),
    # Importing the compiler is no compiling.
    _P.IMPORT: frozenset(Phase) - {_P.OTHER, _P.COMPILE},
    # A dataset may load tensors, call modules and log: it stays the wait for data. A collective
    # in it waits for other ranks, which no worker makes faster.
    _P.DATA_WAIT: _set(_P.COMMS, _P.INPUT),
    # Offloading moves modules to the card and back in each forward pass: that is no load.
    _P.FORWARD: frozenset(Phase) - {_P.OTHER, _P.FORWARD, _P.VALIDATION, _P.LOAD},
    # The forward pass of activation checkpointing within backward is backward.
    _P.BACKWARD: _set(_P.OPTIMIZER, _P.SYNC, _P.COMMS, _P.LOGGING, _P.COMPILE, _P.IMPORT, _P.INPUT),
    # Lightning and LBFGS run the whole step inside step(closure).
    _P.OPTIMIZER: _set(
        _P.DATA_WAIT, _P.FORWARD, _P.BACKWARD, _P.SYNC, _P.COMMS, _P.LOGGING, _P.COMPILE, _P.IMPORT, _P.INPUT
    ),
    # A progress bar or a callback may enclose a loop, automatic logging a whole program; a metric may be
    # a module.
    _P.LOGGING: _set(
        _P.OTHER, _P.DATA_WAIT, _P.BACKWARD, _P.OPTIMIZER, _P.COMMS, _P.CHECKPOINT, _P.VALIDATION, _P.INPUT
    ),
    # The run is in validation whatever validation waits for. Training inside a function of that
    # name (OTHER is the mark of a function named train) is training.
    _P.VALIDATION: _set(_P.OTHER, _P.CHECKPOINT, _P.BACKWARD, _P.OPTIMIZER, _P.INPUT),
    _P.LOAD: _set(_P.IMPORT, _P.COMPILE, _P.INPUT),
    _P.SYNC: _set(_P.INPUT),
    _P.COMMS: _set(_P.INPUT),
    _P.CHECKPOINT: _set(_P.INPUT),
    _P.COMPILE: _set(_P.INPUT),
    _P.INPUT: frozenset(),
}
"""Which inner phases take over from an outer one. Every other phase inside belongs to the outer."""
