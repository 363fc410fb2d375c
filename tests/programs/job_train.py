"""Train on CPU with a steady load, over gloo where there are ranks, in bounded time, and misbehave as asked.

Each rank makes the file READY/PID after its first step and each loader worker, when it starts,
READY/worker-RANK-NUMBER-PID, so that a test waits for events and knows the truth. The load is a
share of one core in short slices, so that any second holds as much as the next.

With ``--spawn RANKS`` torch.multiprocessing starts the ranks, so that none has RANK in its start environment.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

SLICE_S = 0.05
PR_SET_DUMPABLE = 4


class Samples(Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((8,), float(index % 7))


def start_worker(options: argparse.Namespace, rank: int, number: int) -> None:
    """Tell the number that torch gave this loader worker; the first one hides when asked to."""
    Path(options.ready, f"worker-{rank}-{number}-{os.getpid()}").touch()
    if options.hidden_worker and number == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody but root may read it now


def burn(share: float) -> None:
    """Compute for ``share`` of one slice of time, sleep for the rest."""
    begin, end = time.monotonic(), time.thread_time() + share * SLICE_S
    while time.thread_time() < end:
        sum(range(1000))
    time.sleep(max(0.0, begin + SLICE_S - time.monotonic()))


def start_children(options: argparse.Namespace) -> None:
    """Start short-lived processes for ever; write of each its PID and when it was reaped."""
    with Path(options.ready, "children.log").open("w", buffering=1) as log:
        running: list[subprocess.Popen[bytes]] = []
        due = time.monotonic()
        while True:
            running.append(subprocess.Popen(["/bin/sleep", "0.02"]))
            due += 1 / options.children
            time.sleep(max(0.0, due - time.monotonic()))
            for one in [one for one in running if one.poll() is not None]:
                log.write(f"{one.pid} {time.monotonic_ns()}\n")
                running.remove(one)


def train(rank: int, world: int, options: argparse.Namespace, store: str = "env://") -> None:
    """Train until the time is over or READY/enough is there; all ranks stop at the step at which rank 0 does."""
    signal.alarm(int(options.seconds) + 30)
    torch.set_num_threads(1)
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = options.look_s
    model: torch.nn.Module = torch.nn.Linear(8, 8)
    if world > 1 or "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo", rank=rank, world_size=world, init_method=store)
        model = torch.nn.parallel.DistributedDataParallel(model)
    if options.children:
        threading.Thread(target=start_children, args=(options,), daemon=True).start()
    loader = DataLoader(
        Samples(2 * options.epoch),
        batch_size=2,
        num_workers=options.workers,
        multiprocessing_context=options.context if options.workers else None,
        worker_init_fn=functools.partial(start_worker, options, rank),
    )
    end = time.monotonic() + options.seconds
    enough = Path(options.ready, "enough")
    over = torch.zeros(1)
    while not over.item():
        for batch in loader:
            model(batch).sum().backward()
            burn(options.load)
            over[0] = float(time.monotonic() > end or enough.exists())
            if world > 1:
                dist.broadcast(over, 0)
            Path(options.ready, str(os.getpid())).touch()
            if over.item():
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files that tell the truth")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--context", default="fork", help="how workers are started")
    parser.add_argument("--epoch", type=int, default=1_000_000, help="steps until workers are replaced")
    parser.add_argument("--load", type=float, default=0.05, help="share of one core")
    parser.add_argument("--children", type=float, default=0, help="short-lived processes a second")
    parser.add_argument("--hidden-worker", action="store_true", help="make worker 0 unreadable")
    parser.add_argument("--look-s", type=float, default=5.0, help="how often a worker looks whether its rank lives")
    parser.add_argument("--spawn", type=int, default=0, help="ranks to start")
    asked = parser.parse_args()
    if asked.spawn:
        place = f"file://{Path(asked.ready).resolve()}/rendezvous"
        mp.start_processes(train, args=(asked.spawn, asked, place), nprocs=asked.spawn, start_method="spawn")
    else:
        train(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), asked)
