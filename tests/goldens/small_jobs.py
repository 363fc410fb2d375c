"""Small jobs on one machine without a GPU: healthy, without workers, oversubscribed, ended."""

from __future__ import annotations

from dataclasses import replace

from tests.frames import (
    GIB,
    MIB,
    make_cpu,
    make_event,
    make_frame,
    make_loader,
    make_memory,
    make_output,
    make_own_cost,
    make_process,
    make_rank,
    make_target,
    make_worker,
)
from tpmon.model.frame import Event, EventKind, Frame, TargetState
from tpmon.model.host import BudgetBy, NetworkSample, Pool, PoolLibrary, ShmSample, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting, ProcessSample, Role, ThreadGroup, ThreadKind
from tpmon.model.text.job_words import list_taxes, state_facts


def with_facts(frame: Frame) -> Frame:
    roles = [process.role for process in frame.processes]
    ranks, workers = roles.count(Role.RANK), roles.count(Role.WORKER)
    target = replace(frame.target, local_ranks=ranks, local_workers=workers)
    return replace(frame, target=target, facts=state_facts(ranks, workers, frame.cpu, frame.gpus))


def make_launcher(pid: int, **fields: object) -> ProcessSample:
    plain = {
        "role": Role.LAUNCHER,
        "rank": NOT_APPLICABLE,
        "local_rank": NOT_APPLICABLE,
        "parent": 1200,
        "name": "torchrun",
        "label": "torchrun",
        "state": "S",
        "cpu_pct": 0.3,
        "threads": 9,
        "runnable": 0.01,
        "waiting": 0.0,
        "busy_threads": 0,
        "rss_bytes": 221 * MIB,
        "waits_for": "sleep",
        "waits_unchanged_s": 0.0,
        "thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.OTHER, 8, 0.01)),
    }
    return make_process(pid, **(plain | fields))


def two_ranks() -> Frame:
    """Two gloo ranks under torchrun on two cores, two loader workers each; all is well."""
    ranks = [
        make_process(4211, parent=4200, rank=0, local_rank=0, cpu_pct=61.0, runnable=0.71, waiting=0.1),
        make_process(
            4212,
            parent=4200,
            rank=1,
            local_rank=1,
            cpu_pct=58.4,
            runnable=0.7,
            waiting=0.12,
            state="S",
            waits_for="lock or queue (futex)",
            waits_unchanged_s=0.4,
        ),
    ]
    workers = [
        make_worker(4300 + 10 * rank + n, n, 4211 + rank, rank=rank, cpu_pct=17.0 + 3 * n + rank)
        for rank in (0, 1)
        for n in (0, 1)
    ]
    return with_facts(
        make_frame(
            target=make_target(pid=4200, asked_pid=4211, world_size=2, local_ranks=2),
            processes=(make_launcher(4200), *ranks, *workers),
            ranks=(
                make_rank(4211, rank=0),
                make_rank(4212, rank=1, local_rank=1, where="lock or queue (futex)", where_unchanged_s=0.4),
            ),
            cpu=make_cpu(
                budget_cores=2.0,
                budget_reason="affinity 0-1",
                used_cores=1.94,
                runnable=2.2,
                waiting=0.31,
                demand_ratio=1.1,
                run_delay_ratio=0.14,
                host_cores=2,
                host_used_cores=1.97,
                host_load=2.6,
                psi_some_pct=14.0,
            ),
            memory=make_memory(anon_growth_bytes_s=12_000.0),
            loader=(make_loader(4211, ready_batches=4.0), make_loader(4212, rank=1, ready_batches=3.0)),
            network=(
                NetworkSample("eth0", "nic", False, 1200.0, 900.0, 0.0, 0.0),
                NetworkSample("lo", "nic", True, 41e6, 41e6, 0.0, 0.0),
            ),
            sockets=SocketSample(6, 0.1, 0.1, 0, 0),
            output=(make_output(4200),),
        )
    )


def two_ranks_events() -> tuple[Event, ...]:
    return (
        make_event("attached to pid 4200 (asked for 4211): 2 ranks, 4 workers", 660, EventKind.ATTACH),
        make_event("4 workers ended, 4 started (4300 4301 4310 4311)", 215),
    )


def no_workers() -> Frame:
    """One process that loads its own data in the main thread."""
    main = make_process(
        9120, parent=8801, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE, label="finetune.py", cpu_pct=99.6
    )
    return with_facts(
        make_frame(
            target=make_target(
                pid=9120, asked_pid=9120, script="finetune.py", host="lab-ws3", user="grace", local_ranks=1
            ),
            processes=(main,),
            ranks=(make_rank(9120, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE),),
            cpu=make_cpu(used_cores=1.0, runnable=1.0, waiting=0.01, demand_ratio=0.13, run_delay_ratio=0.01),
            memory=make_memory(
                limit_bytes=NOT_APPLICABLE,
                limit_source="no limit",
                used_bytes=Missing("the job sits in the root control group"),
                rss_bytes=int(1.4 * GIB),
            ),
            loader=(),
            output=(),
        )
    )


def make_compiler(pid: int, rank_pid: int) -> ProcessSample:
    return make_process(
        pid,
        parent=rank_pid,
        role=Role.COMPILE,
        rank=NOT_APPLICABLE,
        local_rank=NOT_APPLICABLE,
        rank_pid=rank_pid,
        label="compile worker",
        cpu_pct=31.0,
        threads=1,
        runnable=0.32,
        thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.32),),
        rss_bytes=288 * MIB,
    )


def oversubscribed_readings() -> Frame:
    """Two ranks, each with a 16-thread OpenMP pool, on two cores; launch blocking left on."""
    settings = (
        EnvironmentSetting("CUDA_LAUNCH_BLOCKING", "1"),
        EnvironmentSetting("OMP_NUM_THREADS", "16"),
        EnvironmentSetting("RANK", "0"),
        EnvironmentSetting("WORLD_SIZE", "2"),
    )
    ranks = [
        make_process(
            4211 + n,
            parent=4200,
            rank=n,
            local_rank=n,
            cpu_pct=97.0 - 2 * n,
            threads=38,
            runnable=7.2 - 0.3 * n,
            waiting=5.9 - 0.2 * n,
            busy_threads=16,
            switches_s=4100.0,
            thread_groups=(
                ThreadGroup(ThreadKind.MAIN, 1, 0.9),
                ThreadGroup(ThreadKind.POOL, 32, 6.2),
                ThreadGroup(ThreadKind.COMM, 3, 0.1),
                ThreadGroup(ThreadKind.UNREAD, 2, 0.0),
            ),
            environment=settings,
        )
        for n in (0, 1)
    ]
    return with_facts(
        make_frame(
            target=make_target(pid=4200, asked_pid=4200, world_size=2, local_ranks=2),
            processes=(
                make_launcher(4200),
                *ranks,
                make_worker(4300, 0, 4211, cpu_pct=3.1),
                make_worker(4310, 0, 4212, rank=1, cpu_pct=2.7),
                make_process(
                    4350,
                    role=Role.HELPER,
                    rank=NOT_APPLICABLE,
                    local_rank=NOT_APPLICABLE,
                    rank_pid=4211,
                    name="wandb-core",
                    label="wandb-core",
                    state="S",
                    cpu_pct=0.6,
                    threads=14,
                    runnable=0.01,
                    waiting=0.0,
                    rss_bytes=78 * MIB,
                    waits_for="epoll",
                    waits_unchanged_s=0.0,
                ),
            ),
            ranks=(make_rank(4211), make_rank(4212, rank=1, local_rank=1)),
            cpu=make_cpu(
                budget_cores=2.0,
                budget_reason="cgroup quota 2.0 of 64 CPUs",
                budget_by=BudgetBy.QUOTA,
                used_cores=1.98,
                runnable=14.2,
                waiting=11.6,
                demand_ratio=7.1,
                pool_runnable=14.1,
                oversubscription=7.05,
                run_delay_ratio=0.82,
                throttled_ratio=0.97,
                throttled_s=5.1,
                pool=Pool(4211, Role.RANK, PoolLibrary.GOMP.words, 16, 7.2, (PoolLibrary.GOMP,)),
                psi_some_pct=79.0,
                host_cores=64,
                host_used_cores=12.0,
                host_load=31.0,
            ),
            loader=(make_loader(4211, 1, ready_batches=2.0), make_loader(4212, 1, rank=1, ready_batches=2.0)),
            memory=make_memory(
                used_bytes=int(15.4 * GIB), anon_growth_bytes_s=3.1e6, shm=ShmSample("/dev/shm", 49 * MIB, 64 * MIB)
            ),
            notes=list_taxes(settings),
            output=(make_output(4200, last_write_age_s=94.0, lines=("epoch 0 step 4 loss 6.921",)),),
            self_=make_own_cost(shedding=True, cpu_pct=2.9),
        )
    )


def ended() -> Frame:
    """The two ranks a second after the OOM killer came."""
    return replace(
        two_ranks(),
        target=make_target(
            pid=4200,
            asked_pid=4211,
            world_size=2,
            local_ranks=2,
            state=TargetState.ENDED,
            ended="exit 137 (SIGKILL; OOM killer in the control group)",
        ),
    )


def ended_events() -> tuple[Event, ...]:
    return (
        *two_ranks_events(),
        make_event("rank 1 (4212) killed: SIGKILL", 2),
        make_event("job ended: exit 137 (SIGKILL; OOM killer in the control group)", 1, EventKind.ENDED),
    )


def attach_event() -> tuple[Event, ...]:
    return (make_event("attached to pid 4200", 1, EventKind.ATTACH),)
