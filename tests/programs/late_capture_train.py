"""Train a plain loop until standard input ends; write the loss of each step, to the last bit, and no tpmon in it.

Run: late_capture_train.py LOSSES [STEPS]. Says "ready" after some steps. Each step is marked with its number.
"""

from __future__ import annotations

import select
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 0

torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(2000, 8))
number = 0
with open(sys.argv[1], "w", buffering=1) as losses:
    while True:
        for (x,) in DataLoader(data, batch_size=2, shuffle=True):
            with torch.autograd.profiler.record_function(f"own step {number}"):
                loss = net(x).pow(2).mean()
                loss.backward()
            losses.write(f"{loss.item().hex()}\n")
            optimizer.step()
            optimizer.zero_grad()
            number += 1
            if number == 20:
                print("ready", flush=True)
            if STEPS and number == STEPS:
                sys.exit()
            if not STEPS:
                time.sleep(0.005)
                if select.select([0], [], [], 0)[0]:
                    sys.exit()
