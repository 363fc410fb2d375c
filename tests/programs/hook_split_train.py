"""A hooked loop whose parts sleep for known times, and that says itself how long each took: one JSON a line.

{"at": seconds, "steps": n, "spent": [data, forward, backward, optimizer, other]}, cumulative seconds, on
the file named by the first argument; at is CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import tpmon.hook

DATA_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S, OTHER_S = 0.060, 0.010, 0.015, 0.010, 0.005
BATCH = 8


class Sleeping(Dataset):
    """Hand out batches of eight, one eighth of the wait each."""

    def __len__(self) -> int:
        return BATCH * 100_000

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(DATA_S / BATCH)
        return torch.ones(8)


class Slowly(torch.autograd.Function):
    """Take known times forward and backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(BACKWARD_S)
        return grad


def main() -> None:
    torch.set_num_threads(1)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    spent = [0.0] * 5
    clock = time.monotonic
    batches = iter(DataLoader(Sleeping(), batch_size=BATCH))
    before = clock()
    with open(sys.argv[1], "w") as told:
        for step in range(1, 100_000):
            x = next(batches)
            got = clock()
            loss = Slowly.apply(net(x)).mean()
            forward = clock()
            loss.backward()
            backward = clock()
            time.sleep(OPTIMIZER_S)
            optimizer.step()
            stepped = clock()
            time.sleep(OTHER_S)
            times = (before, got, forward, backward, stepped, clock())
            before = times[-1]
            spent = [one + late - early for one, early, late in zip(spent, times, times[1:], strict=False)]
            told.write(json.dumps({"at": before, "steps": step, "spent": spent}) + "\n")
            told.flush()
    assert tpmon.hook.problem() == ""


if __name__ == "__main__":
    main()
