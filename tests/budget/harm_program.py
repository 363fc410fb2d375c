"""Train for ever on one thread and keep the number of steps in a shared file.

Arguments: the file, the loader workers, and the ms of each step in which a device computes and the
thread sleeps, as it does behind a GPU: no device is used, the time passes without one.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LIFETIME_S = 3600.0


class Samples(Dataset[torch.Tensor]):
    """Make one small sample at a time."""

    def __len__(self) -> int:
        """Be long enough that no epoch ends during a measurement."""
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a fixed vector."""
        return torch.full((256,), float(index % 7))


def main() -> None:
    """Train until killed or until the lifetime is over."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(sys.argv[1], "r+b") as file:
        page = mmap.mmap(file.fileno(), 16)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    started = time.monotonic()
    device_s = float(sys.argv[3]) / 1e3
    loader = DataLoader(Samples(), batch_size=64, num_workers=int(sys.argv[2]))
    for step, batch in enumerate(loader, 1):
        for _ in range(4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        if device_s > 0:
            time.sleep(device_s)
        page[:16] = struct.pack("qq", step, time.monotonic_ns())
        if time.monotonic() - started > LIFETIME_S:
            return


if __name__ == "__main__":
    main()
