"""Match what a person calls a job with what it runs: script, path, module. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.probe.job.programs import parse_command

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ScriptName:
    """Hold what a job goes by: its label as lists show it, and its script's path or its module as started."""

    label: str
    full: str = ""

    @property
    def stem(self) -> str:
        """Return the label without the ending of a script."""
        return self.label.removesuffix(".py")


def name_script(label: str, argv: Sequence[str]) -> ScriptName:
    """Return the names of a program by its label and its command line."""
    command = parse_command(argv)
    return ScriptName(label, command.name if command.how in ("script", "module") else "")


def find_by_name(wanted: str, names: Mapping[K, ScriptName]) -> tuple[K, ...]:
    """Return what goes by a name: exactly if anything does, else by the end of its path, else by a part."""
    path = os.path.normpath(wanted)
    part = wanted.casefold()
    tests = (
        lambda one: wanted in (one.label, one.stem, one.full),
        lambda one: f"/{one.full}".endswith((f"/{path}", f"/{path}.py")) or one.full.endswith(f".{wanted}"),
        lambda one: part in one.label.casefold() or part in one.full.casefold(),
    )
    for test in tests:
        if found := tuple(key for key, one in names.items() if test(one)):
            return found
    return ()
