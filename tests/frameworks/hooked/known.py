"""Parts that take known times, and a report of what was so beside what the hook counted.

Run under ``tpmon run``: the Python of the frameworks needs no tpmon of its own. The parts sleep, so that their
times are known whatever else the machine does, and say themselves how long they slept. Where a loop of our own
calls them, its clock counts instead: ranks also wait for each other. An engine that does much between them
(DeepSpeed) has its whole time turned over, from phase to phase.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset

DATA_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S, OTHER_S = 0.06, 0.05, 0.07, 0.04, 0.03
BATCH = 4
WIDTH = 8
PHASES = ("data", "forward", "backward", "optimizer", "other")
spent = dict.fromkeys(PHASES, 0.0)
_clocked: set[str] = set()
_turned: list[float] = []
"""When the last phase ended, where all time is turned over."""
before: list[float] = [0.0] * len(PHASES)
"""What the hook had counted when the truth began."""


def spend(phase: str, seconds: float) -> None:
    before = time.monotonic()
    time.sleep(seconds)
    if phase not in _clocked:
        spent[phase] += time.monotonic() - before


@contextlib.contextmanager
def clock(phase: str) -> Iterator[None]:
    """Note how long a phase takes, with all that it waits for."""
    _clocked.add(phase)
    before = time.monotonic()
    yield
    spent[phase] += time.monotonic() - before


def begin_turns() -> None:
    """Count from here on all time, each phase from the end of the one before to its own."""
    whole = torch.autograd.backward  # Tensor.backward comes through here, and through nothing of the hook's

    def backward(*args, **kwargs):
        turn("forward")
        whole(*args, **kwargs)
        turn("backward")

    torch.autograd.backward = backward
    _clocked.update(PHASES)
    _turned[:] = [time.monotonic()]


def turn(phase: str) -> None:
    """Note that a phase ended, where all time is turned over."""
    if _turned:
        now = time.monotonic()
        spent[phase] += now - _turned[0]
        _turned[0] = now


class Samples(Dataset):
    """Hand out samples after a part of the wait of a batch."""

    def __init__(self, batches: int, quick: bool = False) -> None:
        self.samples = batches * BATCH
        self.quick = quick

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> torch.Tensor:
        if not self.quick:
            spend("data", DATA_S / BATCH)
        return torch.full((WIDTH,), at / 1000.0)


class Stream(IterableDataset):
    """Hand out samples one after the other, each after a part of the wait of a batch."""

    def __init__(self, batches: int) -> None:
        self.samples = Samples(batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.samples[at] for at in range(len(self.samples)))


class Slowly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        spend("forward", FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        spend("backward", BACKWARD_S)
        return grad


class Net(torch.nn.Module):
    """A layer, and the times; evaluation takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        return Slowly.apply(out) if self.training else out


class SlowSGD(torch.optim.Optimizer):
    """Take a known time to update; a closure runs before."""

    def __init__(self, parameters, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        spend("optimizer", OPTIMIZER_S)
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        one.add_(one.grad, alpha=-group["lr"])
        turn("optimizer")
        return loss


def other() -> None:
    """Do what is none of a step's parts: a log, a checkpoint."""
    spend("other", OTHER_S)


def told() -> list[float]:
    """Return the seconds of each phase that the hook counted so far."""
    from tpmon.hook.installation import HOOK

    one = HOOK.steps
    counted = (one.data_ns, one.forward_ns, one.backward_ns, one.optimizer_ns, one.other_ns)
    return [ns / 1e9 for ns in counted]


def begin() -> None:
    """Begin with the truth here: what was before, such as compiling, took times that nobody knows."""
    before[:] = told()
    spent.update(dict.fromkeys(PHASES, 0.0))


def report(name: str, steps: int, eval_steps: int = 0, skipped: int = 0) -> None:
    """Write what was so and what the hook counted: a line of JSON of this rank."""
    import tpmon.hook
    from tpmon.hook.bus import wire_settings
    from tpmon.hook.installation import HOOK

    one = HOOK.steps
    settings = wire_settings.parse_settings(one.page)
    fsdp = settings[wire_settings.SET_FSDP_VERSION : wire_settings.SET_FSDP_LIMIT + 1]
    found = {
        "name": name,
        "rank": int(os.environ.get("RANK", "0")),
        "steps": [steps, one.steps],
        "eval_steps": [eval_steps, one.eval_steps],
        "skipped": [skipped, one.skipped],
        "spent_s": [spent[phase] for phase in PHASES],
        "told_s": [late - early for late, early in zip(told(), before, strict=True)],
        "fsdp": list(fsdp),
        "problem": tpmon.hook.problem(),
    }
    sys.stdout.write("tpmon " + json.dumps(found) + "\n")
    sys.stdout.flush()
