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
ELSEWHERE = tuple(phase for phase in Phase if phase not in (*TRAINING, Phase.SYNC, Phase.OTHER))
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
    **dict.fromkeys((_P.SYNC, _P.COMMS, _P.CHECKPOINT, _P.COMPILE), _set(_P.INPUT)),
    _P.INPUT: frozenset(),
}
"""Which inner phases take over from an outer one; all others count for the outer."""


class FrameKind(Enum):
    """Name what some functions of libraries do, whatever the phase; the value is their part of the table."""

    WAITS = "waits"
    RECEIVES = "receives"
    ANSWERS = "answers"
    FUTURES = "futures"
    CALLS = "calls"
    OPENS = "opens"
    RETRIES = "retries"
    LEADS = "leads"
    AUTOTUNES = "autotunes"
    NOTEBOOK = "notebook"


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


RulesByFile = Mapping[str, tuple[FrameRule, ...]]
"""Rules by the last part of their path, the longest path first; folders stand under ""."""


@dataclass(frozen=True, slots=True)
class FrameRules:
    """Hold the tables of ``frames.toml``; ``below`` by the name of the function that a frame has called."""

    frames: RulesByFile
    leaves: RulesByFile
    below: Mapping[str, RulesByFile]
    kinds: Mapping[FrameKind, RulesByFile]
    names: tuple[tuple[Mark, re.Pattern[str]], ...]
    marks_of_names: frozenset[Mark]
    words: Mapping[str, str]


_ALL = "*"
_ALL_BUT = "* but "
_NO_MARK = Mark(None)


def make_rules(table: Mapping[str, Any]) -> FrameRules:
    """Make the rules of a table of frames; TableError for an unknown mark, phase, part or need."""
    marks = {name: make_row(Mark, name, {"phase": None, **row}) for name, row in table["marks"].items()}

    def find_mark(where: str, name: str) -> Mark:
        if name not in marks:
            raise TableError(f"{where}{name}: no such mark; the marks are {', '.join(marks)}")
        return marks[name]

    def read(rows: Mapping[str, Any], *, installed: bool = False) -> Iterator[FrameRule]:
        for paths, row in rows.items():
            for name, value in row.items() if isinstance(row, dict) else [("", row)]:
                mark = find_mark(f"{paths}: ", name) if name else _NO_MARK
                text: str = convert(str, value)
                but = frozenset(text[len(_ALL_BUT) :].split() if text.startswith(_ALL_BUT) else ())
                functions = frozenset(() if but or text == _ALL else text.split())
                if not (but or functions or text == _ALL):
                    raise TableError(f"{paths}: {name}: names no function; {_ALL!r} is all of them")
                for path in paths.split(", "):
                    yield FrameRule(path, mark, functions, but, installed)
                    for old, new in table["also_at"].items():
                        if path.startswith(old):
                            yield FrameRule(new + path[len(old) :], mark, functions, but, installed)

    frames = (*read(table["frames"]), *read(table["installed"], installed=True))
    names = []
    for name, patterns in table["names"].items():
        mark = find_mark("", name)
        # A hint, except for a function that trains.
        mark = replace(mark, weak=mark.phase is not Phase.OTHER)
        names.append((mark, re.compile("|".join(convert(tuple[str, ...], patterns)))))
    return FrameRules(
        frames=_by_file(frames),
        leaves=_by_file(read(table["leaves"])),
        below={name: _by_file(read(rows)) for name, rows in table["below"].items()},
        kinds={one: _by_file(read(table[one.value], installed=True)) for one in FrameKind},
        names=tuple(names),
        marks_of_names=frozenset(mark for mark, _ in names),
        words={name: word for word, text in table["words"].items() for name in convert(str, text).split()},
    )


def _by_file(rules: Iterable[FrameRule]) -> RulesByFile:
    grouped: dict[str, list[FrameRule]] = {"": []}
    for rule in rules:
        grouped.setdefault(rule.path.rpartition("/")[2], []).append(rule)
    return {last: tuple(sorted(some, key=lambda one: -len(one.path))) for last, some in grouped.items()}


@cache
def read_frame_rules() -> FrameRules:
    """Return the rules of ``frames.toml``, which is read with the first stack."""
    return make_rules(read_table(__file__, "frames.toml"))


# What each threshold is, and where it comes from: docs/thresholds.toml.
COMPUTING_RATIO = 0.6
LIVELY_RATIO = 0.4
HELD_RATIO = 0.2
