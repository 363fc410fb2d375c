"""Train with the hook until a capture has recorded two steps, then end, or go on, in the way that is named.

Run: python capture_ends.py FOLDER WAY, one of exec, os._exit, SystemExit, error, uninstall.
Touches FOLDER/PID when it trains.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.installation import HOOK

WAY = sys.argv[2]
SLEEP = ("/bin/sleep", "sleep", "3600")
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = TensorDataset(torch.ones(2000, 8))


def is_recorded() -> bool:
    told = w.parse_progress(HOOK.steps.pages.page)
    return told is not None and told.state == w.STATE_RECORDING and told.steps_done >= 2


def end() -> None:
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


while True:
    for (x,) in DataLoader(data, batch_size=2):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
        Path(sys.argv[1], str(os.getpid())).touch()
        if HOOK.steps.pages is not None and is_recorded():
            end()
