"""Look at the processes of this machine: which of them make jobs.

The walk up ends at boundaries (``programs.Program``): what one person typed into one shell stays as
many jobs as it was.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME, Role
from tpmon.model.results.doctor import JOBS_SCHEMA, JobList, JobState, JobSummary, say_refusal
from tpmon.model.text.redaction import hide_words
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    StatLine,
    each_process,
    has_ended,
    is_python_name,
    read_exe,
    read_table,
)
from tpmon.probe.job.facts import Facts
from tpmon.probe.job.job import Job, assemble_job, find_descendants
from tpmon.probe.job.leaderless import pick_reader, read_facts_of
from tpmon.probe.job.programs import parse_command
from tpmon.probe.job.tree import LAUNCHER_GONE, Family, join_strays, starts_ranks
from tpmon.probe.proc.suspended import read_freezer


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

    def __init__(self, table: Mapping[int, StatLine], proc: str) -> None:
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


def ancestry(pid: int, table: Mapping[int, StatLine]) -> Iterator[int]:
    """Yield a process and those above it, nearest first."""
    seen: set[int] = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        yield pid
        pid = table[pid].parent


def _may_train(stat: StatLine, proc: str) -> bool:
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


ARGUMENT_CHARS = 200
_MOST_REASONS = 3
_READ_CHARS = 4000
"""Secrets are looked for before the line is cut, so that none loses the name it is known by."""

_CARD = re.compile(r"/dev/nvidia(\d+)")


def list_jobs(proc: str = PROC) -> JobList:
    """List the jobs that have torch in at least one process, oldest first.

    Of other users' jobs it tells what the kernel shows to everybody, and how many processes may
    be jobs that it does not show, that did not answer in time or are too odd.
    """
    table = read_table(proc)
    sight = Sight(table, proc)
    seen = survey(sight)
    found: list[JobSummary] = []
    listed: set[int] = set()

    def read(tops: tuple[int, ...]) -> JobSummary:
        job = assemble_job(tops[0], tops[0], table, proc, strays=tops[1:])
        listed.update(job.facts)
        return summarize(job, proc)

    for tops, answer in each_process(seen.roots, read).items():
        found.append(answer if is_known(answer) else _list_odd(sight, tops[0], answer))
    why = {pid: reason for pid, reason in seen.unanswered.items() if pid not in listed}
    reasons = tuple(dict.fromkeys(why.values()))[:_MOST_REASONS]
    return JobList(JOBS_SCHEMA, tuple(found), len(seen.denied - listed), len(why), reasons)


def _list_odd(sight: Sight, root: int, why: Missing) -> JobSummary:
    """Give a job that could not be understood a row with the reason."""
    fact = sight.get(root)
    script = fact.program.label if fact else sight.table[root].name
    return JobSummary(root, "?", why, script, why, why, why, why, _age_s(sight.table[root].start_ticks))


def _age_s(start_ticks: int) -> float:
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS_PER_S)


def summarize(job: Job, proc: str = PROC) -> JobSummary:
    """Reduce a job to its line of ``tpmon ps``."""
    roles = [member.role for member in job.members]
    ranks = [member.identity.pid for member in job.members if member.role is Role.RANK]
    # Who is a rank, and whose worker a process is, stands in what may not be read.
    denied = any(
        fact.python and fact.denied and not fact.stat.name.startswith(WORKER_NAME)
        for fact in job.facts.values()
    )
    hidden = Missing("this user may not read a process of the job")
    return JobSummary(
        pid=job.root.pid,
        user=job.user,
        state=hidden if denied else tell_state(job, proc),
        script=job.script,
        arguments=tell_arguments(job),
        ranks=hidden if denied else len(ranks),
        workers=hidden if denied else roles.count(Role.WORKER),
        gpus=hidden if denied else count_cards(ranks, proc),
        uptime_s=_age_s(job.root.start_ticks),
    )


def tell_state(job: Job, proc: str = PROC) -> JobState:
    """Tell what the process table says of the ranks."""
    states = {pid: fact.stat.state for pid, fact in job.facts.items() if _is_rank(job, pid)}
    if not states:
        return JobState.STARTING
    if all(state in "Tt" or is_known(read_freezer(pid, proc)) for pid, state in states.items()):
        return JobState.STOPPED
    return JobState.LAUNCHER_GONE if LAUNCHER_GONE in job.rank_source else JobState.RUNNING


def tell_arguments(job: Job) -> Known[str]:
    """Return the arguments of the first rank, or of the root where there is none; of ``-c`` the code.

    A rank that multiprocessing started has those of the root.
    """
    rank = next((pid for pid in job.parts if _is_rank(job, pid)), job.root.pid)
    if job.facts[rank].program.spawned:
        rank = job.root.pid
    argv = job.facts[rank].argv
    if not argv:
        return Missing("the command line could not be read")
    command = parse_command(argv)
    words = (command.name, *command.arguments) if command.how == "code" else command.arguments
    shown = hide_words([word[:_READ_CHARS] for word in words[:_READ_CHARS]])
    return clean_text(" ".join(" ".join(shown).split()), ARGUMENT_CHARS)


def _is_rank(job: Job, pid: int) -> bool:
    return pid in job.parts and job.parts[pid].role is Role.RANK


def count_cards(pids: Iterable[int], proc: str = PROC) -> Known[int]:
    """Count the NVIDIA cards whose device files the processes hold open.

    CUDA opens every card that it may see, so without CUDA_VISIBLE_DEVICES this is an upper bound.
    """
    cards: set[str] = set()
    for pid in pids:
        folder = f"{proc}/{pid}/fd"
        try:
            descriptors = os.listdir(folder)
        except PermissionError as error:
            return Missing(say_refusal(error, "fd"))
        except OSError:
            continue  # gone
        targets = each_process((f"{folder}/{one}" for one in descriptors), os.readlink)
        cards.update(card[1] for target in targets.values() if (card := _CARD.fullmatch(str(target))))
    return len(cards)
