"""Train under the hook in one of two ways, and write what each step took by the program's own measure.

"split" works for known times in forward, backward and optimizer and never waits for its GPU but for a
step long past; "layers" launches many small kernels and reads the loss in each step. One JSON a line:

{"at_s": CLOCK_MONOTONIC at the step's end, "host_ms": n, "device_ms": {"step": n, "forward": n, ...}}

On a GPU device_ms is told by CUDA events, on a CPU by the host's clock. Prints "ready" and its PID.
Run: python tests/gpu/gpu_steps.py WAY FILE [--device cpu]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch
from gpu_train import make_work
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import tpmon.hook

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.030, 0.045, 0.020
DATA_S = 0.010
BEHIND = 2
"""So many steps are queued before the host waits for the one before them: the GPU never does."""
LAYERS, WIDTH, BATCH = 60, 256, 64
READY_STEPS = 20
MOST_SECONDS = 300

Work = Callable[[float], None]
PARTS = ("data", "forward", "backward", "optimizer", "other")


class Clock:
    """Stamp where the device is in its work; a CPU is where the host is."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"

    def stamp(self) -> Any:
        """Return a stamp of now, in the order of the device's work."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait_for(self, stamp: Any) -> None:
        if self.is_cuda:
            stamp.synchronize()

    def measure_ms(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last) if self.is_cuda else (last - first) * 1e3)


class Ones(Dataset):
    def __init__(self, seconds: float) -> None:
        self.sample_s = seconds / BATCH

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Tensor:
        if self.sample_s:
            time.sleep(self.sample_s)
        return torch.ones(WIDTH)


class Worked(torch.autograd.Function):
    """Pass on what comes, and work for known times forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Work) -> Tensor:
        ctx.work = work
        work(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.work(BACKWARD_S)
        return gradients[0], None


class Working(torch.optim.Optimizer):
    """Descend plainly, and work for a known time."""

    def __init__(self, parameters: Iterator[nn.Parameter], work: Work) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.work = work

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.work(OPTIMIZER_S)
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(one.grad, alpha=-group["lr"])


def write_step(told: TextIO, clock: Clock, at_s: float, host_ms: float, stamps: list[Any]) -> None:
    """Wait until the device has done a step, and write what it took."""
    clock.wait_for(stamps[-1])
    spent = {part: clock.measure_ms(*pair) for part, pair in zip(PARTS, itertools.pairwise(stamps), strict=True)}
    spent["step"] = clock.measure_ms(stamps[0], stamps[-1])
    told.write(json.dumps({"at_s": at_s, "host_ms": host_ms, "device_ms": spent}) + "\n")
    told.flush()


def train(way: str, told: TextIO, device: torch.device) -> None:
    is_split = way == "split"
    clock = Clock(device)
    if is_split:
        work = make_work(device, 8192)
        net: nn.Module = nn.Linear(WIDTH, WIDTH).to(device)
        optimizer: torch.optim.Optimizer = Working(net.parameters(), work)
    else:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        net = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    batches = iter(DataLoader(Ones(DATA_S if is_split else 0.0), batch_size=BATCH))
    queued: deque[tuple[float, float, list[Any]]] = deque()
    begun_s, first = time.monotonic(), clock.stamp()
    for number in itertools.count(1):
        stamps = [first]
        batch = next(batches)
        stamps.append(clock.stamp())
        x = net(batch.to(device, non_blocking=True))
        loss = (Worked.apply(x, work) if is_split else x).square().mean()
        stamps.append(clock.stamp())
        loss.backward()
        stamps.append(clock.stamp())
        optimizer.step()
        stamps.append(clock.stamp())
        optimizer.zero_grad()
        if not is_split:
            loss.item()
        while len(queued) >= BEHIND:
            write_step(told, clock, *queued.popleft())
        now_s, first = time.monotonic(), clock.stamp()
        queued.append((now_s, (now_s - begun_s) * 1e3, [*stamps, first]))
        begun_s = now_s
        if number == READY_STEPS:
            print("ready", os.getpid(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("split", "layers"))
    parser.add_argument("file")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    signal.alarm(MOST_SECONDS)
    torch.set_num_threads(1)
    with open(options.file, "w") as told:
        train(options.way, told, torch.device(options.device))
    assert tpmon.hook.problem() == ""


if __name__ == "__main__":
    main()
