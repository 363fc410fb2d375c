"""Ordinary loops on a CPU that know themselves how long a step takes, bare and while a profiler records.

``OUT --loops NAMES``: each loop is profiled by torch's own profiler with each set of options, with and without a schedule
(``--made``: by that of ``tpmon.hook.make_profiler``), between bare steps; a line of JSON a trace says what was measured:
medians in ms, and by how much the bare steps before, in the wait and after it differ (``drift``, a ratio).
``--steady N``: N times, and anew while the machine makes them differ. ``--count N``: each is profiled
once, whole, without any mark and from its first iteration on. ``--serve LOG``: says "ready", runs one loop until it is
killed, and writes of each step when it ended (since the epoch) and how long it took, in ns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

Step = Callable[[int], None]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "stacks": {"with_stack": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}
CPU = [ProfilerActivity.CPU]
WARM, STEPS = 8, 12
WAIT, WARMUP = 5, 2
STEADY, MOST_TRIES = 1.1, 60
FLUSH_NS = 200_000_000


def train(net: nn.Module, make: Callable[[int], torch.Tensor], optimizer: torch.optim.Optimizer | None = None) -> Step:
    """Return a step of training on what ``make`` returns."""
    chosen = optimizer or torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(at: int) -> None:
        chosen.zero_grad()
        net(make(at)).pow(2).mean().backward()
        chosen.step()

    return step


def stack(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


def fixed(*size: int) -> Callable[[int], torch.Tensor]:
    batch = torch.randn(*size)
    return lambda _: batch


def small_linears() -> Step:
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
    return train(net, fixed(16, 32))


def large_linears() -> Step:
    return train(stack(4, 1024), fixed(64, 1024))


def small_adam() -> Step:
    net = stack(20, 64)
    return train(net, fixed(32, 64), torch.optim.AdamW(net.parameters()))


def convolutions() -> Step:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return train(net, fixed(8, 3, 32, 32))


def transformer() -> Step:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return train(
        nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 8)), fixed(4, 32, 64)
    )


def recurrent() -> Step:
    cell, head = nn.GRUCell(32, 32), nn.Linear(32, 1)

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell, head

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            state = torch.zeros(batch.shape[1], 32)
            for part in batch:
                state = self.cell(part, state)
            return self.head(state)

    return train(Unrolled(), fixed(24, 8, 32))


def bags() -> Step:
    table, head = nn.EmbeddingBag(5000, 32), nn.Linear(32, 1)
    return train(nn.Sequential(table, head), lambda at: torch.arange(256).reshape(32, 8).mul(at + 1).remainder(5000))


def python_heavy() -> Step:
    net = stack(3, 64)
    inner = train(net, fixed(16, 64))

    def step(at: int) -> None:
        total = 0
        for number in range(4000):
            total += abs(number - at)
        inner(at)

    return step


WEIGHED: dict[str, Callable[[], Step]] = {
    one.__name__: one
    for one in (small_linears, large_linears, small_adam, convolutions, transformer, recurrent, bags, python_heavy)
}


# Loops whose iterations are counted. Each function returns how it does one.


def inference_of_a_stack() -> Step:
    net, batch = stack(30, 64), torch.randn(16, 64)

    def step(_: int) -> None:
        with torch.no_grad():
            net(batch)

    return step


def inference_of_equal_layers() -> Step:
    net, batch = nn.Sequential(*(nn.Linear(64, 64) for _ in range(60))), torch.randn(16, 64)

    def step(_: int) -> None:
        with torch.no_grad():
            net(batch)

    return step


def inference_of_an_encoder() -> Step:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    net, batch = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval(), torch.randn(4, 16, 64)

    def step(_: int) -> None:
        with torch.no_grad():
            net(batch)

    return step


def inference_with_a_head() -> Step:
    net, head = stack(12, 64), nn.Linear(64, 10)

    def step(_: int) -> None:
        with torch.inference_mode():
            head(net(torch.randn(16, 64))).argmax(1).tolist()

    return step


def inference_of_images() -> Step:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    images = torch.randn(8, 3, 32, 32)

    def step(_: int) -> None:
        with torch.no_grad():
            net(images)

    return step


def plain_training() -> Step:
    return train(stack(10, 64), lambda _: torch.randn(16, 64))


def own_update() -> Step:
    net, batch = stack(6, 64), torch.randn(16, 64)

    def step(_: int) -> None:
        net.zero_grad()
        net(batch).pow(2).mean().backward()
        with torch.no_grad():
            for one in net.parameters():
                if one.grad is not None:
                    one.sub_(1e-3 * one.grad)

    return step


def accumulation() -> Step:
    """Do one update of four backward passes."""
    net = stack(6, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(_: int) -> None:
        for _part in range(4):
            (net(torch.randn(8, 64)).pow(2).mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def two_shapes() -> Step:
    return train(stack(8, 64), lambda at: torch.randn(64 if at % 2 else 8, 64))


def gan() -> Step:
    makes, tells = stack(4, 32), nn.Sequential(stack(3, 32), nn.Linear(32, 1))
    of_makes, of_tells = (torch.optim.Adam(one.parameters()) for one in (makes, tells))
    loss = nn.BCEWithLogitsLoss()

    def step(_: int) -> None:
        real, noise = torch.randn(16, 32), torch.randn(16, 32)
        of_tells.zero_grad()
        told = loss(tells(real), torch.ones(16, 1)) + loss(tells(makes(noise).detach()), torch.zeros(16, 1))
        told.backward()
        of_tells.step()
        of_makes.zero_grad()
        loss(tells(makes(noise)), torch.ones(16, 1)).backward()
        of_makes.step()

    return step


def validation_inside() -> Step:
    net = stack(6, 64)
    inner = train(net, lambda _: torch.randn(16, 64))

    def step(at: int) -> None:
        inner(at)
        if at % 10 == 9:
            with torch.no_grad():
                for _ in range(5):
                    net(torch.randn(16, 64)).pow(2).mean().item()

    return step


def logged() -> Step:
    net = stack(6, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(at: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(16, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if at % 2:
            loss.item()

    return step


def from_a_generator() -> Step:
    net = stack(8, 64)

    def outputs() -> Iterator[torch.Tensor]:
        while True:
            with torch.no_grad():
                yield net(torch.rand(16, 64)).softmax(1)

    drawn = outputs()
    return lambda _: float(next(drawn).max())  # type: ignore[return-value]


def loaded() -> Step:
    data = torch.utils.data.TensorDataset(torch.randn(4096, 64))
    drawn = iter(torch.utils.data.DataLoader(data, batch_size=16))
    return train(stack(6, 64), lambda _: next(drawn)[0])


COUNTED: dict[str, Callable[[], Step]] = {
    one.__name__: one
    for one in (
        inference_of_a_stack, inference_of_equal_layers, inference_of_an_encoder, inference_with_a_head,
        inference_of_images, plain_training, own_update, accumulation, two_shapes, gan, validation_inside, logged,
        from_a_generator, loaded,
    )
}  # fmt: skip


def run_bare(step: Step, at: int, steps: int) -> list[float]:
    """Run so many steps and return how long each took, ms."""
    took = []
    for number in range(at, at + steps):
        began = time.perf_counter_ns()
        step(number)
        took.append((time.perf_counter_ns() - began) / 1e6)
    return took


def weigh(
    name: str, options: str, path: str, *, scheduled: bool, made: bool = False, most_drift: float = math.inf
) -> dict[str, object]:
    """Profile some steps between bare ones; return the medians. ``made``: by the profiler that tpmon makes.

    Where the bare steps differ by more than ``most_drift`` nothing is written, and nothing returned.
    """
    step = WEIGHED[name]()
    run_bare(step, 0, WARM)
    before = run_bare(step, WARM, STEPS)
    waited: list[float] = []
    during: list[float] = []
    if made:
        from tpmon.hook import make_profiler

        one = make_profiler(STEPS, wait=WAIT, warmup=WARMUP, activities=CPU, **OPTIONS[options])
    else:
        timing = schedule(wait=WAIT, warmup=WARMUP, active=STEPS, repeat=1) if scheduled else None
        one = profile(activities=CPU, schedule=timing, **OPTIONS[options])
    with one:
        first = WAIT + WARMUP if scheduled else 0
        for number in range(first + STEPS):
            took = run_bare(step, number, 1)
            if number >= first:
                during += took
            elif 0 < number < WAIT:
                waited += took
            if scheduled:
                one.step()
    after = run_bare(step, 0, STEPS)
    medians = {"bare_ms": statistics.median(before + waited + after), "during_ms": statistics.median(during)}
    parts = [statistics.median(part) for part in (before, waited, after) if part]
    medians["drift"] = max(parts) / min(parts)
    if medians["drift"] > most_drift:
        return {}
    one.export_chrome_trace(path)
    return {"path": path, "loop": name, "options": options, "schedule": scheduled, "steps": STEPS, **medians}


def weigh_steadily(times: int, name: str, options: str, path: str, *, made: bool) -> Iterator[dict[str, object]]:
    """Weigh so many times while nothing else changes how long a step takes, or at the last whatever does."""
    for most in [STEADY] * MOST_TRIES + [math.inf] * times:
        if told := weigh(name, options, f"{path}-{times}.json", scheduled=True, made=made, most_drift=most):
            yield told
            times -= 1
        if not times:
            return


def count(name: str, iterations: int, path: str, options: str = "plain") -> dict[str, object]:
    step = COUNTED[name]()
    with profile(activities=CPU, **OPTIONS[options]) as one:
        for number in range(iterations):
            step(number)
    one.export_chrome_trace(path)
    return {"path": path, "loop": name, "options": options, "iterations": iterations}


def serve(name: str, log: str) -> None:
    step = WEIGHED[name]()
    run_bare(step, 0, WARM)
    print("ready", flush=True)
    flushed = 0
    with Path(log).open("w", encoding="ascii", buffering=1 << 16) as file:
        for number in range(10**9):
            began = time.perf_counter_ns()
            step(number)
            took = time.perf_counter_ns() - began
            now = time.time_ns()
            file.write(f"{now} {took}\n")
            if now - flushed > FLUSH_NS:
                file.flush()
                flushed = now


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--loops", default=",".join(WEIGHED))
    parser.add_argument("--options", default=",".join(OPTIONS))
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--serve", default="")
    parser.add_argument("--made", action="store_true")
    parser.add_argument("--steady", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if asked.serve:
        serve(asked.loops, asked.serve)
        return
    if asked.count and asked.loops == parser.get_default("loops"):
        asked.loops = ",".join(COUNTED)
    for name in asked.loops.split(","):
        for options in asked.options.split(","):
            path = str(Path(asked.out) / f"{name}-{options}")
            told: Iterable[dict[str, object]]
            if asked.steady:
                told = weigh_steadily(asked.steady, name, options, path, made=asked.made)
            elif asked.count:
                told = [count(name, asked.count, f"{path}-{asked.count}.json", options)]
            else:
                kinds = (True,) if asked.made else (False, True)
                told = [weigh(name, options, f"{path}-{on}.json", scheduled=on, made=asked.made) for on in kinds]
            for one in told:
                print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
