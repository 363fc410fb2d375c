"""Find the jobs among the processes of this machine, and how each was started: wrappers, the hook.

The walk up ends at boundaries (``programs.Program``), so what a person started as two jobs stays two jobs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME, Role
from tpmon.model.results.doctor import JOBS_SCHEMA, JobList, JobState, JobSummary, say_refusal
from tpmon.model.text.redaction import hide, hide_words
from tpmon.model.units import clean_text
from tpmon.own_command import call_as_owner
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    StatLine,
    each_process,
    has_ended,
    is_python_name,
    read_exe,
    read_links,
    read_or,
    read_stat,
    read_table,
    read_text,
)
from tpmon.probe.job.job import Job, assemble_job, find_descendants
from tpmon.probe.job.left_over import CARD, find_left_over, list_left_over
from tpmon.probe.job.process_facts import Facts, pick_reader, read_facts_of
from tpmon.probe.job.programs import parse_command
from tpmon.probe.job.tree import LAUNCHER_GONE, Family, find_waiting, join_strays, starts_ranks, tell_effort
from tpmon.probe.proc.suspended import read_freezer


@dataclass(frozen=True, slots=True)
class Survey:
    """Hold the roots of each job (several where no launcher is above its ranks) and what else may be jobs."""

    roots: tuple[tuple[int, ...], ...]  # of the jobs with torch in at least one process, oldest first
    denied: frozenset[int]  # this user may not read them
    unanswered: Mapping[int, str]  # why: no answer in time, or not understood
    left_over: frozenset[int]  # their ranks have ended


EFFORT_S = 0.5
"""How far two readings of CPU time lie apart that tell whether a process computes."""


class FactCache:
    """Read the facts of processes once, in bulk where it is known which are wanted."""

    def __init__(self, table: Mapping[int, StatLine], proc: str) -> None:
        self.table = table
        self.proc = proc
        self._facts: dict[int, Facts | None] = {}
        self._wrappers: dict[int, bool] = {}
        self._waiting: dict[int, bool] = {}
        self._read_s = time.monotonic()

    def load(self, pids: Iterable[int], *, deep: bool = False) -> None:
        """Read those of ``pids`` that were not read yet."""
        fresh = [pid for pid in pids if pid not in self._facts]
        read = read_facts_of((self.table[pid] for pid in fresh), self.proc, deep=deep)
        self._facts.update((pid, read.get(pid)) for pid in fresh)

    def get(self, pid: int) -> Facts | None:
        """Return the facts of one process, or None when it is gone."""
        if pid not in self._facts:
            self.load((pid,))
        return self._facts[pid]

    def starts_ranks(self, fact: Facts) -> bool:
        """Tell whether a process gave at least two children different places."""
        children = self._children_of(fact.stat.pid)
        self.load(children)
        return starts_ranks(fact, [one for child in children if (one := self.get(child))])

    def wraps(self, pid: int) -> bool:
        """Tell whether a Python process with torch only started what trains (``Family.wraps``)."""
        if pid not in self._wrappers:
            names = [self.table[child].name for child in self._children_of(pid)]
            loads = any(name.startswith(WORKER_NAME) for name in names)
            below = [] if loads or not names else find_descendants(pid, self.table)
            self.load(below)
            facts = {at: fact for at in below if (fact := self.get(at))}
            self._wrappers[pid] = pid in facts and (Family(facts).wraps(pid) or self._waits(pid, facts))
        return self._wrappers[pid]

    def only_waits(self, pid: int) -> bool:
        """Tell whether a process only waits for the program that it started (``tree.find_waiting``)."""
        return self.wraps(pid) and self._waiting.get(pid, False)

    def _waits(self, pid: int, facts: Mapping[int, Facts]) -> bool:
        """Tell it by a second reading of what may be such a parent and its programs, half a second later."""
        family = Family(facts)
        if not family.may_only_wait(pid):
            return False
        time.sleep(max(0.0, self._read_s + EFFORT_S - time.monotonic()))
        asked = (pid, *family.programs_below(pid))
        read = each_process(asked, lambda at: read_stat(at, self.proc))
        stats = {at: stat for at, stat in read.items() if is_known(stat)}
        span_s = time.monotonic() - self._read_s
        efforts = {at: tell_effort(self.table[at], stat, span_s, self.proc) for at, stat in stats.items()}
        self._waiting[pid] = pid in find_waiting(facts, stats, efforts)
        return self._waiting[pid]

    def _children_of(self, pid: int) -> list[int]:
        return [
            child
            for child, stat in self.table.items()
            if stat.parent == pid and not has_ended(stat.state, stat.threads)
        ]


def survey(cache: FactCache) -> Survey:
    """Find the roots of all jobs, and the Python processes that may be jobs but could not be read."""
    table, proc = cache.table, cache.proc
    candidates = [pid for pid, stat in table.items() if may_train(stat, proc)]
    cache.load({at for pid in candidates for at in ancestry(pid, table)})
    left = frozenset(find_left_over(table, proc))
    trained = [
        pid
        for pid in candidates
        if (fact := cache.get(pid)) and fact.python and fact.torch and pid not in left
    ]
    chosen = each_process(trained, lambda pid: choose_root(pid, cache))
    odd = {pid: root.reason for pid, root in chosen.items() if isinstance(root, Missing)}
    untold = [fact for pid in candidates if (fact := cache.get(pid)) and fact.python and not fact.torch]
    roots = {root for root in chosen.values() if is_known(root) and root}
    tops = sorted(roots, key=lambda pid: (table[pid].start_ticks, pid))
    return Survey(
        tuple(join_strays([fact for top in tops if (fact := cache.get(top))], proc)),
        frozenset(fact.stat.pid for fact in untold if fact.denied),
        odd | {fact.stat.pid: why for fact in untold if (why := fact.unanswered)},
        left,
    )


def ancestry(pid: int, table: Mapping[int, StatLine]) -> Iterator[int]:
    """Yield a process and those above it, nearest first."""
    seen: set[int] = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        yield pid
        pid = table[pid].parent


def may_train(stat: StatLine, proc: str) -> bool:
    """Tell by cheap readings whether a process may be Python with torch of its own."""
    if stat.kernel or has_ended(stat.state, stat.threads) or stat.name.startswith(WORKER_NAME):
        return False
    try:
        exe = read_exe(pick_reader(stat, proc), proc)
    except OSError:
        return False  # gone
    return isinstance(exe, Missing) or is_python_name(exe)


def choose_root(pid: int, cache: FactCache) -> int | None:
    """Return the first launcher above ``pid``, else the highest Python process that trains or starts ranks.

    A process that only started a launcher, or another program that trains, is above the job.
    """
    highest: int | None = None
    chain = list(ancestry(pid, cache.table))
    cache.load(chain, deep=True)
    for at in chain:
        fact = cache.get(at)
        if fact is None:
            continue
        if fact.program.boundary:
            break
        if fact.program.launcher:
            return _outermost(at, cache)
        if fact.python and (not cache.wraps(at) if fact.torch else cache.starts_ranks(fact)):
            highest = at
    return highest


def _outermost(launcher: int, cache: FactCache) -> int:
    """Climb from a launcher to the one that started it as part of the same command.

    mpirun is above hydra_pmi_proxy or orted, deepspeed above deepspeed.launcher.launch.
    """
    fact = cache.get(launcher)
    for at in list(ancestry(launcher, cache.table))[1:]:
        above = cache.get(at)
        if above is None or fact is None or above.program.boundary:
            break
        if above.program.launcher == fact.program.launcher:
            launcher = at
        elif not above.program.shell:
            break
    return launcher


ARGUMENT_CHARS = 200
_MOST_REASONS = 3
_READ_CHARS = 4000  # cut after secrets were looked for: one is recognised by the name before it


def list_jobs(proc: str = PROC) -> JobList:
    """List the jobs that have torch in at least one process, oldest first.

    Of other users' jobs it lists what the kernel shows everybody, and counts what may be jobs but was not
    read.
    """
    table = read_table(proc)
    cache = FactCache(table, proc)
    seen = survey(cache)
    found: list[JobSummary] = []
    listed: set[int] = set()

    def read(tops: tuple[int, ...]) -> JobSummary:
        job = assemble_job(tops[0], tops[0], table, proc, strays=tops[1:])
        listed.update(job.facts)
        return summarize(job, proc)

    for (root, *_), answer in each_process(seen.roots, read).items():
        if isinstance(answer, Missing):  # a job that was not understood has a row with the reason
            fact, stat = cache.get(root), table[root]
            script, age_s = fact.program.label if fact else stat.name, _age_s(stat.start_ticks)
            found.append(JobSummary(root, "?", answer, script, answer, answer, answer, answer, age_s))
        else:
            found.append(answer)
    why = {pid: reason for pid, reason in seen.unanswered.items() if pid not in listed}
    reasons = tuple(dict.fromkeys(why.values()))[:_MOST_REASONS]
    left = list_left_over(table, proc) if seen.left_over else ()
    return JobList(JOBS_SCHEMA, tuple(found), len(seen.denied - listed), len(why), reasons, left)


def _age_s(start_ticks: int) -> float:
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS_PER_S)


def summarize(job: Job, proc: str = PROC) -> JobSummary:
    """Reduce a job to its line of ``tpmon ps``."""
    roles = [member.role for member in job.members]
    ranks = [member.identity.pid for member in job.members if member.role is Role.RANK]
    # Only readable processes show who is a rank, and whose worker one is.
    denied = any(
        fact.python and fact.denied and not fact.stat.name.startswith(WORKER_NAME)
        for fact in job.facts.values()
    )
    hidden = Missing("this user may not read a process of the job")
    return JobSummary(
        pid=job.root.pid,
        user=job.user,
        state=hidden if denied else read_state(job, proc),
        script=job.script,
        arguments=find_arguments(job),
        ranks=hidden if denied else len(ranks),
        workers=hidden if denied else roles.count(Role.WORKER),
        gpus=hidden if denied else count_cards(ranks, proc),
        uptime_s=_age_s(job.root.start_ticks),
    )


def read_state(job: Job, proc: str = PROC) -> JobState:
    """Read the state of the ranks from the process table."""
    states = {pid: fact.stat.state for pid, fact in job.facts.items() if _is_rank(job, pid)}
    if not states:
        return JobState.STARTING
    if all(state in "Tt" or is_known(read_freezer(pid, proc)) for pid, state in states.items()):
        return JobState.STOPPED
    return JobState.LAUNCHER_GONE if LAUNCHER_GONE in job.rank_source else JobState.RUNNING


def find_arguments(job: Job) -> Known[str]:
    """Return the first rank's arguments, or the root's if multiprocessing ran it; of ``-c`` the code."""
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
    """Count the NVIDIA cards that processes hold open: an upper bound, as CUDA opens all that it sees."""
    cards: set[str] = set()
    for pid in pids:
        try:
            links = read_links(pid, proc).values()
        except PermissionError as error:
            return Missing(say_refusal(error, "fd"))
        except OSError:
            continue  # gone
        cards.update(card[1] for link in links if (card := CARD.fullmatch(link)))
    return len(cards)


_RUNTIME_11 = re.compile(r"/libcudart(-[0-9a-f]+)?\.so\.11(\.|$)")  # also the one inside a wheel of torch


def read_ancestors(pid: int, proc: str = PROC) -> list[list[str]]:
    """Return the command lines above a process, nearest first."""
    above = list(ancestry(pid, read_table(proc)))[1:]
    lines = (read_text(f"{proc}/{at}/cmdline") for at in above)
    return [line.rstrip("\0").split("\0") for line in lines if line]


def uses_cuda(pid: int, proc: str = PROC) -> bool:
    """Tell whether the driver's library is loaded; without it CUDA has not begun."""
    return "/libcuda.so" in read_text(f"{proc}/{pid}/maps")  # the hook asks again from within


def runs_cuda_11(pid: int, proc: str = PROC) -> bool:
    """Tell whether the runtime of CUDA 11 is loaded, by the name of its file."""
    # Kineto is asked for nothing in a process that cannot be read.
    return any(_RUNTIME_11.search(line.rstrip()) for line in read_text(f"{proc}/{pid}/maps").splitlines())


def stays_slower(pid: int, proc: str = PROC) -> bool:
    """Tell whether a profile may leave launches slower: with CUDA, unless kineto was told to detach."""
    detaches = "TEARDOWN_CUPTI=1" in read_text(f"{proc}/{pid}/environ").split("\0")
    return uses_cuda(pid, proc) and not detaches


_EXPORT_MARK = b"PK\x01\x02", b"tpmon_awaits_torch.py"  # in the directory at the end of an exported zip
_DIRECTORY_BYTES = 1 << 14
_MOST_PLACES = 64
_RESTART_CHARS = 2000
_GONE_WITH_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_INTERPRETER = re.compile(r"-?(?:(?:python|pypy)[0-9.]*t?|(?:ba|da|k|z)?sh)")
_NAMES_PROGRAM = re.compile(r"-[A-Za-z]*?[cm](.*)", re.DOTALL)


def is_armed(pid: int, proc: str = PROC) -> bool:
    """Tell whether a process was started with the hook: by tpmon run, or by the zip of tpmon hook export."""
    words = read_text(f"{proc}/{pid}/environ", errors="surrogateescape").split("\0")
    try:
        owner = read_owner(pid, proc)
    except OSError:
        return False
    places = [place for word in words if word.startswith("PYTHONPATH=") for place in word[11:].split(":")]
    return any(
        place.endswith("/tpmon/hook/boot") or _is_export(f"{proc}/{pid}/root{place}", owner)
        for place in places[:_MOST_PLACES]
    )


def _is_export(path: str, owner: Owner) -> bool:
    """Tell by the last bytes of a file: a library that reads a zip believes what that claims of itself."""
    try:
        with os.fdopen(open_foreign(os.path.realpath(path), owner), "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _DIRECTORY_BYTES, 0))
            end = file.read(_DIRECTORY_BYTES)
    except (OSError, ValueError):
        return False
    return all(mark in end for mark in _EXPORT_MARK)


def write_restart(pid: int, proc: str = PROC) -> str:
    """Write the command that starts a process again with the hook, in its folder and as its user.

    Without the process's own command where that holds a secret or an escape sequence, or is long.
    """
    unknown = call_as_owner(pid, proc=proc)
    words = read_text(f"{proc}/{pid}/cmdline", errors="surrogateescape").rstrip("\0").split("\0")
    folder = read_or("", lambda: os.readlink(f"{proc}/{pid}/cwd"))
    if not folder:
        return unknown
    fits = sum(map(len, words)) <= _RESTART_CHARS
    plain = all(word.isprintable() for word in (folder, *words))
    if not (fits and plain) or hide_words(words) != tuple(words) or hide(folder) != folder:
        return unknown
    if not (_is_executable(words[0], folder, f"{proc}/{pid}") and can_start_again(words)):
        return unknown
    return f"cd {shlex.quote(folder)} && {call_as_owner(pid, f'run -- {shlex.join(words)}', proc)}"


def _is_executable(word: str, folder: str, process: str) -> bool:
    """Tell whether the first word is a program to be typed; a process may have put a title in its place."""
    if "/" in word:
        path = os.path.join(folder, word)
        return os.access(path, os.X_OK) or os.access(f"{process}/root{path}", os.X_OK)
    runs = read_or("", lambda: os.path.basename(os.readlink(f"{process}/exe")))
    return bool(word) and (runs.startswith(word) or shutil.which(word) is not None)


def can_start_again(words: Sequence[str]) -> bool:
    """Tell whether a command names its program: not standard input, nor a pipe of the shell that is gone."""
    if any(word.startswith(_GONE_WITH_THE_SHELL) for word in words):
        return False
    if _INTERPRETER.fullmatch(os.path.basename(words[0])) is None:
        return True
    rest = list(words[1:])
    while rest:
        word, rest = rest[0], rest[1:]
        if found := _NAMES_PROGRAM.fullmatch(word):
            return bool(found[1] or rest)
        if not word.startswith("-") or word == "-":
            return word != "-"
        if word in ("-X", "-W"):
            rest = rest[1:]
    return False
