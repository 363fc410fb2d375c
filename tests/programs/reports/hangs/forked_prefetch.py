"""The data set's prefetch thread was started before the workers were forked: in them, nobody fills its queue.

Report: meta-pytorch/data#1169
"""

import itertools
import queue
import signal
import threading

import torch
from torch.utils.data import DataLoader, IterableDataset


class Chunks(IterableDataset):
    def __init__(self):
        self.ready = queue.Queue(6)
        threading.Thread(target=self.prefetch, daemon=True).start()

    def prefetch(self):
        for number in itertools.count():
            self.ready.put(torch.full((128, 64), float(number % 7)))

    def __iter__(self):
        while True:
            yield from self.ready.get()


if __name__ == "__main__":
    signal.alarm(600)
    network = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    for step, batch in enumerate(DataLoader(Chunks(), batch_size=32, num_workers=2)):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step}", flush=True)
