"""Let one rank wait for a lock that nobody releases, and the others, over gloo, for that rank.

Started by torchrun, ranks train first and the others wait in a backward pass. With ``--fork RANKS`` they are forked
from one process, so that torch is imported once, have loader workers, and the others wait in an all_reduce.
Each rank makes the file READY/PID when it comes to the step that hangs.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

STEPS = 5
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--culprit", type=int, default=1)
    parser.add_argument("--fork", type=int, default=0, help="ranks to fork")
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    if given.fork:
        mp.start_processes(take_step, args=(given,), nprocs=given.fork, start_method="fork")
    else:
        torch.set_num_threads(1)
        train(given)
