"""Read all jobs of this machine again and again, cheaply: what the live list shows beside verdicts.

The process table is read each time; what finds and describes jobs costs a hundred times as much and runs only
where the table shows that something has changed, and no more often than its cost permits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.gpu import list_used
from tpmon.model.host import OutputSample, join_log_paces
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import WORKER_NAME, Identity, Role
from tpmon.model.results.doctor import JobState, JobSummary
from tpmon.model.results.roster import JobReading, JobsReading
from tpmon.probe.base.procread import PROC, TICKS_PER_S, StatLine, each_process, has_ended, read_table
from tpmon.probe.base.worker import Background
from tpmon.probe.gpu.child_link import GpuProbe
from tpmon.probe.host.output import OutputReader, PipeReaders
from tpmon.probe.job.discovery import FactCache, may_train, summarize, survey
from tpmon.probe.job.job import Job, assemble_job, list_children, now_ticks, pids_of

LOG_EVERY_S = 2.0
SURVEY_CORES = 0.004
"""Of a core for finding jobs: once in 30 s on a machine of 300 processes, once in 5 s on a small one."""
SURVEY_AT_MOST_S = 60.0
"""So long after the last time they are looked for even where the process table shows nothing new."""
IMPORTS_S = 60.0
"""So long a Python without torch may still be importing it."""
_FIRST_READING = Missing("needs two readings")
_LOG_ROLES = (Role.LAUNCHER, Role.RANK)


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """Hold the processes of a job in one process table: their start, and their CPU time so far."""

    starts: Mapping[int, int]
    cpu_s: Mapping[int, float]


class JobFigures:
    """Follow the figures of one job that has been found."""

    def __init__(self, job: Job, tops: tuple[int, ...], summary: JobSummary, readers: PipeReaders) -> None:
        self.job = job
        self.tops = tops
        self.summary = summary
        self._before: Mapping[int, float] = {}
        self._before_ns = 0
        self._log = OutputReader(readers=readers)
        self._logs = Background[tuple[OutputSample, ...]](
            "output", lambda: self._log.read(pids_of(self.job.members, *_LOG_ROLES)), LOG_EVERY_S
        )
        self._logs.start()

    def describe(self, job: Job, tops: tuple[int, ...], summary: JobSummary) -> None:
        """Take a newer description of the same job."""
        self.job, self.tops, self.summary = job, tops, summary

    def read(
        self, there: JobProcesses, table: Mapping[int, StatLine], now_ns: int, gpu: GpuProbe
    ) -> JobReading:
        """Return its figures by the process table of now."""
        outputs, _ = self._logs.latest()
        ages = [one.last_write_age_s for one in outputs] if is_known(outputs) else [outputs]
        known = [age for age in ages if is_known(age)]
        return JobReading(
            root=self.job.root,
            summary=replace(self.summary, state=self._find_state(table)),
            processes=len(there.starts),
            cpu_cores=self._count_cores(there, now_ns),
            gpu_pct=_read_cards(gpu, there.starts),
            pace=join_log_paces(outputs) if is_known(outputs) else outputs,
            log_age_s=min(known) if known else next(iter(ages), Missing("the job writes to no regular file")),
        )

    def stop(self) -> None:
        """Follow its logs no more."""
        self._logs.stop()

    def _find_state(self, table: Mapping[int, StatLine]) -> Known[JobState]:
        """Return the state as it was found, but whether its ranks are stopped as the table says."""
        state = self.summary.state
        ranks = [table[pid].state for pid in pids_of(self.job.members, Role.RANK) if pid in table]
        if state is JobState.RUNNING and ranks and all(one in "Tt" for one in ranks):
            return JobState.STOPPED
        return state

    def _count_cores(self, there: JobProcesses, now_ns: int) -> Known[float]:
        before, before_ns = self._before, self._before_ns
        self._before, self._before_ns = there.cpu_s, now_ns
        if not before_ns or now_ns <= before_ns:
            return _FIRST_READING
        used_s = sum(max(0.0, now_s - before.get(pid, now_s)) for pid, now_s in there.cpu_s.items())
        return used_s * 1e9 / (now_ns - before_ns)


def _read_cards(gpu: GpuProbe, starts: Mapping[int, int]) -> Applicable[float]:
    cards = gpu.read(starts).of_job
    if isinstance(cards, Missing):
        return NOT_APPLICABLE if not is_known(gpu.child_pid()) else cards
    used = [one.sm_pct for one in list_used(cards)]
    known = [pct for pct in used if is_known(pct)]
    if not used:
        return NOT_APPLICABLE
    return sum(known) / len(known) if known else used[0]


class JobsReader:
    """Find the jobs of this machine, and read their cheap figures.

    ``read`` belongs to one thread; ``find`` and ``close`` may be called in any.
    """

    def __init__(self, gpu: GpuProbe, proc: str = PROC) -> None:
        """Read nothing until ``read``; ``gpu`` is shared with whoever judges the jobs."""
        self._gpu = gpu
        self._proc = proc
        self._figures: dict[Identity, JobFigures] = {}
        self._readers = PipeReaders(proc)
        self._unread = self._unanswered = 0
        self._known: set[tuple[int, int]] = set()
        """PID and start of all processes there were when jobs were looked for last."""
        self._surveyed_s = float("-inf")
        self._rest_s = 0.0

    def read(self) -> JobsReading:
        """Return all jobs of now."""
        table = read_table(self._proc)
        now_s = time.monotonic()
        due_s = self._rest_s if self._has_changed(table) else SURVEY_AT_MOST_S
        if now_s - self._surveyed_s >= due_s:
            begun_s = time.process_time()  # most of it is done in threads of its own
            self._find(table)
            self._surveyed_s = now_s
            self._rest_s = (time.process_time() - begun_s) / SURVEY_CORES
        children = list_children(table)
        there = {
            root: _find_processes(figures.tops, children, table) for root, figures in self._figures.items()
        }
        self._gpu.watch({pid: start for one in there.values() for pid, start in one.starts.items()})
        now_ns = time.monotonic_ns()
        jobs = tuple(
            figures.read(there[root], table, now_ns, self._gpu)
            for root, figures in self._figures.items()
            if there[root].starts
        )
        return JobsReading(now_ns, jobs, self._unread, self._unanswered)

    def find(self, root: Identity) -> Applicable[Job]:
        """Return a job as it was described last."""
        figures = self._figures.get(root)
        return NOT_APPLICABLE if figures is None else figures.job

    def close(self) -> None:
        """Follow no log any more; never waits."""
        for one in self._figures.values():
            one.stop()

    def _has_changed(self, table: Mapping[int, StatLine]) -> bool:
        """Tell whether a root has gone, or a process has come that may be a job or still become one."""
        if any(not _is_there(root, table) for root in self._figures):
            return True
        young_ticks = now_ticks() - IMPORTS_S * TICKS_PER_S
        members = {pid for figures in self._figures.values() for pid in figures.job.facts}
        fresh = (
            stat
            for pid, stat in table.items()
            if (pid, stat.start_ticks) not in self._known
            or (stat.start_ticks > young_ticks and pid not in members)
        )
        return any(stat.name.startswith(WORKER_NAME) or may_train(stat, self._proc) for stat in fresh)

    def _find(self, table: Mapping[int, StatLine]) -> None:
        """Look for jobs anew; one whose processes are the same is not described again."""
        cache = FactCache(table, self._proc)
        seen = survey(cache)
        children = list_children(table)
        found: dict[Identity, JobFigures] = {}

        def describe(tops: tuple[int, ...]) -> None:
            root = Identity(tops[0], table[tops[0]].start_ticks)
            before = self._figures.get(root)
            pids = _find_processes(tops, children, table).starts.keys()
            if before is not None and before.tops == tops and before.job.facts.keys() == pids:
                found[root] = before
                return
            job = assemble_job(tops[0], tops[0], table, self._proc, strays=tops[1:])
            summary = summarize(job, self._proc)
            if before is None:
                found[root] = JobFigures(job, tops, summary, self._readers)
            else:
                before.describe(job, tops, summary)
                found[root] = before

        odd = [one for one in each_process(seen.roots, describe).values() if isinstance(one, Missing)]
        for root, figures in self._figures.items():
            if root not in found:
                figures.stop()
        self._figures = found
        self._unread, self._unanswered = len(seen.denied), len(seen.unanswered) + len(odd)
        self._known = {(pid, stat.start_ticks) for pid, stat in table.items()}


def _is_there(root: Identity, table: Mapping[int, StatLine]) -> bool:
    stat = table.get(root.pid)
    return (
        stat is not None and stat.start_ticks == root.start_ticks and not has_ended(stat.state, stat.threads)
    )


def _find_processes(
    tops: Iterable[int], children: Mapping[int, Sequence[int]], table: Mapping[int, StatLine]
) -> JobProcesses:
    pids = [pid for pid in tops if pid in table and not has_ended(table[pid].state, table[pid].threads)]
    for pid in pids:
        pids += children.get(pid, ())
    return JobProcesses(
        {pid: table[pid].start_ticks for pid in pids}, {pid: table[pid].cpu_s for pid in pids}
    )
