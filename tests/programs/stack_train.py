"""Train with a loader of known pace and write down, step by step, how long the loop waited for data.

Each line of READY/truth is the end of a wait or of a step: CLOCK_MONOTONIC in ns, seconds waited so far.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, fetch_s: float) -> None:
        self.fetch_s = fetch_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.fetch_s)
        return torch.full((3, 32, 32), float(index % 7))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True)
    parser.add_argument("--fetch", type=float, default=0.1, help="seconds that a worker needs for a batch")
    parser.add_argument("--rounds", type=int, default=2, help="forward and backward passes of a step")
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    batches = iter(DataLoader(Images(options.fetch), batch_size=1, num_workers=1))
    model(next(batches))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    waited_s = 0.0
    end = time.monotonic() + options.seconds
    with Path(options.ready, "truth").open("w", buffering=1) as truth:
        Path(options.ready, str(os.getpid())).touch()
        while time.monotonic() < end:
            before = time.monotonic_ns()
            batch = next(batches)
            after = time.monotonic_ns()
            truth.write(f"{before} {waited_s:.6f}\n")
            waited_s += (after - before) / 1e9
            truth.write(f"{after} {waited_s:.6f}\n")
            for _ in range(options.rounds):
                optimizer.zero_grad()
                model(batch.expand(16, -1, -1, -1)).square().mean().backward()
                optimizer.step()


if __name__ == "__main__":
    main()
