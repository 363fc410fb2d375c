"""Rank 1 fails at once, since its part of the data is not there, and the launcher starts both ranks again and again.

Report: pytorch/pytorch#60910
"""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    signal.alarm(600)
    rank = int(os.environ["RANK"])
    print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} of rank {rank}", flush=True)
    part = torch.rand(1000, 64) if rank == 0 else torch.load(Path("no-such-folder", f"part-{rank}.pt"))
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(part.split(10)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step}", flush=True)
