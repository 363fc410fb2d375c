"""Build samples, Frames and ViewStates for tests: a small healthy job unless a field says otherwise.

Every builder takes the fields of its dataclass by name, so a test states only what it is about:
``make_frame(cpu=make_cpu(oversubscription=7.1))``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from tests.waits import read_words
from tpmon.model import frame as model
from tpmon.model.frame import FRAME_SCHEMA, NO_STEPS, Event, EventKind, Frame, GroupTexts, Pulse, TargetState, pulse_of
from tpmon.model.gpu import Driver, GpuSample, GpuState
from tpmon.model.host import (
    CpuSample,
    LoaderSample,
    LogPace,
    MemorySample,
    OutputSample,
    PaceSource,
    ShmSample,
    SocketSample,
    WorkerQueue,
)
from tpmon.model.known import NOT_APPLICABLE, Missing, Why, is_known
from tpmon.model.process import EnvironmentSetting, ProcessSample, RankRow, Role, ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Evidence, Finding, Kind, SinceIs
from tpmon.model.waits import RUNNING
from tpmon.ui.monitor.controls import ScreenOptions
from tpmon.ui.monitor.start import first_view
from tpmon.ui.monitor.state import ViewState

NOW = datetime(2026, 3, 14, 3, 7, 41, tzinfo=timezone.utc)
NOW_NS = 90_000 * 1_000_000_000
GIB = 1 << 30
MIB = 1 << 20

NO_STACKS = Missing("stacks are not sampled here")
NO_DRIVER = Missing("no NVIDIA driver on this machine", Why.ABSENT)


_PROCESS = ProcessSample(
    pid=4211,
    start_ticks=104_211,
    started=NOW - timedelta(minutes=12),
    parent=4200,
    role=Role.RANK,
    rank=0,
    local_rank=0,
    worker=NOT_APPLICABLE,
    rank_pid=NOT_APPLICABLE,
    name="python",
    label="train.py",
    state="R",
    cpu_pct=98.0,
    threads=9,
    runnable=1.0,
    waiting=0.02,
    busy_threads=1,
    thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.98), ThreadGroup(ThreadKind.POOL, 8, 0.02)),
    switches_s=52.0,
    rss_bytes=612 * MIB,
    pss_bytes=540 * MIB,
    pss_age_s=4.0,
    asked_read_bytes_s=1.2e6,
    asked_write_bytes_s=0.0,
    read_calls_s=40.0,
    device_read_bytes_s=0.0,
    device_write_bytes_s=0.0,
    minor_faults_s=210.0,
    major_faults_s=0.0,
    wchan="0",
    syscall="running",
    waits_for=RUNNING,
    waits_unchanged_s=0.0,
    environment=(EnvironmentSetting("OMP_NUM_THREADS", "1"), EnvironmentSetting("WORLD_SIZE", "1")),
)


def make_process(pid: int = 4211, **fields: Any) -> ProcessSample:
    """Build one process: rank 0 of a job, computing on one thread. ``waits_for`` may be in words."""
    if "waits_for" in fields:
        fields["waits_for"] = read_words(fields["waits_for"])
    return replace(_PROCESS, **({"pid": pid, "start_ticks": 100_000 + pid} | fields))


def make_worker(pid: int = 4221, worker: int = 0, rank_pid: int = 4211, **fields: Any) -> ProcessSample:
    plain = {
        "parent": rank_pid,
        "role": Role.WORKER,
        "local_rank": NOT_APPLICABLE,
        "worker": worker,
        "rank_pid": rank_pid,
        "label": f"DataLoader worker {worker}",
        "state": "S",
        "cpu_pct": 31.0,
        "threads": 2,
        "runnable": 0.33,
        "waiting": 0.02,
        "rss_bytes": 402 * MIB,
        "waits_for": "work from its rank (loader queue)",
        "waits_unchanged_s": 0.2,
        "wchan": "do_poll",
        "syscall": "poll",
    } | fields
    wanted = plain["runnable"]
    of_main = min(wanted, 1.0) if is_known(wanted) else wanted
    groups = (ThreadGroup(ThreadKind.MAIN, 1, of_main), ThreadGroup(ThreadKind.OTHER, 1, 0.0))
    return make_process(pid, **({"thread_groups": groups} | plain))


_RANK = RankRow(
    rank=0,
    local_rank=0,
    pid=4211,
    gpu=NOT_APPLICABLE,
    where="running",
    where_unchanged_s=0.0,
    step=NO_STEPS,
    step_age_s=NO_STEPS,
)


def make_rank(pid: int = 4211, **fields: Any) -> RankRow:
    """Build the row of rank 0: no card, no hook."""
    return replace(_RANK, **({"pid": pid} | fields))


_GPU = GpuSample(
    index=0,
    uuid="",
    name="NVIDIA H100 80GB HBM3",
    state=GpuState.OK,
    age_s=0.3,
    sm_pct=96.0,
    sm_samples=7,
    sm_idle_ratio=0.0,
    sm_busy_ratio=1.0,
    memory_busy_pct=41.0,
    decoder_pct=0.0,
    jpeg_pct=0.0,
    sm_active_pct=88.0,
    occupancy_pct=34.0,
    tensor_pct=47.0,
    dram_pct=39.0,
    pcie_tx_bytes_s=0.4e9,
    pcie_rx_bytes_s=1.9e9,
    nvlink_tx_bytes_s=61e9,
    nvlink_rx_bytes_s=60e9,
    memory_used_bytes=61 * GIB,
    memory_total_bytes=80 * GIB,
    power_w=612.0,
    power_source="energy counter",
    power_limit_w=700.0,
    sm_clock_mhz=1980.0,
    sm_clock_max_mhz=1980.0,
    memory_clock_mhz=2619.0,
    memory_clock_max_mhz=2619.0,
    temperature_c=58.0,
    memory_temperature_c=71.0,
    temperature_margin_c=29.0,
    throttle=(),
    throttle_known=True,
    throttle_shares=(),
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    ecc_uncorrected=0,
    remapped_rows_pending=False,
    remapped_rows_failed=False,
    recovery_action=0,
    xids=(),
    mig=False,
    mig_instances=(),
    processes=(),
    pids=(4211,),
    pids_are_visible_only=False,
    lists_only=NOT_APPLICABLE,
)


def make_gpu(index: int = 0, **fields: Any) -> GpuSample:
    """Build one healthy H100 that this job keeps busy."""
    return replace(_GPU, **({"index": index, "uuid": f"GPU-5e0f{index:04x}-0000-0000-0000-000000000000"} | fields))


_CPU = CpuSample(
    budget_cores=8.0,
    budget_reason="affinity 0-7",
    used_cores=4.1,
    runnable=4.2,
    waiting=0.1,
    demand_ratio=0.53,
    pool_runnable=0.0,
    oversubscription=0.0,
    run_delay_ratio=0.02,
    throttled_ratio=0.0,
    throttled_s=0.0,
    pool=NOT_APPLICABLE,
    psi_some_pct=1.0,
    host_cores=8,
    host_used_cores=4.4,
    host_steal_pct=0.0,
    host_load=4.8,
)


def make_cpu(**fields: Any) -> CpuSample:
    """Build the CPU group of a job that uses half of 8 cores."""
    used = fields.get("used_cores", _CPU.used_cores)
    if "host_used_cores" not in fields and is_known(used):
        fields["host_used_cores"] = round(used + 0.3, 3)  # the others are quiet
    return replace(_CPU, **fields)


_MEMORY = MemorySample(
    rss_bytes=3 * GIB,
    anon_bytes=int(2.1 * GIB),
    anon_source="cgroup memory.stat",
    anon_growth_bytes_s=0.0,
    used_bytes=int(2.6 * GIB),
    limit_bytes=16 * GIB,
    limit_source="cgroup memory.max",
    oom_kills=0,
    refault_bytes_s=0.0,
    major_faults_s=0.0,
    psi_some_pct=0.0,
    swap_bytes=0,
    host_available_bytes=20 * GIB,
    host_total_bytes=32 * GIB,
    shm=ShmSample(path="/dev/shm", used_bytes=120 * MIB, total_bytes=4 * GIB),
)
make_memory = partial(replace, _MEMORY)
"""Build the memory group of a job in a control group with a 16 GiB limit."""


_LOADER = LoaderSample(
    rank=0,
    pid=4211,
    loader=0,
    workers=2,
    ready_batches=3.0,
    ready_bytes=1323,
    empty_ratio=0.0,
    looks=20,
    queues=(),
    births=0,
    pin_thread=False,
)


def make_loader(pid: int = 4211, workers: int = 2, **fields: Any) -> LoaderSample:
    """Build the loader queues of one rank, with batches ready."""
    queues = tuple(WorkerQueue(i, 4221 + i, 40) for i in range(workers))
    return replace(_LOADER, pid=pid, workers=workers, **({"queues": queues} | fields))


_OUTPUT = OutputSample(
    pid=4211,
    fd=1,
    path="/home/usr/runs/17/train.log",
    size_bytes=88_213,
    last_write=NOW - timedelta(seconds=2),
    last_write_age_s=2.0,
    lines=("epoch 3 step 1210 loss 2.143", "epoch 3 step 1220 loss 2.139", "epoch 3 step 1230 loss 2.151"),
)


def make_output(pid: int = 4211, **fields: Any) -> OutputSample:
    return replace(_OUTPUT, **({"pid": pid} | fields))


_PACE = LogPace(
    pid=4211,
    fd=1,
    rank=0,
    rate_hz=3.21,
    unit="step",
    source=PaceSource.COUNTED,
    step=1230,
    total=5000,
    loss=2.151,
    shape="epoch # step # loss #",
    age_s=1.2,
    every_s=0.3,
)
make_log_pace = partial(replace, _PACE)
"""Build what the log of rank 0 tells: 3.21 steps/s, just now."""


_TARGET = model.Target(
    pid=4211,
    asked_pid=4211,
    start=NOW - timedelta(minutes=12),
    script="train.py",
    user="usr",
    host="node-07",
    state=TargetState.RUNNING,
    world_size=NOT_APPLICABLE,
    local_ranks=1,
    local_workers=2,
    unread=0,
    torch_version="2.13.0",
    python_version="3.11",
    ended=NOT_APPLICABLE,
    outcome=NOT_APPLICABLE,
    rank_source="environment",
)
make_target = partial(replace, _TARGET)
"""Build the job around rank 4211: one rank, no launcher."""


_AGES = model.Ages(
    cpu=0.1, threads=0.1, io=0.1, memory=0.1, gpu=NO_DRIVER, stacks=Missing("not sampled"), hook=NO_STEPS
)
make_ages = partial(replace, _AGES)
"""Build ages of a session that keeps up."""


_OWN_COST = model.OwnCost(
    cpu_pct=1.1,
    rss_bytes=44 * MIB,
    children_rss_bytes=0,
    target_paused_ms=0.0,
    descriptors=120,
    tick_ms=6.0,
    shedding=False,
)
make_own_cost = partial(replace, _OWN_COST)


_EVIDENCE = Evidence(name="", value=82.0, unit="%", text="", source="loader pipes, 200 looks", age_s=0.1)


def make_evidence(name: str = "no batch ready", **fields: Any) -> Evidence:
    """Build one reading that speaks for a Finding."""
    return replace(_EVIDENCE, **({"name": name} | fields))


_FINDING = Finding(
    kind=Kind.DATA_BOUND,
    cause="cpu-transform",
    confidence=Confidence.HIGH,
    share_pct=58.0,
    share_low_pct=54.0,
    share_high_pct=62.0,
    since=NOW - timedelta(minutes=5, seconds=30),
    since_is=SinceIs.ONSET,
    since_source="history",
    summary="the loop waits for a batch 58 % of the time while 4 workers compute transforms",
    try_="raise num_workers from 4 to 8: num_workers=8,  # argument of DataLoader, for each rank",
    also_try=NOT_APPLICABLE,
    ceiling="2.4x if all of it goes away",
    evidence=(make_evidence(),),
    against=(),
    ruled_out=("CPU quota (0 % of periods throttled)",),
    unknown=(),
    pid=NOT_APPLICABLE,
    rank=NOT_APPLICABLE,
    card=NOT_APPLICABLE,
    where=NOT_APPLICABLE,
)
make_finding = partial(replace, _FINDING)
"""Build the verdict that transforms in the loader workers hold the run, five minutes old."""


def make_event(text: str, ago_s: float = 0.0, kind: EventKind = EventKind.PROCESS) -> Event:
    return Event(time=NOW - timedelta(seconds=ago_s), kind=kind, text=text)


_FRAME = Frame(
    schema=FRAME_SCHEMA,
    taken=NOW,
    taken_ns=NOW_NS,
    interval_s=1.0,
    target=make_target(),
    facts="2 workers · 51 % of 8 CPUs · 4.2 runnable on 8 CPUs",
    ages_s=make_ages(),
    sources=GroupTexts(
        cpu="/proc stat",
        threads="/proc schedstat",
        io="/proc io",
        memory="cgroup v2",
        gpu="NVML",
        stacks="not sampled",
        hook="none",
    ),
    processes=(make_process(), make_worker(4221, 0), make_worker(4222, 1)),
    ranks=(make_rank(),),
    ends=NOT_APPLICABLE,
    cpu=make_cpu(),
    memory=make_memory(),
    loader=(make_loader(),),
    output=(make_output(),),
    network=(),
    sockets=SocketSample(connections=0, last_send_s=0.0, last_receive_s=0.0, retransmits=0, unsent_bytes=0),
    driver=NO_DRIVER,
    gpus=NO_DRIVER,
    stacks=NO_STACKS,
    rounds=NOT_APPLICABLE,
    collectives=NOT_APPLICABLE,
    main_threads=NO_STACKS,
    verdict=Missing("not judged"),
    notes=(),
    hook=NO_STEPS,
    steps=NO_STEPS,
    events=(make_event("attached to pid 4211", 60, EventKind.ATTACH),),
    self_=make_own_cost(),
)
make_frame = partial(replace, _FRAME)
"""Build one Frame: one rank, two loader workers, 8 cores, no GPU driver."""


make_driver = partial(replace, Driver(driver_version="570.124.06", cuda_version="12.8"))


def make_pulses(frame: Frame, count: int = 60) -> tuple[Pulse, ...]:
    last = pulse_of(frame)
    return tuple(replace(last, taken_ns=last.taken_ns - (count - 1 - i) * 1_000_000_000) for i in range(count))


def make_view(frame: Frame | Missing | None = None, **fields: Any) -> ViewState:
    """Build the ViewState of a fresh session that shows ``frame``, 0.2 s after it was taken."""
    shown: Frame | Missing = make_frame() if frame is None else frame
    pulses: Iterable[Pulse] = make_pulses(shown) if isinstance(shown, Frame) else ()
    return replace(
        first_view(ScreenOptions(interval_s=1.0, ascii_only=False), NOW_NS + 200_000_000),
        **{
            "frame": shown,
            "pulses": tuple(pulses),
            "events": shown.events if isinstance(shown, Frame) else (),
            **fields,
        },
    )


def set_all(frame: Frame, **fields: Any) -> Frame:
    return replace(frame, processes=tuple(replace(one, **fields) for one in frame.processes))


def later(frame: Frame, seconds: float, **fields: Any) -> Frame:
    taken, taken_ns = frame.taken + timedelta(seconds=seconds), frame.taken_ns + round(seconds * 1e9)
    return replace(frame, taken=taken, taken_ns=taken_ns, **fields)
