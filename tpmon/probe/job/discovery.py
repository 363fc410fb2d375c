"""Look at the processes of this machine: which of them make jobs, and which stands at the top of each.

The walk up ends at boundaries (``programs.Program``): what one person typed into one shell stays as
many jobs as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, is_known
from tpmon.model.process import WORKER_NAME
from tpmon.probe.base.each_process import each_process
from tpmon.probe.base.procread import Stat, has_ended, is_python_name, read_exe
from tpmon.probe.job.facts import Facts
from tpmon.probe.job.job import find_descendants
from tpmon.probe.job.leaderless import pick_reader, read_facts_of
from tpmon.probe.job.strays import join_strays
from tpmon.probe.job.tree import Family, starts_ranks


@dataclass(frozen=True, slots=True)
class Survey:
    """Hold the roots of all jobs, and the Python processes that may be jobs too.

    A job has several roots where no launcher stands above its ranks; the first one is called its root.
    """

    roots: tuple[tuple[int, ...], ...]
    """Of the jobs that have torch in at least one process, oldest first."""
    denied: frozenset[int]
    """May not be read by this user."""
    unanswered: Mapping[int, str]
    """Did not answer in time, or are too odd to be understood: why."""


class Sight:
    """Read the facts of processes once, in bulk where it is known which are wanted."""

    def __init__(self, table: Mapping[int, Stat], proc: str) -> None:
        self.table = table
        self.proc = proc
        self._facts: dict[int, Facts | None] = {}
        self._wrappers: dict[int, bool] = {}

    def look(self, pids: Iterable[int], *, deep: bool = False) -> None:
        """Read those of ``pids`` that were not read yet."""
        fresh = [pid for pid in pids if pid not in self._facts]
        read = read_facts_of((self.table[pid] for pid in fresh), self.proc, deep=deep)
        self._facts.update((pid, read.get(pid)) for pid in fresh)

    def get(self, pid: int) -> Facts | None:
        """Return the facts of one process, or None when it is gone."""
        if pid not in self._facts:
            self.look((pid,))
        return self._facts[pid]

    def children(self, pid: int) -> list[Facts]:
        """Return the facts of the children of a process."""
        pids = self._children_of(pid)
        self.look(pids)
        return [fact for child in pids if (fact := self.get(child))]

    def wraps(self, pid: int) -> bool:
        """Tell whether a Python process with torch only started what trains (``Family.wraps``)."""
        if pid not in self._wrappers:
            names = [self.table[child].name for child in self._children_of(pid)]
            loads = any(name.startswith(WORKER_NAME) for name in names)
            below = [] if loads or not names else find_descendants(pid, self.table)
            self.look(below)
            facts = {at: fact for at in below if (fact := self.get(at))}
            self._wrappers[pid] = pid in facts and Family(facts).wraps(pid)
        return self._wrappers[pid]

    def _children_of(self, pid: int) -> list[int]:
        return [
            child
            for child, stat in self.table.items()
            if stat.parent == pid and not has_ended(stat.state, stat.threads)
        ]


def survey(sight: Sight) -> Survey:
    """Find the roots of all jobs, and the Python processes of which it could not be read whether they are."""
    table, proc = sight.table, sight.proc
    candidates = [pid for pid, stat in table.items() if _may_train(stat, proc)]
    sight.look({at for pid in candidates for at in ancestry(pid, table)})
    trained = [pid for pid in candidates if (fact := sight.get(pid)) and fact.python and fact.torch]
    chosen = each_process(trained, lambda pid: choose_root(pid, sight))
    odd = {pid: root.reason for pid, root in chosen.items() if isinstance(root, Missing)}
    untold = [fact for pid in candidates if (fact := sight.get(pid)) and fact.python and not fact.torch]
    roots = {root for root in chosen.values() if is_known(root) and root}
    tops = sorted(roots, key=lambda pid: (table[pid].start_ticks, pid))
    return Survey(
        tuple(join_strays([fact for top in tops if (fact := sight.get(top))], proc)),
        frozenset(fact.stat.pid for fact in untold if fact.denied),
        odd | {fact.stat.pid: why for fact in untold if (why := fact.unanswered)},
    )


def ancestry(pid: int, table: Mapping[int, Stat]) -> Iterator[int]:
    """Yield a process and those above it, nearest first."""
    seen: set[int] = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        yield pid
        pid = table[pid].parent


def _may_train(stat: Stat, proc: str) -> bool:
    """Tell by what is cheap to read whether a process may be Python with torch of its own."""
    if stat.kernel or has_ended(stat.state, stat.threads) or stat.name.startswith(WORKER_NAME):
        return False
    try:
        exe = read_exe(pick_reader(stat, proc), proc)
    except OSError:
        return False  # gone
    return isinstance(exe, Missing) or is_python_name(exe)


def choose_root(pid: int, sight: Sight) -> int | None:
    """Walk up from ``pid``: the first launcher, else the highest Python process with torch that trains.

    One that only started a launcher, or another program that trains, stands above the job.
    """
    highest: int | None = None
    chain = list(ancestry(pid, sight.table))
    sight.look(chain, deep=True)
    for at in chain:
        fact = sight.get(at)
        if fact is None:
            continue
        if fact.program.boundary:
            break
        if fact.program.launcher:
            return _outermost(at, sight)
        if fact.python and (not sight.wraps(at) if fact.torch else starts_ranks(fact, sight.children(at))):
            highest = at
    return highest


def _outermost(launcher: int, sight: Sight) -> int:
    """Climb from a launcher to the one that started it, when both are parts of one command.

    mpirun stands above hydra_pmi_proxy or orted, deepspeed above deepspeed.launcher.launch.
    """
    fact = sight.get(launcher)
    for at in list(ancestry(launcher, sight.table))[1:]:
        above = sight.get(at)
        if above is None or fact is None or above.program.boundary:
            break
        if above.program.launcher == fact.program.launcher:
            launcher = at
        elif not above.program.shell:
            break
    return launcher
