"""The situations that the goldens show, each as a Frame with its history.

Numbers are written by hand after real runs (two gloo ranks on two cores; the 8-card node of the
cost measurements); ``tests/goldens/update.py`` writes the Frames and the pictures beside this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from tests.frames import (
    GIB,
    MIB,
    NOW,
    make_ages,
    make_cpu,
    make_driver,
    make_event,
    make_frame,
    make_gpu,
    make_loader,
    make_memory,
    make_output,
    make_own_cost,
    make_process,
    make_pulses,
    make_rank,
    make_target,
    make_worker,
)
from tpmon.model.facts import state_facts
from tpmon.model.frame import Event, EventKind, Frame, TargetState
from tpmon.model.gpu import GpuProcess, ThrottleShare
from tpmon.model.host import NetworkSample, Pool, ShmSample, SocketSample, WorkerQueue
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ProcessSample, RankRow, Role, Setting, ThreadGroup, ThreadKind
from tpmon.model.window import Pulse

DENIED = Missing("permission denied: another user's process")
BLANK = Missing("first reading: rates need two")


def _with_facts(frame: Frame) -> Frame:
    return replace(frame, facts=state_facts(frame.processes, frame.cpu, frame.gpus))


def _launcher(pid: int, **fields: object) -> ProcessSample:
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
    return _with_facts(
        make_frame(
            target=make_target(pid=4200, asked_pid=4211, world_size=2, local_ranks=2),
            processes=(_launcher(4200), *ranks, *workers),
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
    """What happened to the two ranks."""
    return (
        make_event("attached to pid 4200 (asked for 4211): 2 ranks, 4 workers", 660, EventKind.ATTACH),
        make_event("4 workers ended, 4 started (4300 4301 4310 4311)", 215),
    )


def eight_gpus() -> Frame:
    """Rank 8 to 15 of 64 on a node with 8 cards, 16 workers each; card 3 runs hot."""
    ranks: list[ProcessSample] = []
    rows: list[RankRow] = []
    workers: list[ProcessSample] = []
    cards = []
    for n in range(8):
        pid = 51_200 + n
        ranks.append(
            make_process(
                pid,
                parent=51_100,
                rank=8 + n,
                local_rank=n,
                cpu_pct=98.6 + 0.2 * n,
                threads=212,
                runnable=1.31,
                waiting=0.01,
                busy_threads=1,
                rss_bytes=int((9.1 + 0.1 * n) * GIB),
                started=NOW - timedelta(hours=51, minutes=12),
            )
        )
        rows.append(make_rank(pid, rank=8 + n, local_rank=n, gpu=n, where="running"))
        hot = n == 3
        cards.append(
            make_gpu(
                n,
                sm_pct=99.0 if hot else 95.0 + n % 3,
                sm_active_pct=81.0 - n % 2,
                power_w=508.0 if hot else 596.0 + 7 * n,
                sm_clock_mhz=1395.0 if hot else 1980.0,
                temperature_c=87.0 if hot else 56.0 + n,
                throttle=("thermal (software)",) if hot else (),
                throttle_shares=(ThrottleShare("thermal (software)", 38.0, "counter"),) if hot else (),
                pids=(pid,),
                processes=(GpuProcess(pid, 61 * GIB, 96.0, True),),
            )
        )
        for w in range(16):
            busy = (w * 7 + n * 3) % 11
            workers.append(
                make_worker(
                    52_000 + 16 * n + w,
                    w,
                    pid,
                    rank=8 + n,
                    cpu_pct=22.0 + busy,
                    runnable=0.24 + busy / 100,
                    threads=3,
                    rss_bytes=int((2.1 + w / 40) * GIB),
                    waits_for="work from its rank (loader queue)" if busy % 3 else "NFS",
                    state="S" if busy % 3 else "D",
                    asked_read_bytes_s=11.5e6 + busy * 1e5,
                    started=NOW - timedelta(minutes=44),
                )
            )
    return _with_facts(
        make_frame(
            target=make_target(
                pid=51_100,
                asked_pid=51_100,
                script="pretrain_vision.py",
                host="gpu-rack2-n07",
                user="ada",
                world_size=64,
                local_ranks=8,
                torch_version="2.9.1+cu128",
                start=NOW - timedelta(hours=51, minutes=13),
            ),
            ages_s=make_ages(cpu=0.2, threads=0.2, gpu=0.4),
            processes=(_launcher(51_100), *ranks, *workers),
            ranks=tuple(rows),
            cpu=make_cpu(
                budget_cores=96.0,
                budget_reason="affinity 0-95 (Slurm), no quota",
                used_cores=41.8,
                runnable=44.2,
                waiting=0.6,
                demand_ratio=0.46,
                pool_runnable=0.0,
                run_delay_ratio=0.014,
                host_cores=192,
                host_used_cores=47.0,
                host_load=52.0,
                psi_some_pct=Missing("this kernel has no PSI"),
            ),
            memory=make_memory(
                rss_bytes=384 * GIB,
                anon_bytes=171 * GIB,
                used_bytes=214 * GIB,
                limit_bytes=960 * GIB,
                limit_source="cgroup memory.max (Slurm step)",
                anon_growth_bytes_s=210_000.0,
                host_available_bytes=1203 * GIB,
                host_total_bytes=2015 * GIB,
                shm=ShmSample("/dev/shm", 31 * GIB, 1007 * GIB),
            ),
            loader=tuple(
                make_loader(51_200 + n, 16, rank=8 + n, ready_batches=28.0 + n, pin_thread=True)
                for n in range(8)
            ),
            output=(
                make_output(
                    51_200,
                    path="/lustre/home/ada/runs/2026-03-12_vitl/log/rank_8.out",
                    lines=(
                        "[03:07:12] step 91200 | loss 2.8131 | lr 4.1e-04 | 1.62 s/it",
                        "[03:07:28] step 91210 | loss 2.8077 | lr 4.1e-04 | 1.63 s/it",
                        "[03:07:40] step 91220 | loss 2.8102 | lr 4.1e-04 | 1.71 s/it",
                    ),
                    last_write_age_s=1.0,
                ),
            ),
            driver=make_driver(),
            gpus=tuple(cards),
            self_=make_own_cost(cpu_pct=2.1, rss_bytes=47 * MIB, children_rss_bytes=29 * MIB),
        )
    )


def eight_gpus_events() -> tuple[Event, ...]:
    """What happened on the node."""
    return (
        make_event("attached to pid 51100: 8 ranks, 128 workers, 8 GPUs", 1900, EventKind.ATTACH),
        make_event("GPU 3: thermal (software) began to hold the clocks down", 412, EventKind.GPU),
    )


def no_workers() -> Frame:
    """One process that loads its own data in the main thread."""
    main = make_process(
        9120, parent=8801, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE, label="finetune.py", cpu_pct=99.6
    )
    return _with_facts(
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


def oversubscribed() -> Frame:
    """Two ranks, each with a 16-thread OpenMP pool, on two cores; launch blocking left on."""
    settings = (
        Setting("CUDA_LAUNCH_BLOCKING", "1"),
        Setting("OMP_NUM_THREADS", "16"),
        Setting("RANK", "0"),
        Setting("WORLD_SIZE", "2"),
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
    return _with_facts(
        make_frame(
            target=make_target(pid=4200, asked_pid=4200, world_size=2, local_ranks=2),
            processes=(
                _launcher(4200),
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
                used_cores=1.98,
                runnable=14.2,
                waiting=11.6,
                demand_ratio=7.1,
                pool_runnable=14.1,
                oversubscription=7.05,
                run_delay_ratio=0.82,
                throttled_ratio=0.97,
                throttled_s=5.1,
                pool=Pool(4211, Role.RANK, "OpenMP (libgomp: torch)", 16, 7.2),
                psi_some_pct=79.0,
                host_cores=64,
                host_used_cores=12.0,
                host_load=31.0,
            ),
            loader=(make_loader(4211, 1, ready_batches=2.0), make_loader(4212, 1, rank=1, ready_batches=2.0)),
            memory=make_memory(
                used_bytes=int(15.4 * GIB),
                anon_growth_bytes_s=3.1e6,
                shm=ShmSample("/dev/shm", 49 * MIB, 64 * MIB),
            ),
            notes=(
                "CUDA_LAUNCH_BLOCKING=1: every kernel launch waits for the GPU",
                "OMP_NUM_THREADS=16 in each of 2 ranks on 2 CPUs",
            ),
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
    """How the two ranks ended."""
    return (
        *two_ranks_events(),
        make_event("rank 1 (4212) killed: SIGKILL", 2),
        make_event("job ended: exit 137 (SIGKILL; OOM killer in the control group)", 1, EventKind.ENDED),
    )


def other_user() -> Frame:
    """A job of another user: what the kernel refuses is missing, the rest is there."""

    def refuse(process: ProcessSample) -> ProcessSample:
        return replace(
            process,
            rank=Missing("environment not readable"),
            local_rank=Missing("environment not readable"),
            asked_read_bytes_s=DENIED,
            asked_write_bytes_s=DENIED,
            device_read_bytes_s=DENIED,
            device_write_bytes_s=DENIED,
            pss_bytes=DENIED,
            pss_age_s=DENIED,
            syscall=DENIED,
            waits_for=Missing("the kernel does not say (wchan is 0)"),
            waits_unchanged_s=Missing("the kernel does not say (wchan is 0)"),
            wchan=Missing("the kernel does not say (wchan is 0)"),
            environment=DENIED,
            cpu_pct=BLANK,
            runnable=BLANK,
            waiting=BLANK,
            busy_threads=BLANK,
            switches_s=BLANK,
            minor_faults_s=BLANK,
            major_faults_s=BLANK,
            thread_groups=(ThreadGroup(ThreadKind.UNREAD, process.threads, BLANK),),
        )

    where = Missing("the kernel does not say (wchan is 0)")
    plain = two_ranks()
    processes = tuple(refuse(process) for process in plain.processes)
    cards = (
        make_gpu(
            0,
            name="NVIDIA A10G",
            sm_active_pct=Missing("GPM needs Hopper or newer"),
            occupancy_pct=Missing("GPM needs Hopper or newer"),
            tensor_pct=Missing("GPM needs Hopper or newer"),
            dram_pct=Missing("GPM needs Hopper or newer"),
            power_w=Missing("not supported by this card"),
            power_source=Missing("not supported by this card"),
            throttle_known=Missing("not supported by this card"),
            sm_pct=Missing("no sample in the driver's buffer"),
            sm_samples=0,
            sm_idle_ratio=Missing("no samples"),
            sm_busy_ratio=Missing("no samples"),
            pids=Missing("process list: no permission"),
            processes=Missing("process list: no permission"),
            age_s=14.0,
        ),
    )
    return _with_facts(
        replace(
            plain,
            target=make_target(
                pid=4200,
                asked_pid=4200,
                user="grace",
                script="?",
                torch_version=Missing("maps not readable"),
                python_version=Missing("maps not readable"),
                world_size=Missing("environment not readable"),
                local_ranks=2,
                rank_source="parentage and threads",
            ),
            ages_s=make_ages(gpu=14.0, io=DENIED),
            processes=processes,
            ranks=tuple(
                make_rank(
                    pid,
                    rank=Missing("environment not readable"),
                    local_rank=Missing("environment not readable"),
                    gpu=Missing("no card lists this process"),
                    where=where,
                    where_unchanged_s=where,
                )
                for pid in (4211, 4212)
            ),
            cpu=make_cpu(
                budget_cores=Missing("control group outside our namespace"),
                budget_reason="control group outside our namespace",
                used_cores=BLANK,
                runnable=BLANK,
                waiting=BLANK,
                demand_ratio=BLANK,
                pool_runnable=BLANK,
                oversubscription=BLANK,
                run_delay_ratio=BLANK,
                throttled_ratio=BLANK,
                throttled_s=BLANK,
                pool=BLANK,
                psi_some_pct=Missing("PSI is off (EOPNOTSUPP)"),
                host_used_cores=BLANK,
                host_steal_pct=BLANK,
                host_load=BLANK,
                host_cores=2,
            ),
            memory=make_memory(
                anon_bytes=DENIED,
                anon_growth_bytes_s=BLANK,
                used_bytes=DENIED,
                limit_bytes=DENIED,
                oom_kills=DENIED,
                refault_bytes_s=BLANK,
                major_faults_s=BLANK,
                psi_some_pct=Missing("PSI is off (EOPNOTSUPP)"),
                swap_bytes=DENIED,
                host_available_bytes=20 * GIB,
                shm=DENIED,
            ),
            loader=(
                make_loader(
                    4211,
                    rank=Missing("environment not readable"),
                    ready_batches=DENIED,
                    ready_bytes=DENIED,
                    empty_ratio=DENIED,
                    looks=0,
                    queues=(WorkerQueue(0, 4300, DENIED),),
                ),
            ),
            output=(),
            network=Missing("no permission"),
            sockets=Missing("no permission"),
            driver=make_driver(cuda_version=Missing("not read yet")),
            gpus=cards,
            self_=make_own_cost(cpu_pct=BLANK),
        )
    )


def attach_event() -> tuple[Event, ...]:
    """Only the attaching."""
    return (make_event("attached to pid 4200", 1, EventKind.ATTACH),)


STATES: dict[str, tuple[Callable[[], Frame], Callable[[], tuple[Event, ...]]]] = {
    "two-ranks": (two_ranks, two_ranks_events),
    "eight-gpus": (eight_gpus, eight_gpus_events),
    "no-workers": (no_workers, attach_event),
    "oversubscribed": (oversubscribed, attach_event),
    "ended": (ended, ended_events),
    "other-user": (other_user, attach_event),
}


def shape_history(frame: Frame) -> tuple[Pulse, ...]:
    """Give a Frame two minutes of history that a person can check: a wave that ends at its values."""

    def wave(second: int) -> float:
        return 1.0 - 0.35 * abs(math.sin((119 - second) / 7)) if second >= 40 else 0.4

    return tuple(
        replace(
            pulse,
            used_cores=_scale(pulse.used_cores, wave(second)),
            runnable=_scale(pulse.runnable, wave(second)),
            run_delay_ratio=_scale(pulse.run_delay_ratio, wave(second)),
            gpu_pct=tuple(_scale(one, wave(second)) for one in pulse.gpu_pct),
        )
        for second, pulse in enumerate(make_pulses(frame, 120))
    )


def _scale(value: float | Missing, factor: float) -> float | Missing:
    return value if isinstance(value, Missing) else value * factor
