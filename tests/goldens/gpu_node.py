"""A node with eight cards: ranks 8 to 15 of 64 with 16 loader workers each, one card too hot."""

from __future__ import annotations

from datetime import timedelta

from tests import frames
from tests.frames import GIB, MIB, NOW
from tests.goldens.small_jobs import make_launcher, with_facts
from tpmon.model.frame import Event, EventKind, Frame
from tpmon.model.gpu import GpuProcess, ThrottleShare
from tpmon.model.host import ShmSample
from tpmon.model.known import Missing
from tpmon.model.process import ProcessSample, RankRow


def eight_gpus() -> Frame:
    """Rank 8 to 15 of 64 on a node with 8 cards, 16 workers each; card 3 runs hot."""
    ranks: list[ProcessSample] = []
    rows: list[RankRow] = []
    workers: list[ProcessSample] = []
    cards = []
    for n in range(8):
        pid = 51_200 + n
        ranks.append(
            frames.make_process(
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
        rows.append(frames.make_rank(pid, rank=8 + n, local_rank=n, gpu=n, where="running"))
        hot = n == 3
        cards.append(
            frames.make_gpu(
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
                frames.make_worker(
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
    return with_facts(
        frames.make_frame(
            target=frames.make_target(
                pid=51_100,
                asked_pid=51_100,
                script="pretrain_vision.py",
                host="gpu-rack2-n07",
                user="usr",
                world_size=64,
                local_ranks=8,
                torch_version="2.9.1+cu128",
                start=NOW - timedelta(hours=51, minutes=13),
            ),
            ages_s=frames.make_ages(cpu=0.2, threads=0.2, gpu=0.4),
            processes=(make_launcher(51_100), *ranks, *workers),
            ranks=tuple(rows),
            cpu=frames.make_cpu(
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
            memory=frames.make_memory(
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
                frames.make_loader(51_200 + n, 16, rank=8 + n, ready_batches=28.0 + n, pin_thread=True)
                for n in range(8)
            ),
            output=(
                frames.make_output(
                    51_200,
                    path="/lustre/home/usr/runs/2026-03-12_vitl/log/rank_8.out",
                    lines=(
                        "[03:07:12] step 91200 | loss 2.8131 | lr 4.1e-04 | 1.62 s/it",
                        "[03:07:28] step 91210 | loss 2.8077 | lr 4.1e-04 | 1.63 s/it",
                        "[03:07:40] step 91220 | loss 2.8102 | lr 4.1e-04 | 1.71 s/it",
                    ),
                    last_write_age_s=1.0,
                ),
            ),
            driver=frames.make_driver(),
            gpus=tuple(cards),
            self_=frames.make_own_cost(cpu_pct=2.1, rss_bytes=47 * MIB, children_rss_bytes=29 * MIB),
        )
    )


def eight_gpus_events() -> tuple[Event, ...]:
    return (
        frames.make_event("attached to pid 51100: 8 ranks, 128 workers, 8 GPUs", 1900, EventKind.ATTACH),
        frames.make_event("GPU 3: thermal (software) began to hold the clocks down", 412, EventKind.GPU),
    )
