"""Tell when a model is compiled again while it trains, by the counters on the hooks' pages. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from tpmon.model.frame import Event, EventKind
from tpmon.model.hook_settings import CompileCounts
from tpmon.model.known import Known, is_known
from tpmon.model.pace import HookSample
from tpmon.model.text.dump_words import list_numbers

TRAINED_STEPS = 10
"""What is compiled before so many steps is the start: the first batches tell torch which sizes change."""
GATHER_S = 6.0
"""A hook reads the counters every five seconds at most: by then all ranks have told of the same rise."""
AGAIN_S = 60.0
"""A loop that compiles all the time is told of once a minute, not with each reading."""


class CompileTeller:
    """Remember the counters of each rank, and word their rises: one event a rise, for all ranks together."""

    def __init__(self) -> None:
        """Begin with no rank known: what was compiled before is no news."""
        self._trains_ns: dict[int, int] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._risen_ns: int | None = None
        self._told_ns: int | None = None

    def tell(self, taken: datetime, now_ns: int, hooks: Known[Sequence[HookSample]]) -> list[Event]:
        """Return the event that ranks compiled again, some seconds after the first did; mostly none."""
        if not is_known(hooks):
            return []
        self._forget(one.pid for one in hooks)
        risen = [(one, counts) for one in hooks if (counts := self._find_rise(one, now_ns)) is not None]
        if not risen:
            self._risen_ns = None
            return []
        if self._risen_ns is None:
            self._risen_ns = now_ns
        if now_ns - self._risen_ns < GATHER_S * 1e9:
            return []
        if self._told_ns is not None and now_ns - self._told_ns < AGAIN_S * 1e9:
            return []
        self._risen_ns, self._told_ns = None, now_ns
        for one, counts in risen:
            self._told[one.pid] = _figures(counts)
        return [Event(taken, EventKind.COMPILE, _word(risen))]

    def _forget(self, pids: Iterable[int]) -> None:
        for gone in self._trains_ns.keys() - set(pids):
            del self._trains_ns[gone]
            self._told.pop(gone, None)

    def _find_rise(self, hook: HookSample, now_ns: int) -> CompileCounts | None:
        """Return the counters of a rank where one rose since they were told last, or since it trains."""
        if hook.counts.steps < TRAINED_STEPS or not is_known(hook.settings):
            return None
        trains_ns = self._trains_ns.setdefault(hook.pid, now_ns)
        counts = hook.settings.compiled
        if not is_known(counts) or now_ns - hook.settings.age_s * 1e9 < trains_ns:
            return None  # they may be older than the last of the first steps
        figures = _figures(counts)
        told = self._told.setdefault(hook.pid, figures)
        if any(now < before for now, before in zip(figures, told, strict=True)):
            self._told[hook.pid] = told = figures  # the program cleared torch's counters: they begin anew
        return counts if figures > told else None


def _figures(counts: CompileCounts) -> tuple[int, int, int]:
    """Return what a compilation raises; with ``fullgraph=True`` torch counts graphs alone."""
    return counts.frames_ok, counts.graphs, counts.limit_hits


def _word(risen: Sequence[tuple[HookSample, CompileCounts]]) -> str:
    """Word the rise: "rank 0 compiled again: 14 frames, 3 at the recompile limit"."""
    numbers = [one.rank for one, _ in risen if is_known(one.rank)]
    if len(numbers) == len(risen):
        who = f"{'ranks' if len(risen) > 1 else 'rank'} {list_numbers(numbers)}"
    else:
        pids = list_numbers(one.pid for one, _ in risen)
        who = f"{'processes' if len(risen) > 1 else 'process'} {pids}"
    has_frames = any(counts.frames_ok for _, counts in risen)
    compiled = _span(counts.frames_ok if has_frames else counts.graphs for _, counts in risen)
    unit = "frames" if has_frames else "graphs"
    hits = [counts.limit_hits for _, counts in risen]
    limit = f", {_span(hits)} at the recompile limit" if any(hits) else ""
    return f"{who} compiled again: {compiled} {unit}{limit}"


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
