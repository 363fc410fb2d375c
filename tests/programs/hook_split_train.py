"""A hooked loop whose parts sleep for known times, and that says itself how long each took: one JSON a line.

{"at": seconds, "steps": n, "spent": [data, forward, backward, optimizer, other]}, cumulative seconds, on
the file named by the first argument; at is CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

import tpmon.hook

PARTS_S = (0.060, 0.010, 0.015, 0.010, 0.005)
BATCH = 8


class Sleeping(Dataset):
    def __init__(self, wait_s: float, length: int) -> None:
        self.wait_s, self.length = wait_s, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return torch.ones(8)


def train_slowly(parts_s: tuple[float, ...], batch: int, steps: int) -> Iterator[tuple[float, list[float]]]:
    """Sleep so long in each part of a step; give the end of each, and what was spent in each part so far."""
    data_s, forward_s, backward_s, optimizer_s, other_s = parts_s

    class Slowly(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(forward_s)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            time.sleep(backward_s)
            return grad

    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    spent = [0.0] * 5
    clock = time.monotonic
    batches = iter(DataLoader(Sleeping(data_s / batch, batch * steps), batch_size=batch))
    before = clock()
    for _ in range(steps):
        x = next(batches)
        got = clock()
        loss = Slowly.apply(net(x)).mean()
        forward = clock()
        loss.backward()
        backward = clock()
        time.sleep(optimizer_s)
        optimizer.step()
        stepped = clock()
        time.sleep(other_s)
        times = (before, got, forward, backward, stepped, clock())
        before = times[-1]
        spent = [one + late - early for one, early, late in zip(spent, times, times[1:], strict=False)]
        yield before, spent
    next(batches, None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1], "w", buffering=1) as told:
        for step, (at, spent) in enumerate(train_slowly(PARTS_S, BATCH, 100_000), 1):
            print(json.dumps({"at": at, "steps": step, "spent": spent}), file=told)
    assert tpmon.hook.problem() == ""
