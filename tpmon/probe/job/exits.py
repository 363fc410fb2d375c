"""Remember how members ended, so that the end of the whole job can be told. Pure.

The last process to go is often not the one to ask: loader workers outlive a killed rank by
seconds and then leave with exit 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import NOT_APPLICABLE, Known, is_known
from tpmon.model.process import Identity, Outcome, ProcessEnd, ProcessSample, Role
from tpmon.probe.job.changes import Changes, Departure, name_member
from tpmon.probe.job.ending import UNSEEN, describe_end, name_signal
from tpmon.probe.job.job import Member

DYING_NS = 10_000_000_000
"""Freeing hundreds of GB takes the kernel seconds."""
OUTLIVED_NS = 2_400_000_000_000
"""A job that goes on for 40 min after a failure does so without it: those that waited for the rank that
failed have given up, which takes a collective of gloo 30 min and one of NCCL 10."""
MOST_ENDS = 256
"""A Frame names so many that ended in one second; a job of thousands ends at once."""
_FATAL = (Role.RANK, Role.WORKER)


class OomKills:
    """Follow the count of OOM kills of one place; a count of another place says nothing new."""

    def __init__(self) -> None:
        """Begin with no place seen."""
        self._before: tuple[str, int] | None = None
        self._told: tuple[int, int] | None = None

    def count_new(self, place: str, total: Known[int], now_ns: int) -> int:
        """Return how many came since the last look at the same place, 0 at the first look."""
        if not is_known(total):
            return 0
        before, self._before = self._before, (place, total)
        if before is None or before[0] != place:
            self._told = None
            return 0
        new = max(0, total - before[1])
        if new:
            self._told = (now_ns, new)
        return new

    def count_recent(self, now_ns: int) -> int:
        """Return the kills whose victims may be ending now: they are counted before they are gone."""
        return self._told[1] if self._told is not None and now_ns - self._told[0] < DYING_NS else 0


def tell_end(gone: Departure, *, oom_kills: int = 0) -> ProcessEnd:
    """Say how one member ended; ``oom_kills`` as in ``describe_end``."""
    status, member = gone.wait_status, gone.member
    outcome = Outcome.UNKNOWN
    if is_known(status):
        outcome = Outcome.FAILED if status else Outcome.WELL
    return ProcessEnd(
        pid=member.identity.pid,
        role=member.role,
        rank=member.rank,
        worker=member.worker,
        outcome=outcome,
        signal=name_signal(status & 0x7F) if is_known(status) and status & 0x7F else NOT_APPLICABLE,
        how=describe_end(status, oom_victim=gone.oom_victim, oom_kills=oom_kills),
    )


class Ends:
    """Follow the ends of one job's members."""

    def __init__(self, root: Identity) -> None:
        """Begin with nobody ended; ``root`` is the process whose end is the job's."""
        self._root = root
        self._root_how = ""
        self._last_how = UNSEEN
        self._first: Member | None = None
        self._first_how = ""
        self._first_ns = 0
        self._newest_ticks = 0
        """When the newest of the ranks that lived at the first failure was started."""
        self._last_outcome = self._root_outcome = Outcome.UNKNOWN
        self._rank_outcomes: set[Outcome] = set()

    def add(
        self,
        changes: Changes,
        now_ns: int,
        *,
        living: Sequence[ProcessSample] = (),
        oom_kills: int = 0,
    ) -> tuple[ProcessEnd, ...]:
        """Note who ended, and return it; ``oom_kills`` as in ``describe_end``.

        ``now_ns`` is CLOCK_MONOTONIC, ``living`` the processes that are there now.
        """
        root_lived = not self._root_how
        if root_lived and self._first is not None and now_ns - self._first_ns > OUTLIVED_NS:
            self._first = None
        ends = tuple(tell_end(each, oom_kills=oom_kills) for each in changes.gone)
        for each, end in zip(changes.gone, ends, strict=True):
            if each.member.identity == self._root:
                self._root_how, self._root_outcome = end.how, end.outcome
            elif root_lived and self._first is None and each.failed and end.role in _FATAL:
                self._first, self._first_how, self._first_ns = each.member, end.how, now_ns
                self._newest_ticks = max(_started(living), default=0)
            self._last_how, self._last_outcome = end.how, end.outcome
        self._note_ranks(ends, changes)
        if self._first is not None and self._went_on(self._first, changes, living):
            self._first = None
        return tuple(end for end in ends if end.role is not Role.HELPER)[:MOST_ENDS]

    def _went_on(self, first: Member, changes: Changes, living: Sequence[ProcessSample]) -> bool:
        """Tell whether the job goes on without ``first``: with another in its place, or all ranks anew.

        After an elastic restart over several hosts the ranks of this one may have other numbers.
        """
        if any(_replaces(one, first) for one in changes.born):
            return True
        return min(_started(living), default=0) > max(self._newest_ticks, first.identity.start_ticks)

    def _note_ranks(self, ends: Sequence[ProcessEnd], changes: Changes) -> None:
        """Note how the ranks ended; a rank that was born since begins anew."""
        outcomes = {end.outcome for end in ends if end.role is Role.RANK}
        if any(one.role is Role.RANK for one in changes.born):
            self._rank_outcomes.clear()
        self._rank_outcomes |= outcomes

    @property
    def ranks_outcome(self) -> Outcome:
        """Say how the ranks that are gone ended: badly if one of them did."""
        return _worst(self._rank_outcomes)

    @property
    def outcome(self) -> Outcome:
        """Say whether the job ended well: by its root, else by a rank or worker that failed before."""
        outcome = self._root_outcome if self._root_how else self._last_outcome
        if outcome is Outcome.UNKNOWN and self._first is not None:
            return Outcome.FAILED
        # Loader workers that outlive the rest leave with exit 0 and tell nothing of the job.
        return outcome if self._root_how or outcome is Outcome.FAILED else Outcome.UNKNOWN

    def describe(self) -> str:
        """Say how the job ended, and who failed first: "exit 1, after rank 0 (85): SIGKILL"."""
        how = self._root_how or self._last_how
        if self._first is None or how in ("exit 0", self._first_how):
            return how
        return f"{how}, after {name_member(self._first)}: {self._first_how}"


def _started(living: Sequence[ProcessSample]) -> list[int]:
    return [one.start_ticks for one in living if one.role is Role.RANK]


def _replaces(born: Member, gone: Member) -> bool:
    return (born.role, born.rank) == (gone.role, gone.rank)


def _worst(outcomes: set[Outcome]) -> Outcome:
    if Outcome.FAILED in outcomes:
        return Outcome.FAILED
    return Outcome.WELL if outcomes == {Outcome.WELL} else Outcome.UNKNOWN
