"""Train a small model until a file is there, or so many steps, then print the losses as JSON.

Run: python capture_details.py --until FILE (hooked, with a named part in each step; says "ready" first), or
python capture_details.py --steps N (with no tpmon in it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--until", default="")
PARSER.add_argument("--steps", type=int, default=1_000_000)
ASKED = PARSER.parse_args()

if ASKED.until:
    from tpmon.hook import mark
else:
    mark = contextlib.nullcontext

torch.set_num_threads(1)
torch.manual_seed(0)
DATA = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)


def named_by_the_test(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (net(x) - y).pow(2).mean()


losses: list[float] = []
while len(losses) < ASKED.steps and not (ASKED.until and os.path.exists(ASKED.until)):
    for x, y in DataLoader(DATA, batch_size=4, shuffle=True):
        with mark("named part"):
            loss = named_by_the_test(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if ASKED.until:
            time.sleep(0.005)
            if len(losses) == 5:
                print("ready", flush=True)
            if os.path.exists(ASKED.until):
                break
        if len(losses) == ASKED.steps:
            break
print(json.dumps(losses), flush=True)
