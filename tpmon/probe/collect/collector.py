"""Read everything once and close it into one Frame. The only module that knows all probes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial

from tpmon.errors import NoTargetError
from tpmon.model.frame import (
    FRAME_SCHEMA,
    Ages,
    Event,
    EventKind,
    Frame,
    GroupTexts,
    OwnCost,
    Target,
    TargetState,
)
from tpmon.model.frozen import replace
from tpmon.model.host import LimitSample, NetworkSample, OutputSample, ShmSample, Tenant, join_log_paces
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Identity, ProcessSample, Role
from tpmon.model.results.collectives import CollectivesReading, DumpRecords, RecordSource, SourceNote
from tpmon.model.results.doctor import LeftOver
from tpmon.model.text.job_words import list_taxes, state_facts
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.worker import Background, Pace, Worker, read_within
from tpmon.probe.collect.frame import (
    has_pin_thread,
    list_loader_ranks,
    list_output,
    make_cpu,
    make_memory,
    make_process,
    make_rank_rows,
    name_place,
    withhold_sums,
)
from tpmon.probe.collect.pools import PoolLibraries
from tpmon.probe.collect.processes import Population, Reading, describe_shortage
from tpmon.probe.collect.tenants import TENANTS_EVERY_S, TenantReader, is_crowded
from tpmon.probe.gpu.card_readings import GpuReading
from tpmon.probe.gpu.child_link import GpuProbe
from tpmon.probe.hooked.step_pace import CompileTracker, StepProbe, StepsRead
from tpmon.probe.host.cgroup import CgroupReader, CpuBudget, read_cpu_budget
from tpmon.probe.host.limits import LIMITS_EVERY_S, LimitReader
from tpmon.probe.host.machine import HostReader, OwnCostMeter, read_shm
from tpmon.probe.host.network import NetworkReader, SocketReader, SocketReading
from tpmon.probe.host.output import OutputReader, watch_writes
from tpmon.probe.job.events import Changes, EventTracker
from tpmon.probe.job.job import Job, Member, pids_of
from tpmon.probe.job.left_over import LEFT_OVER_EVERY_S, describe_left_over, list_left_over
from tpmon.probe.job.loop_thread import LoopThreads, describe_loops
from tpmon.probe.job.members import Membership
from tpmon.probe.loader.queues import LoaderProbe, LoaderRank
from tpmon.probe.proc.counters import read_shares
from tpmon.probe.proc.main_threads import MainThreadProbe
from tpmon.probe.proc.memory import AnonReader, PssRation
from tpmon.probe.proc.suspended import SuspendedReader, are_all_suspended, leave_out_frozen
from tpmon.probe.spy.dump import DumpService, dumpable
from tpmon.probe.spy.plan import SpySubject, find_working_worker
from tpmon.probe.spy.sample import SampleService
from tpmon.probe.spy.stacks import StackSampler
from tpmon.supervisor import supervisors

BUDGET_EVERY_NS = 10_000_000_000
OUTPUT_EVERY_S = 2.0
LAST_WORDS_S = 0.3
SHM_EVERY_S = 2.0
NETWORK_EVERY_S = 1.0
SOCKETS_EVERY_S = 5.0
_NOT_JUDGED = Missing("not judged")  # until the session has judged the closed Frame
_LOG_ROLES = (Role.LAUNCHER, Role.RANK)  # their output is the log of a job
_LIMIT_ROLES = (Role.RANK, Role.WORKER)
_NO_COST = OwnCost(Missing("not measured yet"), 0, 0, 0.0, 0, 0.0, shedding=False)
"""Stands for the cost of a Frame, which is known only when the Frame is closed."""


_RECORDS = (RecordSource.SERVER, RecordSource.FILE, RecordSource.RAS)


def _read_records(job: Job) -> CollectivesReading:
    from tpmon.probe.records.collectives import read_collectives  # noqa: PLC0415  # 6 ms, where a rank waits

    return read_collectives(job, someone_waits=True)


class CollectivesService(Worker[DumpRecords]):
    """Read what a job recorded of its collectives, one reading at a time. Every method returns at once."""

    def __init__(
        self, job: Callable[[], Job], read: Callable[[Job], CollectivesReading] = _read_records
    ) -> None:
        """Read nothing until ``ask``; ``job`` is called in any thread."""
        super().__init__("collectives")
        self._job = job
        self._read = read
        self._fresh: Applicable[DumpRecords] = NOT_APPLICABLE

    def take(self) -> Applicable[CollectivesReading]:
        """Return the reading that ended since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, NOT_APPLICABLE
        return fresh.reading if is_known(fresh) else NOT_APPLICABLE

    def ask(self, dump_ns: int) -> None:
        """Start to read for a dump in which a rank waits; do nothing while another reading runs."""
        self.begin(lambda: self._read(self._job()), partial(self._end, dump_ns))

    def _end(self, dump_ns: int, _: object, answer: Known[CollectivesReading]) -> DumpRecords:
        if isinstance(answer, Missing):
            notes = (SourceNote(os.uname().nodename, source, answer.reason) for source in _RECORDS)
            answer = CollectivesReading((), (), tuple(notes))
        self._fresh = records = DumpRecords(dump_ns, answer)
        return records


class Collector:
    """Collect Frames of one job. Owned by one thread; slow sources run in daemon threads."""

    def __init__(
        self,
        job: Job,
        interval_s: float = 1.0,
        *,
        stacks: bool = True,
        threads_later: bool = False,
        gpu: Applicable[GpuProbe] = NOT_APPLICABLE,
    ) -> None:
        """Start the probes; the first ``collect`` has counters only, the second has rates.

        With ``threads_later`` the first leaves the threads, half of its cost, to ``read_rest``. A ``gpu``
        that is handed over is used, and neither started nor stopped.
        """
        self._threads_later = threads_later
        self._job = job
        self._interval_s = interval_s
        self._shares = read_shares()
        self._membership = Membership(job, shares=self._shares)
        self._population = Population(shares=self._shares)
        self._had_ranks = False
        self._host = HostReader()
        self._links = NetworkReader(lambda: self._rank_pids()[0])
        self._gpu = gpu if is_known(gpu) else GpuProbe()
        self._loader = LoaderProbe()
        self._main_threads = MainThreadProbe()
        self._loops = LoopThreads()
        self._stacks = StackSampler(enabled=stacks, loops=self._loops)
        self.samples = SampleService(self._dumpable, enabled=stacks)
        self.dumps = DumpService(self._dumpable, suspends=(self._stacks.suspend, self.samples.suspend))
        self.records = CollectivesService(lambda: self._membership.job)
        self._steps = StepProbe()
        self._compiles = CompileTracker()
        self._pss = PssRation()
        self._anon = AnonReader()
        self._cost = OwnCostMeter()
        self._settled = False
        self._cgroups = CgroupReader(self._rank_pids())
        self._suspended = SuspendedReader()
        self._budget: tuple[CpuBudget, tuple[int, ...], int] | None = None
        self._watched: tuple[tuple[Member, ...], int, tuple[bool, ...]] | None = None
        self._counted: tuple[Job, int, int, int] | None = None
        self._loader_ranks: tuple[LoaderRank, ...] = ()
        self._named: tuple[tuple[Identity, Applicable[int]], ...] = ()
        self._libraries = PoolLibraries(self._population.busy_tids, memory=stacks)
        self._sockets = SocketReader()
        self._log = OutputReader()
        self._shm = Background[Known[ShmSample]]("shm", lambda: read_shm(self._rank_pids()[0]), SHM_EVERY_S)
        self._outputs = Background[tuple[OutputSample, ...]](
            "output", lambda: self._log.read(pids_of(self._membership.members, *_LOG_ROLES)), OUTPUT_EVERY_S
        )
        self._written = watch_writes(self._rank_pids)
        # InfiniBand counters come from firmware and may take long.
        self._network = Background[Known[tuple[NetworkSample, ...]]](
            "network", self._read_network, NETWORK_EVERY_S
        )
        self._socket_source = Background[Known[SocketReading]](
            "sockets", lambda: self._sockets.read(self._rank_pids(), time.monotonic_ns()), SOCKETS_EVERY_S
        )
        self._crowded = False
        others = TenantReader(lambda: pids_of(self._membership.members, *Role), lambda: self._crowded)
        self._tenants = Background[Applicable[tuple[Tenant, ...]]]("tenants", others.read, TENANTS_EVERY_S)
        # Not for the first picture: it reads all Pythons of the machine, in 20 ms.
        self._left_over = Background[tuple[LeftOver, ...]](
            "left-overs", lambda: list_left_over() if self._ticks > 1 else (), LEFT_OVER_EVERY_S
        )
        self._limits = Background[tuple[LimitSample, ...]](
            "limits",
            LimitReader(lambda: pids_of(self._membership.members, *_LIMIT_ROLES)).read,
            LIMITS_EVERY_S,
        )
        self._ticks = 0
        self._tracker = EventTracker(job.root, answers=job.root_answers)
        self._last: Frame | None = None
        self._sources = (
            self._loader,
            self._main_threads,
            self._stacks,
            self._pss.source,
            self._shm,
            self._outputs,
            self._written,
            self._network,
            self._socket_source,
            self._tenants,
            self._left_over,
            self._limits,
        )
        self._own_gpu = () if is_known(gpu) else (self._gpu,)
        for source in (*self._own_gpu, *self._sources):
            source.start()

    def set_interval(self, seconds: float) -> None:
        """Set how often ``collect`` is called; shedding compares the cost with it."""
        self._interval_s = seconds

    def set_settled(self, *, settled: bool) -> None:
        """Set whether the verdict stands: expensive readings then come less often (``Pace.SETTLED``)."""
        self._settled = settled

    def close(self) -> None:
        """Stop every probe; never waits for one that is stuck."""
        for source in (*self._sources, self.dumps, self.records, self.samples):
            source.stop()
        for probe in self._own_gpu:
            probe.stop()
        self._steps.close()
        self._population.close()
        self._membership.close()
        self._host.close()
        self._cgroups.close()

    def collect(self) -> Frame:
        """Read the job once; after its end return the last Frame, marked as ended."""
        started_ns = time.thread_time_ns()
        self._ticks += 1
        changes = self._membership.refresh(time.monotonic_ns(), self._loops.tids())
        members = self._loops.mark(self._membership.members)
        skip = self._cost.shedding and self._ticks % 2 == 0
        if not any(one.role is not Role.HELPER or one.identity == self._job.root for one in members):
            return self._close_ended(changes)
        later = self._threads_later and self._ticks == 1
        readings = self._population.read(members, skip_threads=skip, threads_later=later)
        frame = self._assemble(readings, changes)
        tick_ms = (time.thread_time_ns() - started_ns) / 1e6
        self._cost.add_tick(tick_ms, self._interval_s)
        children = [*supervisors(), *(one for one in (self._gpu.child_pid(),) if is_known(one))]
        own = self._cost.read(children, tick_ms, self.dumps.paused_ms, self._stacks.cost())
        self._last = replace(frame, self_=own)
        return self._last

    def read_rest(self) -> None:
        """Read what the first Frame postponed, so that the second has rates of it."""
        if self._threads_later:
            self._population.begin_threads()

    def _assemble(self, readings: Sequence[Reading], changes: Changes) -> Frame:
        now_ns = time.monotonic_ns()
        taken = datetime.now().astimezone()
        processes = tuple(
            make_process(one, self._pss.latest(one.member.identity), now_ns) for one in readings
        )
        processes = self._suspended.mark(processes, self._loops.tids(), now_ns)
        # Before the ranks are named: the second Frame is the first with stacks, even for --once.
        slices, looks = self._stacks.take(), self._main_threads.take()
        self._watch(readings, processes, now_ns)
        budget = self._read_budget(processes, now_ns)
        group = self._cgroups.read(now_ns)
        anon = self._anon.read(now_ns, group.anon_bytes, processes)
        host = self._host.read()
        gpu = self._gpu.read({p.pid: p.start_ticks for p in processes})
        cpu = make_cpu(processes, budget, group, host, self._libraries.read(processes, now_ns))
        cpu = withhold_sums(cpu, self._population.left_out)
        self._crowded = is_crowded(cpu)
        cpu = replace(cpu, tenants=self._tenants.latest()[0])
        sockets, _ = self._socket_source.latest()
        network, _ = self._network.latest()
        outputs, read_s = self._outputs.latest()
        output = list_output(known_or(outputs, ()), read_s, processes, taken)
        pace = join_log_paces(output) if is_known(outputs) else outputs
        steps = self._steps.read(processes)
        target = self._target(processes, steps)
        self._had_ranks = self._had_ranks or target.local_ranks > 0
        own = self._tracker.list_own(taken, target, gpu.events, shedding=self._cost.shedding)
        own += self._compiles.tell(taken, now_ns, steps.hook)
        events = self._tracker.tell(taken, changes, group, now_ns, processes=processes, others=own)
        return Frame(
            schema=FRAME_SCHEMA,
            taken=taken,
            taken_ns=now_ns,
            interval_s=self._interval_s,
            target=target,
            facts=state_facts(
                target.local_ranks,
                target.local_workers,
                cpu,
                gpu.of_job,
                had_ranks=self._had_ranks,
                steps=steps.steps,
                pace=pace,
            ),
            ages_s=self._tell_ages(readings, gpu, steps, now_ns),
            sources=GroupTexts(
                cpu="/proc/PID/stat, budget from affinity and control group",
                threads="/proc/PID/task/TID/schedstat",
                io="/proc/PID/io",
                memory=name_place(group.memory_source),
                gpu=gpu.source,
                stacks=self._stacks.source(),
                hook=steps.source,
            ),
            processes=processes,
            ranks=steps.put(make_rank_rows(processes, gpu.of_job)),
            ends=self._tracker.last_ends,
            cpu=cpu,
            memory=make_memory(processes, group, host, self._shm.latest()[0], anon),
            loader=self._loader.latest(),
            output=output,
            network=network,
            sockets=map_known(lambda one: one.sample, sockets),
            driver=gpu.driver,
            gpus=gpu.of_job,
            stacks=slices,
            rounds=self.dumps.take(),
            collectives=self.records.take(),
            main_threads=leave_out_frozen(looks, processes),
            verdict=_NOT_JUDGED,
            notes=self._list_notes(readings, processes, gpu, steps, outputs),
            hook=steps.hook,
            steps=steps.steps,
            events=events,
            self_=_NO_COST,
            written=self._written.latest()[0],
            unlisted_gpus=gpu.unlisted,
            limits=self._limits.latest()[0],
            pace=pace,
        )

    def _tell_ages(self, readings: Sequence[Reading], gpu: GpuReading, steps: StepsRead, now_ns: int) -> Ages:
        cpu_ns = readings[0].now.taken_ns if readings else now_ns
        threads_ns = min((r.now.threads.taken_ns for r in readings), default=now_ns)
        age_s = (time.monotonic_ns() - cpu_ns) / 1e9
        return Ages(
            cpu=age_s,
            threads=(now_ns - threads_ns) / 1e9,
            io=age_s,
            memory=age_s,
            gpu=gpu.age_s,
            stacks=self._stacks.age_s(now_ns),
            hook=steps.age_s,
        )

    def _list_notes(
        self,
        readings: Sequence[Reading],
        processes: Sequence[ProcessSample],
        gpu: GpuReading,
        steps: StepsRead,
        outputs: Known[object],
    ) -> tuple[str, ...]:
        rank = next((one for one in processes if one.role is Role.RANK), None)
        said = (
            *list_taxes(known_or(rank.environment, ()) if rank else ()),
            *gpu.notes,
            *describe_left_over(known_or(self._left_over.latest()[0], ()), known_or(gpu.of_job, ())),
            *steps.notes,
            *describe_loops(one.member for one in readings),
            *describe_shortage(self._shares, self._population, len(self._membership.members)),
        )
        if isinstance(outputs, Missing) and self._ticks > 1:
            said = (*said, f"the job's log is not readable: {outputs.reason}")
        return said

    def _watch(self, readings: Sequence[Reading], processes: Sequence[ProcessSample], now_ns: int) -> None:
        pins = tuple(has_pin_thread(process) for process in processes if process.role is Role.RANK)
        # The tuple of members stays the same object until one comes, goes or changes.
        told = (self._membership.members, len(processes), pins)
        if self._watched is None or self._watched[0] is not told[0] or self._watched[1:] != told[1:]:
            self._watched = told
            self._loader_ranks = list_loader_ranks(processes)
            self._named = tuple(
                (Identity(p.pid, p.start_ticks), p.rank) for p in processes if p.role is Role.RANK
            )
        self._loader.watch(self._loader_ranks, now_ns)
        pace = Pace.SETTLED if self._settled else Pace.SHED if self._cost.shedding else Pace.FULL
        self._main_threads.watch(self._named, pace, self._loops.tids())
        subjects = [SpySubject(*one) for one in self._named] + find_working_worker(processes)
        self._stacks.watch(subjects, pace)
        self._pss.watch({one.member.identity: one.now.stat.rss_bytes for one in readings}, pace)

    def _read_budget(self, processes: Sequence[ProcessSample], now_ns: int) -> CpuBudget:
        ranks = tuple(p.pid for p in processes if p.role is Role.RANK)
        pids = ranks or tuple(p.pid for p in processes)
        self._cgroups.follow(pids)
        known = self._budget
        if known is None or known[1] != pids or now_ns - known[2] > BUDGET_EVERY_NS:
            known = self._budget = (read_cpu_budget(pids), pids, now_ns)
        return known[0]

    def _target(self, processes: tuple[ProcessSample, ...], steps: StepsRead) -> Target:
        job, ranks, workers, dumped = self._count_roles()
        return Target(
            pid=job.root.pid,
            asked_pid=job.asked_pid,
            start=job.start,
            script=job.script,
            user=job.user,
            host=admit_text(os.uname().nodename, 64),
            state=TargetState.STOPPED if are_all_suspended(processes) else TargetState.RUNNING,
            world_size=steps.size_job(job.world_size, ranks),
            local_ranks=ranks,
            local_workers=workers,
            unread=self._population.left_out,
            torch_version=job.torch_version,
            python_version=job.python_version,
            ended=NOT_APPLICABLE,
            outcome=self._tracker.ends.ranks_outcome if self._had_ranks and not ranks else NOT_APPLICABLE,
            rank_source=job.rank_source,
            local_stacks=dumped,
        )

    def _count_roles(self) -> tuple[Job, int, int, int]:
        """Return the job, its ranks, workers and processes with stacks; it is one object until it changes."""
        job = self._membership.job
        if self._counted is None or self._counted[0] is not job:
            roles = [member.role for member in job.members]
            stacks = len(dumpable(job))
            self._counted = (job, roles.count(Role.RANK), roles.count(Role.WORKER), stacks)
        return self._counted

    def _close_ended(self, changes: Changes) -> Frame:
        """Return the last Frame marked as ended; its readings stay as they were."""
        if self._last is None:
            raise NoTargetError(
                f"the job of pid {self._job.asked_pid} ended before it could be read",
                "start it again, or list the running jobs with: tpmon ps",
            )
        taken = datetime.now().astimezone()
        now_ns = time.monotonic_ns()
        events = self._tracker.tell(taken, changes, self._cgroups.read(now_ns), now_ns)
        ends, how = self._tracker.ends, self._tracker.ends.describe()
        target = replace(self._last.target, state=TargetState.ENDED, ended=how)
        target = replace(target, outcome=ends.outcome, signal=ends.signal)
        said = f"the job ended: {how}"
        if helpers := self._membership.members:
            said += f"; still there: {', '.join(f'{one.label} ({one.identity.pid})' for one in helpers[:4])}"
        events += (Event(taken, EventKind.ENDED, said),)
        before, later_s = self._last.ages_s, (now_ns - self._last.taken_ns) / 1e9
        outputs = read_within(LAST_WORDS_S, lambda: self._log.read(()))
        output = list_output(known_or(outputs, self._last.output), 0.0, self._last.processes, taken)
        return replace(
            self._last,
            taken=taken,
            taken_ns=now_ns,
            target=target,
            ages_s=Ages(
                *(map_known(lambda age: age + later_s, getattr(before, one.name)) for one in fields(Ages))
            ),
            output=output,
            pace=join_log_paces(output),
            stacks=self._stacks.take(),
            rounds=self.dumps.take(),
            collectives=self.records.take(),
            main_threads=self._main_threads.take(),
            ends=self._tracker.last_ends,
            events=events,
        )

    def _dumpable(self) -> tuple[Member, ...]:
        return self._loops.mark_some(dumpable(self._membership.job))

    def _rank_pids(self) -> tuple[int, ...]:
        members = self._membership.members
        return pids_of(members, Role.RANK) or pids_of(members[:1], *Role) or (self._job.root.pid,)

    def _read_network(self) -> Known[tuple[NetworkSample, ...]]:
        sockets, _ = self._socket_source.latest()
        used = map_known(lambda one: one.interfaces, sockets)
        return self._links.read(time.monotonic_ns(), used)
