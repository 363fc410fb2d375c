"""The parent joins its extractors before it has taken their features from the queue, whose pipe is full.

Report: python/cpython#73983
"""

import multiprocessing
import signal

import numpy as np
import torch


def extract(files: range, features) -> None:
    signal.alarm(600)
    for number in files:
        features.put((number, np.random.default_rng(number).random(4096, dtype=np.float32)))


if __name__ == "__main__":
    signal.alarm(600)
    network = torch.nn.Sequential(torch.nn.Linear(4096, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for epoch, count in enumerate((1, 1, 1, 90)):  # the first epochs are small, and fit into the pipe
        features = multiprocessing.Queue()
        parts = [range(first, 2 * count, 2) for first in range(2)]
        extractors = [multiprocessing.Process(target=extract, args=(part, features)) for part in parts]
        for extractor in extractors:
            extractor.start()
        for extractor in extractors:
            extractor.join()
        rows = torch.from_numpy(np.stack([features.get()[1] for _ in range(2 * count)]))
        for _ in range(20):
            optimizer.zero_grad()
            network(rows).square().mean().backward()
            optimizer.step()
        print(f"epoch {epoch} of {2 * count} files", flush=True)
