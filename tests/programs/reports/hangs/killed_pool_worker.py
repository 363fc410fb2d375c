"""A process of the pool is killed while it encodes its rows, so that Pool.map() waits for ever for them.

Report: huggingface/datasets#5976
"""

import os
import signal
from multiprocessing import get_context

import torch


def encode(row: int) -> list[int]:
    if row == 5000:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
    return [(row * place) % 997 for place in range(1, 65)]


if __name__ == "__main__":
    signal.alarm(600)
    network = torch.nn.Sequential(torch.nn.Embedding(997, 32), torch.nn.Flatten(), torch.nn.Linear(64 * 32, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    with get_context("fork").Pool(3, signal.alarm, (600,)) as pool:
        for part in range(10):
            rows = torch.tensor(pool.map(encode, range(part * 2000, part * 2000 + 2000), chunksize=100))
            for batch in rows.split(50):
                optimizer.zero_grad()
                network(batch).square().mean().backward()
                optimizer.step()
            print(f"part {part} is trained", flush=True)
