"""Ask for captures from within: for programs that write requests into their own mailbox, as tpmon does.

The first argument of such a program is the folder that captures are written to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.captures import read_told
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.installation import HOOK

FOLDER = sys.argv[1]
DATA = TensorDataset(torch.arange(1600.0).reshape(200, 8) / 1600, torch.ones(200, 1))


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def train(
    steps: int = 12, before: Callable[[int], object] = lambda _at: None, *, compiled: bool = False
) -> list[float]:
    """Train so many steps of a batch each; ``before(at)`` is called at the beginning of each."""
    net, optimizer = model()
    run = torch.compile(net, fullgraph=True) if compiled else net
    losses: list[float] = []
    while len(losses) < steps:
        batches = iter(DataLoader(DATA, batch_size=2))
        for _ in range(min(len(batches), steps - len(losses))):
            before(len(losses))
            loss = run(next(batches)[0]).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def ask(number: int, kind: int = w.KIND_CAPTURE, folder: str = FOLDER, **words: int) -> None:
    """Write a request: a probe of one step, or a capture of three; ``words`` are others of its fields."""
    meant = {
        "steps": 1 if kind == w.KIND_PROBE else 3,
        "longest_ns": 60_000_000_000,
        "most_events": 200_000,
        "most_bytes": 1 << 29,
        "expires_ns": time.monotonic_ns() + 10**12,
    }
    request = w.Request(number, kind, **{**meant, **words}, folder=folder, name=f"cap{number}")
    w.write_request(HOOK.steps.pages.mailbox, request)


def told() -> dict[str, object]:
    told = w.parse_progress(HOOK.steps.pages.page)
    return {
        "number": told.request,
        "state": told.state,
        "done": told.steps_done,
        "first": told.first_step,
        "reason": told.reason,
        "answer": list(HOOK.steps.pages.answers),
    }


def count(number: int) -> dict[str, object]:
    (name,) = [one for one in os.listdir(FOLDER) if one.startswith(f"cap{number}-")]
    path = os.path.join(FOLDER, name)
    found = read_told(path)
    return {
        "marks": len(found.marks),
        "optimizer": found.optimizer,
        "mode": os.stat(path).st_mode & 0o777,
        "wrong": list(found.wrong),
        "conditions": found.conditions,
    }
