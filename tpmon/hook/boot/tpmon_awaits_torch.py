"""Wait for torch in a Python process that was started with the hook; until then cost next to nothing.

A finder before all others acts at the import of torch, once. A finder behind all others finds ``tpmon``
where nobody else does, so that a program may ``import tpmon.hook`` without having tpmon.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ALLOW_STACKS = "_TPMON_ALLOW_STACKS"
"""``tpmon run --allow-stacks`` sets it to 1."""


class Awaiter:
    """Import the hook when torch is asked for."""

    def __init__(self, last: LastResort) -> None:
        self._last = last

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return for torch what the other finders say, the hook's among them; None for all other names."""
        if name != "torch":
            return None
        try:
            leave(self)
            self._last.load()
        except Exception:
            pass  # no hook; torch is imported as always
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


class LastResort:
    """Find the tpmon that the run was started with, where the program's Python has none."""

    def __init__(self, places: list[str]) -> None:
        self._places = places

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the package tpmon that lies beside this file; None for all other names."""
        if name != "tpmon":
            return None
        from importlib.machinery import PathFinder  # noqa: PLC0415

        return PathFinder.find_spec(name, self._places)

    def load(self) -> None:
        """Import the hook of that tpmon, or of another one where the program imported it before."""
        if "tpmon" not in sys.modules:
            sys.meta_path = [self, *sys.meta_path]  # for this one import, the first resort
            try:
                import tpmon  # noqa: PLC0415
            finally:
                leave(self)
        import tpmon.hook  # noqa: PLC0415

        if os.environ.get(ALLOW_STACKS) == "1":
            tpmon.hook.allow_stacks()


def leave(finder: object) -> None:
    """Take a finder out where it comes first, by a new list: a thread in an import walks through the old one.

    It would skip a finder, were one taken out before it, and not find what is there.
    """
    left = False
    while not left:
        before = [*sys.meta_path]
        at = before.index(finder)  # type: ignore[arg-type]
        after = before[:at] + before[at + 1 :]
        if sys.meta_path == before:  # from 3.10 on no other thread comes between
            sys.meta_path, left = after, True


def begin(here: str) -> None:
    """Wait for torch; ``here`` is the folder or the zip that this file is in."""
    tree = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    last = LastResort([here + "/lib", tree])
    sys.meta_path.insert(0, Awaiter(last))
    sys.meta_path.append(last)
