"""Train a small model at a known pace, and write a log as asked: plain lines, or a bar of tqdm."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

STEPS = 100_000


def main(form: str, rate_hz: float, ready: str) -> None:
    """Train for at most ten minutes."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps: Iterable[int] = range(STEPS)
    if form == "tqdm":
        from tqdm import tqdm  # only where it is installed

        steps = tqdm(steps)
    begun_s = time.monotonic()
    for step in steps:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if form == "plain":
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
        Path(ready, str(os.getpid())).touch()
        time.sleep(max(0.0, begun_s + (step + 1) / rate_hz - time.monotonic()))
        if time.monotonic() - begun_s > 600:
            return


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
