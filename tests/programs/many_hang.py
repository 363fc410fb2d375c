"""Hang a job of many processes: every rank has loader workers, one rank waits for a lock, the others for it.

The ranks are forked from one process, so that torch is imported once. Each rank makes the file
READY/PID when it comes to the step that hangs.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

lock = threading.Lock()


class Rows(Dataset):
    """Hold more rows than are ever asked for."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def hold() -> None:
    lock.acquire()
    lock.acquire()


def train(rank: int, options: argparse.Namespace) -> None:
    """Take one step, then hang: rank ``culprit`` in a lock, the others in an all_reduce."""
    torch.set_num_threads(1)
    store = f"file://{Path(options.ready).resolve()}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
    rows = iter(DataLoader(Rows(), batch_size=4, num_workers=options.workers))
    total = next(rows).sum()
    dist.all_reduce(total)
    Path(options.ready, str(os.getpid())).touch()
    if rank == options.culprit:
        hold()
    dist.all_reduce(total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--culprit", type=int, default=3)
    given = parser.parse_args()
    mp.start_processes(train, args=(given,), nprocs=given.ranks, start_method="fork")
