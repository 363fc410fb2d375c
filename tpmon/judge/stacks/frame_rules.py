"""Read the table of the frames that tell a phase, ``frames.toml``. Knows none of them by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tpmon.judge.knowledge import TableError, convert, make_row, read_table
from tpmon.judge.stacks.phases import Mark, Phase
from tpmon.model.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Give a mark to functions of a file; no functions named: to all but those in ``but``.

    ``path`` is the end of a file's path ("torch/serialization.py") or, ending in "/", a folder
    of it. ``installed``: the folder's name is a common word, so it must be a library's.
    """

    path: str
    mark: Mark
    functions: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()
    installed: bool = False


@dataclass(frozen=True, slots=True)
class FrameRules:
    """Hold the rules by the last part of their path, folders under "", and the names of functions."""

    frames: Mapping[str, tuple[Rule, ...]]
    leaves: Mapping[str, tuple[Rule, ...]]
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
) -> Iterator[Rule]:
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
                yield Rule(one, marks[name], functions, but, installed)


def _by_file(rules: Iterable[Rule]) -> dict[str, tuple[Rule, ...]]:
    """Group the rules by the last part of their path, the longest path first."""
    grouped: dict[str, list[Rule]] = {"": []}
    for rule in rules:
        grouped.setdefault(rule.path.rpartition("/")[2], []).append(rule)
    return {last: tuple(sorted(some, key=lambda one: -len(one.path))) for last, some in grouped.items()}


def make_rules(table: Mapping[str, Any]) -> FrameRules:
    """Make the rules of a table of frames.

    Raises:
        TableError: for a mark, a phase, a part or a need that there is not.
    """
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
        names=tuple(names),
        marks_of_names=frozenset(mark for mark, _ in names),
    )


@cache
def read_frame_rules() -> FrameRules:
    """Return the rules of ``frames.toml``, which is read with the first stack."""
    return make_rules(read_table(__file__, "frames.toml"))
