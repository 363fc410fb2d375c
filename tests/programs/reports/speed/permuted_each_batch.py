"""The batch sampler permutes all indices anew for each batch, in the main thread; the workers wait for indices.

Report: pytorch/pytorch#50689
"""

import signal
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Fresh(Sampler[list[int]]):
    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count // self.size

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            indices = torch.randperm(self.count).tolist()
            yield indices[: self.size]


if __name__ == "__main__":
    signal.alarm(600)
    torch.set_num_threads(1)
    rows = TensorDataset(torch.rand(1_000_000, 16))
    network = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    loader = DataLoader(rows, batch_sampler=Fresh(len(rows), 64), num_workers=2)
    for step, (batch,) in enumerate(loader):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step} ", flush=True)
