"""Find the job around a PID, or wait for one that may become a job.

A job is the nearest launcher above the PID and its descendants; without a launcher, the highest Python
process above it that maps torch and does not only start what trains. The walk ends at boundaries
(``programs.Program``). Ranks of one run without a launcher are one job all the same (``tree``).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tpmon.errors import (
    LateStartError,
    NoTargetError,
    NotPermittedError,
    SeveralJobsError,
    StartingError,
    TpmonError,
)
from tpmon.model.known import Missing, is_known, known_or
from tpmon.model.process import Identity, Role
from tpmon.model.results.doctor import point_to
from tpmon.model.units import format_seconds
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    StatLine,
    each_process,
    has_ended,
    in_first_pid_namespace,
    list_pids,
    read_stat,
    read_status,
    read_table,
)
from tpmon.probe.base.worker import explain_limit
from tpmon.probe.job.discovery import FactCache, ancestry, choose_root, survey
from tpmon.probe.job.job import NO_TORCH, Job, assemble_job, now_ticks, pids_of, user_name
from tpmon.probe.job.left_over import find_left_over, list_left_over
from tpmon.probe.job.names import ScriptName, find_by_name, name_script
from tpmon.probe.job.process_facts import IMPORT_S, Facts, find_left
from tpmon.probe.job.roles import YOUNG_S
from tpmon.probe.job.tree import LAUNCHER_GONE, read_rendezvous
from tpmon.probe.proc.access import call_as_user, call_with_capability, read_caller, read_group
from tpmon.probe.proc.counters import require_descriptors

_MOST_NAMED = 8
_SLURM_JOB = "SLURM_JOB_ID"
_START_ONE = "tpmon demo, which starts a small one; tpmon ps lists the jobs of all users"
_LIST_JOBS = "tpmon ps lists the training jobs of this machine"


def find_job(pid: int, proc: str = PROC) -> Job:
    """Find the job around ``pid``: a member of it, one of its threads, or its PID in a container.

    NoTargetError for no such process or no training job, NotPermittedError where this user may not read it,
    UsageError where tpmon may not open enough files.
    """
    require_descriptors()
    try:
        asked, remark = _resolve(pid, proc)
        return _find_job(asked, proc, remark)
    except OSError as error:
        raise NoTargetError(f"process {pid} ended while it was read", _LIST_JOBS) from error


def find_job_again(processes: Iterable[Identity], proc: str = PROC) -> Job:
    """Find the job of the first process still there, as ``find_job`` does; no reused PID passes for one."""
    for one in processes:
        with suppress(OSError):  # it is gone: another may be there
            stat = read_stat(one.pid, proc)
            if stat.start_ticks == one.start_ticks and not has_ended(stat.state, stat.threads):
                return find_job(one.pid, proc)
    raise NoTargetError("none of the processes that were watched is there any more", _LIST_JOBS)


def find_only_job(proc: str = PROC, *, may_be_of_other_slurm_job: bool = True) -> Job:
    """Find the only job that this user runs on this machine; under sudo, also that of who called it.

    Of several it takes the one of tpmon's own Slurm job, as two of a user may share a node; of only one by
    choice none that belongs to another Slurm job. NoTargetError for none or where others may be hidden,
    UsageError for several.
    """
    require_descriptors()
    jobs, every, unanswered = _find_jobs(proc)
    if slurm_job := os.environ.get(_SLURM_JOB, ""):
        starts = [
            (job, {known_or(fact.environ, {}).get(_SLURM_JOB) for fact in job.facts.values()}) for job in jobs
        ]
        own = [job for job, numbers in starts if slurm_job in numbers]
        rest = [job for job, numbers in starts if may_be_of_other_slurm_job or numbers <= {None}]
        if jobs and not (own or rest):
            said = f"no training job of Slurm job {slurm_job} runs here; there is {_list_names(jobs)}"
            raise NoTargetError(said, _LIST_JOBS)
        jobs = own or rest
    if len(jobs) > 1:
        raise SeveralJobsError(
            f"this user runs {len(jobs)} training jobs here: {_list_names(jobs)}",
            "tpmon ps lists them; then a PID, or the name of a script",
        )
    if unanswered:
        named = ", ".join(map(str, unanswered[:_MOST_NAMED]))
        raise NoTargetError(
            f"not every process could be read in time, so another job may be among them: {named}",
            "the same again, or a PID; tpmon ps lists the jobs",
        )
    if not jobs:
        owners = ", ".join(dict.fromkeys(job.user for job in every[:_MOST_NAMED]))
        others = f"; there are those of {owners}: {_list_names(every)}" if every else ""
        raise NoTargetError(f"this user runs no training job on this machine{others}", _START_ONE)
    return jobs[0]


def find_named(name: str, proc: str = PROC) -> int:
    """Return the root of the one job that goes by a name: its script, a part of its path, its module.

    This user's jobs come before those of others. NoTargetError for none, SeveralJobsError for several.
    """
    require_descriptors()
    own, every, _ = _find_jobs(proc)
    for jobs in (own, every):
        found = find_by_name(name, {at: _name_job(job) for at, job in enumerate(jobs)})
        if len(found) == 1:
            return jobs[found[0]].root.pid
        if found:
            meant = [jobs[at] for at in found]
            raise SeveralJobsError(
                f"{len(meant)} training jobs go by {name}: {_list_names(meant)}",
                "one of these PIDs in its place, or more of the name",
            )
    if not every:
        raise NoTargetError(f"no training job here goes by {name}: there is none", _START_ONE)
    raise NoTargetError(
        f"no training job here goes by {name}; there are: {_list_names(own or every)}",
        "one of these names or PIDs; tpmon ps lists the jobs",
    )


def _name_job(job: Job) -> ScriptName:
    rank = next(iter(pids_of(job.members, Role.RANK)), job.root.pid)
    return name_script(job.script, job.facts[rank].argv if rank in job.facts else ())


def _list_names(jobs: Sequence[Job]) -> str:
    """Name jobs by PID and script, the first ones."""
    names = ", ".join(f"{job.root.pid} ({job.script})" for job in jobs[:_MOST_NAMED])
    return names + (f" and {len(jobs) - _MOST_NAMED} more" if len(jobs) > _MOST_NAMED else "")


def find_own_jobs(proc: str = PROC) -> tuple[list[Job], list[int]]:
    """Find this user's jobs here, oldest first, and its unanswering processes that are in none."""
    jobs, _, unanswered = _find_jobs(proc)
    return jobs, unanswered


def _find_jobs(proc: str) -> tuple[list[Job], list[Job], list[int]]:
    """Find this user's jobs and all, oldest first, and its unanswering processes in no job of its own."""
    users = {os.geteuid(), int(os.environ.get("SUDO_UID", os.geteuid()))}
    table = read_table(proc)
    found = survey(FactCache(table, proc))
    read = each_process(
        found.roots, lambda tops: assemble_job(tops[0], tops[0], table, proc, strays=tops[1:])
    )
    every = [job for job in read.values() if is_known(job)]
    jobs = [job for job in every if job.uid in users]
    odd = [tops[0] for tops, job in read.items() if isinstance(job, Missing)]
    unanswered = {*found.unanswered, *odd}.difference(*(job.facts for job in jobs))
    owners = each_process(sorted(unanswered), lambda pid: read_status(pid, proc).uid)
    return jobs, every, [pid for pid, uid in owners.items() if uid in users]


def _find_job(pid: int, proc: str, remark: str) -> Job:
    table = read_table(proc)
    if pid not in table:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    cache = FactCache(table, proc)
    if pid in find_left_over(table, proc):
        raise _refuse_left_over(pid, table, proc)
    root = choose_root(pid, cache)
    fact = cache.get(pid)
    stat = table[pid]
    waiting: tuple[int, ...] = ()
    if root is None and fact is not None and (below := _find_only_below(pid, cache)):
        waits = cache.only_waits(pid)
        root, waiting = (pid, (pid,)) if waits else (below, ())
        remark = remark or _describe_starter(fact, below, cache, waits=waits)
    if fact is None or stat.kernel or has_ended(stat.state, stat.threads) or root is None:
        raise _refuse(pid, cache)
    top = cache.get(root)
    for each in (fact, top):
        if each is not None and each.python and each.denied:
            raise _deny(each, proc, _find_readable_above(pid, cache))
    root, *strays = _find_strays(root, cache)
    job = assemble_job(root, pid, table, proc, strays=strays, remark=remark, waiting=waiting)
    if job.torch_version == NO_TORCH:
        raise _refuse_untrained(job)
    # Only Python need be readable: slurmstepd is root's, above the ranks of every user.
    if fact.denied and not any(one.python and one.torch and not one.denied for one in job.facts.values()):
        raise _deny(fact, proc)
    if not remark and LAUNCHER_GONE in job.rank_source:
        job = replace(job, remark=_describe_launcher_gone((root, *strays)))
    return replace(job, remark=job.remark or _describe_elsewhere(job))


def _refuse_left_over(pid: int, table: Mapping[int, StatLine], proc: str) -> NoTargetError:
    """Say of a process that its rank has ended, what it and those like it hold, and how to end them."""
    stat = table[pid]
    group = next((one for one in list_left_over(table, proc) if pid in one.pids), None)
    if group is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    age_s = (now_ticks() - stat.start_ticks) / TICKS_PER_S
    what = f"process {pid} ({stat.name}), {format_seconds(age_s)} old, is left over: its rank has ended"
    many = len(group.pids) > 1
    held = f"{group.name} of {group.script} hold {group.holds}" if many else f"it holds {group.holds}"
    return NoTargetError(f"{what}; {held}", f"end {'them' if many else 'it'}: {group.end}")


def _describe_launcher_gone(tops: Sequence[int]) -> str:
    """Say that ranks live on without their launcher, and which processes they are."""
    named = ", ".join(map(str, tops[:8])) + (f" and {len(tops) - 8} more" if len(tops) > 8 else "")
    live = "one rank lives" if len(tops) == 1 else f"{len(tops)} ranks live"
    return f"the launcher of this job is gone; {live} on here: {named}"


def _describe_elsewhere(job: Job) -> str:
    """Say which command watches the nodes of all ranks; "" where all are here."""
    ranks = [one for one in job.members if one.role is Role.RANK]
    if not ranks or known_or(job.world_size, 0) <= len(ranks):
        return ""
    settings = [one for rank in ranks if is_known(rank.environment) for one in rank.environment]
    jobs = [one.value for one in settings if one.name == _SLURM_JOB and one.value.isdecimal()]
    where = f"--slurm {jobs[0]}" if jobs else "--hosts a,b"
    return f"{len(ranks)} of {job.world_size} ranks are on this host: tpmon fleet {where} watches all"


def _describe_starter(fact: Facts, below: int, cache: FactCache, *, waits: bool) -> str:
    """Say that the job below a process is judged in its place."""
    meant = cache.get(below)
    name = f"{below} ({meant.program.label})" if meant is not None else str(below)
    starter = f"{fact.stat.pid} ({fact.program.label})"
    return (
        f"{starter} only waits for {name}: that one is judged"
        if waits
        else f"{starter} started the job of {name}"
    )


def _find_below(pid: int, cache: FactCache) -> list[int]:
    """Return the roots of the jobs that a process started, directly or not; none of a person's session.

    Nor where the number is that of a process in a container.
    """
    fact = cache.get(pid)
    if fact is None or fact.stat.kernel or fact.program.boundary or _find_inside(pid, cache.proc):
        return []
    return [roots[0] for roots in survey(cache).roots if pid in list(ancestry(roots[0], cache.table))[1:]]


def _find_only_below(pid: int, cache: FactCache) -> int | None:
    """Return the root of the one job below a process that does not train: a sweep, timeout, a script."""
    below = _find_below(pid, cache)
    return below[0] if len(below) == 1 else None


def _find_strays(root: int, cache: FactCache) -> tuple[int, ...]:
    """Return ``root``, or all the roots of its job where no launcher is above its ranks."""
    fact = cache.get(root)
    if fact is None or fact.program.launcher or read_rendezvous(fact, cache.proc) is None:
        return (root,)
    return next((group for group in survey(cache).roots if root in group), (root,))


def _resolve(pid: int, proc: str) -> tuple[int, str]:
    """Translate the asked number into a process of ours: that of a thread, or a PID inside a container."""
    try:
        group = read_status(pid, proc).thread_group
    except OSError:
        pass
    else:
        return group, "" if group == pid else f"{pid} is a thread of process {group}"
    inside = _find_inside(pid, proc)
    if len(inside) == 1:
        return inside[0], f"PID {pid} in its container is {inside[0]} here"
    if inside:
        names = ", ".join(map(str, inside[:8]))
        raise NoTargetError(
            f"no process {pid} here, and {len(inside)} processes go by it in their containers: {names}",
            f"tpmon attach {inside[0]}",
        )
    if proc == PROC and _is_hidden(pid):
        offer = _offer(call_with_capability(read_caller(proc), f"attach {pid}"))
        raise NotPermittedError(
            f"process {pid} is hidden from this user (hidepid)",
            point_to(f"{offer}run as its user", "hidepid"),
        )
    if proc == PROC and not in_first_pid_namespace():
        raise NoTargetError(
            f"no process {pid} in this container; outside it the numbers are others", _LIST_JOBS
        )
    raise NoTargetError(f"no process {pid} on this machine", _LIST_JOBS)


def _find_inside(pid: int, proc: str) -> list[int]:
    """List the processes of ours that go by ``pid`` in a PID namespace below ours."""
    inside = each_process(list_pids(proc), lambda at: pid in read_status(at, proc).ns_pids[1:])
    return [at for at, goes_by_it in inside.items() if goes_by_it is True]


def _is_hidden(pid: int) -> bool:
    """Tell whether a process exists that /proc does not show; signal 0 is sent to nobody (kill(2))."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return False


def _find_readable_above(pid: int, cache: FactCache) -> int:
    """Return the nearest process above that trains and may be read, such as the rank of a worker; else 0."""
    for at in list(ancestry(pid, cache.table))[1:]:
        fact = cache.get(at)
        if fact is None or fact.program.boundary:
            break
        if fact.python and fact.torch and not fact.denied:
            return at
    return 0


def _deny(fact: Facts, proc: str, readable: int = 0) -> NotPermittedError:
    """Refuse a process that may not be read; ``readable`` is one of the same job that may, 0 for none."""
    pid = fact.stat.pid
    uid = read_status(pid, proc).uid
    if readable and readable != pid:
        return NotPermittedError(
            f"process {pid} may not be read by this user, but {readable} of the same job may",
            f"tpmon attach {readable}",
        )
    caller = read_caller(proc)
    if uid != caller.uid:
        user = user_name(uid)
        command = call_as_user(caller, uid, read_group(pid, proc), f"attach {pid}")
        return NotPermittedError(
            f"process {pid} belongs to user {user}; this user may not read it",
            f"{_offer(command)}run tpmon as {user}; tpmon doctor {pid} says more",
        )
    command = call_with_capability(caller, f"attach {pid}")
    mostly = f"; mostly {command}" if command else ""
    return NotPermittedError(
        f"process {pid} runs as this user but may not be read: it is not dumpable, or has more capabilities",
        f"tpmon doctor {pid} says what would permit it{mostly}",
    )


def _offer(command: str) -> str:
    """Return a command before another way; nothing where there is none."""
    place, comment, where = command.partition("  # ")
    said = f"{place} ({where})" if comment else place
    return f"{said}, or " if said else ""


def _refuse(pid: int, cache: FactCache) -> TpmonError:
    """Say why a process that is there belongs to no training job, and which one may be meant."""
    stat = cache.table[pid]
    fact = cache.get(pid)
    try_this = _suggest(pid, cache)
    if has_ended(stat.state, stat.threads):
        parent = cache.table.get(stat.parent)
        waits_for = f"{stat.parent} ({parent.name})" if parent else str(stat.parent)
        return NoTargetError(
            f"process {pid} ({stat.name}) has ended; its parent {waits_for} has not noticed", try_this
        )
    if left := find_left(pid, proc=cache.proc):
        return NoTargetError(f"process {pid} ({stat.name}): {left.words}", try_this)
    if stat.kernel:
        return NoTargetError(f"process {pid} ({stat.name}) is a kernel thread", try_this)
    if fact is None:
        return NoTargetError(f"process {pid} ended while it was read", _LIST_JOBS)
    label = fact.program.label
    if len(below := _find_below(pid, cache)) > 1:
        named = ", ".join(
            f"{at} ({one.program.label})" for at in below[:_MOST_NAMED] if (one := cache.get(at))
        )
        typed = ", or ".join(f"tpmon attach {at}" for at in below[:_MOST_NAMED])
        return NoTargetError(f"process {pid} ({label}) started {len(below)} training jobs: {named}", typed)
    age_s = (now_ticks() - stat.start_ticks) / TICKS_PER_S
    if not fact.python:
        young = StartingError if age_s < YOUNG_S else LateStartError  # a shell before it becomes Python
        return young(f"process {pid} ({label}) is not Python", try_this, (pid, stat.start_ticks))
    if fact.denied:
        return _deny(fact, cache.proc)
    if isinstance(fact.mapped, Missing):
        if limit := explain_limit(RuntimeError(fact.mapped.reason)):
            return limit
        return NoTargetError(
            f"process {pid} ({label}) does not say whether it has torch: {fact.mapped.reason}", try_this
        )
    if fact.torch:
        return NoTargetError(
            f"process {pid} ({label}) does not train, and did not start just one job", try_this
        )
    if try_this == _LIST_JOBS:
        try_this = f"when its import is done, tpmon attach {pid} again; {_LIST_JOBS}"
    young = StartingError if age_s < IMPORT_S else LateStartError
    return young(f"process {pid} ({label}) is Python without torch (yet)", try_this, (pid, stat.start_ticks))


def _refuse_untrained(job: Job) -> NoTargetError:
    root = job.root.pid
    name = job.members[0].label if job.members else job.script
    if name == "srun":
        return NoTargetError(
            f"process {root} (srun) only waits: its tasks run below slurmstepd on their own nodes",
            "tpmon ps on the node of a task",
        )
    return StartingError(
        f"process {root} ({name}) is a launcher, but nothing below it is Python with torch (yet)",
        f"when its import is done, tpmon attach {root} again; {_LIST_JOBS}",
        (root, job.root.start_ticks),
    )


def _suggest(pid: int, cache: FactCache) -> str:
    """Name the jobs that may be meant: above a zombie, below it, or by this number in a container."""
    table = cache.table
    roots = (root for group in survey(cache).roots for root in group)
    meant = [root for root in roots if pid in ancestry(root, table)]
    above = choose_root(table[pid].parent, cache) if table[pid].state in "ZX" else None
    if above is not None:
        meant.append(above)
    inside = [at for at in _find_inside(pid, cache.proc) if at in table and choose_root(at, cache)]
    names = [f"{at} (which is {pid} in its container)" for at in inside[:4]]
    names += [f"{root} ({fact.program.label})" for root in meant[:4] if (fact := cache.get(root))]
    return f"tpmon attach {' or '.join(names)}" if names else _LIST_JOBS


AWAIT_S = 600.0  # as long as a process counts as one that may still import torch (``process_facts``)
AWAIT_EVERY_S = 0.5


def await_job(
    find: Callable[[], Job],
    say: Callable[[str], None],
    limit_s: float = AWAIT_S,
    every_s: float = AWAIT_EVERY_S,
) -> Job:
    """Call ``find`` again while it meets a program that is just starting, at most ``limit_s``; say so once.

    The age of the program counts at the first call only; then it is awaited to the end.
    """
    end_s = time.monotonic() + limit_s
    awaited: tuple[int, int] | None = None
    while True:
        try:
            return find()
        except LateStartError as error:
            is_awaited = isinstance(error, StartingError) or error.process == awaited
            if not is_awaited or time.monotonic() >= end_s:
                raise
            if awaited is None:
                say(f"{error.what}; waiting for it, at most {format_seconds(limit_s)}")
            awaited = error.process
        time.sleep(every_s)
