"""Train ranks over gloo with the hook, until killed; report in a folder that a batch was trained.

Run: capture_ranks.py FOLDER [STEPS]; with a number of steps without the hook and without a pause, until then.
Each step is marked with its number as the program counts it, which is the same on all ranks. Each rank writes
the loss of each step, to the last bit, as a line of ``losses-RANK``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(sys.argv[1])
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 0
if not STEPS:
    import tpmon.hook

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(1 + dist.get_rank())
data = TensorDataset(torch.randn(2000, 8))
number = 0
with open(FOLDER / f"losses-{dist.get_rank()}", "w", buffering=1) as losses:
    while STEPS or not tpmon.hook.problem():
        for (x,) in DataLoader(data, batch_size=2):
            if STEPS and number == STEPS:
                sys.exit()
            with torch.autograd.profiler.record_function(f"own step {number}"):
                loss = net(x).pow(2).mean()
                loss.backward()
            losses.write(f"{loss.item().hex()}\n")
            optimizer.step()
            number += 1
            optimizer.zero_grad()
            if not STEPS:
                time.sleep(0.005)
            (FOLDER / str(os.getpid())).touch()
