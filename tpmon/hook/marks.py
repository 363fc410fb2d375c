"""Time named parts of a loop: on the bus, and in a torch profile that is recorded meanwhile."""

from __future__ import annotations

import sys
from time import monotonic_ns

from tpmon.hook.bus import wire
from tpmon.hook.installation import HOOK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self


class _Named:
    """Hold what was measured under one name, and its place on the bus it was written to."""

    __slots__ = ("calls", "longest_ns", "page", "place", "total_ns")

    def __init__(self) -> None:
        self.calls = self.total_ns = self.longest_ns = self.place = 0
        self.page: object = None


_NAMED: dict[str, _Named] = {}


class mark:  # noqa: N801 used like a function
    """Time the block under a name: ``with mark("checkpoint"): ...``.

    Calls, total and longest time go to the bus (the first 16 names), and the block is a
    ``record_function`` of that name, so that it is seen in profiles. Costs some microseconds with
    torch. One name belongs to one thread; not for code that torch.compile compiles.
    """

    __slots__ = ("_began_ns", "_name", "_recorded")

    def __init__(self, name: str) -> None:
        self._name = name
        self._recorded: Any = None
        self._began_ns = 0

    def __enter__(self) -> Self:
        """Begin to measure."""
        profiler = sys.modules.get("torch.autograd.profiler")
        if profiler is not None:
            self._recorded = profiler.record_function(self._name)
            self._recorded.__enter__()
        self._began_ns = monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Add what was measured; an error of the block goes on."""
        spent = monotonic_ns() - self._began_ns
        if self._recorded is not None:
            self._recorded.__exit__(kind, error, trace)
        try:
            _add(self._name, spent)
        except Exception as problem:
            if not HOOK.steps.fail(problem):
                raise


def _add(name: str, spent_ns: int) -> None:
    named = _NAMED.get(name)
    if named is None:
        if len(_NAMED) >= wire.MARKS:
            return
        named = _NAMED[name] = _Named()
    named.calls += 1
    named.total_ns += spent_ns
    named.longest_ns = max(named.longest_ns, spent_ns)
    pages = HOOK.steps.pages
    if pages is None:
        return
    if named.page is not pages:
        named.page = pages
        number = pages.live[wire.LIVE_MARKS]
        if number >= wire.MARKS:
            named.place = 0
            return
        named.place = wire.MARKS_OFFSET + number * wire.MARK_BYTES
        pages.page[named.place : named.place + wire.MARK_BYTES] = wire.pack_mark(name)
        pages.live[wire.LIVE_MARKS] = number + 1
    if named.place:
        wire.write_mark(pages.page, named.place, named.calls, named.total_ns, named.longest_ns)
