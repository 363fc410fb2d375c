"""Do what a capture must cope with, under the hook, until killed. Touches FOLDER/PID when it is under way.

Run: python capture_ways.py FOLDER WAY. The ways:

exec, os._exit, SystemExit, error, uninstall: train until a capture has recorded two steps, then end, or go on, so.
validating, validating-first: evaluate until tpmon asks for something, and train only then, by turns; with the second
no step was trained when it is asked.
stepless, taking-the-signal: run backwards without an optimizer or a DataLoader: no step ends. The second handles
SIGURG itself, touches FOLDER/signal for each, and reports that it runs once the hook has said so.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.installation import HOOK

FOLDER, WAY = Path(sys.argv[1]), sys.argv[2]
SLEEP = ("/bin/sleep", "sleep", "3600")
STEPS = 1000
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = TensorDataset(torch.ones(2 * STEPS, 8))


def report() -> None:
    (FOLDER / str(os.getpid())).touch()


def train(steps: int, after: Callable[[], None] = lambda: None) -> None:
    batches = iter(DataLoader(data, batch_size=2))
    for _ in range(steps):
        net(next(batches)[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
        after()


def end_when_recorded() -> None:
    report()
    told = w.parse_progress(HOOK.steps.pages.page) if HOOK.steps.pages is not None else None
    if told is None or told.state != w.STATE_RECORDING or told.steps_done < 2:
        return
    if WAY == "exec":
        os.execv(SLEEP[0], SLEEP[1:])
    elif WAY == "os._exit":
        os._exit(5)
    elif WAY == "SystemExit":
        raise SystemExit(7)
    elif WAY == "error":
        raise ValueError("the loss is not a number")
    elif WAY == "uninstall":
        tpmon.hook.uninstall()


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
            report()
            done += 1
            if done >= least and is_asked():
                return


def validate(first: bool) -> None:
    if not first:
        train(20)
    while not tpmon.hook.problem():
        evaluate(1 if first and HOOK.steps.steps == 0 else 60)
        train(150)


def go_without_steps(takes: bool) -> None:
    while not tpmon.hook.problem():
        net(torch.ones(2, 8)).sum().backward()
        if takes:
            signal.signal(signal.SIGURG, lambda *_: (FOLDER / "signal").touch())
        if not takes or not wire.parse_signal(HOOK.steps.pages.page):
            report()
        time.sleep(0.01)


if WAY.startswith("validating"):
    validate(first=WAY == "validating-first")
elif WAY in ("stepless", "taking-the-signal"):
    go_without_steps(takes=WAY == "taking-the-signal")
while True:
    train(STEPS, end_when_recorded)
