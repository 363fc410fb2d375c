"""All three workers bind themselves to one CPU, and wait for each other there while others are idle.

Report: pytorch/pytorch#101850
"""

import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS_ON_A_CPU = 8


class Decoded(Dataset):
    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> torch.Tensor:
        pixels = bytearray(64)
        for step in range(40_000):
            pixels[step % 64] = (pixels[step % 64] + number) % 251
        return torch.frombuffer(pixels, dtype=torch.uint8).float()


def bind(worker: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[worker // WORKERS_ON_A_CPU]})


if __name__ == "__main__":
    signal.alarm(600)
    torch.set_num_threads(1)
    network = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-7)
    for step, batch in enumerate(DataLoader(Decoded(), batch_size=16, num_workers=3, worker_init_fn=bind)):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step} ", flush=True)
