"""Train with forked DataLoader workers: some epochs, each with a validation; print one JSON object at the end.

The default start method of workers is fork up to Python 3.13, and workers are forked anew for each pass.
{"hooked": bool, "epochs": n, "validations": n, "steps": n, "step_ms": median of the last epoch,
 "exits": {"0": workers that ended well, "-6": those that were aborted}, "problem": what the hook says}
Run: python tests/gpu/gpu_fork.py [--hook] [--seconds 10] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORKERS, EPOCHS, VALIDATED = 4, 3, 200
LAYERS, WIDTH, BATCH = 20, 256, 64
MOST_SECONDS = 240


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(WIDTH)


class Loading:
    """Pass over a loader and keep how each of its workers ended."""

    def __init__(self, count: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.loader = DataLoader(Rows(count), batch_size=BATCH, num_workers=WORKERS, multiprocessing_context=fork)
        self.exits: Counter[int] = Counter()

    def read(self, seconds: float) -> Iterator[Tensor]:
        """Yield batches for so long; torch raises for a worker that was killed."""
        batches, until = iter(self.loader), time.monotonic() + seconds
        workers = list(batches._workers)
        for batch in batches:
            yield batch
            if time.monotonic() > until:
                break
        batches._shutdown_workers()
        self.exits.update(worker.exitcode for worker in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hook", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one epoch")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    signal.alarm(MOST_SECONDS)
    torch.set_num_threads(1)
    problem = "not hooked"
    if options.hook:
        import tpmon.hook

        problem = tpmon.hook.problem()
    device = torch.device(options.device)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    training, validating = Loading(1 << 24), Loading(VALIDATED * BATCH)
    steps, validations, took_ms = 0, 0, list[float]()
    for _ in range(EPOCHS):
        took_ms.clear()
        net.train()
        begun = time.perf_counter()
        for batch in training.read(options.seconds):
            optimizer.zero_grad()
            loss = net(batch.to(device, non_blocking=True)).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            steps += 1
            took_ms.append(1e3 * (time.perf_counter() - begun))
            begun = time.perf_counter()
        net.eval()
        with torch.no_grad():
            for batch in validating.read(60.0):
                net(batch.to(device, non_blocking=True)).mean().item()
        validations += 1
    exits = training.exits + validating.exits
    told = {
        "hooked": options.hook,
        "epochs": EPOCHS,
        "validations": validations,
        "steps": steps,
        "step_ms": statistics.median(took_ms),
        "exits": {str(code): count for code, count in exits.items()},
        "problem": problem,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
