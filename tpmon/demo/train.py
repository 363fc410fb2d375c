"""Train a small convolutional network on made-up images: a real job to look at with tpmon.

Healthy by default: compute-bound, on at most two CPUs, with its loader queues full. With
``--bottleneck`` exactly one thing is wrong. Runs alone or under torchrun (gloo), ends by itself.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from samples import CLASSES, Images, make_loader, start_store
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BOTTLENECKS = (
    "none",
    "slow-transform",
    "no-workers",
    "slow-storage",
    "oversubscribed",
    "straggler",
    "python-bound",
    "memory-leak",
    "hang",
)
CPUS = 2
"""However many there are: the demo is something to look at, not a load test."""
POOL_THREADS = 16
HANG_AFTER_S = 20.0
LEAK_LIMIT_BYTES = 1 << 30
LOG_EVERY_S = 2.0
STOP_CHECK_STEPS = 5


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers of each rank")
    parser.add_argument("--bottleneck", choices=BOTTLENECKS, default="none")
    parser.add_argument("--seconds", type=float, default=900.0, help="end so long after the first step")
    return parser.parse_args()


def choose_threads(bottleneck: str, world_size: int) -> None:
    """Give torch as many threads as this rank has CPUs, or far more."""
    allowed = sorted(os.sched_getaffinity(0))
    if bottleneck == "oversubscribed":
        os.sched_setaffinity(0, allowed[:CPUS])  # the harm stays on two CPUs of a large machine
        torch.set_num_threads(POOL_THREADS)
    else:
        torch.set_num_threads(max(1, min(CPUS, len(allowed)) // world_size))


def build_network() -> nn.Module:
    """Build a network that keeps two CPUs busy for about a tenth of a second per batch."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


def count_pixels(images: Tensor) -> tuple[float, list[int]]:
    """Compute the standard deviation and a histogram of all pixels, one Python float at a time."""
    values = images.flatten().tolist()
    total = 0.0
    for value in values:
        total += value
    mean = total / len(values)
    squares = 0.0
    histogram = [0] * 16
    for value in values:
        squares += (value - mean) ** 2
        histogram[min(15, max(0, int(value * 4) + 8))] += 1
    return math.sqrt(squares / len(values)), histogram


def stop_together(deadline: float, world_size: int) -> bool:
    """Tell every rank what rank 0's clock says, so that none waits in a collective for ever."""
    stop = torch.tensor(float(time.monotonic() >= deadline))
    if world_size > 1:
        dist.broadcast(stop, src=0)
    return bool(stop)


def wait_for_lock() -> None:
    """Wait for a lock that nobody releases."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Log:
    """Print the first step and then a line every two seconds, with the rate since the last line."""

    def __init__(self) -> None:
        self.step = 0
        self.time = time.monotonic()

    def is_due(self, step: int, now: float) -> bool:
        """Tell whether ``step`` should be printed."""
        return step == 1 or now - self.time >= LOG_EVERY_S

    def write(self, text: str, step: int, now: float) -> None:
        """Print one line."""
        print(f"{text} {(step - self.step) / (now - self.time):.1f} steps/s", flush=True)
        self.step, self.time = step, now


def train(options: argparse.Namespace) -> None:
    """Train until the time is up, doing wrong what ``--bottleneck`` names."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    wrong = options.bottleneck
    torch.manual_seed(0)
    choose_threads(wrong, world_size)
    network: nn.Module = build_network()
    if world_size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=options.seconds + 60))
        network = DistributedDataParallel(network)
    store, port = start_store() if wrong == "slow-storage" else (None, 0)
    full_side = {"slow-transform": 512, "no-workers": 384}.get(wrong, 0)
    loader = make_loader(Images(full_side, port), options.workers, world_size)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    deadline = hang_at = math.inf  # counted from the first step, however slow the start
    kept: list[Tensor] = []
    kept_bytes = 0
    log = Log()
    epoch = step = 0
    while True:
        for images, labels in loader:
            if wrong == "straggler" and rank == 1:
                with torch.no_grad():
                    for _ in range(6):
                        network(images)
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            if wrong == "hang" and rank == 1 and time.monotonic() > hang_at:
                wait_for_lock()
            loss.backward()
            optimizer.step()
            step += 1
            if wrong == "python-bound":
                deviation, histogram = count_pixels(images)
            if wrong == "memory-leak" and kept_bytes < LEAK_LIMIT_BYTES:
                kept.append(images.clone())
                kept_bytes += images.nbytes
            now = time.monotonic()
            if step == 1:
                deadline = now + options.seconds
                hang_at = now + min(HANG_AFTER_S, options.seconds / 4)
            if rank == 0 and log.is_due(step, now):
                pixels = f" pixels {deviation:.3f} {max(histogram)}" if wrong == "python-bound" else ""
                log.write(f"epoch {epoch} step {step} loss {loss.item():.3f}{pixels}", step, now)
            look = world_size == 1 or step % STOP_CHECK_STEPS == 0
            if look and stop_together(deadline, world_size):
                print(f"rank {rank} done after {step} steps", flush=True)
                if store:
                    store.kill()
                return
        epoch += 1


if __name__ == "__main__":
    train(parse_options())
    if dist.is_initialized():
        dist.destroy_process_group()
