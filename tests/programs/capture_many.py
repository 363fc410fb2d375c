"""Be captured again and again, 20 steps of a small transformer each, and tell how the memory grew.

Run: python capture_many.py FOLDER CAPTURES. Prints one JSON object: how each ended, how much the resident set
had grown at each end since the probe, in bytes, how large the last file was, and how many threads there are.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import torch

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask, told
from tpmon.hook.bus import wire_capture as w

STEPS = 20
LAYERS = 4
torch.set_num_threads(1)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    os.makedirs(FOLDER, exist_ok=True)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, LAYERS)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    data = torch.randn(4, 16, 64)

    def train(steps: int) -> None:
        for _ in range(steps):
            net(data).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(5)
    ask(1, kind=w.KIND_PROBE)
    train(5)
    states, grown = [told()["state"]], []
    before = resident()
    for number in range(2, 2 + int(sys.argv[2])):
        ask(number, steps=STEPS)
        train(STEPS + 3)
        states.append(told()["state"])
        (name,) = os.listdir(FOLDER)
        size = os.path.getsize(os.path.join(FOLDER, name))
        os.unlink(os.path.join(FOLDER, name))
        grown.append(resident() - before)
    print(json.dumps({"states": states, "before": before, "grown": grown, "bytes": size,
                      "threads": threading.active_count(), "problem": tpmon.hook.problem()}))  # fmt: skip


if __name__ == "__main__":
    main()
