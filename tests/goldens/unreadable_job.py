"""Another user's job, at the first reading: nearly everything is missing, each with its reason."""

from __future__ import annotations

from dataclasses import replace

from tests.frames import (
    GIB,
    make_ages,
    make_cpu,
    make_driver,
    make_gpu,
    make_loader,
    make_memory,
    make_own_cost,
    make_rank,
    make_target,
)
from tests.goldens.small_jobs import two_ranks, with_facts
from tpmon.model.frame import Frame
from tpmon.model.host import WorkerQueue
from tpmon.model.known import Missing
from tpmon.model.process import ProcessSample, ThreadGroup, ThreadKind
from tpmon.model.results.doctor import NOT_PERMITTED, point_to

DENIED = Missing(point_to(NOT_PERMITTED, "io"))
BLANK = Missing("first reading: rates need two")


def other_user() -> Frame:
    """A job of another user: what the kernel refuses is missing, the rest is there."""

    def refuse(process: ProcessSample) -> ProcessSample:
        return replace(
            process,
            rank=Missing("environment not readable"),
            local_rank=Missing("environment not readable"),
            asked_read_bytes_s=DENIED,
            read_calls_s=DENIED,
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
    return with_facts(
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
