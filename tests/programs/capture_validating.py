"""Evaluate until tpmon asks for something, and train only then: by turns, with the hook, until killed.

Run: python capture_validating.py FOLDER [--first]; with --first no step was trained when it is asked.
Touches FOLDER/PID when it evaluates.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tpmon.hook.installation import HOOK

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = TensorDataset(torch.ones(400, 8))


def train(steps: int) -> None:
    batches = iter(DataLoader(data, batch_size=2))
    for _ in range(steps):
        net(next(batches)[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)


def is_asked() -> bool:
    capture = HOOK.mailbox.capture
    return capture is not None and capture.under_way is not None


def evaluate(least: int) -> None:
    """Evaluate so many batches, and on until a request is there."""
    done = 0
    while True:
        for (x,) in DataLoader(data, batch_size=2):
            with torch.no_grad():
                net(x)
            time.sleep(0.005)
            Path(sys.argv[1], str(os.getpid())).touch()
            done += 1
            if done >= least and is_asked():
                return


if "--first" not in sys.argv:
    train(20)
while not tpmon.hook.problem():
    evaluate(1 if "--first" in sys.argv and HOOK.steps.steps == 0 else 60)
    train(150)
