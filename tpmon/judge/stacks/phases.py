"""Name the parts of a training step, which gives way to which, and what frames show (``frames.toml``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any

from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import TableError, convert, make_row, read_table
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
"""Neither the model, nor a wait for the GPU, nor the user's own code."""
OUTSIDE = (Phase.OTHER, Phase.LOGGING)
"""Python outside the parts of a step."""


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
    """It reads data outside any dataset: at a start, or in a loop that loads for itself beside the steps."""
    SAMPLER = "sampler"
    """It chooses the next indices: samplers run in the main thread, with and without workers."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Say what a frame tells about everything below it.

    A ``weak`` mark is a hint, such as the name of a user's function: it counts only where nothing was known
    before. ``named``: the function (or the library) is worth showing to a person.
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
    # Nothing is known yet, or a module is executed: any frame tells more.
    _P.OTHER: frozenset(Phase),
    # Importing the compiler is not compiling.
    _P.IMPORT: frozenset(Phase) - {_P.OTHER, _P.COMPILE},
    # A dataset may load tensors, call modules and log: it stays the wait for data. A collective in it waits
    # for other ranks, and no worker makes that faster.
    _P.DATA_WAIT: _set(_P.COMMS, _P.INPUT),
    # Offloading moves modules to the card and back in each forward pass: that is not loading.
    _P.FORWARD: frozenset(Phase) - {_P.OTHER, _P.FORWARD, _P.VALIDATION, _P.LOAD},
    # Activation checkpointing runs a forward pass within backward: it is backward.
    _P.BACKWARD: _set(_P.OPTIMIZER, _P.SYNC, _P.COMMS, _P.LOGGING, _P.COMPILE, _P.IMPORT, _P.INPUT),
    # Lightning and LBFGS run the whole step inside step(closure).
    _P.OPTIMIZER: _set(
        _P.DATA_WAIT, _P.FORWARD, _P.BACKWARD, _P.SYNC, _P.COMMS, _P.LOGGING, _P.COMPILE, _P.IMPORT, _P.INPUT
    ),
    # A progress bar or callback may enclose a loop, automatic logging a program; a metric may be a module.
    _P.LOGGING: _set(
        _P.OTHER, _P.DATA_WAIT, _P.BACKWARD, _P.OPTIMIZER, _P.COMMS, _P.CHECKPOINT, _P.VALIDATION, _P.INPUT
    ),
    # A run in validation stays in it, whatever it waits for. Training in a function called train (its mark is
    # OTHER) within it is training.
    _P.VALIDATION: _set(_P.OTHER, _P.CHECKPOINT, _P.BACKWARD, _P.OPTIMIZER, _P.INPUT),
    _P.LOAD: _set(_P.IMPORT, _P.COMPILE, _P.INPUT),
    _P.SYNC: _set(_P.INPUT),
    _P.COMMS: _set(_P.INPUT),
    _P.CHECKPOINT: _set(_P.INPUT),
    _P.COMPILE: _set(_P.INPUT),
    _P.INPUT: frozenset(),
}
"""Which inner phases take over from an outer one; all others count for the outer."""


@dataclass(frozen=True, slots=True)
class FrameRule:
    """Give a mark to functions of a file; with no functions named, to all but those in ``but``.

    ``path`` is the end of a file's path ("torch/serialization.py") or, ending in "/", a folder in it.
    ``installed``: the folder's name is a common word, so it must be a library's.
    """

    path: str
    mark: Mark
    functions: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()
    installed: bool = False


@dataclass(frozen=True, slots=True)
class FrameRules:
    """Hold rules by the last part of their path, folders under "", and the names of functions."""

    frames: Mapping[str, tuple[FrameRule, ...]]
    leaves: Mapping[str, tuple[FrameRule, ...]]
    retries: Mapping[str, tuple[FrameRule, ...]]
    calling: Mapping[str, tuple[FrameRule, ...]]
    names: tuple[tuple[Mark, re.Pattern[str]], ...]
    marks_of_names: frozenset[Mark]


_ALL = "*"
_ALL_BUT = "* but "


def _read_rules(
    table: Mapping[str, Any],
    marks: Mapping[str, Mark],
    also_at: Mapping[str, str],
    *,
    installed: bool = False,
) -> Iterator[FrameRule]:
    for path, row in table.items():
        paths = [path, *(new + path[len(old) :] for old, new in also_at.items() if path.startswith(old))]
        for name, value in row.items():
            if name not in marks:
                raise TableError(f"{path}: {name}: no such mark; the marks are {', '.join(marks)}")
            text: str = convert(str, value)
            but = frozenset(text[len(_ALL_BUT) :].split() if text.startswith(_ALL_BUT) else ())
            functions = frozenset(() if but or text == _ALL else text.split())
            if not (but or functions or text == _ALL):
                raise TableError(f"{path}: {name}: names no function; {_ALL!r} is all of them")
            for one in paths:
                yield FrameRule(one, marks[name], functions, but, installed)


def _by_file(rules: Iterable[FrameRule]) -> dict[str, tuple[FrameRule, ...]]:
    """Group rules by the last part of their path, longest path first."""
    grouped: dict[str, list[FrameRule]] = {"": []}
    for rule in rules:
        grouped.setdefault(rule.path.rpartition("/")[2], []).append(rule)
    return {last: tuple(sorted(some, key=lambda one: -len(one.path))) for last, some in grouped.items()}


def make_rules(table: Mapping[str, Any]) -> FrameRules:
    """Make the rules of a table of frames; TableError for an unknown mark, phase, part or need."""
    marks = {name: make_row(Mark, name, {"phase": None, **row}) for name, row in table["marks"].items()}
    also_at = table["also_at"]
    frames = _read_rules(table["frames"], marks, also_at)
    installed = _read_rules(table["installed"], marks, also_at, installed=True)
    names = []
    for name, patterns in table["names"].items():
        if name not in marks:
            raise TableError(f"{name}: no such mark")
        mark = replace(marks[name], weak=marks[name].phase is not Phase.OTHER)
        names.append((mark, re.compile("|".join(convert(tuple[str, ...], patterns)))))
    return FrameRules(
        frames=_by_file((*frames, *installed)),
        leaves=_by_file(_read_rules(table["leaves"], marks, also_at)),
        retries=_by_file(_read_rules(table["retries"], marks, also_at)),
        calling=_by_file(_read_rules(table["calling"], marks, also_at)),
        names=tuple(names),
        marks_of_names=frozenset(mark for mark, _ in names),
    )


@cache
def read_frame_rules() -> FrameRules:
    """Return the rules of ``frames.toml``, which is read with the first stack."""
    return make_rules(read_table(__file__, "frames.toml"))


COMPUTING_RATIO = 0.6
"""Share of samples in forward, backward and optimizer that makes computing what the ranks do."""
LIVELY_RATIO = 0.4
"""Share of samples in the model below which steps may be a small part of the run."""
HELD_RATIO = 0.2
"""Share of samples that no single wait may reach in a balanced run."""
