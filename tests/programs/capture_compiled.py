"""Train a compiled model with and without captures; prints one JSON object.

Run: python capture_compiled.py FOLDER
"""

from __future__ import annotations

import json
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask, count, told
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus import wire_settings
from tpmon.hook.settings import Settings

STEPS = 30
DATA = TensorDataset(torch.arange(1600.0).reshape(200, 8) / 1600)
torch.set_num_threads(1)


def train(before=None) -> list[float]:
    """Train a compiled model, which is compiled in the first steps alone."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    compiled = torch.compile(net, fullgraph=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for at, (x,) in zip(range(STEPS), DataLoader(DATA, batch_size=4), strict=False):
        if before is not None:
            before(at)
        loss = compiled(x).pow(2).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def compilations() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


os.makedirs(FOLDER, exist_ok=True)
torch._dynamo.utils.counters.clear()
PLAIN = train()
GRAPHS = compilations()
torch._dynamo.utils.counters.clear()
asked = {6: lambda: ask(1, w.KIND_PROBE), 10: lambda: ask(2, steps=5)}
LOSSES = train(lambda at: asked[at]() if at in asked else None)
print(
    json.dumps(
        {
            "told": told(),
            "file": count(2),
            "same_losses": PLAIN == LOSSES,
            "graphs": [GRAPHS, compilations()],
            "told_graphs": Settings().read(0)[wire_settings.SET_DYNAMO_GRAPHS],
            "problem": tpmon.hook.problem(),
        }
    )
)
