"""A plain training loop with no tpmon in it: says "ready", then trains until it is killed or told to stop.

Options: --profile PATH begins a torch profiler of its own at SIGUSR1 and writes its trace there, then says "profiled".
--steps N ends after so many and prints the losses as JSON. --until FILE does when that file is there; it is hooked,
with a named part in each step. --compiled trains a compiled model, --dropout one that leaves values out. --loader takes
batches from a DataLoader. Each forward is in a range that says of which step it is, from 0 on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import time

import torch
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--until", default="")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--loader", action="store_true")
    asked = parser.parse_args()
    if asked.until:
        from tpmon.hook import mark
    else:
        mark = contextlib.nullcontext
    torch.manual_seed(0)
    torch.set_num_threads(1)
    wanted: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
    between = torch.nn.Dropout(0.1) if asked.dropout else torch.nn.ReLU()
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), between, torch.nn.Linear(64, 1))
    run = torch.compile(net, fullgraph=True) if asked.compiled else net
    optimizer = torch.optim.AdamW(net.parameters())
    data = torch.randn(32, 64)
    batches = itertools.chain.from_iterable(itertools.repeat(DataLoader(torch.randn(320, 64), batch_size=32)))
    losses = []
    profiler = None

    def named_by_the_test(batch: torch.Tensor) -> torch.Tensor:
        return run(batch).pow(2).mean()

    for step in range(asked.steps):
        if asked.until and os.path.exists(asked.until):
            break
        if wanted and profiler is None:
            profiler = torch.profiler.profile()
            profiler.start()
            began = step
        optimizer.zero_grad()
        batch = next(batches) if asked.loader else data
        with torch.profiler.record_function(f"forward of step {step}"), mark("named part"):
            loss = named_by_the_test(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(0.01)
        if profiler is not None and wanted and step == began + 30:
            profiler.stop()
            profiler.export_chrome_trace(asked.profile)
            wanted.clear()
            print("profiled", flush=True)
        if step == 3:
            print("ready", flush=True)
    print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
