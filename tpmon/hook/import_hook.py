"""Wait for torch to be imported: one finder that lets all names pass, and acts after the one it awaits.

It asks the other finders for torch's spec and wraps that one loader's ``exec_module``; the loader's
type, its other methods and the module stay as they are.
"""

from __future__ import annotations

import sys

from tpmon.hook.context import is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Arrival:
    """Call ``arrived`` after one of ``names`` was imported, once for each; to ask for a spec is no import."""

    def __init__(
        self, names: Sequence[str], arrived: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        """Wait for nothing yet; ``failed`` is told of an error of our own, and is to call ``end``."""
        self._names = set(names)
        self._arrived = arrived
        self._failed = failed
        self._looking = False

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
        if name not in self._names or self._looking:
            return None
        self._looking = True
        try:
            spec = _ask_all(name, path, target)
            if spec is not None:
                self._follow(spec)
        except Exception as error:
            if not is_ours(error):
                return None  # another finder's: Python asks that one again, and gets it from there
            self._failed(error)
        else:
            return spec
        finally:
            self._looking = False
        # All of them here: Python walks through the list that we were just taken off, and leaves one out.
        return _ask_all(name, path, target)

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                # A loader may serve several modules, and a failed import may be tried again.
                if module.__name__ in self._names:
                    self._names.discard(module.__name__)
                    if loader.__dict__.get("exec_module") is exec_module:
                        del loader.exec_module
                    self._arrived()
            except Exception as error:
                if not is_ours(error):
                    raise
                self._failed(error)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader that takes no attributes: the hook stays away


def _ask_all(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Return what the first finder that knows the name says; None where none does."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None
