"""Wait for torch to be imported: one finder that lets all names pass, and acts after the one it awaits.

It asks the other finders for torch's spec and wraps that one loader's ``exec_module``; the loader's
type, its other methods and the module stay as they are.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Arrival:
    """Call ``arrived`` after one of ``names`` was imported, once for each."""

    __slots__ = ("_arrived", "_names")

    def __init__(self, names: Sequence[str], arrived: Callable[[], None]) -> None:
        """Wait for nothing yet."""
        self._names = set(names)
        self._arrived = arrived

    def begin(self) -> None:
        """Stand before all other finders."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stand there no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, with ``arrived`` behind it; None for all other names."""
        if name not in self._names:
            return None
        self._names.discard(name)
        for finder in sys.meta_path:
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec)
                return spec
        self._names.add(name)
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader, arrived = spec.loader, self._arrived
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[union-attr]
            execute(module)
            arrived()

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:  # a loader that takes no attributes: the hook stays away
            return
