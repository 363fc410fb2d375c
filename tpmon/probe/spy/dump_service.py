"""Run one dump at a time in a daemon thread, for the key and for the watch; nobody waits for it.

The looks grow in ``state``, so that a screen shows what has come; finished ones of the whole job are
handed to the next Frame by ``take``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from tpmon.model.dump import Asker, DumpRequest, DumpRound, DumpState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity
from tpmon.model.text.clean import name_failure
from tpmon.probe.job.job import Member
from tpmon.probe.spy.dump import NATIVE_ROUND_S, ROUND_S, Depth, Dumper

ALREADY = "a dump is being read already"
NOBODY = "no process to read"
EARLIER_S = 600.0
"""A look that is older tells of another part of the run."""
APART_S = 1.0
"""Even a thread that works is still for less."""
_LOOK_AGAIN_S = 0.2
"""How soon a wait between two looks ends after ``stop``."""

Hold = Callable[[], AbstractContextManager[None]]
MakeDumper = Callable[[Sequence[Member], Depth], Dumper]


def _make_dumper(members: Sequence[Member], depth: Depth) -> Dumper:
    return Dumper(members, depth)


@dataclass(frozen=True, slots=True)
class _KeptDump:
    """Hold the last look that was finished, and whom it was at."""

    members: frozenset[Identity]
    look: DumpRound


class DumpService:
    """Own the daemon thread of a dump. Every method returns at once."""

    def __init__(
        self,
        members: Callable[[], Sequence[Member]],
        make: MakeDumper = _make_dumper,
        holds: Sequence[Hold] = (),
    ) -> None:
        """Read nothing until ``ask``; ``members`` tells, in any thread, whose stacks there are.

        ``holds`` keep every other py-spy of ours away from a process while a dump may stop it.
        """
        self.on_change: Callable[[], None] = lambda: None
        self._members = members
        self._make = make
        self._holds = tuple(holds)
        self._lock = threading.Lock()
        self._state: Applicable[DumpState] = NOT_APPLICABLE
        self._finished: list[DumpRound] = []
        self._kept: _KeptDump | None = None
        self._paused_ms = 0.0
        self._dumper: Dumper | None = None
        self._stopped = threading.Event()

    @property
    def state(self) -> Applicable[DumpState]:
        """Return how far the newest dump is; not applicable before the first."""
        with self._lock:
            return self._state

    @property
    def paused_ms(self) -> float:
        """Return for how long processes of the job were stopped by all dumps so far, in milliseconds."""
        with self._lock:
            return self._paused_ms

    def take(self) -> Applicable[tuple[DumpRound, ...]]:
        """Return the looks that ended since the last call and tell of the job as a whole."""
        with self._lock:
            finished, self._finished = tuple(self._finished), []
        return finished or NOT_APPLICABLE

    def ask(self, request: DumpRequest) -> None:
        """Start to look, or say in ``state`` why not: one dump at a time."""
        wanted = [one for one in self._members() if not request.pids or one.identity.pid in request.pids]
        with self._lock:
            running = is_known(self._state) and self._state.running
            if not running:
                refused = "" if wanted else NOBODY
                earlier = self._find_earlier(request, wanted)
                self._state = DumpState(request, (), 0, len(wanted), not refused, refused, earlier)
            elif is_known(self._state):
                self._state = replace(self._state, running=True, refused=ALREADY)
        if not running and wanted:
            work = (request, wanted)
            threading.Thread(target=self._run, args=work, name="tpmon-dump-service", daemon=True).start()
        self.on_change()

    def _find_earlier(self, request: DumpRequest, members: Sequence[Member]) -> Applicable[DumpRound]:
        """Return the look to compare one look with; several tell among themselves what moves now.

        Frames of C make other stacks of the same place.
        """
        kept = self._kept
        if kept is None or request.rounds > 1 or request.native:
            return NOT_APPLICABLE
        if not kept.members.issuperset(one.identity for one in members):
            return NOT_APPLICABLE
        age_s = (time.monotonic_ns() - kept.look.taken_ns) / 1e9
        return kept.look if APART_S <= age_s <= EARLIER_S else NOT_APPLICABLE

    def stop(self) -> None:
        """End what runs, with every py-spy of it."""
        self._stopped.set()
        with self._lock:
            dumper = self._dumper
        if dumper is not None:
            dumper.stop()

    def _run(self, request: DumpRequest, members: Sequence[Member]) -> None:
        refused = ""
        try:
            with ExitStack() as held:
                for hold in self._holds if request.block or request.native else ():
                    held.enter_context(hold())
                self._read_rounds(request, members)
        except Exception as error:  # noqa: BLE001  # shown where the dump would be
            refused = f"the dump failed: {name_failure(error)}"
        with self._lock:
            if is_known(self._state):
                self._state = replace(self._state, asked=len(members), running=False, refused=refused)
            self._dumper = None
        self.on_change()

    def _read_rounds(self, request: DumpRequest, members: Sequence[Member]) -> None:
        dumper = self._make(
            members,
            Depth(
                request.block,
                request.native,
                request.variables,
                request.block_pids,
                waits=request.asker is Asker.KEY,
            ),
        )
        limit_s = NATIVE_ROUND_S if request.native else ROUND_S
        with self._lock:
            self._dumper = dumper
        rounds: tuple[DumpRound, ...] = ()
        due_s = time.monotonic()
        for _ in range(request.rounds):
            while (left_s := due_s - time.monotonic()) > 0 and not self._stopped.is_set():
                self._stopped.wait(min(left_s, _LOOK_AGAIN_S))
            if self._stopped.is_set():
                return
            due_s = time.monotonic() + request.every_s
            before = rounds

            def show(part: DumpRound, answered: int, before: tuple[DumpRound, ...] = before) -> None:
                self._grow(request, (*before, part), answered, len(members))

            one = dumper.read_round(limit_s, show)
            if self._stopped.is_set():
                return
            rounds = (*rounds, one)
            with self._lock:
                if request.is_whole:
                    self._finished.append(one)
                self._paused_ms += one.paused_ms
                if not request.native:
                    self._kept = _KeptDump(frozenset(member.identity for member in members), one)
            self._grow(request, rounds, len(members), len(members))

    def _grow(self, request: DumpRequest, rounds: tuple[DumpRound, ...], answered: int, asked: int) -> None:
        with self._lock:
            earlier = self._state.earlier if is_known(self._state) else NOT_APPLICABLE
            self._state = DumpState(request, rounds, answered, asked, True, "", earlier)
        self.on_change()
