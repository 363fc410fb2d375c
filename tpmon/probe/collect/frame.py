"""Turn the readings of one tick into the parts of a Frame. Pure: counts and divides, opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from tpmon.model.frame import NO_STEPS
from tpmon.model.frozen import replace
from tpmon.model.gpu import GpuSample, find_used
from tpmon.model.host import SUMMED_ANON, CpuSample, MemorySample, OutputSample, Pool, PoolLibrary, ShmSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, RankRow, Role, ThreadKind
from tpmon.model.waits import describe_wait
from tpmon.probe.collect.processes import Reading
from tpmon.probe.host.cgroup import HOST, CgroupReading, CpuBudget
from tpmon.probe.host.machine import HostReading
from tpmon.probe.loader.queues import LoaderRank, LoaderWorker
from tpmon.probe.proc.memory import AnonMemory, Pss
from tpmon.probe.proc.threads import DIGITS

POOL_THREADS = 2  # busy threads that make a thread pool; loader workers have one
_SUMS = ("used_cores", "runnable", "waiting", "demand_ratio", "pool_runnable", "oversubscription")
_SEVERAL_CARDS = Missing("it holds several cards; which one it uses is not known")


def make_process(reading: Reading, pss: Known[Pss], now_ns: int) -> ProcessSample:
    """Join identity, reading and rationed PSS of one process."""
    member, now = reading.member, reading.now
    rates, threads = now.rates, now.threads
    return ProcessSample(
        pid=member.identity.pid,
        start_ticks=member.identity.start_ticks,
        started=member.started,
        parent=now.stat.parent,
        role=member.role,
        rank=member.rank,
        local_rank=member.local_rank,
        worker=member.worker,
        rank_pid=member.rank_pid,
        name=member.name,
        label=member.label,
        state=now.state,
        cpu_pct=rates.cpu_pct,
        threads=now.stat.threads,
        runnable=threads.runnable,
        waiting=threads.waiting,
        busy_threads=threads.busy_threads,
        thread_groups=threads.groups,
        switches_s=threads.switches_s,
        rss_bytes=now.stat.rss_bytes,
        pss_bytes=pss.pss_bytes if isinstance(pss, Pss) else pss,
        pss_age_s=round((now_ns - pss.taken_ns) / 1e9, DIGITS) if isinstance(pss, Pss) else pss,
        asked_read_bytes_s=rates.asked_read_bytes_s,
        asked_write_bytes_s=rates.asked_write_bytes_s,
        read_calls_s=rates.read_calls_s,
        device_read_bytes_s=rates.device_read_bytes_s,
        device_write_bytes_s=rates.device_write_bytes_s,
        minor_faults_s=rates.minor_faults_s,
        major_faults_s=rates.major_faults_s,
        wchan=now.wchan,
        syscall=now.syscall,
        waits_for=now.waits_for,
        waits_unchanged_s=now.waits_unchanged_s,
        environment=member.environment,
        allowed_cpus=now.allowed_cpus,
        loop=member.loop.thread if is_known(member.loop) else NOT_APPLICABLE,
    )


def add_known(
    processes: Sequence[ProcessSample], read: Callable[[ProcessSample], Known[float]]
) -> Known[float]:
    """Add one figure over the processes that have it; if none has, Missing with the first reason."""
    values = [read(process) for process in processes]
    known = [value for value in values if is_known(value)]
    return sum(known) if known else next(iter(values), Missing("no process"))


def find_pool(processes: Sequence[ProcessSample]) -> ProcessSample | None:
    """Return the multi-threaded process with the largest demand, None when there is none."""
    pools = [p for p in processes if is_pool(p)]
    return max(pools, key=lambda p: (known_or(p.runnable, 0.0), -p.pid), default=None)


def is_pool(process: ProcessSample) -> bool:
    """Tell whether at least two threads of a process compete for CPUs."""
    return known_or(process.busy_threads, 0) >= POOL_THREADS


def _divide(above: Known[float], below: Known[float]) -> Known[float]:
    if not is_known(above):
        return above
    if not is_known(below):
        return below
    return above / below if below > 0 else Missing("the budget is 0")


def make_cpu(
    processes: Sequence[ProcessSample],
    budget: CpuBudget,
    group: CgroupReading,
    host: HostReading,
    libraries: Known[tuple[PoolLibrary, ...]],
) -> CpuSample:
    """Return the CPU part of a Frame (formulas: docs/metrics.md)."""
    used_pct = add_known(processes, lambda p: p.cpu_pct)
    runnable = add_known(processes, lambda p: p.runnable)
    waiting = add_known(processes, lambda p: p.waiting)
    several = [process for process in processes if is_pool(process)]
    pools = sum((known_or(process.runnable, 0.0) for process in several), 0.0)
    pool_runnable = pools if is_known(runnable) else runnable
    largest = find_pool(several)
    pool: Applicable[Pool] = NOT_APPLICABLE
    if largest is not None and is_known(largest.busy_threads):
        runs = largest.busy_threads, known_or(largest.runnable, 0.0)
        pool = Pool(largest.pid, largest.role, map_known(PoolLibrary.name_all, libraries), *runs, libraries)
    delay: Known[float] = runnable
    if is_known(runnable) and is_known(waiting):
        delay = waiting / runnable if runnable > 0.05 else 0.0
    return CpuSample(
        budget_cores=budget.cores,
        budget_reason=budget.reason,
        used_cores=map_known(lambda pct: pct / 100, used_pct),
        runnable=runnable,
        waiting=waiting,
        demand_ratio=_divide(runnable, budget.cores),
        pool_runnable=pool_runnable,
        oversubscription=_divide(pool_runnable, budget.cores),
        run_delay_ratio=delay,
        throttled_ratio=group.throttled_ratio,
        throttled_s=group.throttled_s,
        pool=pool,
        psi_some_pct=group.psi_cpu_some_pct,
        host_cores=host.cores,
        host_used_cores=host.used_cores,
        host_steal_pct=host.steal_pct,
        host_load=host.load,
        psi_of_host=True if group.psi_source == HOST else NOT_APPLICABLE,
        budget_by=budget.by,
    )


def name_place(source: str) -> str:
    """Describe where memory readings come from: a control group by its path, or the host."""
    if not source:
        return "no control group could be read"
    return f"control group {source}" if source.startswith(("/", "…")) else source


def withhold_sums(cpu: CpuSample, unread: int) -> CpuSample:
    """Drop the sums over processes from the CPU part where some processes were not read."""
    if not unread:
        return cpu
    missing = Missing(f"{unread} processes of the job were not read")
    changes: dict[str, Any] = dict.fromkeys((*_SUMS, "run_delay_ratio"), missing)
    return replace(cpu, **changes)


def make_rank_rows(
    processes: Sequence[ProcessSample], gpus: Known[tuple[GpuSample, ...]]
) -> tuple[RankRow, ...]:
    """Return a row for each rank, by rank and PID. "where" is the kernel's word, without stacks."""
    used = find_used(gpus) if is_known(gpus) else {}
    rows = []
    for process in processes:
        if process.role is not Role.RANK:
            continue
        gpu: Applicable[int] = NOT_APPLICABLE
        if process.pid in used:
            gpu = _name_card(used[process.pid])
        elif is_known(gpus) and gpus:
            gpu = Missing("no card lists this process")
        rows.append(
            RankRow(
                rank=process.rank,
                local_rank=process.local_rank,
                pid=process.pid,
                gpu=gpu,
                where=map_known(describe_wait, process.waits_for),
                where_unchanged_s=process.waits_unchanged_s,
                step=NO_STEPS,
                step_age_s=NO_STEPS,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.rank if isinstance(row.rank, int) else 1 << 30, row.pid)))


def _name_card(used: Sequence[GpuSample]) -> Known[int]:
    """Return the index of the one card that a process uses."""
    if len(used) == 1:
        return used[0].index
    # CUDA opens every visible card: of several open ones none is more likely.
    if any(card.pids_are_visible_only for card in used):
        return _SEVERAL_CARDS
    return Missing(f"it uses several cards: {', '.join(str(card.index) for card in used)}")


def has_pin_thread(process: ProcessSample) -> bool:
    """Tell whether a rank runs a pin-memory thread."""
    return any(group.kind is ThreadKind.PIN for group in process.thread_groups)


def list_loader_ranks(processes: Sequence[ProcessSample]) -> tuple[LoaderRank, ...]:
    """Return the ranks with their workers, oldest first, as ``LoaderProbe`` needs them."""
    workers: dict[int, list[ProcessSample]] = {}
    for process in processes:
        if process.role is Role.WORKER and is_known(process.rank_pid):
            workers.setdefault(process.rank_pid, []).append(process)
    return tuple(
        LoaderRank(
            rank=process.rank,
            pid=process.pid,
            workers=tuple(
                LoaderWorker(known_or(one.worker, -1), one.pid, one.start_ticks)
                for one in sorted(workers.get(process.pid, []), key=lambda w: (w.start_ticks, w.pid))
            ),
            pin_thread=has_pin_thread(process),
        )
        for process in processes
        if process.role is Role.RANK
    )


def list_output(
    outputs: Sequence[OutputSample], age_s: float, processes: Sequence[ProcessSample], taken: datetime
) -> tuple[OutputSample, ...]:
    """Return the logs as of the Frame, ``age_s`` after they were read, with the rank of each pace."""
    ranks = {one.pid: one.rank for one in processes if one.role is Role.RANK}
    listed = []
    for one in outputs:
        pace = one.pace
        if is_known(pace):
            pace = replace(pace, rank=ranks.get(one.pid, NOT_APPLICABLE), age_s=pace.age_s + age_s)
        listed.append(replace(age_output(one, taken), pace=pace))
    return tuple(listed)


def age_output(output: OutputSample, taken: datetime) -> OutputSample:
    """Count the age of the last write up to the Frame: logs are read less often."""
    if not is_known(output.last_write) or not is_known(output.last_write_age_s):
        return output
    return replace(output, last_write_age_s=max(0.0, (taken - output.last_write).total_seconds()))


def make_memory(
    processes: Sequence[ProcessSample],
    group: CgroupReading,
    host: HostReading,
    shm: Known[ShmSample],
    anon: AnonMemory,
) -> MemorySample:
    """Return the memory of the job: its control group's where it has one, else its processes'."""
    rss_bytes = sum(process.rss_bytes for process in processes)
    return MemorySample(
        rss_bytes=rss_bytes if processes else Missing("no process of the job was read"),
        anon_bytes=anon.anon_bytes,
        anon_source=SUMMED_ANON if anon.is_summed else name_place(group.memory_source),
        anon_growth_bytes_s=anon.growth_bytes_s,
        used_bytes=group.used_bytes,
        limit_bytes=group.limit_bytes,
        limit_source=name_place(group.limit_source),
        oom_kills=group.oom_kills,
        refault_bytes_s=group.refault_bytes_s,
        major_faults_s=add_known(processes, lambda p: p.major_faults_s),
        psi_some_pct=group.psi_memory_some_pct,
        swap_bytes=group.swap_bytes,
        host_available_bytes=host.available_bytes,
        host_total_bytes=host.total_bytes,
        shm=shm,
        psi_of_host=True if group.psi_source == HOST else NOT_APPLICABLE,
    )
