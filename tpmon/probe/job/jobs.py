"""List the training jobs of this machine, for ``tpmon ps``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME, Role
from tpmon.model.results.doctor import say_refusal
from tpmon.model.results.results import JOBS_SCHEMA, JobList, JobState, JobSummary
from tpmon.model.text.redaction import hide_words
from tpmon.model.units import clean_text
from tpmon.probe.base.each_process import each_process
from tpmon.probe.base.procread import PROC, TICKS_PER_S, read_table
from tpmon.probe.job.discovery import Sight, survey
from tpmon.probe.job.job import Job, assemble_job
from tpmon.probe.job.programs import parse_command
from tpmon.probe.job.strays import LAUNCHER_GONE
from tpmon.probe.proc.suspended import read_freezer

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
