"""Rank 0 alone evaluates through the DDP module, whose forward broadcasts buffers to ranks that are at the barrier.

Report: pytorch/pytorch#54059
"""

import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@torch.no_grad()
def measure(model, batches: int) -> float:
    model.eval()
    return sum(model(torch.rand(64, 128)).square().mean().item() for _ in range(batches)) / batches


if __name__ == "__main__":
    signal.alarm(600)
    dist.init_process_group("gloo")
    layers = (torch.nn.Linear(128, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(5):
        model.train()
        for step in range(301):
            optimizer.zero_grad()
            model(torch.rand(64, 128)).square().mean().backward()
            optimizer.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}", flush=True)
        if dist.get_rank() == 0:
            print(f"loss {measure(model, 20):.4f}", flush=True)
        dist.barrier()
