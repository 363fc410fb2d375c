"""Another user's job, at the first reading: nearly everything is missing, each with its reason."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from tests import frames
from tests.goldens.small_jobs import two_ranks, with_facts
from tpmon.model.frame import Frame
from tpmon.model.host import WorkerQueue
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ProcessSample, ThreadGroup, ThreadKind
from tpmon.model.results.doctor import NOT_PERMITTED, point_to

DENIED = Missing(point_to(NOT_PERMITTED, "io"))
BLANK = Missing("first reading: rates need two")
NO_ENVIRONMENT = Missing("environment not readable")
NO_WAIT = Missing("the kernel does not say (wchan is 0)")
NO_GPM = Missing("GPM needs Hopper or newer")
NO_PSI = Missing("PSI is off (EOPNOTSUPP)")
_BYTES = ("anon_bytes", "used_bytes", "limit_bytes", "oom_kills", "swap_bytes", "shm")
_RATES = ("cpu_pct", "runnable", "waiting", "busy_threads", "switches_s", "minor_faults_s", "major_faults_s")


def without_readings(value: Any, reason: Missing) -> Any:
    """Replace every reading that may be missing, all the way down, by a reason."""
    if isinstance(value, tuple):
        return tuple(without_readings(item, reason) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, Missing):
        return value
    changed = {}
    for name, hint in get_type_hints(type(value)).items():
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
        inner = getattr(value, name)
        changed[name] = reason if Missing in options else without_readings(inner, reason)
    return replace(value, **changed)


def other_user() -> Frame:
    """A job of another user: what the kernel refuses is missing, the rest is there."""

    def refuse(process: ProcessSample) -> ProcessSample:
        return replace(
            without_readings(process, DENIED),
            worker=process.worker,
            rank_pid=process.rank_pid,
            allowed_cpus=process.allowed_cpus,
            **dict.fromkeys(("frozen", "loop", "tracer"), NOT_APPLICABLE),
            thread_groups=(ThreadGroup(ThreadKind.UNREAD, process.threads, BLANK),),
            **dict.fromkeys(("rank", "local_rank"), NO_ENVIRONMENT),
            **dict.fromkeys(("waits_for", "waits_unchanged_s", "wchan"), NO_WAIT),
            **dict.fromkeys(_RATES, BLANK),
        )

    plain = two_ranks()
    processes = tuple(refuse(process) for process in plain.processes)
    cards = (
        frames.make_gpu(
            0,
            name="NVIDIA A10G",
            sm_pct=Missing("no sample in the driver's buffer"),
            sm_samples=0,
            age_s=14.0,
            **dict.fromkeys(("sm_active_pct", "occupancy_pct", "tensor_pct", "dram_pct"), NO_GPM),
            **dict.fromkeys(("power_w", "power_source", "throttle_known"), Missing("not supported by this card")),
            **dict.fromkeys(("sm_idle_ratio", "sm_busy_ratio"), Missing("no samples")),
            **dict.fromkeys(("pids", "processes"), Missing("process list: no permission")),
        ),
    )
    return with_facts(
        replace(
            plain,
            target=frames.make_target(
                pid=4200,
                asked_pid=4200,
                user="grace",
                script="?",
                torch_version=Missing("maps not readable"),
                python_version=Missing("maps not readable"),
                world_size=NO_ENVIRONMENT,
                local_ranks=2,
                rank_source="parentage and threads",
            ),
            ages_s=frames.make_ages(gpu=14.0, io=DENIED),
            processes=processes,
            ranks=tuple(
                frames.make_rank(
                    pid,
                    gpu=Missing("no card lists this process"),
                    **dict.fromkeys(("rank", "local_rank"), NO_ENVIRONMENT),
                    **dict.fromkeys(("where", "where_unchanged_s"), NO_WAIT),
                )
                for pid in (4211, 4212)
            ),
            cpu=replace(
                without_readings(frames.make_cpu(), BLANK),
                budget_cores=Missing("control group outside our namespace"),
                budget_reason="control group outside our namespace",
                psi_some_pct=NO_PSI,
                **dict.fromkeys(("psi_of_host", "budget_by"), NOT_APPLICABLE),
                host_cores=2,
            ),
            memory=frames.make_memory(
                psi_some_pct=NO_PSI,
                host_available_bytes=20 * frames.GIB,
                **dict.fromkeys(_BYTES, DENIED),
                **dict.fromkeys(("anon_growth_bytes_s", "refault_bytes_s", "major_faults_s"), BLANK),
            ),
            loader=(
                frames.make_loader(
                    4211,
                    rank=NO_ENVIRONMENT,
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
            driver=frames.make_driver(cuda_version=Missing("not read yet")),
            gpus=cards,
            self_=frames.make_own_cost(cpu_pct=BLANK),
        )
    )
