"""Hold the one hook of this process: install it, take it back, begin anew in a forked child.

Until torch is imported a finder waits for it. It asks the other finders for the spec and wraps
``exec_module`` of that one loader; the loader's type, its other methods and the module stay as they are.
"""

from __future__ import annotations

import os
import sys

from tpmon.hook.bus import wire
from tpmon.hook.capture.mailbox import Mailbox
from tpmon.hook.context import GRAPHS, describe, is_ours, read_put_in
from tpmon.hook.counters import OFF
from tpmon.hook.patches import LATER, PLACES, Patches
from tpmon.hook.steps import Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1

_ALLOWED: list[bool] = []


def allow_stacks() -> bool:
    """Let every process of this user read the stacks of this one and of those it forks.

    Under Yama's ``ptrace_scope`` 1 only an ancestor may, so that tpmon and py-spy need root. This also lets
    any process of the user read and change the memory of this one. Return whether the kernel granted it:
    without Yama there is nothing to allow.
    """
    import ctypes  # noqa: PLC0415 only who calls this pays for it

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    arguments = (_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    granted = bool(prctl(*(ctypes.c_long(argument) for argument in arguments)) == 0)
    if granted and not _ALLOWED:
        _ALLOWED.append(True)
    return granted


class Arrival:
    """Call ``arrived`` once for each of ``names``, after its import; asking for a spec is no import."""

    def __init__(
        self, names: Sequence[str], arrived: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        """Wait for nothing yet; ``failed`` takes an error of our own, and must call ``end``."""
        self._names = set(names)
        self._arrived = arrived
        self._failed = failed
        self._looking = False

    def begin(self) -> None:
        """Go before all other finders."""
        if self not in sys.meta_path:
            sys.meta_path = [self, *sys.meta_path]

    def end(self) -> None:
        """Leave the list of finders, by a new list: a thread that is in an import walks through the old one.

        It would skip a finder, were one taken out before it, and not find what is there.
        """
        while self in sys.meta_path:
            before = [*sys.meta_path]
            after = [finder for finder in before if finder is not self]
            if sys.meta_path == before:  # from 3.10 on no other thread comes between
                sys.meta_path = after

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of ``names``, which will call ``arrived``; None for all other names."""
        if name not in self._names or self._looking:
            return None
        self._looking, asked = True, False
        try:
            spec = _ask_all(name, path, target)
            asked = True
            if spec is not None:
                self._follow(spec)
        except Exception as error:
            if asked and is_ours(error):  # else another finder's: Python asks that again, and meets it itself
                self._failed(error)
            return None  # Python asks the others
        finally:
            self._looking = False
        return spec

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
            return  # a loader without attributes of its own: no hook


def _ask_all(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Return the spec from the first finder that knows the name, or None."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


class Installation:
    """Hold steps, patches and the finder; ``installed`` says whether it is wanted."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.steps = Steps(lambda: self._take_back(within=True), self.mailbox)
        self.patches = Patches(self.steps)
        self._arrival = Arrival(("torch", *PLACES, *LATER), self._torch_came, self._give_up)
        self.installed = False
        self.problem = ""
        self._forks_watched = False

    def install(self) -> None:
        """Patch the torch that is there, and wait for what is not; never raises."""
        try:
            if self.installed:
                return
            self.installed = True
            self.problem = ""
            self.steps.forget()
            if not self._forks_watched:
                os.register_at_fork(after_in_child=self._forked)
                self._forks_watched = True
            if read_put_in()[0] and "torch" in sys.modules:
                self.steps.announce()  # before the patches: from then on another thread may make the pages
            self._torch_came()
        except Exception as error:
            self._give_up(error)

    def uninstall(self) -> None:
        """Take back every patch, say so on the bus and give back its pages; never raises."""
        try:
            self.installed = False
            self._take_back()
            if self.steps.pages is not None:
                self.steps.pages.set_status(wire.STATE_UNINSTALLED, 0, "")
            self.steps.forget()
            self.steps.owner = OFF
        except Exception as error:
            self._give_up(error)

    def _torch_came(self) -> None:
        try:
            if not self.installed or self.steps.problem:
                return
            torch = sys.modules.get("torch")
            if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
                self._arrival.begin()
                if torch is None:
                    return
            self.patches.apply()
            if self.patches.awaits():
                self._arrival.begin()
            else:
                self._arrival.end()
        except Exception as error:
            self._give_up(error)

    def _take_back(self, within: bool = False) -> None:
        self._arrival.end()
        self.patches.take_back(within)
        self.mailbox.take_back()

    def _forked(self) -> None:
        """Begin anew in a forked child: a DataLoader worker counts nothing, a forked rank its own steps."""
        try:
            GRAPHS.clear()  # their captures are the parent's
            self.mailbox.forked()
            if self.installed and not self.steps.problem:
                self.steps.forget()
            else:
                self.steps.drop_pages()
            if _ALLOWED:
                allow_stacks()  # the kernel forgets it at a fork
        except Exception as error:
            self._leave_to_parent()
            self.problem = describe(error)
            self.steps.turn_off_later(self.problem)

    def _leave_to_parent(self) -> None:
        """Drop the parent's page and recording after an error, however far that had come."""
        self.steps.drop_pages()
        try:
            self.mailbox.forked()
        except Exception:
            self.mailbox.leave()  # ending it would wait for threads that stayed with the parent

    def _give_up(self, error: Exception) -> None:
        self.problem = describe(error)
        self.steps.turn_off(self.problem)


HOOK = Installation()
