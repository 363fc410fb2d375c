"""Train ranks over gloo with the hook, until killed; report in a folder that a batch was trained.

Each step is marked with its number as the program counts it, which is the same on all ranks.
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

import tpmon.hook

torch.set_num_threads(1)
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = TensorDataset(torch.ones(2000, 8))
number = 0
while not tpmon.hook.problem():
    for (x,) in DataLoader(data, batch_size=2):
        with torch.autograd.profiler.record_function(f"own step {number}"):
            net(x).sum().backward()
        optimizer.step()
        number += 1
        optimizer.zero_grad()
        time.sleep(0.005)
        Path(sys.argv[1], str(os.getpid())).touch()
