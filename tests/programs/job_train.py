"""Train a small model on CPU with DataLoader workers, over gloo where RANK is set, for bounded time.

Each rank makes the file READY/PID when its first batch has been trained, so that a test waits
for an event and not for a time.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

# A worker looks every 5 s whether its rank still lives; a test that kills the rank waits for that.
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.5


class Samples(Dataset):
    """Hand out rows for ever."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.full((8,), float(index % 7))


def train(options: argparse.Namespace, rank: int = 0, world: int = 1) -> None:
    """Train until the time is over; ranks stop at the same step because rank 0 says so."""
    torch.set_num_threads(1)
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world, init_method=options.init)
    model = torch.nn.Linear(8, 8)
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(
        Samples(),
        batch_size=4,
        num_workers=options.workers,
        multiprocessing_context=options.context if options.workers else None,
    )
    end = time.monotonic() + options.seconds
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        if step == 0:
            Path(options.ready, str(os.getpid())).touch()
        over = torch.tensor([float(time.monotonic() > end)])
        if world > 1:
            dist.broadcast(over, 0)
        if over.item():
            break


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the options that the programs of this folder share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--context", default="fork")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--init", default="env://")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(parse(), int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
