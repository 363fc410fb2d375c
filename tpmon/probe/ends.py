"""Remember how members ended, so that the end of the whole job can be told. Pure.

The last process to go is often not the one to ask: loader workers outlive a killed rank by
seconds and then leave with exit 0.
"""

from __future__ import annotations

from tpmon.model.known import Known, is_known
from tpmon.model.process import Identity, Role
from tpmon.probe.changes import Changes, name_member
from tpmon.probe.ending import UNSEEN, describe_end
from tpmon.probe.job import Member

DYING_NS = 10_000_000_000
"""Freeing hundreds of GB takes the kernel seconds."""
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


class Ends:
    """Follow the ends of one job's members."""

    def __init__(self, root: Identity) -> None:
        """Begin with nobody ended; ``root`` is the process whose end is the job's."""
        self._root = root
        self._root_how = ""
        self._last_how = UNSEEN
        self._first: Member | None = None
        self._first_how = ""

    def add(self, changes: Changes, *, oom_kills: int = 0) -> None:
        """Note who ended; ``oom_kills`` as in ``describe_end``."""
        root_lived = not self._root_how
        for each in changes.gone:
            how = describe_end(each.wait_status, oom_victim=each.oom_victim, oom_kills=oom_kills)
            if each.member.identity == self._root:
                self._root_how = how
            elif root_lived and self._first is None and each.failed and each.member.role in _FATAL:
                self._first, self._first_how = each.member, how
            self._last_how = how
        if self._first is not None and any(_replaces(one, self._first) for one in changes.born):
            self._first = None  # the job went on without it

    def describe(self) -> str:
        """Say how the job ended, and who failed first: "exit 1, after rank 0 (85): SIGKILL"."""
        how = self._root_how or self._last_how
        if self._first is None or how in ("exit 0", self._first_how):
            return how
        return f"{how}, after {name_member(self._first)}: {self._first_how}"


def _replaces(born: Member, gone: Member) -> bool:
    return (born.role, born.rank) == (gone.role, gone.rank)
