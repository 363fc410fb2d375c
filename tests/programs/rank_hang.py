"""Let one rank wait for a lock that nobody releases, and the others, over gloo, for that rank.

Started by torchrun, ranks train first and the others wait in a backward pass. With ``--fork RANKS`` they are forked
from one process, so that torch is imported once, have loader workers, and the others wait in an all_reduce.
With ``--record WAY`` one stays away from a collective, and the FlightRecorder of torch is reachable in a way that it
offers. Each rank makes the file READY/PID when it comes to the step, or the call, that hangs.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C import _distributed_c10d as c10d
from torch.utils.data import DataLoader

STEPS = 5
DONE = 3
TIMEOUT = timedelta(minutes=15)
WRITE_AFTER_S = 3.0
"""Long after the last call was made, also on a crowded machine."""
lock = threading.Lock()


def hold() -> None:
    lock.acquire()
    lock.acquire()


def come_to_the_hang(rank: int, options: argparse.Namespace) -> None:
    Path(options.ready, str(os.getpid())).touch()
    if rank == options.culprit:
        hold()


def train(options: argparse.Namespace) -> None:
    """Train; the culprit hangs before the last step's backward pass."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(STEPS + 1):
        loss = model(torch.ones(4, 8)).sum()
        if step == STEPS:
            come_to_the_hang(dist.get_rank(), options)
        loss.backward()
    dist.barrier()


def take_step(rank: int, options: argparse.Namespace) -> None:
    """Take one step with loader workers; the culprit hangs before the next one."""
    torch.set_num_threads(1)
    store = f"file://{Path(options.ready).resolve()}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.fork)
    batches = iter(DataLoader(range(1_000_000), batch_size=4, num_workers=options.workers))  # its workers stay
    total = next(batches).sum()
    dist.all_reduce(total)
    come_to_the_hang(rank, options)
    dist.all_reduce(total)


def write_record() -> None:
    """Write the record where torch would; gloo itself never does."""
    path = Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{dist.get_rank()}")
    path.write_bytes(c10d._dump_fr_trace())


def watch_pipe() -> None:
    """Write the record whenever the pipe is written to, as the watchdog of NCCL does."""
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{dist.get_rank()}.pipe"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.1)
        if os.read(fd, 128):
            write_record()


def hang(options: argparse.Namespace) -> None:
    """Reduce some tensors, then hang: the culprit stays away, or calls another collective."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    if options.record == "server":
        server = c10d._WorkerServer("::", 0)  # noqa: F841  # as long as this runs
    if options.record == "pipe":
        threading.Thread(target=watch_pipe, daemon=True).start()
    rank, culprit = dist.get_rank(), options.culprit
    for _ in range(DONE):
        dist.all_reduce(torch.ones(4, 4))
    Path(options.ready, str(os.getpid())).touch()
    if options.record == "file":
        threading.Timer(WRITE_AFTER_S, write_record).start()
    if rank == culprit and options.fault == "missing":
        threading.Event().wait()
    if rank == culprit:
        dist.broadcast(torch.ones(2), src=(culprit + 1) % dist.get_world_size())
    dist.all_reduce(torch.ones(4, 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--culprit", type=int, default=1)
    parser.add_argument("--fork", type=int, default=0, help="ranks to fork")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--record", choices=("server", "file", "pipe", "none"))
    parser.add_argument("--fault", choices=("missing", "mismatch"), default="missing")
    given = parser.parse_args()
    if given.fork:
        mp.start_processes(take_step, args=(given,), nprocs=given.fork, start_method="fork")
    else:
        torch.set_num_threads(1)
        (hang if given.record else train)(given)
