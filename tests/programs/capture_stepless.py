"""Run backwards without an optimizer or a DataLoader, with the hook, until killed: no step ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)

import torch  # noqa: E402

import tpmon.hook  # noqa: E402

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
while not tpmon.hook.problem():
    net(torch.ones(2, 8)).sum().backward()
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.01)
