"""Train for ever on one thread, 0.8 ms a step, and keep the number of steps in a shared page.

Argument: the file of the page. It holds the steps, and CLOCK_MONOTONIC in ns at the end of the last of them.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time

import torch
from torch import nn

LIFETIME_S = 3600.0
BATCH, WIDTH, HIDDEN = 64, 256, 512
"""0.8 ms a step on one CPU of the machine of docs/measured/harm.md."""


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(sys.argv[1], "r+b") as file:
        page = mmap.mmap(file.fileno(), 16)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH)
    step, until = 0, time.monotonic() + LIFETIME_S
    while time.monotonic() < until:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        step += 1
        page[:16] = struct.pack("qq", step, time.monotonic_ns())


if __name__ == "__main__":
    main()
