"""Train over gloo until one rank waits for a lock that nobody releases, and the others for that rank.

Each rank makes the file READY/PID when it comes to the step that hangs.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 5
lock = threading.Lock()


def hold() -> None:
    lock.acquire()
    lock.acquire()


def train(ready: str, culprit: int) -> None:
    """Train; rank ``culprit`` hangs before the last step's backward pass."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(STEPS + 1):
        loss = model(torch.ones(4, 8)).sum()
        if step == STEPS:
            Path(ready, str(os.getpid())).touch()
            if rank == culprit:
                hold()
        loss.backward()
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--culprit", type=int, default=1)
    options = parser.parse_args()
    train(options.ready, options.culprit)
