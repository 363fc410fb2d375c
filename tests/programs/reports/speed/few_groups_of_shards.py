"""Shuffling has put sixteen shards into two groups, so that four of six workers have nothing to read.

Report: huggingface/datasets#8669
"""

import random
import signal
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def shuffle(shards: list[str], group: int) -> list[list[str]]:
    mixed = random.Random(1).sample(shards, len(shards))
    return [mixed[first : first + group] for first in range(0, len(mixed), group)]


class Stream(IterableDataset):
    def __init__(self, groups: list[list[str]]):
        self.groups = groups

    def __iter__(self):
        worker = get_worker_info()
        for group in self.groups[worker.id :: worker.num_workers]:
            for row in range(10**6):
                time.sleep(0.01)  # the store sends a row of a shard
                yield torch.full((64,), float(len(group[row % len(group)])))


if __name__ == "__main__":
    signal.alarm(600)
    groups = shuffle([f"part-{number:05}.tar" for number in range(16)], 8)
    network = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    for step, batch in enumerate(DataLoader(Stream(groups), batch_size=16, num_workers=6)):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step} ", flush=True)
